"""Tests of the sanitiser and of redaction.

Which secrets are found in a corpus of texts, which harmless texts are left alone, and that nothing found is ever kept.
"""

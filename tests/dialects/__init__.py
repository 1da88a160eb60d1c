"""Tests of the providers' JSON.

Every dialect reads its provider's messages and writes them again unchanged; conversions between dialects name their
losses. No network is needed.
"""

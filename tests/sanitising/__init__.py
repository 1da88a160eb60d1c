"""Tests of the sanitiser and of redaction."""

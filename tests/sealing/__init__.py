"""Tests of encryption, keys and tampering."""

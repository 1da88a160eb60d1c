"""Encryption.

The codec that seals rows and opens them, the primitives below it, key rotation, and the quarantine for rows that fail
their integrity check.
"""

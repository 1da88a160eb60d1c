"""Tests of encryption, keys and tampering.

Published vectors for the primitives, the envelope to the byte, rotation with kills and races, and every way to change a
sealed file, each of which must be noticed.
"""

"""Tests of snapshots and the places where they are kept.

Files, object servers, layouts, sealing, and files that were made to exhaust the reader.
"""

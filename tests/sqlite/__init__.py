"""Tests of the SQLite backend, and of disks that fail."""

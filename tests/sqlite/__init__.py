"""Tests of the SQLite backend, and of disks that fail.

Power cuts on a simulated disk, full disks, frozen files of every released format, and erasure down to the bytes.
"""

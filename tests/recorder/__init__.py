"""Tests of recording and resuming.

Which conversation a request belongs to, answers that break off, kills in the middle of a turn, checkpoints, and the end
of a recording.
"""

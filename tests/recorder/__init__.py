"""Tests of recording and resuming."""

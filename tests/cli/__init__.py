"""Tests of the command line, in real processes."""

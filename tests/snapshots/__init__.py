"""Tests of snapshots and where they are kept."""

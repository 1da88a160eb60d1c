"""Tests of copying stores."""

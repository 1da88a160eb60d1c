"""Tests of full-text search."""

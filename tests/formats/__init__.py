"""Tests of files of conversations."""

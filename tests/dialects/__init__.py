"""Tests of the providers' JSON."""

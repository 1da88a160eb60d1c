"""Tests of the PostgreSQL backend, on a real server."""

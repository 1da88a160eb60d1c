"""Tests of the PostgreSQL backend, on a real server.

Migrations, roles, races, failover, erasure and query plans. They start a server of their own, and are skipped where
PostgreSQL is not installed.
"""

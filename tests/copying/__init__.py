"""Tests of copying stores.

Between all backends, plain and sealed, and with copies that are interrupted and run again.
"""

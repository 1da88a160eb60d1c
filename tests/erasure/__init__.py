"""Tests of retention, purges and maintenance."""

"""Tests of retention, purges and maintenance.

What is due and when, which copies a purge reaches, the maintenance thread, and closing a store while it works.
"""

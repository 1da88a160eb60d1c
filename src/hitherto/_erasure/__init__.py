"""Removing data for good.

Retention sweeps and their schedule, purges, the maintenance thread, and deleting copies in checkpoint stores.
"""

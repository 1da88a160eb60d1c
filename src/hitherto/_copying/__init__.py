"""Copying a store into another one.

Row by row, whatever the two backends are.
"""

"""Tests of rescue.

Finding what programs keep, bringing in what is new, watching, and the command.
"""

"""Tests of recall.

The tools, their server as clients use it, and what is written into the clients' configuration.
"""

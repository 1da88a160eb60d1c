"""Tests of usage.

Counting the tokens of answers, each once, prices as data, and the command.
"""

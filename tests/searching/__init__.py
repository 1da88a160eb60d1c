"""Tests of full-text search.

The language of questions, snippets, feeding the index, and the index of a sealed store, which must show no word.
"""

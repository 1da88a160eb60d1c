"""Tests of files of conversations.

Imports and exports of every format, with files that `support/foreign_files.py` writes without any code of ours.
"""

"""Tests of records.

Participants, summaries, metrics, revisions and retention of single conversations, and damage to what records add.
"""

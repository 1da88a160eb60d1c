"""Tests of a store and its parts.

The contract on every backend, group commit, appends of many threads and processes, attachments, recovery, events,
quotas, wrong input, and the model that the state machine compares with.
"""

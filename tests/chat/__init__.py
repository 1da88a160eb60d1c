"""Tests of the chat clients.

Turns, tools, streams, errors and addresses, through the real SDKs and a provider on loopback (`support/provider.py`).
"""

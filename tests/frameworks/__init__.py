"""Tests of recording beneath agent frameworks.

Each framework runs a chat with a provider on loopback, and its messages must be kept. A framework that is not installed
is skipped; `make frameworks` installs all.
"""

"""Tests of the chat clients."""

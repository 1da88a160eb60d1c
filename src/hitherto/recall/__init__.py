"""Recall: what was said before, for the next agent.

`looking_up` answers questions about a store as short texts, `server` hands them to a client over MCP, and `clients`
writes the configuration of the clients. Everything is read-only: no tool changes a store.
"""

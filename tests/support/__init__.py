"""Programs, servers and fixtures that several tests share.

A provider on loopback, a PostgreSQL cluster, object servers, child processes that write and die, and readers of files
that use no code of ours. No tests are here.
"""

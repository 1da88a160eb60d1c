"""Backends: they store rows, and decide nothing.

`memory` is the reference that is easy to read. `sqlite` is the default, in one file, and `postgres` is for a server.
All pass the suite in `hitherto.testing`. Each is loaded when a store on it is opened.
"""

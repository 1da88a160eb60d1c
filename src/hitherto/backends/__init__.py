"""Backends: one file each, all passing the suite in `hitherto.testing`.

`memory` is the readable reference, `sqlite` the embedded default.
"""

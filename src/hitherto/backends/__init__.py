"""Backends: one file each, all passing the suite in `hitherto.testing`."""

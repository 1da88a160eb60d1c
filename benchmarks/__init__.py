"""How fast it is, as ratios to what SQLite itself can do: `python -m benchmarks`, or `make bench`."""

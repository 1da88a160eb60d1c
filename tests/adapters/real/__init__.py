"""Frameworks as they are, on loopback: `make test-frameworks` runs these tests in the framework's own environment."""

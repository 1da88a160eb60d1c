"""Tests of the adapters for agent frameworks.

Here each adapter runs against a stand-in for its framework: the few names that it takes from there, in `standins`.
`make test-frameworks` installs the frameworks themselves, each in an environment of its own, and runs their own suites.
"""

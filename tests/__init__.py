"""The tests, in the folders of the code: `tests/engine` for `_engine`, `tests/cli` for `cli`, and so on.

At the root are the tests of the whole: the architecture, the documentation, the benchmarks. `support` has what several
tests share, `data` has files and vectors, and `transcripts` what the command line prints.
"""

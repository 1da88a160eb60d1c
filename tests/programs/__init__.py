"""Tests with the programs whose files are rescued: Claude Code, Codex, Gemini CLI and llm.

Each program runs in an empty home and talks to a provider on loopback. `make test-programs` installs them below
`.tools/programs`, at the versions of the Makefile and of `requirements/programs.txt`, and runs these tests. Elsewhere
they are skipped, because a run of a program takes seconds.
"""

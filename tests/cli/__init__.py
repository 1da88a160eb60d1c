"""Tests of the command line, in real processes.

Each command with its options and exit codes, the interactive chat on a terminal, and the transcripts in
`tests/transcripts`, which are compared to the letter.
"""

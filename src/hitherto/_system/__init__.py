"""The process, the files of the user, and the terminal.

Forks and Ctrl+C; threads that async code waits in; files that belong to the user; what the location of a store means;
the configuration file; control characters. Nothing here knows what a conversation is.
"""

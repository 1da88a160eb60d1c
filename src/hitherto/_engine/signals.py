"""Signals inside the engine: a change that was prepared does not fit any more, and is prepared again.

They never reach a caller of the store.
"""


class RowChanged(Exception):  # a signal, no error
    """The row was written to while a change of it was prepared."""


class KeyChanged(Exception):  # a signal, no error
    """The conversation, or the workspace, has another key by now: what was prepared with the old one does not fit."""

"""Snapshots: a conversation as one value, to be put away and taken up again.

A snapshot holds what a client has to know to go on: the provider's own messages, untouched, the system prompt, and
what tools there were. It is a file's worth of JSON that other programs read and write too, byte for byte in the same
form. It is not where conversations live, that is the store: a snapshot is one thread of one, taken at one moment, and
never changes afterwards.

What must not lie in a file is not in it, because there is no field for it: no API key, no handler of a tool.
"""

from ._snapshot import Snapshot, validate_snapshot_id

__all__ = ["Snapshot", "validate_snapshot_id"]

"""Snapshots: a conversation as one value, to be put away and taken up again.

A snapshot holds what a client has to know to go on: the provider's own messages, untouched, the system prompt, and
what tools there were. It is a file's worth of JSON that other programs read and write too, byte for byte in the same
form. It is not where conversations live, that is the store: a snapshot is one thread of one, taken at one moment, and
never changes afterwards.

What must not lie in a file is not in it, because there is no field for it: no API key, no handler of a tool.

`FileStore` and `ObjectStore` keep snapshots in a folder or in a bucket, plain or sealed, and list them.
"""

from ._bucket import WHATEVER, Bucket, Content, Thing
from ._files import DiskFiles, FileSystem, MemoryFiles
from ._snapshot import Snapshot, validate_snapshot_id
from ._stores import FileStore, ObjectStore, SnapshotStore
from ._summaries import Listing, Summary, Unreadable

__all__ = [
    "WHATEVER",
    "Bucket",
    "Content",
    "DiskFiles",
    "FileStore",
    "FileSystem",
    "Listing",
    "MemoryFiles",
    "ObjectStore",
    "Snapshot",
    "SnapshotStore",
    "Summary",
    "Thing",
    "Unreadable",
    "validate_snapshot_id",
]

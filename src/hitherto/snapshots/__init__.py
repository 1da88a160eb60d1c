"""Snapshots: a conversation as one value, which can be saved and continued later.

A snapshot holds the data that a client needs to continue: the provider's own messages, untouched, the system prompt,
and the tools. It is a JSON document that other programs read and write too, byte for byte in the same form.
Conversations live in the store: a snapshot is one thread of one, taken at one moment, and never changes afterwards.

Secrets and code cannot get into a snapshot, because there is no field for them: no API key, no handler of a tool.

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

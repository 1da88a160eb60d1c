"""`.cpeconvo` of the first generation, under a name of its own, so that `save` can write it.

`cpeconvo` reads both generations and tells them apart by their tables: this module never recognises a file.
"""

from .._types import Source
from .cpeconvo import read, write_first

__all__ = ["name", "read", "recognises", "suffixes", "write", "writes"]

name = "cpeconvo_first"
suffixes: tuple[str, ...] = ()
writes = True
write = write_first


def recognises(source: Source) -> str | None:  # noqa: ARG001  # the shape of a format
    """Return None: `cpeconvo` recognises both generations."""
    return None

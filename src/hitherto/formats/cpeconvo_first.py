"""`.cpeconvo` of the first generation, by a name of its own, so that `save` can be asked for it.

Both generations are read by `cpeconvo`, which knows them by their tables: this one never claims a file.
"""

from ._types import Source
from .cpeconvo import read, write_first

__all__ = ["name", "read", "recognises", "suffixes", "write", "writes"]

name = "cpeconvo_first"
suffixes: tuple[str, ...] = ()
writes = True
write = write_first


def recognises(source: Source) -> str | None:  # noqa: ARG001  # the shape of a format
    """Never: `cpeconvo` has said so already."""
    return None

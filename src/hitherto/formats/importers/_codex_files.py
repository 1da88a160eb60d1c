"""The folder in which Codex keeps its rollouts: the files by their ids, the names of threads, and the calls that
started sub-agents.

A rollout that goes on from another one names it by its id, which stands in the name of its file. Such a file is looked
for among those that are imported, then in the rest of Codex's own folder.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import IO

from ...snapshots import Unreadable
from .._files import Files
from .._importer import Line, lines
from .._types import Waiting
from ._fields import Fields, fields, text
from ._zstd import MAGIC, decompressed

_NAME = re.compile(r"rollout-[\dT-]{19}-([0-9a-f-]{36})(?:_([0-9a-f-]{36}))?\.jsonl(?:\.zst)?$")
_FOLDERS = ("sessions", "archived_sessions")
_INDEX = "session_index.jsonl"
_MOST_BASES = 1000  # files that one thread may go on from, one after the other


class CodexFiles:
    """The rollouts of one import."""

    def __init__(self, files: Files, names: Sequence[str]) -> None:
        self.files = files
        self.in_order = sorted(names, key=lambda name: (name.rpartition("/")[2], name))  # names begin with the time
        self.done: set[str] = set()  # files that were given already
        self.spawned: dict[str, str] = {}  # the message with the call that started a sub-agent, by its thread

    def lines(self, name: str) -> Iterator[Line | Unreadable | Waiting]:
        """Yield the lines of a rollout, compressed or not."""
        home = self._home if name in self._around else None
        yield from lines(_Unpacked(home or self.files), name)

    def label(self, name: str) -> str:
        return self.files.label(name)

    def rollout_id(self, name: str) -> str:
        """Return the id of a rollout in the name of its file; "" if the file has another name."""
        found = _NAME.search(name)
        return (found[2] or found[1]) if found else ""

    def title(self, thread: str) -> str:
        """Return the name that a thread was given."""
        return self._titles.get(thread, "")

    def bases(self, meta: Fields) -> tuple[list[tuple[str, int]], tuple[str, int] | None]:
        """Return the files that a rollout goes on from, the earliest first, each with the ordinal where it is left.
        Returns in the second place the one that is missing, if there is one."""
        found: list[tuple[str, int]] = []
        while base := fields(meta.get("history_base")):
            id, end = text(base.get("thread_id")), base.get("end_ordinal_exclusive")
            name = self._by_id.get(id) or self._around_by_id.get(id)
            if name is None or not isinstance(end, int) or len(found) == _MOST_BASES or (name, end) in found:
                return found[::-1], (id, end if isinstance(end, int) else 0)
            found.append((name, end))
            first = next((line for line in self.lines(name) if isinstance(line, Line)), None)
            meta = fields(first.record.get("payload")) if first is not None else {}
        return found[::-1], None

    @cached_property
    def _by_id(self) -> dict[str, str]:
        return {id: name for name in self.files.names() if (id := self.rollout_id(name))}

    @cached_property
    def _home(self) -> Files | None:
        """Codex's own folder, if the files lie in it."""
        root = self.files.root
        above = next((folder for folder in (root, *root.parents) if folder.name in _FOLDERS), None)
        return Files(above.parent) if above is not None and root.is_dir() else None

    @cached_property
    def _around_by_id(self) -> dict[str, str]:
        names = [] if self._home is None else [name for folder in _FOLDERS for name in self._home.names(folder)]
        return {id: name for name in names if (id := self.rollout_id(name))}

    @cached_property
    def _around(self) -> frozenset[str]:
        return frozenset(self._around_by_id.values()) - set(self.in_order)

    @cached_property
    def _titles(self) -> dict[str, str]:
        found: dict[str, str] = {}
        places = [(self.files, name) for name in self.files.names() if name == _INDEX or name.endswith(f"/{_INDEX}")]
        if self._home is not None and _INDEX in self._home:
            places.append((self._home, _INDEX))
        for files, name in places:
            for line in lines(files, name):
                if isinstance(line, Line):
                    found[text(line.record.get("id"))] = text(line.record.get("thread_name"))
        return found


class _Unpacked(Files):
    """The same files, decompressed."""

    def __init__(self, files: Files) -> None:
        super().__init__(files.root)
        self._files = files

    def open(self, name: str) -> IO[bytes]:
        file = self._files.open(name)
        packed = file.read(4) == MAGIC
        file.close()
        again = self._files.open(name)
        return decompressed(again, self._files.size(name)) if packed else again

    def label(self, name: str) -> str:
        return self._files.label(name)

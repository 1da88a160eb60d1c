"""Rescue: the conversations that programs keep on this machine, brought into a store before they are deleted.

    rescue = Rescue(store)
    for place in rescue.places():
        print(place.title, place.folder, place.files, place.size)
        rescue.bring_in(place)

Each program has places where it keeps its files, and variables that move them (`Importer.places`). A file is looked at
again when its size or its time has changed; the store remembers by a hash. What was brought in stays, whatever the
program does with its files, and a folder that is not there now is nothing to act upon.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from hashlib import blake2b
from pathlib import Path

from msgspec import MsgspecError, Struct, msgpack

from ._engine.process import Who, is_gone, this
from ._system.folder_watch import FolderWatch
from .errors import Busy, Closed, Conflict, HithertoError, InvalidArgument, StorageFull
from .formats._continuing import Continued, continue_in
from .formats._files import Files
from .formats._importer import Importer
from .formats._loading import import_into
from .formats._registry import all_formats
from .formats._report import Loaded, Summary
from .model import to_datetime
from .snapshots import Unreadable
from .store import Store

__all__ = ["Continued", "Rescue", "RescuePlace", "continue_in"]

SOON_DAYS = 7
_DAY_US = 86_400_000_000
_SEEN = "imported/seen/"  # items of the workspace: the files of a place, as they were when they were brought in
_WATCHING = "imported/watching/"  # items of the workspace: the process that watches, by machine and home
_PAIR = 16  # bytes: a hash of the name, and one of size and time
_REST, _LONGEST_REST_SECONDS = 9, 20.0  # of following: so many times as long as the work that went before


class _File(Struct, frozen=True):
    name: str
    size: int
    modified_us: int


class RescuePlace(Struct, frozen=True):
    """A folder or file in which a program keeps conversations."""

    program: str  # the name of its format
    title: str  # the program's name for people
    folder: Path
    files: int
    size: int  # bytes
    changed: tuple[str, ...]  # files that are new, or have changed since they were brought in
    going: int = 0  # of these, those that the program will delete within seven days
    first_going: datetime | None = None  # when the first of them is due


class Rescue:
    """The conversations of programs on this machine, and the store that they are brought into."""

    def __init__(
        self,
        store: Store,
        *,
        programs: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        home: Path | None = None,
        since: datetime | None = None,
    ) -> None:
        """`programs` are names of formats; none: all. `since` leaves out files that were not changed since then."""
        store.engine.ensure_open()
        self._store = store
        self._env = os.environ if env is None else env
        self._home = Path.home() if home is None else home
        self._since_us = 0 if since is None else int(since.timestamp() * 1_000_000)
        known = {reader.name: reader for reader in _importers()}
        unknown = [name for name in programs if name not in known]
        if unknown:
            raise InvalidArgument(f"no such program: {unknown[0]!r:.40}", hint=f"known are {', '.join(sorted(known))}")
        self._importers = {name: known[name] for name in programs or sorted(known)}

    def places(self) -> Iterator[RescuePlace]:
        """Yield the places that are there now, with what has changed in them."""
        for reader, folder in self._folders():
            if folder.is_dir() or folder.is_file():
                yield self._look(reader, folder)

    def follow(self) -> Iterator[RescuePlace]:
        """Yield the places in which files are new or have changed, now and whenever there are some. It never ends.

        Bring each in before you ask for the next. A large file that grows is read again each time, so following rests
        after work: it takes a tenth of one processor at most.
        """
        folders = list(self._folders())
        with FolderWatch() as watch:
            touched: set[Path] | None = None  # None: all
            while True:
                started = time.monotonic()
                looked_at = [(reader, folder) for reader, folder in folders if touched is None or folder in touched]
                watch.cover(folder for _, folder in looked_at)
                for reader, folder in looked_at:
                    if (folder.is_dir() or folder.is_file()) and (place := self._look(reader, folder)).changed:
                        yield place
                time.sleep(min(_REST * (time.monotonic() - started), _LONGEST_REST_SECONDS))
                touched = watch.wait()

    def bring_in(
        self,
        place: RescuePlace,
        *,
        dry_run: bool = False,
        even_purged: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> Loaded:
        """Import what has changed in a place. What cannot be read is in the report, and is tried again next time."""
        reader = self._importers[place.program]
        files = _files_at(place.folder)
        there = self._list(files)
        names, unreadable = self._recognised(reader, files, place, there, even_purged=even_purged)
        sum_up = Summary(reader.name, f"{reader.title or reader.name} keeps its files there", dry_run)
        sum_up.unreadable += unreadable
        if names:
            found = reader.read_files(files, names)
            import_into(self._store, found, sum_up, reader.name, progress, even_purged=even_purged)
        report = sum_up.report()
        if not dry_run:
            self._remember(place, files, there, report)
        return report

    @contextmanager
    def watch_alone(self) -> Iterator[None]:
        """Be the one process that watches this home for this store; `Busy` if another one does.

        The store holds the name of the process. One that was killed is known to be gone, and nobody waits for it. Two
        at once would read all files twice, and store nothing twice; so on Windows, where no process can be asked for,
        there may be two.
        """
        items, me = self._store.items, this(self._store.engine.opened)
        name = self._watching(me)
        found = items.get(name)
        if found is not None and not _is_gone(found.value):
            raise _watched_by(found.value)
        try:
            mine = items.put(name, msgpack.encode(me), expect=None if found is None else found.revision)
        except Conflict:  # another process was faster
            found = items.get(name)
            raise _watched_by(b"" if found is None else found.value) from None
        try:
            yield
        finally:
            with suppress(StorageFull, Conflict, Closed):  # then it is seen to be gone, as after a kill
                items.delete(name, expect=mine.revision, missing_ok=True)

    # -- what is there

    def _folders(self) -> Iterator[tuple[Importer, Path]]:
        """Yield the folders and files in which programs may keep conversations, each once."""
        met: set[tuple[str, str]] = set()
        for reader in self._importers.values():
            for folder in reader.places(self._env, self._home):
                name = reader.name, os.path.realpath(folder)
                if name not in met:
                    met.add(name)
                    yield reader, folder

    def _look(self, reader: Importer, folder: Path) -> RescuePlace:
        files = self._list(_files_at(folder))
        seen = self._seen(folder)
        recent = [one for one in files.values() if one.modified_us >= self._since_us]
        changed = [one for one in recent if seen.get(self._hash(one.name)) != self._state(one)]
        going, first = self._going(reader, changed)
        return RescuePlace(
            program=reader.name,
            title=reader.title or reader.name,
            folder=folder,
            files=len(files),
            size=sum(one.size for one in files.values()),
            changed=tuple(one.name for one in changed),
            going=going,
            first_going=first,
        )

    def _going(self, reader: Importer, files: Sequence[_File]) -> tuple[int, datetime | None]:
        """Return how many of these files the program will delete soon, and when the first is due."""
        days = reader.retention_days(self._env, self._home)
        if days is None:
            return 0, None
        limit = int(time.time() * 1_000_000) + SOON_DAYS * _DAY_US
        due = [at for one in files if (at := one.modified_us + days * _DAY_US) <= limit]
        return len(due), to_datetime(min(due)) if due else None

    def _list(self, files: Files) -> dict[str, _File]:
        found: dict[str, _File] = {}
        for name in files.names():
            try:
                found[name] = _File(name, files.size(name), files.modified_us(name))
            except HithertoError:  # it has just been deleted, or is not ours to read: importing says so
                continue
        return found

    def _recognised(
        self, reader: Importer, files: Files, place: RescuePlace, there: Mapping[str, _File], *, even_purged: bool
    ) -> tuple[list[str], list[Unreadable]]:
        """Return the files to read: those that have changed, with all that must be read together with them."""
        units = {reader.unit_of(name) for name in (there if even_purged else place.changed)}
        names: list[str] = []
        unreadable: list[Unreadable] = []
        for name in there:
            unit = reader.unit_of(name)
            if unit in units or any(os.path.dirname(name) == folder for folder in units):
                try:
                    if reader.recognises(files.source(name)) is not None:
                        names.append(name)
                except HithertoError as error:
                    unreadable.append(Unreadable(files.label(name), str(error)))
        return names, unreadable

    # -- what was brought in already

    def _seen(self, folder: Path) -> dict[bytes, bytes]:
        item = self._store.items.get(self._item(folder))
        data = b"" if item is None else item.value
        return {data[at : at + 8]: data[at + 8 : at + _PAIR] for at in range(0, len(data) - _PAIR + 1, _PAIR)}

    def _remember(self, place: RescuePlace, files: Files, there: Mapping[str, _File], report: Loaded) -> None:
        """Remember the files as they were when they were listed, but for those with trouble."""
        seen = self._seen(place.folder)
        before = dict(seen)
        trouble = tuple(one.name for one in report.unreadable)
        for name in place.changed:
            if name in there and not any(one.startswith(files.label(name)) for one in trouble):
                seen[self._hash(name)] = self._state(there[name])
        if seen != before:
            self._store.items[self._item(place.folder)] = b"".join(a + b for a, b in sorted(seen.items()))

    def _item(self, folder: Path) -> str:
        return _SEEN + self._hash(os.path.realpath(folder)).hex()

    def _watching(self, me: Who) -> str:
        # The location is part of it: a copy of the store has the item as well, and is watched by no process.
        location = self._store.engine.backend.info.location
        return _WATCHING + self._hash(f"{me.machine.hex()}/{location}/{os.path.realpath(self._home)}").hex()

    def _state(self, file: _File) -> bytes:
        return self._hash(f"{file.size}/{file.modified_us}")

    def _hash(self, text: str) -> bytes:
        seed = self._store.engine.workspace.meta.seed
        return blake2b(os.fsencode(text), digest_size=8, key=seed[:64], person=b"rescue").digest()


def _is_gone(owner: bytes) -> bool:
    who = _who(owner)
    return who is None or is_gone(who) or os.name != "posix"


def _watched_by(owner: bytes) -> Busy:
    who = _who(owner)
    process = "another process" if who is None else f"process {who.process}"
    hint = "end that process first, or leave out --watch: a single rescue can run beside it"
    return Busy(f"{process} watches for this store already", hint=hint)


def _who(owner: bytes) -> Who | None:
    """Return the owner by what an item says; None if it says nothing that can be read."""
    try:
        return msgpack.decode(owner, type=Who)
    except MsgspecError:
        return None


def _importers() -> Iterator[Importer]:
    for format in all_formats():
        reader: object = format
        if isinstance(reader, Importer):
            yield reader


def _files_at(folder: Path) -> Files:
    return Files(folder) if folder.is_dir() else Files(folder.parent, folder.name)

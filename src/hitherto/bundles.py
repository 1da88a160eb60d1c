"""The conversations of a period as a folder that proves itself: for auditors, courts and archives.

    report = bundles.write(store, "2026-q1", since=january, until=april)
    bundles.check("2026-q1", digest=report.digest)

The folder has files of our own lines, a thousand conversations each, and `manifest.json`: the period, counts, the
version that wrote it, and a SHA-256 of each file and of the manifest itself. `check` names every file that was changed,
is missing or was added. Somebody who changes the manifest too makes digests that fit: keep the digest that `write`
returns elsewhere, and give it to `check`.

A conversation is of a period if it had begun before its end, and its last interaction is not before its start. It comes
whole. One that must not leave its store stays, and is counted; so is one that cannot be read.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import DecodeError, Struct, ValidationError, json
from msgspec.structs import replace

from . import __version__
from .backend import ConversationRow, Where, conversation_kinds
from .errors import Damaged, InvalidArgument, NotExportable, NotFound
from .formats import leaving
from .formats._atomic_file import new_directory
from .formats._registry import path_of
from .formats._types import PortableConversation
from .formats.exports._redaction import redact
from .formats.own import jsonl
from .ids import show_conversation_id
from .listing import conversations
from .model import from_datetime, to_datetime
from .store import Store

if TYPE_CHECKING:
    from .aio import AsyncStore
    from .sanitiser import Sanitiser

__all__ = ["BundleFile", "BundleReport", "Manifest", "check", "write"]

_MANIFEST, _VERSION = "manifest.json", 1
_IN_A_FILE = 1000  # conversations
_PIECE = 1 << 20  # bytes read at once
_MOST = 1 << 26  # bytes of a manifest


class BundleFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A file of a bundle."""

    name: str
    bytes: int
    sha256: str
    conversations: int
    messages: int


class Manifest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a bundle. Its digest covers all of it, and with the files' digests all of them."""

    hitherto: str = "bundle"
    version: int = _VERSION
    tool: str
    workspace: str
    made_at: datetime
    since: datetime
    until: datetime
    redacted: bool
    conversations: int
    messages: int
    kept_in: int  # conversations of the period that must not leave their store
    unreadable: tuple[str, ...]  # ids of those that cannot be read
    files: tuple[BundleFile, ...]
    digest: str = ""

    def compute_digest(self) -> str:
        """Return the SHA-256 of the manifest without its digest."""
        return sha256(json.encode(replace(self, digest=""), order="sorted")).hexdigest()


class BundleReport(Struct, frozen=True):
    """The result of checking a bundle."""

    manifest: Manifest
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems


# -- writing


def write(
    store: "Store | AsyncStore",
    path: str | os.PathLike[str],
    *,
    since: datetime,
    until: datetime,
    sanitiser: "Sanitiser | None" = None,
    progress: Callable[[int], None] | None = None,
) -> Manifest:
    """Write the conversations of a period, since <= time < until, to a new folder. Returns its manifest.

    Every kind is taken, and expired ones. The `sanitiser` takes out what it finds, as an export with `--redact` does.
    One conversation is in memory at a time. `progress` hears how many messages were written. Nothing is left of a
    folder that could not be finished."""
    found = getattr(store, "sync", store)
    if not isinstance(found, Store):
        raise InvalidArgument(f"a {type(store).__name__} where a store is wanted", hint="hitherto.open(…)")
    found.engine.ensure_open()
    start, end = from_datetime(since, "since"), from_datetime(until, "until")
    if start >= end:
        raise InvalidArgument("the period ends before it starts", hint="since is earlier than until")
    writer = _Writer(found, start, end, sanitiser, progress or (lambda _: None))
    with new_directory(path_of(path)) as folder:
        return writer.write(folder)


class _Writer:
    def __init__(
        self, store: Store, start: int, end: int, sanitiser: "Sanitiser | None", progress: Callable[[int], None]
    ) -> None:
        self._store, self._start, self._end, self._progress = store, start, end, progress
        self._redactor = None if sanitiser is None else store.engine.make_redactor(sanitiser)
        self._conversations = self._messages = self._kept_in = 0
        self._unreadable: list[str] = []

    def write(self, folder: Path) -> Manifest:
        talks = self._talks()
        files: list[BundleFile] = []
        while (first := next(talks, None)) is not None:
            files.append(self._write_file(folder / f"conversations-{len(files) + 1:04}.jsonl", first, talks))
        manifest = Manifest(
            tool=f"hitherto {__version__}",
            workspace=self._store.backend.info.workspace_name,
            made_at=to_datetime(self._store.engine.clock()),
            since=to_datetime(self._start),
            until=to_datetime(self._end),
            redacted=self._redactor is not None,
            conversations=self._conversations,
            messages=self._messages,
            kept_in=self._kept_in,
            unreadable=tuple(self._unreadable),
            files=tuple(files),
        )
        manifest = replace(manifest, digest=manifest.compute_digest())
        with (folder / _MANIFEST).open("xb") as file:
            file.write(json.format(json.encode(manifest), indent=1) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        return manifest

    def _write_file(self, path: Path, first: PortableConversation, rest: Iterator[PortableConversation]) -> BundleFile:
        before = self._conversations, self._messages
        jsonl.write(self._counted(first, islice(rest, _IN_A_FILE - 1)), path, None)
        digest, size = _digest(path)
        counts = self._conversations - before[0], self._messages - before[1]
        return BundleFile(path.name, size, digest, *counts)

    def _counted(
        self, first: PortableConversation, rest: Iterable[PortableConversation]
    ) -> Iterator[PortableConversation]:
        for talks in ((first,), rest):
            for talk in talks:
                yield talk
                self._conversations += 1
                self._messages += len(talk.messages)
                self._progress(self._messages)

    def _talks(self) -> Iterator[PortableConversation]:
        for row in self._rows():
            name = show_conversation_id(row.id)
            try:
                talk = next(leaving(self._store.conversation(name)))
                yield talk if self._redactor is None else redact(talk, self._redactor)
            except NotExportable:
                self._kept_in += 1
            except Damaged:
                self._unreadable.append(name)
            except NotFound:  # deleted meanwhile
                continue

    def _rows(self) -> Iterator[ConversationRow]:
        """Yield the rows of the period. The newest first, by last interaction: the rest is older."""
        backend = self._store.backend
        for kind in conversation_kinds(backend):
            for row in conversations(backend, Where(kind), oldest_first=False):
                if row.active_at < self._start:
                    break
                if row.created_at < self._end:
                    yield row


# -- checking


def check(path: str | os.PathLike[str], *, digest: str | None = None) -> BundleReport:
    """Read a bundle again, and name every file that was changed, is missing or was added. `digest` is the one that
    `write` returned; without it, a bundle whose manifest was made anew cannot be told from ours."""
    folder = path_of(path)
    manifest = _read(folder / _MANIFEST)
    problems: list[str] = []
    if manifest.digest != manifest.compute_digest():
        problems.append(f"{_MANIFEST} was changed")
    elif digest is not None and digest.lower() != manifest.digest:
        problems.append(f"the digest is {manifest.digest}, and is not the one that was given")
    there = {entry.name: entry for entry in os.scandir(folder)}
    for file in manifest.files:
        entry = there.pop(file.name, None)
        if entry is None:
            problems.append(f"{file.name} is missing")
        elif not entry.is_file(follow_symlinks=False) or _digest(Path(entry.path)) != (file.sha256, file.bytes):
            problems.append(f"{file.name} was changed")
    problems += [f"{name} was added" for name in sorted(there) if name != _MANIFEST]
    return BundleReport(manifest, tuple(problems))


def _read(path: Path) -> Manifest:
    try:
        with path.open("rb") as file:
            manifest = json.decode(file.read(_MOST), type=Manifest)
    except (FileNotFoundError, NotADirectoryError):
        hint = "a bundle is a folder that hitherto export --manifest wrote"
        raise NotFound("bundle", [str(path.parent)], hint=hint) from None
    except (DecodeError, ValidationError):
        raise Damaged(f"{path} cannot be read: it was cut short or edited", hint="take another copy") from None
    if (manifest.hitherto, manifest.version) != ("bundle", _VERSION):
        raise InvalidArgument(f"{path} is of another format, or of a newer hitherto", hint="update hitherto")
    return manifest


def _digest(path: Path) -> tuple[str, int]:
    """Return the SHA-256 and the size of a file."""
    digest, size = sha256(), 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
            size += len(piece)
    return digest.hexdigest(), size

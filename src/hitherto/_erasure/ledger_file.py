"""A file of the erasure ledger, to be kept beside backups.

Lines of JSON: a header that names the ledger, an entry a line in the order of their ids, and an end that has their
number and a keyed digest of all bytes before it. So a file that was cut short or edited is noticed, and a file of
another workspace is told from both. Nothing can notice that a file is an older one, put back whole: keep the newest.

Writing adds to a file that is there: an entry that the store lacks, because it was restored without a replay, is kept.
"""

import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from errno import EDQUOT, ENOSPC
from hashlib import blake2b
from hmac import compare_digest

from msgspec import DecodeError, Struct, ValidationError, json

from .._engine.bodies import Erasure
from .._system import own_files
from ..accountability import Actor
from ..errors import CannotOpen, Damaged, InvalidArgument, NotFound, StorageError, StorageFull
from ..model import from_datetime, to_datetime

_FORMAT, _VERSION = "erasure ledger", 1
_MOST = 1 << 20  # bytes of a line: a longer one is none of ours


class _Header(Struct, frozen=True, forbid_unknown_fields=True):
    hitherto: str
    version: int
    ledger: str


class _Line(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    id: str
    marks: tuple[str, ...]
    at: datetime
    reason: str
    actor: Actor | None = None


class _End(Struct, frozen=True, forbid_unknown_fields=True):
    entries: int
    digest: str


def write(path: str, key: bytes, entries: Mapping[bytes, Erasure]) -> int:
    """Write the entries to a file of the ledger with this key, and return how many it has then. A file that is there is
    replaced by one with its entries and these. Raises the errors of `read`."""
    known = read(path, key) if os.path.lexists(path) else {}
    together = {id: _joined(known.get(id), one) for id, one in entries.items()}
    every = {**known, **together}
    try:
        own_files.replace_with(path, _encode(key, every))
    except OSError as error:
        kind = StorageFull if error.errno in (ENOSPC, EDQUOT) else StorageError
        raise kind(f"{path} cannot be written: {error.strerror or type(error).__name__}") from None
    return len(every)


def _joined(known: Erasure | None, one: Erasure) -> Erasure:
    if known is None:
        return one
    newer = max(known, one, key=lambda erasure: erasure.at)
    return Erasure(tuple(dict.fromkeys((*known.marks, *one.marks))), newer.at, newer.reason, newer.actor)


def _encode(key: bytes, entries: Mapping[bytes, Erasure]) -> bytes:
    lines: list[object] = [_Header(_FORMAT, _VERSION, _name(key))]
    for id, one in sorted(entries.items()):
        lines.append(_Line(id.hex(), tuple(m.hex() for m in one.marks), to_datetime(one.at), one.reason, one.actor))
    data = b"".join(json.encode(line) + b"\n" for line in lines)
    return data + json.encode(_End(len(entries), _digest(key, [data]))) + b"\n"


def read(path: str, key: bytes) -> dict[bytes, Erasure]:
    """Return the entries of a file. `Damaged` if it was cut short or edited, `InvalidArgument` if it is of another
    workspace or no file of a ledger, `NotFound` if there is none."""
    start, _, rest = _bytes_of(path).partition(b"\n")
    if _header_of(path, start).ledger != _name(key):
        hint = "give the file that belongs to this workspace, a backup or a copy of it"
        raise InvalidArgument(f"{path} is the erasure ledger of another workspace", hint=hint)
    *lines, last = rest.splitlines(keepends=True) or [b""]
    try:
        end = json.decode(last, type=_End)
        if not compare_digest(end.digest, _digest(key, [start, b"\n", *lines])) or end.entries != len(lines):
            raise ValueError
        return dict(_decode(line) for line in lines)
    except (DecodeError, ValidationError, ValueError):
        hint = "nothing was erased by it; take another copy of the file"
        raise Damaged(f"{path} was cut short or edited", hint=hint) from None


def of_another(path: str, key: bytes) -> bool:
    """Return True if a file is of the ledger of another workspace. Raises the other errors of `read`."""
    return _header_of(path, _bytes_of(path).partition(b"\n")[0]).ledger != _name(key)


def _header_of(path: str, start: bytes) -> _Header:
    try:
        header = json.decode(start[:_MOST], type=_Header)
    except (DecodeError, ValidationError):
        header = None
    if header is None or header.hitherto != _FORMAT:
        raise InvalidArgument(f"{path} is not a file of an erasure ledger")
    if header.version != _VERSION:
        raise InvalidArgument(f"{path} is of a newer hitherto", hint="update hitherto")
    return header


def _decode(data: bytes) -> tuple[bytes, Erasure]:
    line = json.decode(data, type=_Line)
    marks = tuple(bytes.fromhex(mark) for mark in line.marks)
    return bytes.fromhex(line.id), Erasure(marks, from_datetime(line.at.astimezone(UTC), "at"), line.reason, line.actor)


def _bytes_of(path: str) -> bytes:
    try:
        with own_files.open_descriptor(path) as descriptor, open(descriptor, "rb", closefd=False) as file:
            return file.read()
    except FileNotFoundError:
        raise NotFound("erasure ledger", [path]) from None
    except OSError as error:
        raise CannotOpen(f"{path} cannot be read: {error.strerror or type(error).__name__}") from None


def _name(key: bytes) -> str:
    return blake2b(b"", digest_size=16, key=key, person=b"ledger name").hexdigest()


def _digest(key: bytes, pieces: Iterable[bytes]) -> str:
    digest = blake2b(digest_size=32, key=key, person=b"ledger file")
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()

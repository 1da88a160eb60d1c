"""The erasure ledger of a store, and files of it that are kept beside backups.

    erasures.keep(store, "chats.erasures")       # after a purge, and with each backup
    erasures.replay(restored, "chats.erasures")  # purges again what came back with the backup

The ledger is in the store (`_erasure.ledger`), and a backup has it as of its time. A file of it can be newer than every
backup. It holds keyed hashes, times, reasons and actors, and no content.
"""

import os
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from ._erasure import ledger, ledger_file, replaying
from .accountability import Actor
from .errors import InvalidArgument
from .model import to_datetime
from .store import Store

if TYPE_CHECKING:
    from .aio import AsyncStore
    from .reports import Replay

__all__ = ["Entry", "entries", "keep", "replay"]

_Path = str | os.PathLike[str]


class Entry(Struct, frozen=True):
    """An entry of the ledger."""

    id: str  # a keyed hash of the id of the conversation
    at: datetime  # when it was purged last
    reason: str
    actor: Actor | None = None


def entries(store: "Store | AsyncStore") -> Iterator[Entry]:
    """Yield the entries of a store's ledger, in the order of the purges as far as they are known here."""
    for id, one in replaying.all_entries(_sync(store).engine):
        yield Entry(id.hex(), to_datetime(one.at), one.reason, one.actor)


def keep(store: "Store | AsyncStore", path: _Path) -> int:
    """Write the ledger of a store to a file. Returns the number of its entries.

    A file of the same ledger is brought up to date: what it has stays in it. `InvalidArgument` for a file that is
    another one, `Damaged` for one that was cut short or edited."""
    engine = _sync(store).engine
    return ledger_file.write(_name(path), ledger.ledger_key(engine), dict(replaying.all_entries(engine)))


def replay(store: "Store | AsyncStore", path: _Path, *, progress: Callable[[int, int], None] | None = None) -> "Replay":
    """Take the entries of a file into the ledger of a store, and purge the conversations in it that came back, on hold
    or not. One that was brought back on purpose, under the id of one that was erased, stays.

    The store is one of the same workspace: restored from a backup, or copied by rows. A file that was cut short
    or edited is `Damaged`, one of another workspace `InvalidArgument`; nothing is purged then. A replay that was killed
    is finished by the next process that opens the store, or by the same call."""
    engine = _sync(store).engine
    found = ledger_file.read(_name(path), ledger.ledger_key(engine))
    return replaying.replay(engine, found, progress)


def _sync(store: "Store | AsyncStore") -> Store:
    found = getattr(store, "sync", store)
    if not isinstance(found, Store):
        raise InvalidArgument(f"a {type(store).__name__} where a store is wanted", hint="hitherto.open(…)")
    found.engine.ensure_open()
    return found


def _name(path: _Path) -> str:
    name = os.fspath(path)
    if not isinstance(name, str) or not name:
        raise InvalidArgument("the erasure ledger is kept in a file, and needs a path")
    return os.path.expanduser(name)

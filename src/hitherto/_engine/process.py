"""Names of processes in a store, by which another process can tell whether they are still there.

A process is known by its machine, its number, and when it began, because numbers are used again; and within a process
each opened store has a token. Of a process on this machine it can be told whether it is there. A process
on another machine counts as there.
"""

import os
import platform
from weakref import WeakKeyDictionary

from msgspec import Struct

from ..ids import new_token


class Opened:
    """A store as it is opened in this process."""

    is_closed = False


_tokens: WeakKeyDictionary[Opened, bytes] = WeakKeyDictionary()


class Who(Struct, frozen=True, array_like=True):
    """A store that was opened by a process."""

    machine: bytes  # a digest of its name
    process: int
    began: str  # when, as the system counts; empty where that is not known
    store: bytes


def this(store: Opened) -> Who:
    """Return the name of the store as it is opened here. A forked child has another name."""
    process = os.getpid()
    return Who(_machine(), process, _began(process), _tokens.setdefault(store, new_token()))


def is_gone(who: Who) -> bool:
    """Return True if it is known to be gone."""
    if who.machine != _machine() or os.name != "posix":  # elsewhere, asking for a process may end it
        return False
    if who.process == os.getpid():
        return all(token != who.store or store.is_closed for store, token in list(_tokens.items()))
    try:
        os.kill(who.process, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # it is there, and belongs to another user
        pass
    return _began(who.process) != who.began


def _machine() -> bytes:
    from hashlib import blake2b  # noqa: PLC0415  # it loads OpenSSL

    return blake2b(platform.node().encode(errors="replace"), digest_size=8).digest()


def _began(process: int) -> str:
    """Return when a process began, from `/proc`: a line in which the name, in brackets, may hold anything."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as told:
            fields = told.read().rpartition(")")[2].split()
            return "" if fields[0] in ("Z", "X") else fields[19]  # it has ended, and its parent has not asked yet
    except (OSError, IndexError):
        return ""

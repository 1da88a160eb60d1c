"""On whose behalf a program destroys, sweeps and changes keys or rules, and why.

    with hitherto.acting("dpo@acme.example", why="request 4711"):
        store.purge_matching(participant="ada", reason="user-requested")

Everything of that kind that is called in the block carries both in its report, its events and the erasure ledger. They
follow a task of asyncio into the threads of a store. A sweep that a store does by itself is on behalf of nobody.

Neither is redacted, because a report without its author is none: name no person whose data was erased.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from msgspec import Struct

from .errors import InvalidArgument

__all__ = ["Actor", "acting"]

_LONGEST = 500  # characters


class Actor(Struct, frozen=True, omit_defaults=True):
    """The person or program that asked for something, and why."""

    name: str
    why: str = ""
    override_floor: bool = False  # what is younger than the retention floor is destroyed, too

    def __str__(self) -> str:
        return f"{self.name}: {self.why}" if self.why else self.name


_current: ContextVar[Actor | None] = ContextVar("hitherto actor", default=None)


@contextmanager
def acting(name: str, *, why: str = "", override_floor: bool = False) -> Iterator[Actor]:
    """Do what is called in the block on behalf of this person or program, for this reason.

    With `override_floor`, purges destroy what is younger than the retention floor, too. That takes a reason."""
    if override_floor and not why:
        raise InvalidArgument("the retention floor is overridden for a reason", hint="acting(name, why=…)")
    reason = _check(why, "the reason of an actor") if why != "" else ""
    actor = Actor(_check(name, "the name of an actor"), reason, override_floor)
    token = _current.set(actor)
    try:
        yield actor
    finally:
        _current.reset(token)


def current() -> Actor | None:
    """Return on whose behalf this is called; None if nobody said."""
    return _current.get()


def _check(text: object, what: str) -> str:
    if not isinstance(text, str) or not 0 < len(text) <= _LONGEST or not text.isprintable():
        raise InvalidArgument(f"{what} is one line of up to {_LONGEST} printable characters, and not empty")
    return text

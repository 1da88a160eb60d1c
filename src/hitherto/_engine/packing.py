"""Making packs: the messages of a run become one body, behind the append path.

A pack is built from what was read, and committed only if the conversation has not been rewritten, re-keyed or packed by
another process since. Otherwise nothing is written, and maintenance tries again.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from .._sealing.codec import next_row
from ..backend import Change, ConversationRow, MessageRow, PackRow
from ..errors import Damaged, NotFound
from ..events import warn
from ..ids import RUN
from .bodies import LARGEST_PACK, PackedRaw, close_pack, pack_message
from .packs import Reader
from .retry import MAX_LONG_ATTEMPTS, retry
from .signals import RowChanged

if TYPE_CHECKING:
    from .engine import Engine
    from .state import ConversationState


class _Built(Struct, frozen=True):
    """A pack that is ready, and what it replaces."""

    pack: PackRow
    old: tuple[PackRow, ...]
    rows: tuple[MessageRow, ...]  # that had bodies of their own


def pack(engine: "Engine", conversation: bytes, runs: Sequence[int]) -> int:
    """Pack these runs of a conversation; return how many were packed."""

    def attempt() -> int:
        state = engine.state_of(engine.read_row(conversation))
        with state.rewrite_lock:
            once = _Once(engine, state)  # before we read: what is changed or packed later will show in it
            if not once.envelope.settled:  # the process that re-encrypts it goes through its messages as they are
                return 0
            once.built = [found for run in runs if (found := _attempt(engine, once, run)) is not None]
            if once.built and not state.commit(once):
                raise RowChanged
            return len(once.built)

    with suppress(NotFound, Damaged, RowChanged):  # purged; in quarantine; or others write without a pause
        return retry(attempt, most=MAX_LONG_ATTEMPTS)
    return 0


class _Once:
    """Prepares the change that packs, once. If it has to be prepared again, another writer was faster, or the outcome
    is unknown: then the content that was read may be stale, and nothing is written."""

    def __init__(self, engine: "Engine", state: "ConversationState") -> None:
        self._engine, self._state = engine, state
        with state.lock:  # of one moment
            self.row, self.envelope = state.row, state.envelope
            self._seen = _shape_of(state.row), state.packings
        self._used = False
        self.built: Sequence[_Built] = ()

    def __call__(self, row: ConversationRow) -> tuple[Change | None, bool]:
        if self._used or (_shape_of(row), self._state.packings) != self._seen:
            return None, False
        if row.token != self.row.token and self._packed_by_others():
            return None, False
        self._used = True
        self._state.packings += 1
        came: list[MessageRow | PackRow] = []
        went: list[MessageRow | PackRow] = []
        for built in self.built:
            came += [built.pack, *(replace(m, body=None) for m in built.rows)]
            went += [*built.old, *built.rows]
        # The version stays: a reader cannot tell that anything happened.
        after = next_row(self.envelope, row, came, went, version=row.version)
        return Change(row.id, row.token, after, pack=tuple(built.pack for built in self.built)), True

    def _packed_by_others(self) -> bool:
        """Return True if the packs of these runs have changed since they were read."""
        now = {pack.first: pack for pack in self._engine.backend.packs([built.pack.first for built in self.built])}
        return now != {pack.first: pack for built in self.built for pack in built.old}


def _shape_of(row: ConversationRow) -> tuple[object, ...]:
    """Return the fields that stand still while the messages are the same, and under the same key. The generation has to
    be looked at as well as the keys: a conversation that was sealed and is plain again has no keys, as before."""
    return row.data_key, row.generation, row.rewrites


def _attempt(engine: "Engine", once: _Once, run: int) -> _Built | None:
    """The pack of a run, or None if there is nothing to do: a full or damaged one need not be looked at again."""
    try:
        built = _build(engine, once, run)
    except Damaged as error:
        if engine.read_row(once.row.id).token != once.row.token:
            return None  # its key is another one by now, say: another time
        warn(f"a run cannot be packed, verify() tells more: {error}")
        engine.settled_runs.add(run)
        return None
    if built is None and engine.backend.messages(numbers=[run + RUN - 1], bodies=False):  # full: nothing more can come
        engine.settled_runs.add(run)
    return built


def _build(engine: "Engine", once: _Once, run: int) -> _Built | None:
    """The pack of a run as it is now: its messages from the first on, as far as they are not too large together."""
    rows = sorted(engine.backend.messages(numbers=range(run, run + RUN)), key=lambda m: m.number)
    if not rows or rows[0].number != run or rows[0].conversation != once.row.id:
        return None
    old = tuple(engine.backend.packs([run]))  # before their content: a later one shows when it is committed
    reader = Reader(engine)
    messages: list[PackedRaw] = []
    loose: list[MessageRow] = []
    total = 0
    for n, m in enumerate(rows):
        total += m.size
        if m.number != run + n or (total > LARGEST_PACK and messages):
            break
        row, data = reader.content(once.envelope, m)
        if row.body is not None:
            loose.append(row)
        messages.append(pack_message(row, data))
    if not loose:
        return None
    like = PackRow(run, once.row.id, rows[0].parent, 0, b"")
    return _Built(close_pack(once.envelope, like, messages), old, tuple(loose))

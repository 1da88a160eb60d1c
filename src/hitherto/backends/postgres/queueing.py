"""Commits that queue for contested rows instead of racing for them.

A batch is first tried as it is: one statement, if no other writer was faster (`writing`, the short way). If a row has
moved, the batch enters the server's own queue for that row: `SELECT … FOR NO KEY UPDATE`. The thread that gets the lock
prepares the batch again from the row (`rebase`) and commits on the same connection. So a race is lost at most once, and
the server serves waiting writers in order. A row that had moved the last time is locked first.

**No deadlock.** All rows are locked in one statement, in the order of their ids, as in every other commit. `rebase`
reads through the connection that holds the locks: a second connection might not be free before the first one is.

**A batch that was committed without locks is never written again.** Its outcome is noted before the rest queues. If the
rest then fails, the outcome of all is unknown, with the error of the rest as the reason, and the store looks.
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from psycopg import errors

from ...backend import DONE, Batch, ConversationRow, Outcome, Rebase, Stale
from ...errors import CommitUnknown, HithertoError
from .connection import Connection, roll_back
from .error_mapping import LostRaceError
from .rows import conversation

if TYPE_CHECKING:
    from .writing import Writer

_PATIENCE = 4  # commits that lock first after a row had moved, if it does not move again
_REMEMBERED = 4096  # conversations
_SHORTER = 0.9  # of the timeout: if less is left, the lock timeout of the server is set


class Contested:
    """The conversations that had moved when this process wrote to them last."""

    def __init__(self) -> None:
        self._left: dict[bytes, int] = {}

    def __contains__(self, conversation: bytes) -> bool:
        return conversation in self._left

    def note(self, conversation: bytes, *, has_moved: bool) -> None:
        """Record whether the locked row had moved."""
        left = _PATIENCE if has_moved else self._left.get(conversation, 1) - 1
        if left <= 0:
            self._left.pop(conversation, None)
            return
        if len(self._left) >= _REMEMBERED:
            self._left.clear()
        self._left[conversation] = left


class QueuedCommit:
    """One commit of some batches, which `Bound.do` retries."""

    def __init__(self, writer: "Writer", batches: Sequence[Batch], rebase: Rebase) -> None:
        self._writer, self._bound, self._rebase = writer, writer.bound, rebase
        self._batches = list(batches)  # as they were prepared last
        self._outcomes: list[Outcome | None] = [None] * len(batches)
        self._is_careful = not writer.short_way  # a name was taken: check each batch before it is applied
        self._tries_first = writer.short_way and all(map(self._may_try, batches)) and _are_chains(batches)
        self._deadline = time.monotonic() + writer.bound.timeout_seconds

    def run(self) -> list[Outcome]:
        try:
            return self._bound.do(self._work, bound=True)
        except CommitUnknown:
            raise
        except Exception as error:
            if not any(self._outcomes):
                raise
            reason = error if isinstance(error, HithertoError) else None
            raise CommitUnknown("a part of the commit was kept, and another failed", reason=reason) from error

    def _may_try(self, batch: Batch) -> bool:
        return self._writer.is_short(batch) and batch.changes[0].conversation not in self._writer.contested

    def _work(self, connection: Connection) -> list[Outcome]:
        if self._tries_first:
            self._try(connection)
        if None in self._outcomes:
            self._queue(connection)
        return [outcome for outcome in self._outcomes if outcome is not None]

    def _try(self, connection: Connection) -> None:
        """Commit all batches whose rows have not moved."""
        try:
            changed = self._writer.append_all(connection, self._batches)
        except errors.UniqueViolation:
            self._is_careful = True
        else:
            self._outcomes = [DONE if count else None for count in changed]
        self._tries_first = False

    def _queue(self, connection: Connection) -> None:
        """Lock the rows, prepare stale batches again, and commit all that are left."""
        left = [n for n, outcome in enumerate(self._outcomes) if outcome is None]
        try:
            rows = self._lock(connection, left)
            self._make_anew(connection, left, rows)
            outcomes = self._apply(connection, left, rows)
        except Exception as error:
            self._is_careful |= isinstance(error, errors.UniqueViolation | LostRaceError)
            roll_back(connection)
            raise
        for n, outcome in zip(left, outcomes, strict=True):
            self._outcomes[n] = outcome

    def _lock(self, connection: Connection, left: Sequence[int]) -> dict[bytes, ConversationRow]:
        """Lock the rows in one round trip, and return them when all are locked."""
        seconds = self._deadline - time.monotonic()
        with connection.pipeline():
            self._bound.begin(connection)
            if seconds < _SHORTER * self._bound.timeout_seconds:
                self._bound.shorten(connection, seconds)
            locked = self._writer.lock_rows(connection, [self._batches[n] for n in left])
        return {row[0]: conversation(row) for cursor in locked for row in cursor.fetchall()}

    def _make_anew(self, connection: Connection, left: Sequence[int], rows: dict[bytes, ConversationRow]) -> None:
        of: dict[bytes, list[int]] = {}
        for n in left:
            if len(self._batches[n].changes) == 1:
                of.setdefault(self._batches[n].changes[0].conversation, []).append(n)
        for id, places in of.items():
            row = rows.get(id)
            stale = [] if row is None else self._stale(row.token, places)
            self._writer.contested.note(id, has_moved=bool(stale))
            if row is None or not stale:
                continue
            with self._bound.through(connection):
                made = self._rebase(row, stale)
            for n, batch in zip(stale, made, strict=True):
                self._batches[n] = batch or self._batches[n]

    def _stale(self, token: bytes, places: Sequence[int]) -> list[int]:
        """Return the first batch that expects another token, and all later ones: they were prepared from its row."""
        for at, n in enumerate(places):
            (change,) = self._batches[n].changes
            if change.expect is None or change.row is None:
                return []
            if change.expect != token:
                return list(places[at:])
            token = change.row.token
        return []

    def _apply(self, connection: Connection, left: Sequence[int], rows: dict[bytes, ConversationRow]) -> list[Outcome]:
        """Apply the batches. Those of the short way are sent together with the COMMIT, in one round trip."""
        writer, outcomes, together = self._writer, list[Outcome](), list[Batch]()
        for n in left:
            batch = self._batches[n]
            if self._is_careful or not writer.is_short(batch):
                self._send(connection, together)
                together = []
                outcomes.append(writer.commit_one(connection, batch, rows))
                continue
            change = batch.changes[0]
            row = rows.get(change.conversation)
            if row is None or change.row is None or row.token != change.expect:
                outcomes.append(Stale(change.conversation, row))
            else:
                outcomes.append(DONE)
                together.append(batch)
                rows[change.conversation] = change.row
        self._end(connection, outcomes, together)
        return outcomes

    def _send(self, connection: Connection, batches: Sequence[Batch]) -> None:
        if batches:
            with connection.pipeline():
                for batch in batches:
                    self._writer.append(connection, batch)

    def _end(self, connection: Connection, outcomes: Sequence[Outcome], together: Sequence[Batch]) -> None:
        if DONE not in outcomes:
            connection.execute("ROLLBACK")
        elif not together:
            self._writer.finish(connection)
        else:
            with self._writer.committing(connection):
                with connection.pipeline():
                    cursors = [self._writer.append(connection, batch) for batch in together]
                    connection.execute("COMMIT")
                if not all(cursor.fetchall() for cursor in cursors):
                    raise CommitUnknown("a row that was locked did not change")


def _are_chains(batches: Sequence[Batch]) -> bool:
    """Tell whether each batch of a conversation follows from the one before it.

    Otherwise a later one could be committed before an earlier one, which has to queue."""
    tokens: dict[bytes, bytes] = {}
    for batch in batches:
        change = batch.changes[0]
        if change.row is None or tokens.get(change.conversation, change.expect) != change.expect:
            return False
        tokens[change.conversation] = change.row.token
    return True

"""Sweeping: retention, done.

The policy is a part of the workspace's description, sealed and proven with it, so every process that has the store open
goes by the same one. A sweep makes a plan from all rows, then takes what is due, a few conversations in one commit.
Each is looked at again in the state in which it is destroyed: a commit that others were faster than is not made, and
prepared anew. So whoever says a word, or puts a hold on a conversation, before that commit keeps it.

What a sweep that was killed left over is due still, and goes with the next.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from msgspec.structs import replace

from .backend import Batch, Change, ConversationRow, Done, Where
from .errors import Busy, Closed, Damaged, HithertoError, InvalidArgument, NotFound, ReadOnly
from .ids import parse_conversation_id, show_conversation_id
from .listing import conversations
from .model import to_datetime
from .retention import Candidate, RetentionPolicy, SweepPlan, SweepReport, decide, plan

if TYPE_CHECKING:
    from .store import Store

_AT_ONCE = 16  # conversations purged in one commit: others wait for it
_TRIES = 1000
_WORDS_SECONDS = 1.0  # to wait for words to leave the search index; maintenance does the rest


# -- the policy


def policy_of(store: "Store") -> RetentionPolicy | None:
    """The policy of the workspace, as it stands now."""
    store._workspace.refresh()
    days = store._workspace.meta.retention_days
    try:
        return RetentionPolicy(days) if days else None
    except InvalidArgument:
        raise Damaged(f"a retention of {days} days was never set", hint="set_retention sets another") from None


def set_policy(store: "Store", policy: RetentionPolicy | None) -> None:
    """Set the policy of the workspace, in one commit; nothing is written if it is the same."""
    days = 0 if policy is None else _checked(policy).days
    store._workspace.describe(lambda meta: replace(meta, retention_days=days))


def _checked(policy: RetentionPolicy) -> RetentionPolicy:
    if not isinstance(policy, RetentionPolicy):
        raise InvalidArgument(f"a policy is a RetentionPolicy, not a {type(policy).__name__}")
    return policy


# -- the plan


def plan_sweep(store: "Store", policy: RetentionPolicy | None, now: datetime | None) -> SweepPlan:
    """What a sweep would do now. Reads the row of every conversation, a page at a time."""
    policy = policy_of(store) if policy is None else _checked(policy)
    return plan(_candidates(store), policy, to_datetime(store._clock()) if now is None else now)


def _candidates(store: "Store") -> Iterator[Candidate]:
    for row in conversations(store.backend, Where(), oldest_first=True):
        if store._codec.in_clear:
            sound = None if store._quarantine.has(row.id) else row
        else:
            found = store._sound(row)
            sound = None if found is None else found.row
        yield Candidate(show_conversation_id(row.id), None) if sound is None else _candidate(sound)


def _candidate(row: ConversationRow) -> Candidate:
    """What a row says of a conversation."""
    name = show_conversation_id(row.id)
    try:
        expires_at = None if row.expires_at is None else to_datetime(row.expires_at)
        return Candidate(name, to_datetime(row.active_at), expires_at, bool(row.held))
    except Damaged:
        return Candidate(name, None)


# -- the sweep


def carry_out(store: "Store", found: SweepPlan, progress: Callable[[int, int], None] | None) -> SweepReport:
    """Purge what goes by this plan, as far as it is due still: nothing else."""
    started = to_datetime(store._clock())
    job = _Sweep(store, found)
    job.run(progress or (lambda _, __: None))
    scrubbed = True
    if job.swept:
        forgotten = store._search.forget(_WORDS_SECONDS)
        scrubbed = store.backend.scrub() and forgotten
    return SweepReport(
        found.policy,
        started,
        to_datetime(store._clock()),
        tuple(job.swept),
        tuple(job.skipped.items()),
        tuple(job.failures.items()),
        not scrubbed,
    )


class _Sweep:
    """One pass over what is due by a plan."""

    def __init__(self, store: "Store", found: SweepPlan) -> None:
        self._store, self._policy, self._now = store, found.policy, found.now
        self._due = [parse_conversation_id(item.conversation) for item in found.purges]
        self.swept: list[str] = []
        self.skipped = {item.conversation: str(item.reason) for item in found.held}
        self.failures: dict[str, str] = {}

    def run(self, progress: Callable[[int, int], None]) -> None:
        total = len(self._due)
        for start in range(0, total, _AT_ONCE):
            progress(start, total)
            self._take(self._due[start : start + _AT_ONCE])
        progress(total, total)

    def _take(self, ids: Sequence[bytes]) -> None:
        """Purge these, as far as they are due; what cannot be purged together, one by one."""
        try:
            gone = self._purge(ids)
        except (Closed, ReadOnly):  # nothing can be purged at all
            raise
        except HithertoError as error:
            if len(ids) == 1:
                self.failures[show_conversation_id(ids[0])] = str(error)
            for id in ids if len(ids) > 1 else ():
                self._take([id])
            return
        for row in gone:
            self.swept.append(show_conversation_id(row.id))
            self.skipped.pop(self.swept[-1], None)
            self._store._gone(row)

    def _purge(self, ids: Sequence[bytes]) -> list[ConversationRow]:
        """What was purged of these."""
        for _ in range(_TRIES):
            doomed = [row for id in ids if (row := self._still_due(id)) is not None]
            changes = tuple(Change(row.id, row.token, None) for row in doomed)
            if not changes or isinstance(self._store._pen.write(Batch(changes), always=True), Done):
                return doomed
        raise Busy("the conversations change faster than this sweep can be prepared")

    def _still_due(self, id: bytes) -> ConversationRow | None:
        """The conversation as it is now, if it is due as it is: proven, because a hold may have been taken off by
        somebody who has no key."""
        name = show_conversation_id(id)
        try:
            row = self._store._fresh_row(id)
            self._store._steady(row, self._store._checked)
        except NotFound:
            self.skipped[name] = "gone"
            return None
        again = decide(_candidate(row), self._policy, self._now)
        if again.action == "purge":
            return row
        self.skipped[name] = again.reason
        return None

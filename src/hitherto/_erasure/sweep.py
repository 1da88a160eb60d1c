"""Sweeps: purge the conversations that are due by the retention policy.

The policy is part of the workspace's description, sealed and proven with it, so all processes that have the store open
use the same one. A sweep that a user requests makes a plan from all rows, and purges by that plan. An automatic sweep
(see `schedule`) makes no plan: inactive conversations are neighbours in the listing by last activity, so it reads only
these.

Each conversation is checked again in the state in which it is destroyed. Several are purged in one commit; if one of
them changes before the commit, the commit is prepared anew. So a new message, a hold or the start of a recording before
the commit keeps a conversation, and a policy change before the commit ends the sweep.

An error in one conversation, such as damage, does not stop the sweep. An error that would hit all of them, such as a
lock held by another program or a failing disk, ends it: the others would only wait for the same.

Conversations that a killed sweep did not reach are still due, and the next sweep purges them.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import datetime
from typing import TYPE_CHECKING

from msgspec.structs import replace

from .._engine.bodies import WorkspaceMeta, open_meta
from .._engine.committer import report_deletion
from .._engine.floor import check_order, is_below_floor
from .._engine.recovery import MARK_KEY, PARTIAL_PREFIX, open_mark, open_partial
from .._engine.retry import retry
from .._engine.signals import RowChanged
from ..attachment import CHUNK
from ..backend import (
    INTERNAL_KINDS,
    Batch,
    Change,
    ConversationRow,
    Done,
    Lifetime,
    Position,
    Stale,
    Where,
    conversation_kinds,
)
from ..errors import (
    Closed,
    CommitUnknown,
    Damaged,
    HithertoError,
    InvalidArgument,
    KeyUnavailable,
    NotFound,
    ReadOnly,
    StorageError,
    StorageFull,
)
from ..events import SweepFinished, as_failures
from ..ids import parse_conversation_id, show_conversation_id
from ..listing import conversations, pages
from ..model import from_datetime, to_datetime
from ..retention import Candidate, RetentionPolicy, SweepPlan, SweepReport, decide, plan
from .checkpoint_copies import note, reach
from .ledger import changes
from .purge import Purge

if TYPE_CHECKING:
    from .._engine.engine import Engine

_AT_ONCE = 64  # conversations checked together, and purged in one commit
_MESSAGES = 2000  # purged in one commit (or one conversation's, if more): other writers wait for it
_BYTES = 16 << 20  # the same, with attachments: purged bytes are overwritten
_WORDS_SECONDS = 1.0  # to wait for words to leave the search index; maintenance does the rest
_DAY = 86_400 * 1_000_000  # microseconds
_ON_ITS_WAY = 300 * 1_000_000  # microseconds: a partial answer this recent is still being recorded
_THOUGHT_OVER = 3600 * 1_000_000  # the longest time for which a model may think before an answer begins
_DUE_BUT = ("held", "floor", "being-recorded")
_UNDATED = 1000  # conversations whose first sighting is remembered
_LATE_SECONDS = 60.0  # smaller differences between clocks are not reported; as in `schedule`

May = Callable[[], bool]
Turn = Callable[[], AbstractContextManager[object]]
_Progress = Callable[[int, int], None]
_Copies = dict[bytes, tuple[str, ...]]
_Require = tuple[tuple[bytes, bytes], ...]


# -- the policy


def policy_of(engine: "Engine") -> RetentionPolicy | None:
    """Read the current policy of the workspace."""
    engine.workspace.refresh()
    engine.workspace.check_policy()
    return as_policy(engine.workspace.meta.retention_days)


def as_policy(days: int) -> RetentionPolicy | None:
    try:
        return RetentionPolicy(days) if days else None
    except InvalidArgument:
        raise Damaged(f"a retention of {days} days was never set", hint="set_retention sets another") from None


def set_policy(engine: "Engine", policy: RetentionPolicy | None) -> bool:
    """Set the policy of the workspace, in one commit. Writes nothing if it is the same. Returns True if the new policy
    is stricter: there was none before, or one of more days."""
    days = _days(None if policy is None else _check_policy(policy))
    before = [0]

    def make(meta: WorkspaceMeta) -> WorkspaceMeta:
        before[0] = meta.retention_days
        check_order(days, meta.floor_days)
        return replace(engine.schedule.add_clocks(meta) if days else meta, retention_days=days)

    engine.workspace.describe(make)
    engine.workspace.accept_policy()
    return bool(days) and (not before[0] or days < before[0])


def _days(policy: RetentionPolicy | None) -> int:
    return 0 if policy is None else policy.days


def _check_policy(policy: RetentionPolicy) -> RetentionPolicy:
    if not isinstance(policy, RetentionPolicy):
        raise InvalidArgument(f"a policy is a RetentionPolicy, not a {type(policy).__name__}")
    return policy


# -- the plan


def plan_sweep(
    engine: "Engine", policy: RetentionPolicy | None, now: datetime | None, *, check_recordings: bool = True
) -> SweepPlan:
    """Plan a sweep. Reads the lifetime of every conversation. Without `check_recordings` it does not ask which of
    them are being recorded: `Sweep._still_due` asks at the moment of each purge."""
    policy = policy_of(engine) if policy is None else _check_policy(policy)
    now = to_datetime(engine.clock()) if now is None else now
    from_datetime(now, "now")
    return plan(_candidates(engine, policy, now, check_recordings), policy, now)


def _candidates(
    engine: "Engine", policy: RetentionPolicy | None, now: datetime, check_recordings: bool
) -> Iterator[Candidate]:
    for some in _lifetimes(engine):
        rows = _whole_rows(engine, [one for _, one in some if one is not None], policy, now)
        answered = {id for id, row in rows.items() if _being_recorded(engine, row)} if check_recordings else set()
        for id, one in some:
            if one is None:
                yield Candidate(show_conversation_id(id), None)
            else:
                yield _candidate(engine, rows.get(id, one), recorded=id in answered)


def _lifetimes(engine: "Engine") -> Iterator[list[tuple[bytes, ConversationRow | Lifetime | None]]]:
    """All conversations, in lists; None stands for a damaged one. A sealed store proves every row."""
    if engine.codec.in_clear:
        damaged = engine.quarantine.conversations()
        for kind in conversation_kinds(engine.backend):
            for some in engine.backend.lifetimes(kind):
                yield [(one.id, None if one.id in damaged else one) for one in some]
        return
    for kind in conversation_kinds(engine.backend):
        for row in conversations(engine.backend, Where(kind), oldest_first=True):
            found = engine.verified_row(row)
            yield [(row.id, None if found is None else found.row)]


def _candidate(engine: "Engine", row: ConversationRow | Lifetime, *, recorded: bool = False) -> Candidate:
    """Make a retention candidate from a row."""
    name = show_conversation_id(row.id)
    seen = engine.workspace.meta.undated.get(row.id)
    imported, protected = 0, False
    if isinstance(row, ConversationRow):
        imported, protected = _imported_at(engine, row), is_below_floor(engine, row)
    try:
        expires_at = None if row.expires_at is None else to_datetime(row.expires_at)
        seen_at = None if seen is None else to_datetime(seen)
        imported_at = to_datetime(imported) if imported else None
        active_at = to_datetime(row.active_at)
        return Candidate(name, active_at, expires_at, bool(row.held), recorded, seen_at, imported_at, protected)
    except Damaged:
        return Candidate(name, None)


def _imported_at(engine: "Engine", row: ConversationRow) -> int:
    """Return when a conversation was last imported from a file of another program; 0 if it never was, or if its
    description cannot be read: then the sweep goes by the row."""
    try:
        return open_meta(engine.codec.envelope(row), row).imported
    except Damaged:
        return 0


def _whole_rows(
    engine: "Engine", rows: Sequence[ConversationRow | Lifetime], policy: RetentionPolicy | None, now: datetime
) -> dict[bytes, ConversationRow]:
    """Return the whole rows of those conversations that may be due."""
    at = from_datetime(now, "now")
    due = [row for row in rows if _may_be_due(row, policy, at)]
    whole = [row for row in due if isinstance(row, ConversationRow)]
    if len(whole) < len(due):
        whole = engine.backend.lookup(ids=[row.id for row in due])
    return {row.id: row for row in whole}


def _may_be_due(row: ConversationRow | Lifetime, policy: RetentionPolicy | None, now: int) -> bool:
    """Return False if `decide` would certainly keep it."""
    if row.expires_at is not None:
        return row.expires_at <= now
    return policy is not None and row.active_at <= now - policy.days * _DAY


def _being_recorded(engine: "Engine", row: ConversationRow) -> bool:
    """Return True if an answer is being recorded into this conversation, here or in another process. A recorder stores
    the parts that have arrived, and before the first part a recent mark."""
    if engine.recorded.get(row.id):
        return True
    now = engine.clock()
    for item in engine.backend.items(row.id, PARTIAL_PREFIX):
        with suppress(Damaged):  # torn: no recorder continues it
            if abs(now - open_partial(engine.codec.envelope(row), item).at) < _ON_ITS_WAY:
                return True
    if row.expires_at is None:
        return False  # a mark is as old as its question, and a recent question is not due by a policy
    for item in engine.backend.items(row.id, MARK_KEY):
        with suppress(Damaged):
            if abs(now - open_mark(engine.codec.envelope(row), item).at) < _THOUGHT_OVER:
                return True
    return False


# -- the sweep


def carry_out(engine: "Engine", found: SweepPlan, progress: _Progress | None, *, given: bool = True) -> SweepReport:
    """Purge the conversations of this plan that are still due, and no others. `given`: the policy is an argument of
    this call. Otherwise it is the store's policy, and the sweep ends if that changes."""
    job = Sweep(engine, found.policy, found.now, planned=True, given=given)
    job.skipped = {item.conversation: str(item.reason) for item in found.items if item.reason in _DUE_BUT}
    due = [parse_conversation_id(item.conversation) for item in found.purges]
    if due:
        engine.ensure_removable()
    tell = progress or (lambda _, __: None)
    with job.under_way():
        for start in range(0, len(due), _AT_ONCE):
            tell(start, len(due))
            job.take(due[start : start + _AT_ONCE])
        tell(len(due), len(due))
        undated = (parse_conversation_id(item.conversation) for item in found.items if item.reason == "undated")
        job.unseen = [id for id in undated if id not in engine.workspace.meta.undated]
        return job.finish()


def sweep_due(engine: "Engine", policy: RetentionPolicy | None, now: int) -> SweepReport:
    """Purge the conversations that are due now, without a plan."""
    return Sweep(engine, policy, to_datetime(now)).sweep()


def _quiet(engine: "Engine", policy: RetentionPolicy | None, now: int) -> Iterator[list[bytes]]:
    """Yield batches of conversations that may be due: the ones inactive for long enough, and the ones whose own expiry
    has passed. Reads no others."""
    for kind in conversation_kinds(engine.backend):
        if policy is not None:
            since = Position(now - policy.days * _DAY + 1, b"")
            for places in pages(engine.backend, [Where(kind)], since, _AT_ONCE):
                yield [place.id for place in places]
        if engine.workspace.meta.expiring:
            for places in pages(engine.backend, [Where(kind, expired_at=now)], None, _AT_ONCE):
                yield [place.id for place in places]


class Sweep:
    """One pass over the conversations that are due."""

    reason = "retention-expired"

    def __init__(
        self,
        engine: "Engine",
        policy: RetentionPolicy | None,
        now: datetime,
        may: May = lambda: True,
        turn: Turn = nullcontext,
        *,
        planned: bool = False,
        given: bool = False,
    ) -> None:
        """`may` is called before each commit; False ends the sweep. Files are used only within a `turn`, so that the
        process can fork between two turns. Unless the policy was `given`, it must be the store's."""
        self._engine, self._policy, self._now, self._may, self._turn = engine, policy, now, may, turn
        self._planned = planned  # a user requested it: the report covers the whole plan
        self._given = given
        self._began, self._started = time.monotonic(), to_datetime(engine.clock())
        self._purged = Purge(self.reason, from_datetime(self._started, "started"))
        self._small: bool | None = None  # the whole store might fit into one commit
        self.stopped = False
        self.is_outdated = False  # it stopped because the policy changed
        self.met: HithertoError | None = None  # it stopped because of this error, which would hit all
        self.swept: dict[str, None] = {}
        self.skipped: dict[str, str] = {}
        self.failures: dict[str, str] = {}
        self._copies: _Copies = {}  # locations of the purged conversations' checkpoints
        self.unseen: list[bytes] = []  # with an impossible time, not seen by an earlier sweep

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Remove purged bytes from the files even if the block is interrupted."""
        with self._engine.purges.under_way(self._purged):
            yield

    def sweep(self, go_on: May = lambda: True) -> SweepReport:
        """Purge what is due, without a plan. `go_on` is called before each batch; False ends the sweep."""
        pieces = _quiet(self._engine, self._policy, from_datetime(self._now, "now"))
        with self.under_way():
            while not self.stopped:
                with self._turn():
                    ids = next(pieces, None) if go_on() else None
                if ids is None:
                    break
                self.take(ids)
            self.stopped = self.stopped or not go_on()
            return self.finish()

    def take(self, ids: Sequence[bytes]) -> None:
        """Purge the ones of these that are due."""
        with self._turn():
            rows = self._rows(ids)
            weights = [] if self.stopped else [self._weight(row) for row in rows]
        while rows and not self.stopped:
            many = _portion(weights)
            self._together(rows[:many])
            if not self.stopped:
                rows, weights = rows[many:], weights[many:]
        for row in rows:
            self._leave(show_conversation_id(row.id))

    def _weight(self, row: ConversationRow) -> tuple[int, int]:
        """Return the number of messages and about the number of bytes; 0 bytes if the whole store is small."""
        if self._small is None:
            self._small = self._engine.backend.size() <= _BYTES
        if self._small:
            return row.count, 0
        chunks = sum(attached.chunks for attached in self._engine.backend.attachments(row.id))
        return row.count, row.size + chunks * CHUNK

    def _leave(self, name: str) -> None:
        """Note a conversation that was left as it is, because the sweep ended early."""
        if self.met is not None and name not in self.swept:
            self.failures.setdefault(name, str(self.met))
        elif self.is_outdated and self._planned:
            self.skipped[name] = "policy-changed"

    def _rows(self, ids: Sequence[bytes]) -> list[ConversationRow]:
        rows = [row for row in self._engine.backend.lookup(ids=ids) if row.kind not in INTERNAL_KINDS]
        for id in set(ids) - {row.id for row in rows} if len(rows) < len(ids) else ():
            self.skipped[show_conversation_id(id)] = "gone"
        return rows

    def _together(self, rows: Sequence[ConversationRow]) -> None:
        """Purge these in one commit, or one by one if that fails."""
        try:
            self._purge(rows)
        except (Closed, ReadOnly):  # nothing can be purged at all
            raise
        except KeyUnavailable as error:
            self._give_up(error)
        except HithertoError as error:
            if len(rows) == 1:
                self.failures[show_conversation_id(rows[0].id)] = str(error)
            for row in rows if len(rows) > 1 else ():
                if not self.stopped:
                    self._together([row])

    def _give_up(self, error: HithertoError) -> None:
        """Stop the sweep: the next conversation would hit the same error, and wait as long for it."""
        self.stopped, self.met = True, error

    def _purge(self, rows: Sequence[ConversationRow]) -> None:
        def attempt() -> None:
            nonlocal rows
            with self._turn():
                doomed = [row for row in rows if self._still_due(row)]
                if doomed and not self._commit(doomed) and not self.stopped:
                    rows = self._rows([row.id for row in doomed])
                    raise RowChanged

        retry(attempt, "the conversations change faster than this sweep can be prepared")

    def _commit(self, doomed: Sequence[ConversationRow]) -> bool:
        """Purge these in one commit. Returns False if one of them changed before it."""
        try:
            self.stopped = self.stopped or not self._may()
            if self.stopped:
                return False
            copies = note(self._engine, doomed)
            require = self._condition()
            return require is not None and self._written(doomed, copies, require)
        except (Closed, ReadOnly, StorageFull):  # on a full disk, a smaller commit may succeed
            raise
        except StorageError as error:
            self._give_up(error)
            return False

    def _condition(self) -> _Require | None:
        """Return the rows that the commit requires unchanged, or None if the policy has changed already."""
        meta, require = self._engine.workspace.standing
        if self._given or meta.retention_days == _days(self._policy):
            return require
        self.stopped = self.is_outdated = True
        return None

    def _written(self, doomed: Sequence[ConversationRow], copies: _Copies, require: _Require) -> bool:
        space = self._engine.workspace
        entries = changes(self._engine, doomed, self.reason)
        batch = Batch((*(Change(row.id, row.token, None) for row in doomed), *entries), require)
        outcome = self._engine.committer.write(batch, always=True, tell=report_deletion(self.reason))
        if isinstance(outcome, Stale) and outcome.conversation == space.row.id:
            space.refresh()
        if not isinstance(outcome, Done):
            return False
        self._purged.count += len(doomed)
        self._copies.update(copies)
        for name in (show_conversation_id(row.id) for row in doomed):
            self.swept[name] = None
            self.skipped.pop(name, None)
        for row in doomed:
            self._engine.forget(row)
        return True

    def _still_due(self, row: ConversationRow) -> bool:
        """Return True if the conversation is still due. Its row is proven first: without a key, a hold may have been
        removed by tampering."""
        engine, name = self._engine, show_conversation_id(row.id)
        if engine.quarantine.has(row.id):
            self.skipped[name] = "damaged"
            return False
        try:
            engine.read_consistently(row, engine.check_row)
        except NotFound:
            self.skipped[name] = "gone"
            return False
        one = _candidate(engine, row)
        again = decide(one, self._policy, self._now)
        if again.action == "purge" and _being_recorded(engine, row):
            again = decide(replace(one, recorded=True), self._policy, self._now)
        if again.reason == "undated" and row.id not in engine.workspace.meta.undated:
            self.unseen.append(row.id)
        if again.action == "keep" and (self._planned or again.reason in _DUE_BUT):
            self.skipped[name] = again.reason
        return again.action == "purge"

    def finish(self) -> SweepReport:
        """Scrub the purged bytes from the files, remember undated conversations, emit the events, and return the
        report."""
        engine, scrubbed = self._engine, True
        self.failures.update(reach_copies(engine, self._copies))
        if self.swept:
            with self._turn():
                self._purged.failures = as_failures(self.failures)
                scrubbed = engine.purges.finish(self._purged, self._scrub)
        elif isinstance(self.met, CommitUnknown):
            engine.purges.later(self._purged)
            scrubbed = False
        if self.unseen and self.met is None:
            with self._turn(), suppress(StorageFull):  # the next sweep counts as the first that saw them
                remember(engine, self.unseen, from_datetime(self._now, "now"))
        report = self._report(scrub_pending=not scrubbed)
        if self.swept or self.failures or (self.skipped and self._planned):
            self._tell(report)
        return report

    def _report(self, *, scrub_pending: bool) -> SweepReport:
        late = (self._started - self._now).total_seconds()
        return SweepReport(
            self._policy,
            self._started,
            to_datetime(self._engine.clock()),
            tuple(self.swept),
            tuple(self.skipped.items()),
            as_failures(self.failures),
            scrub_pending,
            behind_seconds=0.0 if self._planned or late <= _LATE_SECONDS else late,
            actor=self._purged.actor,
        )

    def _scrub(self) -> bool:
        """Remove the purged bytes from the files. Returns False if that has to wait: when the store is being closed,
        its last maintenance does it and then frees the space."""
        engine = self._engine
        if not self._planned:
            engine.background.ask()
        if self.met is not None or (self.stopped and not self._planned):
            return False
        forgotten = engine.search.forget(_WORDS_SECONDS if self._planned else 0.0)
        return engine.backend.scrub() and forgotten

    def _tell(self, report: SweepReport) -> None:
        """Emit the event, and log a line that names no conversation."""
        days = None if report.policy is None else report.policy.days
        purged, skipped, failed = len(report.swept), len(report.skipped), len(report.failures)
        seconds = time.monotonic() - self._began
        counts = purged, skipped, failed, seconds
        self._engine.listeners.emit(SweepFinished(report.completed_at, days, *counts, report.actor))
        import logging  # noqa: PLC0415  # rarely needed

        rule = "no policy" if days is None else f"{days} days"
        said = f"retention ({rule}): {purged:,} purged, {skipped:,} due and left alone, {failed:,} failed"
        logging.getLogger("hitherto").info(said)


def reach_copies(engine: "Engine", copies: _Copies) -> dict[str, str]:
    """Delete the checkpoints of purged conversations. Returns the problems by conversation. An error while writing
    notes, on a full disk for example, is one of them: the conversations are purged all the same."""
    try:
        return reach(engine, copies)
    except StorageError as error:
        said = f"whether its checkpoints were reached could not be noted: {error}"
        return {show_conversation_id(id): said for id in copies}


def _portion(weights: Sequence[tuple[int, int]]) -> int:
    """Return how many of these go into one commit: at least one, and then up to the limits of messages and bytes."""
    (messages, size), many = weights[0], 1
    for more, larger in weights[1:]:
        messages, size = messages + more, size + larger
        if messages > _MESSAGES or size > _BYTES:
            break
        many += 1
    return many


def remember(engine: "Engine", ids: Sequence[bytes], now: int) -> None:
    """Remember when conversations with an impossible time were first seen: their retention counts from then. Purged
    ones are dropped. Earlier entries have priority if the list is full; the others enter it when those are gone."""

    def make(meta: WorkspaceMeta) -> WorkspaceMeta:
        known = {**meta.undated, **{id: now for id in ids if id not in meta.undated}}
        there = {row.id for row in engine.backend.lookup(ids=list(known)) if row.kind not in INTERNAL_KINDS}
        return replace(meta, undated=dict([one for one in known.items() if one[0] in there][:_UNDATED]))

    engine.workspace.describe(make, always=True)

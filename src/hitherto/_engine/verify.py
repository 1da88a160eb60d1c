"""Verify: read everything, and derive again what was stored about it.

A store says many things twice: a conversation's row counts its messages, a message's size is written beside it, a
number tells the parent. Here each is computed from the messages themselves and compared. Every problem is named; none
stops the search for the others.
"""

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from msgspec.structs import replace

from .._copying.row_pages import ahead
from .._sealing.codec import MODULUS
from ..backend import INTERNAL_KINDS, WORKSPACE, ConversationRow, MessageRow, Where
from ..errors import Busy, Closed, HithertoError, MissingAttachment, Unavailable
from ..ids import RUN, show_conversation_id
from ..listing import conversations
from ..model import to_datetime
from ..reports import Problem, VerifyReport
from . import items
from .attachments import stored_attachment
from .bodies import Attached, decode_body, open_meta
from .filters import description_fields
from .packs import Reader, run_of
from .record_items import check_items
from .recovery import MARK_KEY, PARTIAL_PREFIX, open_mark, open_partial
from .retry import MAX_LONG_ATTEMPTS, retry
from .revisions import read as read_ledger
from .setups import SETUP
from .signals import RowChanged
from .state import ConversationState, label_fields
from .typed_items import open_item

if TYPE_CHECKING:
    from .engine import Engine

BATCH_SIZE = 256
_PACKS = 16  # packs read at a time: one may have a megabyte
_BUSY = 8  # conversations in a row that are busy: then the whole store is, and each would take its time to say so


def verify(engine: "Engine", progress: Callable[[int], None] | None = None, *, note: bool = False) -> VerifyReport:
    """Check the storage and every conversation. `progress` is called with the number of conversations done.

    With `note`, a sound store keeps the time: that is the only write. A store with problems is left as it was found."""
    if note:
        engine.committer.check()  # before everything is read
    report = _Verification(engine, progress or (lambda _: None)).run()
    if note and report.ok:
        now = engine.clock()
        engine.workspace.describe(lambda meta: replace(meta, verified_at=now))
    return report


def verified_at(engine: "Engine") -> datetime | None:
    """Return when the store was noted to be sound last; None if it never was."""
    engine.workspace.refresh()
    at = engine.workspace.meta.verified_at
    return to_datetime(at) if at else None


class _Verification:
    """One run over a whole store. A busy conversation is noted as unread, and the run goes on."""

    def __init__(self, engine: "Engine", progress: Callable[[int], None]) -> None:
        self._engine, self._progress = engine, progress
        self._tags = _Tags(engine)
        self._problems: list[Problem] = []
        self._unread: list[Problem] = []
        self._conversations = self._messages = 0

    def run(self) -> VerifyReport:
        try:
            self._problems += [Problem(what) for what in self._engine.backend.check()]
        except Busy as error:
            self._unread.append(Problem(f"the storage itself was not checked: {error}"))
        try:
            self._read()
            self._look_for_strangers()
        except Busy as error:
            self._unread.append(Problem(f"the conversations could not be listed to the end: {error}"))
        except (Closed, Unavailable):
            raise
        except HithertoError as error:
            self._problems.append(Problem(f"the conversations cannot be listed: {error}"))
        return VerifyReport(tuple(self._problems), self._conversations, self._messages, tuple(self._unread))

    def _read(self) -> None:
        busy = 0  # conversations in a row that could not be read
        for row, first in ahead(self._look, _rows(self._engine), self._engine.backend):
            try:
                looked = _verify_conversation(self._engine, row, _Tags(self._engine)) if first is None else first
                count, found = _confirm(self._engine, row, *looked)
            except Busy as error:
                self._unread.append(Problem(str(error), show_conversation_id(row.id)))
                busy += 1
                if busy == _BUSY:
                    raise Busy(f"{_BUSY} conversations in a row could not be read, and no more were tried") from error
                continue
            busy = 0
            self._problems += found
            self._conversations += row.kind not in INTERNAL_KINDS  # the workspace has rows, too
            self._messages += count
            self._progress(self._conversations)

    def _look(self, row: ConversationRow) -> tuple[int, list[Problem]] | None:
        """A first look, ahead of its turn. None: it was busy, and is looked at once more when its turn has come."""
        try:
            return _verify_conversation(self._engine, row, self._tags)
        except Busy:
            return None

    def _look_for_strangers(self) -> None:
        """Report tags that lead to a conversation without them. Skipped if a conversation is unread, because it may
        have them."""
        if self._problems or self._unread:
            return
        if any(_is_strange(self._engine, *accused) for accused in self._tags.strange()):
            what = "conversations are found by labels, projects or metadata that are not theirs"
            self._problems.append(Problem(what))


def _confirm(engine: "Engine", row: ConversationRow, count: int, found: list[Problem]) -> tuple[int, list[Problem]]:
    """Return the problems of a conversation that are still there at a second look. A conversation that changed while it
    was read proves nothing, and the tags that were read may be older than its changes."""

    def attempt() -> tuple[int, list[Problem]]:
        nonlocal row
        seen, found = _verify_conversation(engine, row, _Tags(engine))
        now = engine.backend.lookup(ids=[row.id]) if found else []
        if now and now[0].token != row.token:
            row = now[0]
            raise RowChanged
        return seen, found if now else []

    return retry(attempt, _busy(row.id), most=MAX_LONG_ATTEMPTS) if found else (count, [])


def _busy(conversation: bytes) -> str:
    return f"conversation {show_conversation_id(conversation)} changes faster than it can be read"


def _is_strange(engine: "Engine", found_by: tuple[str, str], conversation: bytes) -> bool:
    """Return True if a conversation is really found by a value that is not its own. It may have changed since it was
    read: read it until it stands still."""

    def attempt() -> bool:
        rows, tags = engine.backend.lookup(ids=[conversation]), _Tags(engine)
        for row in rows:
            _verify_conversation(engine, row, tags)
        strange = tags.is_strange(found_by, conversation)
        if strange and [row.token for row in engine.backend.lookup(ids=[conversation])] != [r.token for r in rows]:
            raise RowChanged
        return strange

    return retry(attempt, _busy(conversation), most=MAX_LONG_ATTEMPTS)


def _rows(engine: "Engine") -> Iterator[ConversationRow]:
    for kind in engine.backend.kinds():
        yield from conversations(engine.backend, Where(kind), oldest_first=True)


class _Tags:
    """The tags of the store; each value is looked up once."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._found: dict[tuple[str, str], dict[bytes, set[int | None]]] = {}
        self._meant: dict[tuple[str, str], set[bytes]] = {}

    def of(self, field: str, value: str, conversation: bytes) -> set[int | None]:
        """The messages of a conversation that are found by this value; None stands for the conversation itself."""
        if (field, value) not in self._found:
            found: dict[bytes, set[int | None]] = {}
            for tag in self._engine.codec.tags(field, value):
                for id, number in self._engine.backend.tagged(tag):
                    found.setdefault(id, set()).add(number)
            self._found[field, value] = found
        return self._found[field, value].get(conversation, set())

    def fit(self, conversation: bytes, meant: dict[tuple[str, str], set[int | None]], later: set[int]) -> bool:
        """Return True if a conversation is found by the values that are its own. Later messages may be found as
        well."""
        for found_by in meant:
            self._meant.setdefault(found_by, set()).add(conversation)
        return all(self.of(*found_by, conversation) - later == numbers for found_by, numbers in meant.items())

    def strange(self) -> list[tuple[tuple[str, str], bytes]]:
        """Return the conversations that seem to be found by values that are not their own, each with the value."""
        return [
            (found_by, id)
            for found_by, found in self._found.items()
            for id in found.keys() - self._meant.get(found_by, set())
        ]

    def is_strange(self, found_by: tuple[str, str], conversation: bytes) -> bool:
        found = self.of(*found_by, conversation)
        return bool(found) and conversation not in self._meant.get(found_by, set())


def _verify_conversation(engine: "Engine", row: ConversationRow, tags: _Tags) -> tuple[int, list[Problem]]:
    name = show_conversation_id(row.id)
    try:
        return _Check(engine, row, name, tags).run()
    except (Busy, Closed, Unavailable):  # about the infrastructure, not the conversation
        raise
    except (HithertoError, TypeError, ValueError) as error:  # damage may put anything where a number should be
        return 0, [Problem(f"cannot be read: {error}", name)]


class _Check:
    """The check of one conversation."""

    def __init__(self, engine: "Engine", row: ConversationRow, name: str, tags: _Tags) -> None:
        self.engine, self.row, self.name = engine, row, name
        self.tags = tags
        self.tagged: dict[tuple[str, str], set[int | None]] = {}  # by what this conversation is to be found
        self.envelope = engine.codec.envelope(row)
        self.problems: list[Problem] = []
        self.seen: dict[int, bool] = {}  # the numbers of its messages -> is it on the main flow?
        self.later: dict[int, int] = {}  # messages that were added while we read -> their sequence
        self.last_seq = -1
        self.last_time = row.created_at
        self.size = 0
        self.total = 0
        self.setups = 0
        self.ledger = read_ledger(engine, self.envelope, row)
        self.reader = Reader(engine)
        self.packed: dict[int, int] = {}  # run -> how many of its messages have no body of their own
        self.attached: dict[Attached, set[int]] = {}  # bytes, as text or as they are -> the messages that refer to them

    def run(self) -> tuple[int, list[Problem]]:
        self._description()
        for m in self._messages():
            if m.seq >= self.row.next_seq:
                self.later[m.number] = m.seq
                continue
            self._message(m)
            self.seen[m.number] = bool(m.main)
        self._latecomers()
        self._packs()
        self._attachments()
        if not self.tags.fit(self.row.id, self.tagged, set(self.later)):
            self.say("it is not found by its labels, its project and its metadata, or by others")
        self._totals()
        return len(self.seen), self.problems

    def say(self, what: str, number: int | None = None) -> None:
        self.problems.append(Problem(what, self.name, None if number is None else self.engine.message_ids.id(number)))

    def _messages(self) -> Iterator[MessageRow]:
        after = None
        while True:
            rows = self.engine.backend.scan(self.row.id, after=after, limit=BATCH_SIZE)
            yield from rows
            if len(rows) < BATCH_SIZE:
                return
            after = rows[-1].seq

    def _latecomers(self) -> None:
        """Report messages beyond the row's `next_seq`, unless the row has moved on since."""
        now = self.engine.backend.lookup(ids=[self.row.id]) if self.later else []
        for number, seq in self.later.items():
            if not now or seq >= now[0].next_seq:
                self.say(f"the sequence {seq} is out of order", number)

    def _description(self) -> None:
        if self.row.kind == WORKSPACE:
            for item in self.engine.backend.items(self.row.id):
                try:
                    open_item(self.envelope, item)
                except HithertoError as error:
                    self.say(str(error))
        if self.row.kind != WORKSPACE:
            try:
                meta = open_meta(self.envelope, self.row)
                self.setups = meta.setups
                has_all = self.engine.workspace.meta.has_metadata_tags
                fields = [field for field in description_fields(meta) if has_all or field[0] != "metadata"]
                self.tagged.update({found_by: {None} for found_by in fields})
            except HithertoError as error:
                self.say(str(error))
            items = self.engine.backend.items(self.row.id, b"setup/")
            for item in items:
                try:
                    SETUP.open(self.envelope, item)
                except HithertoError as error:
                    self.say(str(error))
            for item in self.engine.backend.items(self.row.id, PARTIAL_PREFIX):
                try:
                    open_partial(self.envelope, item)
                except HithertoError as error:
                    self.say(str(error))
            for item in self.engine.backend.items(self.row.id, MARK_KEY):
                try:
                    open_mark(self.envelope, item)
                except HithertoError as error:
                    self.say(str(error))
            for problem in check_items(self.engine, self.envelope, self.row):
                self.say(str(problem))
            if len(items) != self.setups:
                self.say(f"{len(items)} setups are stored, {self.setups} are meant to be")

    def _message(self, m: MessageRow) -> None:
        if m.seq <= self.last_seq:
            self.say(f"the sequence {m.seq} is out of order", m.number)
        if m.created_at < self.last_time:
            self.say("it is older than the message before it", m.number)
        self.last_seq, self.last_time = m.seq, m.created_at
        self._place(m)
        self.size += m.size
        self.total += self.envelope.weigh([m])
        if m.body is None:
            self.packed[run_of(m.number)] = self.packed.get(run_of(m.number), 0) + 1
        try:
            if self.ledger is not None:
                self.ledger.check(m.number, m.revision)
            self._content(m, self.reader.content(self.envelope, m)[1])
        except HithertoError as error:
            self.say(str(error), m.number)

    def _place(self, m: MessageRow) -> None:
        """Parents come before their children, so there is no cycle where this holds."""
        if m.number % RUN and m.parent != m.number - 1:
            self.say("its number does not follow its parent's", m.number)
        if m.parent is not None:
            above = self.seen.get(m.parent)
            if above is None:
                self.say("its parent is missing", m.number)
            elif m.main and not above:
                self.say("it is on the main flow below a message that is not", m.number)
            if m.link is not None:
                self.say("it has a link but is not a root", m.number)
        if m.link is not None and m.link not in self.seen:
            self.say("what it is linked to is missing", m.number)

    def _content(self, m: MessageRow, data: bytes) -> None:
        body = decode_body(data)
        for attached in body.attached:
            self.attached.setdefault(attached.bare, set()).add(m.number)
        if len(data) != m.size:
            self.say(f"its content has {len(data)} bytes, {m.size} are meant to be", m.number)
        keys = [None] if body.key is None else self.envelope.tags("key", body.key)
        if m.key not in keys:
            self.say("its key is not the one in its content", m.number)
        for found_by in () if body.label is None else label_fields(body.label):
            self.tagged.setdefault(found_by, set()).add(m.number)
        if body.setup > self.setups:
            self.say(f"it was made with setup {body.setup}, which is missing", m.number)

    def _packs(self) -> None:
        """Each pack holds as many messages as have no body of their own."""
        runs = list(self.packed)
        for start in range(0, len(runs), _PACKS):
            for pack in self.engine.backend.packs(runs[start : start + _PACKS]):
                self.total += self.envelope.weigh([pack])
                if self.packed[pack.first] != pack.count:
                    self.say(f"a pack holds {pack.count} messages, {self.packed[pack.first]} need one")

    def _attachments(self) -> None:
        """Check that each attachment is stored, whole, and noted with the messages that refer to it."""
        meant: dict[bytes, set[int]] = {}
        for attached, numbers in self.attached.items():
            meant.setdefault(attached.name, set()).update(numbers)
        state = ConversationState(self.engine, self.row)
        lost: set[bytes] = set()
        for attached, numbers in self.attached.items():
            try:
                for _ in stored_attachment(state, attached):
                    pass
            except MissingAttachment as error:  # each message that refers to it has a hole
                lost.add(attached.name)
                for number in sorted(numbers):
                    self.say(str(error), number)
            except HithertoError as error:
                self.say(str(error), min(numbers))
        rows = [row for row in self.engine.backend.attachments(self.row.id) if row.messages and row.name not in lost]
        there = {row.name: numbers for row in rows if (numbers := set(row.messages) - self.later.keys())}
        if any(not row.chunks for row in rows):
            self.say("an attachment that a message refers to is marked as incomplete")
        if there != {name: numbers for name, numbers in meant.items() if name not in lost}:
            self.say("the attachments that are kept are not those that its messages refer to")

    def _items(self) -> None:
        """Read the items of users, which count for the size of the conversation."""
        for item in items.stored(self.engine, self.row.id):
            self.total += self.envelope.weigh([item])
            try:
                self.size += items.measure(self.envelope, [item])
            except HithertoError as error:
                self.say(f"an item cannot be read: {error}")

    def _totals(self) -> None:
        row = self.row
        self._items()
        for what, meant, is_ in (("messages", row.count, len(self.seen)), ("bytes", row.size, self.size)):
            if meant != is_:
                self.say(f"{is_} {what} are stored, {meant} are meant to be")
        if self.seen and self.last_time > row.active_at:
            self.say("it was active later than it says")
        if row.head is not None and not self.seen.get(row.head, False):  # none: all turns were undone
            self.say("its head is not a message of its main flow")
        for tip in row.tips:
            if tip in self.seen and tip + 1 in self.seen and (tip + 1) % RUN:
                self.say("a run is marked as open that has gone on")
        if (self.total - self.envelope.total(row)) % MODULUS and self.envelope.proves:
            self.say("the proof over its messages does not match")

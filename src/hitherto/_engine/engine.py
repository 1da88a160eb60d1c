"""The engine: how rows of conversations are read, checked and changed, and how messages are read.

A conversation in use has a state in this process (`ConversationState`). Rows that other processes write make it stale,
so each verb reads again until a row and its content belong together. Content that does not read back as it was written
is read once more, by a state of the reader's own (`reread`): an optimistic row is for preparing writes, never for
judging reads. If the stored row has not changed meanwhile, the record is `Damaged` and goes into quarantine: the one
message that cannot be read, or the conversation.
"""

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import chain
from typing import TypeVar
from weakref import WeakValueDictionary

from .._sealing.codec import Envelope
from ..backend import Batch, Change, ConversationRow, Done, MessageRow, PackRow, Stale
from ..errors import Damaged, InvalidID, NotFound
from ..ids import check_message_id, show_conversation_id
from ..model import Saved
from .attachments import fill_holes
from .bodies import Body, VerifiedRow, build_message, build_pack_messages, build_stretch, decode_body, open_pack_raw
from .committer import Tell, report_stored
from .context import StoreContext
from .packs import Reader, run_of
from .retry import MAX_READ_ATTEMPTS, retry
from .revisions import read as read_ledger
from .signals import RowChanged
from .state import ConversationState

_MAX_VERIFIED = 1000  # verified rows that are remembered

T = TypeVar("T")


class Engine(StoreContext):
    """One opened store, below its public face: the verbs for rows of conversations, and for messages."""

    @cached_property
    def states(self) -> WeakValueDictionary[bytes, ConversationState]:
        """The conversations in use here, by id."""
        return WeakValueDictionary()

    # -- rows of conversations

    def state_of(self, row: ConversationRow) -> ConversationState:
        return self.read_consistently(row, self.state_now)

    def state_now(self, row: ConversationRow) -> ConversationState:
        state = self.states.get(row.id)
        if state is None or not state.is_same_conversation(row):
            self.check_row(row)
            state = self.states[row.id] = ConversationState(self, row)
        elif row is not state.row:
            self.check_row(row)
        state.adopt_row(row)
        return state

    def read_consistently(self, row: ConversationRow, read: Callable[[ConversationRow], T]) -> T:
        """Return what `read` gives for a conversation's row. If it raises `Damaged` and the row has changed meanwhile,
        that proves nothing: read again. A row that has not changed goes into quarantine."""
        rows = chain((row,), iter(lambda: self.read_row(row.id), None))  # the given row, then the newest

        def attempt() -> T:
            now = next(rows)
            try:
                return read(now)
            except Damaged as error:
                self.ensure_unchanged(now)
                self.quarantine.add(row.id, error.record, str(error))
                raise

        busy = f"conversation {show_conversation_id(row.id)} changes faster than it can be read"
        return retry(attempt, busy, most=MAX_READ_ATTEMPTS)

    def ensure_unchanged(self, row: ConversationRow) -> None:
        """Raise `RowChanged` if the stored row is another one by now: then damage that was found proves nothing."""
        if self.read_row(row.id).token != row.token:
            raise RowChanged from None

    def ensure_not_rewritten(self, row: ConversationRow) -> None:
        """Raise `RowChanged` if more has happened than appends since this row was read."""
        now = self.read_row(row.id)
        if (now.rewrites, now.data_key) != (row.rewrites, row.data_key):
            raise RowChanged

    def verified_row(self, row: ConversationRow) -> VerifiedRow | None:
        """Return the row, or its newest version, if it passes its integrity proof; None if it fails, and then it is in
        quarantine. A row that passed before is not checked again as long as no column has changed."""
        if self.quarantine.has(row.id):
            return None
        known = self.verified_rows.get(row.id)
        if known is not None and known.row == row:
            return known
        try:
            sound = self.read_consistently(row, lambda row: VerifiedRow(row, self.check_row(row)))
        except (Damaged, NotFound):
            return None
        if len(self.verified_rows) >= _MAX_VERIFIED:
            self.verified_rows.clear()
        self.verified_rows[row.id] = sound
        return sound

    def check_row(self, row: ConversationRow) -> Envelope:
        """Return the envelope of a row that passes its integrity proof; `Damaged` otherwise. An older row that was put
        back fails, too: messages would come after it, or the ledger would be of another time."""
        envelope = self.codec.envelope(row)
        if envelope.proves:
            read_ledger(self, envelope, row)
            if self.backend.scan(row.id, after=row.next_seq - 1, limit=1, bodies=False):
                raise Damaged("the row of a conversation is older than its messages: it was put back")
        return envelope

    def is_proven(self, row: ConversationRow) -> bool:
        """Return False if the row fails its integrity proof. Its `held` flag cannot be trusted then, and a purge needs
        the reason `corruption-detected`."""
        try:
            self.check_row(row)
        except Damaged:
            return False
        return True

    def reread(self, state: ConversationState, read: Callable[[ConversationState], T], message: int | None = None) -> T:
        """Read again something that did not read back as it was written, by a state of its own that has the stored row.
        (An optimistic row is for preparing writes, never for judging reads.) If that fails although the row has not
        changed, the record is damaged and goes into quarantine."""

        def look(row: ConversationRow) -> T:
            own = ConversationState(self, row, own=True)
            try:
                found = read(own)
            except Damaged as error:
                if error.record is None:
                    error.record = message  # callers that note it again note the same record
                raise
            if own.has_holes:
                self.ensure_unchanged(row)
            return found

        return self.read_consistently(self.read_row(state.id), look)

    def change(
        self,
        conversation: bytes,
        make: Callable[[ConversationRow], Change | None],
        *,
        always: bool = False,
        tell: Tell | None = report_stored,
        beside: Callable[[ConversationRow, Change], Sequence[Change]] = lambda *_: (),
    ) -> None:
        """Commit a change that is prepared from the stored row, not from the optimistic one; prepare it again if
        another writer was faster. `make` returns None if there is nothing to do. `tell` makes the events; None: no
        events. `beside` returns changes of other rows for the same commit."""

        def attempt() -> None:
            require = self.workspace.require  # before the change is made, which may use the keys of the workspace
            row = self.read_row(conversation)
            try:
                change = make(row)
            except Damaged:
                self.ensure_unchanged(row)
                raise
            if change is not None:
                made_by = self.workspace.require  # as above, for those; `make` may have changed the workspace
                others = tuple(beside(row, change))
                needed = made_by if others else require if change.tag or change.untag else ()
                if not self.commit_once(change, needed, always=always, tell=tell, others=others):
                    raise RowChanged

        retry(attempt, f"conversation {show_conversation_id(conversation)} changes faster than a write can be prepared")

    def commit_once(
        self,
        change: Change,
        require: tuple[tuple[bytes, bytes], ...] = (),
        *,
        always: bool = False,
        tell: Tell | None = None,
        others: tuple[Change, ...] = (),
    ) -> bool:
        """Commit a change, and those of other rows with it. Return False if another writer was faster."""
        if change.row is not None and change.row.expires_at is not None:
            self.schedule.expect_expiry()
        outcome = self.committer.write(Batch((change, *others), require), always=always, tell=tell)
        if isinstance(outcome, Done):
            self.adopt_row(change.conversation, change.row)
        elif isinstance(outcome, Stale) and outcome.conversation == self.workspace.row.id:
            self.workspace.refresh()
        return isinstance(outcome, Done)

    def adopt_row(self, conversation: bytes, row: ConversationRow | None) -> None:
        state = self.states.get(conversation)
        if state is not None and row is not None:
            state.adopt_row(row)

    def forget(self, row: ConversationRow) -> None:
        """Forget all that this process knows of a conversation that was purged."""
        self.workspace.forget(row)
        self.verified_rows.pop(row.id, None)
        self.quarantine.release(row.id)
        self.quota.count_again()

    # -- messages

    def state_for(self, conversation: bytes, reader: Reader | None) -> ConversationState:
        """Return the state of a conversation. A reader of many messages keeps it alive."""
        state = self.states.get(conversation)
        if state is None:
            state = self.state_of(self.read_row(conversation))
        if reader is not None:
            reader.state = state
        return state

    def message_row(self, id: str) -> MessageRow:
        rows = self.backend.messages(numbers=[self.message_ids.number(id)])
        if not rows:
            raise NotFound("message", [id])
        return rows[0]

    def find_message_row(self, id: str) -> MessageRow | None:
        try:
            return self.message_row(id)
        except (NotFound, InvalidID):
            return None

    def message_rows(self, ids: Sequence[str], *, bodies: bool) -> tuple[dict[str, MessageRow], list[str]]:
        """Return the rows of these messages, and the ids that are not there. `InvalidID` is raised before any read."""
        numbers: dict[str, int] = {}
        for id in ids:
            check_message_id(id)
            try:
                numbers[id] = self.message_ids.number(id)
            except NotFound:
                numbers[id] = -1
        rows = {row.number: row for row in self.backend.messages(numbers=list(numbers.values()), bodies=bodies)}
        found = {id: rows[number] for id, number in numbers.items() if number in rows}
        return found, [id for id in numbers if id not in found]

    def read_body(
        self, row: MessageRow, state: ConversationState, reader: Reader | None = None
    ) -> tuple[MessageRow, Body]:
        """Return the content of a message, with the row that it was read by; `Damaged` if it cannot be read."""
        try:
            return self.read_body_now(row, state, reader)
        except Damaged:
            return self.reread(
                state, lambda own: self.read_body_now(self.reread_row(row), own), self.record_of(row, state)
            )

    def read_body_now(
        self, row: MessageRow, state: ConversationState, reader: Reader | None = None
    ) -> tuple[MessageRow, Body]:
        row, data = self.read_content(row, state, reader or Reader(self))
        return row, decode_body(data)

    def read_content(self, row: MessageRow, state: ConversationState, reader: Reader) -> tuple[MessageRow, bytes]:
        """Return the content of a message as bytes, with the row that it was read by. Raises `Damaged` at once, also
        if the row has changed meanwhile."""
        row, data = reader.content(state.envelope, row)
        ledger = state.ledger
        if ledger is not None:
            ledger.check(row.number, row.revision)
        return row, data

    def reread_row(self, row: MessageRow) -> MessageRow:
        found = self.message_row(self.message_ids.id(row.number))
        if found.seq != row.seq:
            raise Damaged("an index led to another message than the one that was meant")
        return found

    def read_message(
        self,
        row: MessageRow,
        state: ConversationState | None = None,
        *,
        lazy: bool = False,
        reader: Reader | None = None,
    ) -> Saved:
        """A row as a message; `Damaged` if its content cannot be read."""
        if state is None:
            state = self.state_for(row.conversation, reader)

        def read(state: ConversationState, row: MessageRow, reader: Reader | None = None) -> Saved:
            row, body = self.read_body_now(row, state, reader)
            problem = None
            if body.attached:
                body, problem = fill_holes(state, body, lazy=lazy)
            return build_message(row, body, self.message_ids, state.name, problem)

        try:
            return read(state, row, reader)
        except Damaged:
            return self.reread(state, lambda own: read(own, self.reread_row(row)), self.record_of(row, state))

    def read_for_listing(self, row: MessageRow, *, lazy: bool = False, reader: Reader | None = None) -> Saved:
        """Return a row as a message for a listing: if its content cannot be read, a message with a `problem`."""
        try:
            return self.read_message(row, lazy=lazy, reader=reader)
        except Damaged as error:
            return Saved(
                role=row.role,
                parent=None if row.parent is None else self.message_ids.id(row.parent),
                id=self.message_ids.id(row.number),
                conversation=show_conversation_id(row.conversation),
                seq=row.seq,
                created_us=row.created_at,
                main=bool(row.main),
                problem=str(error),
            )

    def read_tree(self, state: ConversationState) -> list[MessageRow]:
        """Return all messages of a conversation by sequence. If it is sealed, each of them is opened, to check it."""
        headers = self.read_headers(state.id)
        if state.envelope.proves:
            reader = Reader(self)
            for row in self.backend.scan(state.id, limit=1 << 40):
                try:
                    self.read_body_now(row, state, reader)
                except Damaged as error:
                    error.record = self.record_of(row, state)
                    raise
            if len({row.number for row in headers}) != state.row.count:
                raise Damaged(f"{len(headers)} messages are stored, {state.row.count} are meant to be")
        return headers

    def read_headers(self, conversation: bytes) -> list[MessageRow]:
        """All messages of a conversation by sequence, without their content."""
        return self.backend.scan(conversation, limit=1 << 40, bodies=False)

    def read_path(
        self,
        number: int,
        state: ConversationState,
        *,
        lazy: bool = False,
        last: int | None = None,
        events: bool = True,
    ) -> list[Saved]:
        """Return the messages from the root to this one, without a gap, or raise an error. With `last`, the path may
        begin as late as so many messages before its end; without `events`, these do not count."""

        def read(state: ConversationState) -> list[Saved]:
            return self.read_path_now(number, state, lazy=lazy, last=last, events=events)

        try:
            return read(state)
        except Damaged:
            return self.reread(state, read, self.find_damage(number, state))

    def read_path_now(
        self,
        number: int,
        state: ConversationState,
        *,
        lazy: bool,
        last: int | None = None,
        events: bool = True,
    ) -> list[Saved]:
        stretches: list[list[Saved]] = []
        below: int | None = number
        counted = 0
        place = state.envelope, self.message_ids, state.name, partial(fill_holes, state, lazy=lazy)
        ledger = state.ledger
        for piece in self.backend.path(number):
            if isinstance(piece, PackRow):
                stretch = build_pack_messages(piece, piece.first if below is None else below, *place)
                first, below = piece.first, piece.parent
            else:
                stretch = build_stretch(piece, *place)
                first, below = piece[0].number, piece[0].parent
            if ledger is not None:
                for n, message in enumerate(stretch, first):
                    ledger.check(n, message.revision)
            if stretches and stretch[-1].seq >= stretches[-1][0].seq:  # the way leads back in time, or nowhere
                raise Damaged(f"message {stretch[-1].id} comes after one that answers it")
            stretches.append(stretch)
            counted += sum(events or message.role != "event" for message in stretch) if last is not None else 0
            if last is not None and counted >= last:
                break
        if not stretches:
            raise NotFound("message", [self.message_ids.id(number)])
        top = stretches[-1][0]
        if top.parent is not None and (last is None or counted < last):
            if not self.backend.messages(numbers=[number], bodies=False):
                raise NotFound("message", [self.message_ids.id(number)])  # deleted while we read
            raise Damaged(f"message {top.parent}, which message {top.id} answers, is missing")
        stretches.reverse()
        return [message for stretch in stretches for message in stretch]

    def record_of(self, row: MessageRow, state: ConversationState) -> int:
        """Return the number of the record that cannot be read: the message, or the first message of its pack."""
        first = run_of(row.number)
        for pack in self.backend.packs([first]) if row.body is None else ():
            try:
                open_pack_raw(state.envelope, pack)
            except Damaged:
                return first
        return row.number

    def find_damage(self, number: int, state: ConversationState) -> int:
        """Return the number of the message on the path to this one that cannot be read."""
        last = number
        seen: set[int] = set()
        for piece in self.backend.path(number):
            if last in seen:
                break  # a circle
            seen.add(last)
            for row in [piece] if isinstance(piece, PackRow) else reversed(piece):
                try:
                    if isinstance(row, PackRow):
                        last = row.first
                        open_pack_raw(state.envelope, row)
                    else:
                        last = row.number
                        self.read_body_now(row, state)
                except Damaged:
                    return last
        return last

    def scrub(self) -> bool:
        scrubbed = self.backend.scrub()
        return self.search.scrub() and scrubbed

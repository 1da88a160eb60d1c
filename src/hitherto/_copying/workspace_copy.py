"""Copy a workspace as it is, row by row, from any backend to any other.

Nothing is unsealed: bodies, data keys and proofs are copied as bytes, under the same ids, numbers and tokens. So the
copy is the same store, and a sealed one opens with the same key. Sealed content is bound to the identity of the
workspace, so the copy needs a new or empty workspace with the same identity.

- **Whole or closed.** During the copy, the target has the workspace's row without its description, as a mark. So no
  store opens the target, and none creates another workspace row. The last commit writes the description.
- **A conversation is copied as of one moment.** Its row is read before its content, and its token afterwards. If the
  token has moved, the conversation is read again. A large one takes several commits, and has a temporary token until
  the last of them. So equal tokens on both sides mean that the conversation is complete. This is enough to continue
  after a crash, and to copy later changes.
- **One at a time.** Every commit requires the token of the mark, which a later copy changes: two copies cannot mix.
- **Compared.** At the end everything is read again on both sides. A conversation that differs is removed and named, and
  the target stays closed: the next run copies it again.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from .._engine.bodies import encode, meta_place, open_meta
from .._sealing.codec import next_row
from ..backend import (
    INTERNAL_KINDS,
    WORKSPACE,
    AttachmentRow,
    Backend,
    Batch,
    Change,
    ConversationRow,
    Done,
    MessageRow,
    Missing,
    Outcome,
    Stale,
)
from ..errors import Busy, Damaged, NotExportable, NotFound
from ..ids import RUN, new_token, show_conversation_id
from .row_pages import PAGE, PIECE, Content, ahead, content, everything, items_of, pages, small, weight_of

if TYPE_CHECKING:
    from .._engine.engine import Engine

_ROUNDS = 5  # attempts to copy everything before the source counts as changing too fast
_LOOKS = 8  # the same for a single conversation


def workspace_row(backend: Backend) -> ConversationRow:
    """Return the row that describes the workspace and makes it a store. Raises `NotFound`."""
    found = find_workspace_row(backend)
    if found is None or not found.meta:
        hint = "it is empty, or a copy into it is not finished"
        raise NotFound("workspace", [backend.info.workspace_name], hint=hint)
    return found


def find_workspace_row(backend: Backend) -> ConversationRow | None:
    """That row, if it is there; while a copy is on its way in, without a description."""
    return next(iter(backend.lookup(key=(WORKSPACE, b"workspace"))), None)


def holds_others(backend: Backend) -> bool:
    """Tell whether the workspace has any row beside its own."""
    return bool(set(backend.kinds()) - {WORKSPACE})


def is_kept_in(engine: "Engine", row: ConversationRow) -> bool:
    """Tell whether a conversation must not leave its store."""
    return open_meta(engine.codec.envelope(row), row).kept_in


class Carried(Struct, frozen=True):
    """The counts of a copy."""

    conversations: int
    messages: int
    unchanged: int
    compared: int
    different: tuple[str, ...]
    finished: bool


class _MovedError(Exception):
    """The conversation changed while it was read, or another one still has its key in the target."""


class WorkspaceCopier:
    """One copy of a workspace."""

    def __init__(
        self, source: Backend, target: Backend, engine: "Engine | None", progress: Callable[[int], None]
    ) -> None:
        self._source, self._target, self._engine, self._progress = source, target, engine, progress
        self._mark = _without_words(workspace_row(source))
        self._waiting: list[tuple[ConversationRow, Change, int]] = []  # small conversations for one common commit
        self._left: list[bytes] = []  # conversations that changed while they were read
        self._conversations = self._messages = self._unchanged = self._compared = 0
        self._different: list[str] = []

    def run(self, *, more: bool) -> Carried:
        """Copy everything, and open the target. With `more`, copy only conversations that do not change meanwhile."""
        self._begin()
        if more:
            self._clear()
            self._bring()
        else:
            change = self._settle()
        finished = not more and not self._different
        if finished:
            self._finish(change)
        counts = (self._conversations, self._messages, self._unchanged, self._compared)
        return Carried(*counts, tuple(self._different), finished)

    def _begin(self) -> None:
        """Close the target with the mark of this copy, or continue an earlier copy of the same source."""
        there = find_workspace_row(self._target)
        if there is not None and there.id == self._mark.id:
            stray = tuple(m.number for m in self._target.scan(there.id, limit=PAGE, bodies=False))
            self._must(Change(there.id, there.token, self._mark, drop=stray))  # see `_finish`
            return
        if there is not None:
            self._remove_empty(there)
        self._must(Change(self._mark.id, None, self._mark))

    def _remove_empty(self, there: ConversationRow) -> None:
        """Remove an unused workspace: close it first, so that no process can use it, and look again."""
        closed = _without_words(there)
        self._must(Change(there.id, there.token, closed))
        if holds_others(self._target):
            self._must(Change(there.id, closed.token, there))
            raise Busy("somebody else uses the target", hint="copy into a workspace of its own")
        self._must(Change(there.id, closed.token, None))

    def _must(self, change: Change) -> None:
        if not isinstance(self._target.commit([Batch((change,), is_copy=True)])[0], Done):
            raise Busy("somebody else uses the target, or copies into it", hint="try again")

    def _settle(self) -> Change:
        """Copy until source and target are equal, and return the change that writes the workspace's row last.

        The row must not move meanwhile. A key rotation moves it first, and conversations that were copied before may be
        wrapped under a key that is gone."""
        for _ in range(_ROUNDS):
            row = workspace_row(self._source)
            self._clear()
            if self._bring() and self._compare():
                self._clear(only_gone=True)
                items = tuple(item for items in items_of(self._source, row.id) for item in items)
                if workspace_row(self._source).token == row.token:
                    return Change(row.id, None, self._set_name(row), put=items)  # replaces the mark
        hint = "stop what writes to it; with more=True (--more) copy most of it before"
        raise Busy("the store changes faster than it can be copied", hint=hint)

    def _set_name(self, row: ConversationRow) -> ConversationRow:
        """Return the workspace's row with its name in the target. In a sealed store the name is sealed too."""
        name = self._target.info.workspace_name
        if not row.data_key or self._engine is None or name == self._source.info.workspace_name:
            return row
        here = self._engine.workspace
        here.take(row)
        meta = here.envelope.close(meta_place(row.id), encode(replace(here.meta, name=name)))
        return next_row(here.envelope, row, meta=meta)

    def _finish(self, change: Change) -> None:
        """Open the target.

        Numbers that were used in the source must not be used again in the target. So the workspace's row gets a message
        with the last of them, and drops it."""
        last, mark = self._source.edge() - RUN, self._mark
        stray: tuple[int, ...] = ()
        if self._target.edge() <= last:
            stray = (last,)
            message = MessageRow(last, mark.id, 0, None, None, False, "user", 0, mark.created_at, b"")
            self._mark = replace(mark, token=new_token())
            self._insist(Change(mark.id, mark.token, self._mark, add=(message,)), mark=mark)
        self._insist(replace(change, expect=self._mark.token, drop=stray))

    # -- conversations

    def _clear(self, *, only_gone: bool = False) -> None:
        """Remove conversations that differ from the source: incomplete, outdated, or purged there."""
        for kind in self._target.kinds():
            for rows in pages(self._target, kind) if kind != WORKSPACE else ():
                now = self._tokens(row.id for row in rows)
                for row in rows:
                    if row.id not in now or (now[row.id] != row.token and not only_gone):
                        self._insist(Change(row.id, row.token, None))

    def _bring(self) -> bool:
        """Copy missing conversations. False if one of them changed too often."""
        self._unchanged = 0
        for row, read in ahead(lambda row: small(self._source, row), self._missing(), self._source):
            self._copy(row, read)
        self._flush()
        for _ in range(_LOOKS):
            left, self._left = self._left, []
            for id in left:
                self._copy_again(id)
        return not self._left

    def _missing(self) -> Iterator[ConversationRow]:
        for row, there in self._both():
            if _is_there(row, there):
                self._unchanged += row.kind not in INTERNAL_KINDS
            else:
                yield row

    def _both(self) -> Iterator[tuple[ConversationRow, ConversationRow | None]]:
        """Yield every conversation of the source with its row in the target."""
        for kind in self._source.kinds():
            for rows in pages(self._source, kind) if kind != WORKSPACE else ():
                there = {row.id: row for row in self._target.lookup(ids=[row.id for row in rows])}
                yield from ((row, there.get(row.id)) for row in rows)

    def _tokens(self, ids: Iterable[bytes]) -> dict[bytes, bytes]:
        return {row.id: row.token for row in self._source.lookup(ids=list(ids))}

    def _copy_again(self, id: bytes) -> None:
        for there in self._target.lookup(ids=[id]):
            self._insist(Change(id, there.token, None))
        for row in self._source.lookup(ids=[id]):
            self._copy(row)
        self._flush()

    def _copy(self, row: ConversationRow, read: Content | None = None) -> None:
        """Copy this conversation, or queue it for a common commit. `read` is its content, if it was read already."""
        if self._engine is not None and row.kind not in INTERNAL_KINDS and is_kept_in(self._engine, row):
            raise NotExportable(show_conversation_id(row.id))
        growing, found = _Growing(row, self._commit), read or content(self._source, row)
        try:
            for what, rows in found.pieces:
                growing.add(what, rows)
            for attachment in found.attachments:
                growing.attach(attachment, self._source, self._target)
            if growing.token is None:
                return self._wait(row, growing.change(row), growing.weight)
            if self._tokens([row.id]).get(row.id) != row.token:
                raise _MovedError
            self._commit(growing.change(row))
        except _MovedError:
            self._left.append(row.id)
        else:
            self._count(row)

    def _wait(self, row: ConversationRow, change: Change, weight: int) -> None:
        self._waiting.append((row, change, weight))
        if len(self._waiting) >= PAGE or sum(weight for _, _, weight in self._waiting) > PIECE:
            self._flush()

    def _flush(self) -> None:
        """Commit the queued conversations that have not changed since they were read."""
        waiting, self._waiting = self._waiting, []
        now = self._tokens(row.id for row, _, _ in waiting)
        still = [change if now.get(row.id) == row.token else None for row, change, _ in waiting]
        outcomes = iter(self._outcomes([(change,) for change in still if change is not None]))
        for (row, _, _), change in zip(waiting, still, strict=True):
            if change is not None and isinstance(next(outcomes), Done):
                self._count(row)
            else:
                self._left.append(row.id)

    def _count(self, row: ConversationRow) -> None:
        self._conversations += row.kind not in INTERNAL_KINDS
        self._messages += row.count
        self._progress(self._messages)

    def _commit(self, *changes: Change) -> None:
        outcome = self._outcomes([changes])[0]
        if isinstance(outcome, Missing):
            raise Damaged(f"an attachment of conversation {show_conversation_id(outcome.conversation)} is not whole")
        if not isinstance(outcome, Done):
            raise _MovedError

    def _insist(self, *changes: Change, mark: ConversationRow | None = None) -> None:
        """Commit changes that only another writer could prevent, with retries. Raises `Busy`."""
        for _ in range(_LOOKS):
            if isinstance(self._outcomes([changes], mark)[0], Done):
                return
        raise Busy("somebody else changes the target", hint="see to it that nobody does, and try again")

    def _outcomes(self, all: Sequence[tuple[Change, ...]], mark: ConversationRow | None = None) -> list[Outcome]:
        mine = mark or self._mark
        batches = [Batch(changes, ((mine.id, mine.token),), is_copy=True) for changes in all]
        outcomes = self._target.commit(batches) if batches else []
        for one in outcomes:
            if isinstance(one, Stale) and one.conversation == mine.id and (not one.row or one.row.token != mine.token):
                raise Busy("another copy into the target has begun", hint="let one of them finish")
        return outcomes

    # -- was it copied?

    def _compare(self) -> bool:
        """Read everything again on both sides and compare. False if a conversation changes too often."""
        self._compared = 0
        pairs = ahead(lambda both: self._is_same(*both), self._both(), self._source, self._target)
        return all(self._compare_one(row, there, same=same) for (row, there), same in pairs)

    def _compare_one(self, row: ConversationRow, there: ConversationRow | None, *, same: bool) -> bool:
        for _ in range(_LOOKS):
            if same:
                self._compared += row.kind not in INTERNAL_KINDS
                return True
            if there is not None and _is_there(row, there) and self._tokens([row.id]).get(row.id) == row.token:
                self._different.append(show_conversation_id(row.id))
                self._insist(Change(row.id, there.token, None))
                return True
            self._copy_again(row.id)  # it has changed
            rows = self._source.lookup(ids=[row.id])
            if not rows:
                return True
            row, there = rows[0], next(iter(self._target.lookup(ids=[row.id])), None)
            same = self._is_same(row, there)
        self._left.clear()
        return False

    def _is_same(self, row: ConversationRow, there: ConversationRow | None) -> bool:
        if there is None or not _is_there(row, there):
            return False
        pairs = zip_longest(everything(self._source, row), everything(self._target, there))
        return all(ours == theirs for ours, theirs in pairs)


class _Growing:
    """A conversation that is being copied: its rows that were read and are not committed yet."""

    def __init__(self, row: ConversationRow, commit: Callable[[Change], None]) -> None:
        self._row, self._commit = row, commit
        self._fields: dict[str, list[Any]] = {}
        self.weight = 0
        self.token: bytes | None = None  # the token of the last commit

    def change(self, row: ConversationRow) -> Change:
        fields: dict[str, Any] = {what: tuple(rows) for what, rows in self._fields.items()}
        return Change(row.id, self.token, row, **fields)

    def add(self, what: str, rows: Sequence[Any]) -> None:
        weight = weight_of(rows)
        if self.weight and self.weight + weight > PIECE:
            self._write()
        self._fields.setdefault(what, []).extend(rows)
        self.weight += weight

    def attach(self, attachment: AttachmentRow, source: Backend, target: Backend) -> None:
        """Stage an attachment after the first commit of its conversation: removing that also removes staged chunks."""
        if self.token is None:
            self._write()
        id, name, at = self._row.id, attachment.name, attachment.staged_at
        start = 0
        for some in _group_chunks(source.chunks(id, name)):
            target.stage(id, name, start, some, last=start + len(some) == attachment.chunks, at=at)
            start += len(some)
        self._fields.setdefault("attach", []).extend((number, name) for number in attachment.messages)

    def _write(self) -> None:
        row = replace(self._row, token=new_token())
        self._commit(self.change(row))
        self._fields, self.weight, self.token = {}, 0, row.token


def _is_there(row: ConversationRow, there: ConversationRow | None) -> bool:
    """Tell whether the target has the row as it was copied."""
    return there is not None and there.token == row.token


def _group_chunks(chunks: Iterable[bytes]) -> Iterator[list[bytes]]:
    some: list[bytes] = []
    for chunk in chunks:
        some.append(chunk)
        if sum(map(len, some)) >= PIECE:
            yield some
            some = []
    if some:
        yield some


def _without_words(row: ConversationRow) -> ConversationRow:
    """Return the workspace's row without its description: the mark of an unfinished copy."""
    return replace(row, meta=b"", token=new_token())

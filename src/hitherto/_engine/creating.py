"""Making conversations: new ones with their first messages, and copies of a thread.

A conversation and its first messages are one commit. If the id or the key of it is taken, nothing is written, and the
caller looks for the conversation that has it.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ..backend import CHAT, Batch, Change, Done, ItemRow, Stale, Taken
from ..errors import Busy, StorageFull
from ..ids import new_conversation_id
from ..model import Saved, Setup, check_strings
from .attachments import unstage
from .bodies import Meta
from .committer import report_stored
from .engine import Engine
from .filters import Path, description_tags, folder
from .items import Item, exchange, rows
from .packs import Reader
from .retry import retry
from .setups import check_setup, check_text, open_setups, setup_item
from .signals import KeyChanged, RowChanged
from .state import ConversationState, EncodedMessage, Placement, check_size, close_meta, encode_message
from .workspace import add_description, new_row

if TYPE_CHECKING:
    from ..sanitiser.redactor import Redactor
    from ..snapshots import Snapshot


class More(Struct, frozen=True):
    """Further parts of a new conversation that comes from another store, beside its messages."""

    head_at: int | None = None  # of the head among the messages, if it is not the last; -1: there is none
    held: bool = False
    items: Callable[[ConversationState, list[Saved]], Iterable[ItemRow]] = lambda _, __: ()
    expires_at: int | None = None  # of its own
    user_items: Sequence[Item] = ()


def create(
    engine: Engine,
    id: bytes,
    meta: Meta,
    setups: Sequence[Setup],
    make: Callable[[ConversationState], list[EncodedMessage]] = lambda _: [],
    more: More | None = None,
    kind: str = CHAT,
) -> tuple[ConversationState, list[Saved]] | None:
    """Create a conversation with its first messages, in one transaction; None if its id or key is taken."""
    if engine.redactor is not None:
        meta = clean_meta(meta, engine.redactor)
        setups = [engine.redactor.setup(setup) for setup in setups]

    def attempt() -> tuple[ConversationState, list[Saved]] | None:
        try:
            return _create_now(engine, id, meta, setups, make, more or More(), kind)
        except KeyChanged:  # of the workspace; or there is another policy
            engine.workspace.refresh()
            if meta.key is not None:
                return None  # and the conversation may be there under another name: look again
            raise RowChanged from None

    return retry(attempt, "the conversation could not be started")


def _create_now(
    engine: Engine,
    id: bytes,
    meta: Meta,
    setups: Sequence[Setup],
    make: Callable[[ConversationState], list[EncodedMessage]],
    more: More,
    kind: str,
) -> tuple[ConversationState, list[Saved]] | None:
    if more.expires_at is not None:
        engine.schedule.expect_expiry()
    require = engine.workspace.require
    key = None if meta.key is None else engine.codec.tag("conversation", meta.key)
    now = engine.clock()
    row = new_row(engine.codec, id, kind, key, _choose_created_at(meta, now))
    active = min(meta.created or now, now)
    state = ConversationState(
        engine, replace(row, active_at=active, held=more.held, expires_at=more.expires_at), new=True
    )
    kept = [] if list(setups) == [Setup()] and not meta.setups else setups
    meta = replace(meta, setups=len(kept), setup=meta.setup if meta.setups else len(kept))
    closed = close_meta(state.envelope, id, meta, engine.max_write_bytes)
    row = state.row = add_description(state.envelope, state.row, closed)
    put = tuple(setup_item(state.envelope, id, number, setup) for number, setup in enumerate(kept, 1))
    tags = description_tags(engine.codec, meta)
    drafts = make(state)
    try:
        state.stage(drafts)
        first, messages = state.prepare(row, drafts, Placement(None), head_at=more.head_at, is_packed=True)
        change = first or Change(id, None, row)
        own = tuple(rows(state.envelope, row, more.user_items))
        after = change.row or row
        if own:
            after = exchange(state.envelope, after, own, (), sum(len(item.value) for item in more.user_items))
        items = (*put, *own, *more.items(state, messages))
        change = replace(change, expect=None, row=after, put=items, tag=(*change.tag, *tags))
        outcome = engine.committer.write(Batch((change,), require), tell=report_stored)
        if isinstance(outcome, Done):
            state.row = change.row or row
            engine.states[id] = state
            return state, messages
        if isinstance(outcome, Stale) and outcome.conversation == engine.workspace.row.id:
            raise KeyChanged
        if not (isinstance(outcome, Taken) and outcome.what in ("id", "key")):
            raise RowChanged  # another process took the numbers, or removed what was staged
        _unstage(state, drafts)
        return None
    except Exception as error:
        _unstage(state, drafts)  # no message refers to it, and it would keep a full disk full
        if isinstance(error, StorageFull):
            engine.quota.report_full(error)
        raise


def _unstage(state: ConversationState, drafts: Sequence[EncodedMessage]) -> None:
    for one in drafts:
        unstage(state, one.sources)


def copy_thread(
    engine: Engine, source: ConversationState, path: Sequence[Saved], setup: int, title: str | None
) -> ConversationState:
    """Create a conversation that holds a copy of this path."""
    engine.ensure_open()
    source.refresh()  # it may have become not exportable in another process: so would the copy
    from .record_items import items as record_items  # noqa: PLC0415  # rare
    from .record_items import read_about  # noqa: PLC0415  # rare

    beside = engine.reread(source, lambda own: read_about(engine, own.envelope, own.row)).portable
    if engine.redactor is not None:  # it may be older than the sanitiser
        beside = beside.clean_with(engine.redactor.value)
    reader = Reader(engine)
    rows = sorted(
        engine.backend.messages(numbers=[engine.message_ids.number(m.id) for m in path]), key=lambda row: row.number
    )
    made_with = {engine.message_ids.id(m.number): engine.read_body(m, source, reader)[1].setup for m in rows}

    def make(state: ConversationState) -> list[EncodedMessage]:
        drafts: list[EncodedMessage] = []
        for message in path:
            root = None
            if message.parent is None:  # a compaction goes on from the message before it
                follows = drafts and message.main and message.link is not None
                root = Placement(None, link=~(len(drafts) - 1) if follows else None)
            origin = message.origin or f"{message.conversation}/{message.id}"
            drafts.append(encode_message(state, message, made_with[message.id], root, origin))
        return drafts

    setups = open_setups(source)
    meta = replace(source.meta, key=None, opening=None, setup=setup, setup_seq=len(path), created=0, checkpoints=())
    if title is not None:
        meta = replace(meta, title=check_text(title, "the title", engine.max_write_bytes))
    meta = replace(meta, record=beside.details.number)
    more = More(items=lambda state, _: record_items(state.envelope, state.id, beside))
    made = create(engine, new_conversation_id(), meta, setups, make, more)
    if made is None:
        raise Busy("the conversation could not be copied")
    return made[0]


def create_from_snapshot(
    engine: Engine, snapshot: "Snapshot", title: str | None, project: Path | None
) -> ConversationState:
    """Create a conversation that holds the messages, the system prompt and the tools of a snapshot."""
    from ..snapshots._thread import about, thread_of  # noqa: PLC0415  # most never need it

    messages, setup = thread_of(snapshot)
    named, metadata = about(snapshot)
    meta = build_meta(engine, named if title is None else title, None, metadata, project)
    limit = engine.max_write_bytes
    checked = check_setup(setup.provider, setup.model, setup.system_prompt, setup.tools, limit)

    def make(state: ConversationState) -> list[EncodedMessage]:
        drafts = [encode_message(state, message, 1) for message in messages]
        for one in drafts:  # as if they were appended one by one
            check_size([one], limit)
        return drafts

    made = create(engine, new_conversation_id(), meta, [checked], make)
    if made is None:
        raise Busy("the conversation could not be started")
    return made[0]


def build_meta(
    engine: Engine, title: str, key: str | None, metadata: Mapping[str, str] | None, project: Path | None
) -> Meta:
    """Return the description of a new conversation, from the arguments of a caller."""
    check_text(title, "the title", engine.max_write_bytes)
    return Meta(title, key, folder(project), check_strings(metadata, "metadata"))


def clean_meta(meta: Meta, redactor: "Redactor") -> Meta:
    """Return the description of a conversation, redacted."""
    redactor.name(meta.key, "the key")
    redactor.folder(meta.project)
    return replace(meta, title=redactor.text(meta.title), metadata=redactor.strings(meta.metadata))


def _choose_created_at(meta: Meta, now: int) -> int:
    """Return the `created_at` of a new row. A conversation from another store gets a time that is earlier by a random
    part of a second: the time also tells a conversation from an earlier one of the same id, and an import after a purge
    would have the same time again."""
    return min(meta.created, now) - int.from_bytes(os.urandom(4)) % 1_000_000 if meta.created else now

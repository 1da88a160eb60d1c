"""What the pages ask of a store, answered as values.

Trees of conversations are remembered by the token of their row, which every write changes: a page of a conversation
that nobody writes to reads only the messages that it shows. What is remembered is in memory alone, and `forget` drops
it: the content of a sealed store never goes to a disk, and is not kept while the store is locked.
"""

import base64
import binascii
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from .._engine.verify import verified_at
from ..attachment import Attachment
from ..backend import CHAT, conversation_kinds
from ..errors import Damaged, HithertoError, InvalidArgument, InvalidID, InvalidQuery, NotFound
from ..formats.exports._message_html import gist_of
from ..formats.exports._sections import text_in
from ..model import Block, Saved, Usage, approximate_tokens, to_datetime
from ..retention import Candidate, decide
from .filters import Wanted
from .outline import Outline
from .values import (
    Comparison,
    ConversationCard,
    ConversationList,
    ConversationWindow,
    Found,
    Header,
    MessageRecord,
    Place,
    Prompt,
    Prompts,
    SearchHit,
    SearchResults,
    Siblings,
    Skeleton,
    StoreState,
)

if TYPE_CHECKING:
    from ..conversation import Conversation
    from ..listing import ConversationInfo
    from ..retention import RetentionPolicy
    from ..store import Store

__all__ = ["PAGE", "WINDOW", "StoreView", "View", "Window"]

PAGE = 25  # conversations of a list
WINDOW = 100  # messages that are fetched at a time
FIRST_WINDOW = 24  # messages of the first page: the rest follows while people read
MOST_PROMPTS = 400
MOST_COMPARED = 500  # conversations that one page of a filtered list looks at
_OUTLINES, _CARDS = 32, 2_000  # that are remembered
_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,", re.IGNORECASE)

K = TypeVar("K")
V = TypeVar("V")


class _Recent(Generic[K, V]):
    """The values that were used last, by key."""

    def __init__(self, most: int) -> None:
        self._most, self._values, self._lock = most, OrderedDict[K, V](), threading.Lock()

    def get(self, key: K) -> V | None:
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: K, value: V) -> V:
        with self._lock:
            self._values[key] = value
            while len(self._values) > self._most:
                self._values.popitem(last=False)
        return value

    def clear(self) -> None:
        with self._lock:
            self._values.clear()


class _Card(NamedTuple):
    """The part of a card that costs reads."""

    first_prompt: str
    model: str
    source: str | None
    branches: int


class View:
    """A conversation as it is now, with its tree."""

    def __init__(self, store: "Store", talk: "Conversation", outline: Outline) -> None:
        self.store, self.talk, self.outline = store, talk, outline
        self._names = store.engine.message_ids

    @property
    def id(self) -> str:
        return self.talk.id

    def name(self, number: int) -> str:
        """Return the id of a message by its number."""
        return self._names.id(number)

    def number(self, id: str) -> int:
        """Return the number of a message of this conversation; `NotFound` if it is of another one, or gone."""
        try:
            number = self._names.number(id)
        except InvalidID:
            number = -1
        if number not in self.outline.rows:
            raise NotFound("message in this conversation", [id])
        return number

    def messages(self, numbers: Sequence[int]) -> list[Saved]:
        """Return these messages; one that cannot be read comes with its `problem`, one that was deleted is left out."""
        ids = [self.name(number) for number in numbers]
        with suppress(Damaged, NotFound):
            return self.store.get(ids, attachments="lazy")
        return [message for id in ids if (message := self._message(id)) is not None]

    def _message(self, id: str) -> Saved | None:
        try:
            return self.store.message(id, attachments="lazy")
        except NotFound:
            return None
        except Damaged as error:
            row = self.outline.rows[self._names.number(id)]
            return Saved(
                role=row.role,
                id=id,
                conversation=self.id,
                seq=row.seq,
                created_us=row.created_at,
                main=bool(row.main),
                problem=str(error),
            )

    @cached_property
    def prompts(self) -> set[int]:
        return {number for number, row in self.outline.rows.items() if row.role == "user"}


class Window(NamedTuple):
    """A part of a path with its messages."""

    view: View
    path: list[int]
    start: int
    messages: list[Saved]
    value: ConversationWindow


class StoreView:
    """A store, as the pages see it."""

    def __init__(self, store: "Store") -> None:
        self.store = store
        self._outlines = _Recent[bytes, tuple[bytes, Outline]](_OUTLINES)
        self._usages = _Recent[bytes, tuple[bytes, dict[int, Usage]]](_OUTLINES)
        self._cards = _Recent[tuple[str, datetime, int], _Card](_CARDS)

    def forget(self) -> None:
        """Drop what is remembered."""
        self._outlines.clear()
        self._usages.clear()
        self._cards.clear()

    # -- the list

    def conversations(self, wanted: Wanted, cursor: str | None = None) -> ConversationList:
        """Return a page of the list. Some filters have no index; a page then looks at `MOST_COMPARED` conversations, so
        its length varies. Its cursor goes on from there."""
        kinds = sorted({CHAT, *conversation_kinds(self.store.backend)})
        policy, now = self.store.retention, datetime.now(UTC)
        if wanted.label:
            ids = dict.fromkeys(m.conversation for m in self.store.messages(label=wanted.label, attachments="lazy"))
            talks = [self.store.conversation(id) for id in list(ids)[:WINDOW]]
            cards = [self._card_of_talk(talk, policy, now) for talk in talks]
            cards = [card for card in cards if wanted.project in ("", card.project) and wanted.fits(card)]
            return ConversationList(conversations=cards, kinds=kinds, store=self.state())
        found: list[ConversationCard] = []
        total = None
        for _ in range(MOST_COMPARED // PAGE):
            page = self.store.conversations(
                limit=PAGE,
                cursor=cursor,
                kind=wanted.kind,
                project=wanted.project or None,
                total=cursor is None and not wanted.is_narrow,
                include_expired=True,
            )
            total, cursor = page.total if total is None else total, page.next_cursor
            cards = []
            for info in page:
                with suppress(NotFound):  # purged since it was listed
                    cards.append(self._card(info, policy, now))
            found += [card for card in cards if not wanted.is_narrow or wanted.fits(card)]
            if cards and wanted.is_past(cards[-1]):
                cursor = None
            if cursor is None or len(found) >= PAGE:
                break
        return ConversationList(conversations=found, next=cursor, total=total, kinds=kinds, store=self.state())

    def state(self) -> StoreState:
        """Return how the store is kept."""
        return StoreState(
            sealed=self.store.key_id is not None,
            read_only=self.store.read_only is not None,
            verified_at=verified_at(self.store.engine),
        )

    def _card(self, info: "ConversationInfo", policy: "RetentionPolicy | None", now: datetime) -> ConversationCard:
        if info.problem is not None:
            return ConversationCard(
                id=info.id,
                title="",
                kind=info.kind,
                messages=info.count,
                problem=info.problem,
                active_at=info.active_at,
                retention=Place(held=info.held),
            )
        return self._make_card(info, info.kind, info.size, info.expires_at, policy, now)

    def _card_of_talk(self, talk: "Conversation", policy: "RetentionPolicy | None", now: datetime) -> ConversationCard:
        row = talk.state.row
        due = None if row.expires_at is None else to_datetime(row.expires_at)
        return self._make_card(talk, row.kind, row.size, due, policy, now)

    def _make_card(
        self,
        one: "ConversationInfo | Conversation",
        kind: str,
        size: int,
        due: datetime | None,
        policy: "RetentionPolicy | None",
        now: datetime,
    ) -> ConversationCard:
        facts = self._facts(one.id, one.active_at, one.count)
        return ConversationCard(
            id=one.id,
            title=one.title,
            first_prompt=facts.first_prompt,
            kind=kind,
            project=one.project,
            source=facts.source,
            model=facts.model or None,
            messages=one.count,
            branches=facts.branches,
            approximate_tokens=approximate_tokens(size),
            created_at=one.created_at,
            active_at=one.active_at,
            retention=_place(one.id, one.active_at, due, one.held, policy, now),
        )

    def _facts(self, id: str, active_at: datetime, count: int) -> _Card:
        key = id, active_at, count
        known = self._cards.get(key)
        if known is not None:
            return known
        try:
            view = self.open(id)
            prompt, source = self._first_prompt(view)
            found = _Card(prompt, view.talk.model, source, len(view.outline.leaves))
        except Damaged as error:
            return _Card(f"(cannot be read: {error})", "", None, 0)
        return self._cards.put(key, found)

    def _first_prompt(self, view: View) -> tuple[str, str | None]:
        """Return the beginning of the first prompt that is more than context, and the program that it came from."""
        prompts = [n for n in view.outline.trunk[:20] if view.outline.rows[n].role == "user"][:3]
        messages = view.messages(prompts or view.outline.trunk[:1])
        source = next(
            (
                str(found["format"])
                for m in messages
                if isinstance(found := (m.extra or {}).get("imported"), dict) and "format" in found
            ),
            None,
        )
        return next((gist for m in messages if (gist := gist_of(m.blocks))), ""), source

    # -- a conversation

    def open(self, id: str) -> View:
        """Return a conversation by its id, by a unique beginning of it, or by a message of it."""
        talk = self.store.conversation(id)
        row = talk.state.row
        known = self._outlines.get(row.id)
        if known is None or known[0] != row.token:
            outline = Outline(self.store.engine.read_headers(row.id), row.head)
            known = self._outlines.put(row.id, (row.token, outline))
        return View(self.store, talk, known[1])

    def usages(self, view: View) -> dict[int, Usage]:
        """Return the tokens of each message that counts them, by its number."""
        row = view.talk.state.row
        known = self._usages.get(row.id)
        if known is None or known[0] != row.token:
            messages = self.store.messages(conversation=view.talk, attachments="lazy")
            found = {self.store.engine.message_ids.number(m.id): m.usage for m in messages if m.usage is not None}
            known = self._usages.put(row.id, (row.token, found))
        return known[1]

    def header(self, view: View) -> Header:
        """Return what all pages of a conversation show."""
        talk, outline, row = view.talk, view.outline, view.talk.state.row
        setup = talk.setup
        due = None if row.expires_at is None else to_datetime(row.expires_at)
        return Header(
            id=talk.id,
            title=talk.title,
            key=talk.key,
            project=talk.project,
            metadata=talk.metadata,
            provider=setup.provider,
            model=setup.model,
            system_prompt=setup.system_prompt,
            messages=len(outline),
            branches=len(outline.leaves),
            forks=len(outline.forks),
            head=None if outline.head is None else view.name(outline.head),
            created_at=talk.created_at,
            active_at=talk.active_at,
            exportable=talk.exportable,
            retention=_place(talk.id, talk.active_at, due, talk.held, self.store.retention, datetime.now(UTC)),
        )

    def window(
        self,
        view: View,
        *,
        through: str | None = None,
        start: int | None = None,
        count: int = FIRST_WINDOW,
    ) -> Window:
        """Return the messages at `start` of the path through a message; without a start, those around it. A window
        never begins with the results of calls that stand before it."""
        outline = view.outline
        number = None if through is None else view.number(through)
        path = outline.path(number)
        count = max(1, min(count, WINDOW))
        if start is None:
            at = 0 if number is None else path.index(number)
            start = max(0, min(at - count // 4, len(path) - count))
        start = max(0, min(start, len(path)))
        while 0 < start < len(path) and outline.rows[path[start]].role == "tool_result":
            start -= 1
        stop = min(len(path), start + count)
        while stop < len(path) and outline.rows[path[stop]].role == "tool_result" and stop < start + 2 * WINDOW:
            stop += 1
        messages = view.messages(path[start:stop])
        places = {view.name(n): at for at, n in enumerate(path[start:stop], start)}
        root = outline.rows[path[0]] if path else None
        aside = root is not None and not root.main
        value = ConversationWindow(
            conversation=self.header(view),
            leaf=view.name(path[-1]) if path else None,
            on_trunk=path == outline.trunk,
            start=start,
            length=len(path),
            target=through,
            subagent=self._label(view, path[0]) if aside else None,
            started_by=view.name(root.link) if aside and root and root.link in outline.rows else None,
            messages=[_record(view, message, places[message.id]) for message in messages],
        )
        return Window(view, path, start, messages, value)

    def _label(self, view: View, number: int) -> str | None:
        return next((message.label for message in view.messages([number])), None)

    def skeleton(self, view: View, through: str) -> Skeleton:
        """Return the prompts and forks of the path through a message."""
        outline, path = view.outline, view.outline.path(view.number(through))
        places = [(at, number, view.name(number)) for at, number in enumerate(path)]
        return Skeleton(
            prompts=[(at, id) for at, number, id in places if outline.rows[number].role == "user"],
            forks=[(at, id) for at, number, id in places if len(outline.siblings(number)) > 1],
            ends=[(at, id) for at, _, id in (places[0], places[-1])],
        )

    def prompts(self, view: View, through: str) -> Prompts:
        """Return the prompts of the path through a message, each with its first words; of very many the first."""
        skeleton = self.skeleton(view, through)
        positions = {id: at for at, id in skeleton.prompts[:MOST_PROMPTS]}
        messages = view.messages([view.number(id) for id in positions])
        found = [Prompt(position=positions[m.id], id=m.id, text=gist_of(m.blocks)) for m in messages]
        return Prompts(prompts=[one for one in found if one.text], total=len(skeleton.prompts))

    def compare(self, view: View, left: str, right: str) -> Comparison:
        """Return the two paths through these messages, from where they part; of a long one its first messages."""
        outline = view.outline
        paths = [outline.path(view.number(one)) for one in (left, right)]
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*paths, strict=False)))
        sides = [
            [_record(view, message, at) for at, message in enumerate(view.messages(path[shared:][:WINDOW]), shared)]
            for path in paths
        ]
        return Comparison(
            conversation=self.header(view),
            shared=shared,
            fork=view.name(paths[0][shared - 1]) if shared else None,
            left=sides[0],
            right=sides[1],
            left_length=len(paths[0]) - shared,
            right_length=len(paths[1]) - shared,
        )

    # -- searching

    def find(self, view: View, through: str, text: str) -> Found:
        """Return the messages of the path that hold a text anywhere: also in what is folded, and in calls and their
        results. The others are counted."""
        wanted = text.casefold()
        path = {number: at for at, number in enumerate(view.outline.path(view.number(through)))}
        here: list[tuple[int, str]] = []
        elsewhere: list[str] = []
        listing = self.store.messages(conversation=view.talk, newest_first=False, attachments="lazy")
        for message in listing if wanted.strip() else ():
            if message.problem is None and any(wanted in words.casefold() for words in _texts(message)):
                at = path.get(self.store.engine.message_ids.number(message.id))
                if at is None:
                    elsewhere.append(message.id)
                else:
                    here.append((at, message.id))
        here.sort()
        return Found(
            query=text,
            ids=[id for _, id in here],
            positions=[at for at, _ in here],
            elsewhere=len(elsewhere),
            first_elsewhere=elsewhere[0] if elsewhere else None,
        )

    def search(self, query: str, *, offset: int = 0, best: bool = False, role: str | None = None) -> SearchResults:
        """Return a page of what the search of the store finds."""
        if not query.strip():
            return SearchResults(query=query, hits=[])
        try:
            hits = self.store.search(
                query, limit=PAGE + 1, offset=offset, mode="auto", order="best" if best else "newest", role=role or None
            )
        except (InvalidQuery, InvalidArgument) as error:
            return SearchResults(query=query, hits=[], hint=f"{error}. {error.hint or ''}")
        titles: dict[str, str] = {}
        found = []
        for hit in hits[:PAGE]:
            if hit.conversation not in titles:
                titles[hit.conversation] = self._title(hit.conversation)
            found.append(
                SearchHit(
                    message=hit.message_id,
                    conversation=hit.conversation,
                    title=titles[hit.conversation],
                    role=hit.role,
                    created_at=hit.created_at,
                    snippet=hit.snippet,
                    spans=list(hit.spans),
                )
            )
        tier = hits[0].tier if hits else "match"
        return SearchResults(query=query, hits=found, offset=offset, more=len(hits) > PAGE, tier=tier)

    def _title(self, id: str) -> str:
        try:
            return self.store.conversation(id).title
        except HithertoError:  # deleted or found damaged meanwhile: the hit is shown without
            return ""


def _place(
    id: str, active: datetime, due: datetime | None, held: bool, policy: "RetentionPolicy | None", now: datetime
) -> Place:
    item = decide(Candidate(id, active, due, held), policy, now)
    why = {
        "expired": "due now, by the policy of the workspace",
        "own-expiry": "by an expiry of its own",
        "recent": "by the policy of the workspace",
        "undated": "counted from when a sweep saw it first",
        "held": "on hold",
        "floor": "younger than the retention floor",
        "off": "retention is off",
    }.get(item.reason, item.reason)
    return Place(held=held, due_at=item.expires_at, why="on hold" if held else why)


def _record(view: View, message: Saved, position: int) -> MessageRecord:
    number = view.number(message.id)
    outline = view.outline
    siblings = outline.siblings(number)
    link = outline.rows[number].link
    return MessageRecord(
        id=message.id,
        position=position,
        role=message.role,
        created_at=message.created_at,
        blocks=[block_record(block) for block in message.blocks],
        label=message.label,
        error=message.tool_result_error,
        usage=None
        if message.usage is None
        else {name: getattr(message.usage, name) for name in message.usage.__struct_fields__},
        siblings=None
        if len(siblings) < 2
        else Siblings(position=siblings.index(number) + 1, ids=[view.name(n) for n in siblings]),
        agents=[view.name(n) for n in outline.agents.get(number, ())],
        sums_up=view.name(link) if outline.rows[number].main and link in outline.rows and link is not None else None,
        problem=message.problem,
    )


def _texts(message: Saved) -> Iterator[str]:
    """Yield the texts of a message, as they are shown."""
    for block in message.blocks:
        if block.type == "tool_call":
            yield from (block.tool_name or "", *_strings(block.arguments))
        elif (text := text_in(block)) is not None:
            yield text


def _strings(value: object) -> Iterator[str]:
    """Yield the texts in plain JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)


def block_record(block: Block) -> dict[str, object]:
    """Return a block as plain JSON; of binary content its size."""
    found: dict[str, object] = {"type": block.type, "modality": block.modality, "mime_type": block.mime_type}
    if block.id is not None:
        found["id"] = block.id
    content = block.content
    if isinstance(content, Attachment):
        found |= {"text": content.load()} if content.text and not content.is_missing else {"bytes": content.size}
    elif isinstance(content, bytes):
        found["bytes"] = len(content)
    elif block.type == "tool_call":
        found |= {"name": block.tool_name, "arguments": block.arguments}
    else:
        found["text"] = content
    return found


def media_of(block: Block) -> tuple[str, Iterable[bytes]] | None:
    """Return the type and the bytes of binary content; None if the block has none."""
    content = block.content
    if isinstance(content, str):
        found = _DATA_URL.match(content)
        if found is None:
            return None
        with suppress(binascii.Error, ValueError):
            return found[1].lower(), (base64.b64decode(content[found.end() :], validate=True),)
        return None
    if isinstance(content, Attachment):
        return None if content.is_missing or content.text else (block.mime_type.lower(), content)
    return block.mime_type.lower(), (content,)

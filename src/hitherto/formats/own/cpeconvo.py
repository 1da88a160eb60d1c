"""`.cpeconvo`: the SQLite file in which the program CPE keeps its conversations, in both of its generations.

A file is a forest: messages point to their parents, roots point to nothing. Every tree becomes a conversation. In the
later generation a root may continue a message of another tree (compaction), and then both are one conversation. The
fields of a session of the program (its title, its directory, its position) become fields of the conversation.

The reader goes through the ids first and finds the trees; the content is then read tree by tree. A link is followed
like a parent, so one walk from each root reaches everything but circles. One function derives a conversation's fields
from the columns. The writer uses it too, and writes a note where the conversation differs.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from os import urandom
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from ...errors import HithertoError, InvalidArgument, InvalidMessage, NotSealed
from ...keys import Key
from ...model import Message, Setup, encodable, trace_of
from ...snapshots import Unreadable
from .._importing import check_tree
from .._types import PortableConversation, PortableMessage, Source
from ._cpe_file import FIRST, LATER, Reader, Writer, create_writer, open_reader
from ._cpe_rows import Note, Row, RowMessage, format_time, message_rows, read_message, text, when

name = "cpeconvo"
suffixes = (".cpeconvo",)
writes = True

_log = logging.getLogger("hitherto")

_OUR_FILES = (b"HTHT", b"HTHS")  # in the header of a store, and of its search index
_SESSION = ("id", "last_message_id", "cwd", "title", "model_ref", "thinking_level", "cost_usd", "created_at")
_SESSION_FIELD = re.compile(rf"cpe\.session\.(\d{{1,6}})\.({'|'.join(_SESSION)})", re.ASCII)


def recognises(source: Source) -> str | None:
    """Recognise a SQLite file with CPE's two tables, by its content."""
    if not source.head.startswith(b"SQLite format 3\0") or source.head[68:72] in _OUR_FILES:
        return None
    try:
        with open_reader(source.path) as file:
            return f"CPE's tables, of its {'later' if file.columns['acp_sessions'] else 'first'} generation"
    except HithertoError:  # a broken file is not an error here: the caller has not chosen this format
        return None


def read(path: Path, key: Key | None) -> Iterator[PortableConversation | Unreadable]:
    """Yield the conversations in a file of either generation."""
    if key is not None:
        raise NotSealed("a key was given, and a .cpeconvo file is plain", hint="leave the key out")
    with open_reader(path) as file:
        forest = _Forest(file)
        for ids in forest.trees():
            yield _conversation(forest, ids)
        yield from (Unreadable(which, why) for which, why in forest.unreadable.items())


def write(talks: Iterable[PortableConversation], path: Path, key: Key | None) -> int:
    """Write a new file of the later generation: plain SQLite. A key is refused, because the file would not be
    sealed."""
    return _write(talks, path, key, LATER)


def write_first(talks: Iterable[PortableConversation], path: Path, key: Key | None) -> int:
    """Write a new file of the first generation, which has neither sessions nor models nor compaction."""
    return _write(talks, path, key, FIRST)


# -- reading


class _Forest:
    """The assignment of messages to conversations. It holds ids and positions; the content stays in the file."""

    def __init__(self, file: Reader) -> None:
        self._file = file
        self._rows: dict[str, object] = {}
        self.parents: dict[str, str | None] = {}
        self.links: dict[str, str] = {}  # of roots
        self.unreadable: dict[str, str] = {}
        onward = self._read_messages()
        self._blocks = self._read_blocks()
        self.sessions: dict[object, list[Row]] = {}  # by the message that each stands at
        for _, *cells in file.all("acp_sessions", *_SESSION):
            self.sessions.setdefault(cells[1], []).append(dict(zip(_SESSION, cells, strict=True)))
        if self.sessions.keys() - self._rows.keys():
            _log.debug("%s: sessions in which nothing was said were left out", file.path)
        self._below: dict[str | None, list[str]] = {}
        for id, parent in self.parents.items():
            self._below.setdefault(parent or self._hang(id, onward[id]), []).append(id)

    def _read_messages(self) -> dict[str, object]:
        """Read all messages' ids. Returns the message that each one continues."""
        above, onward, nameless, lost = dict[str, object](), dict[str, object](), 0, []
        for row, id, parent, continues in self._file.all("messages", "id", "parent_id", "compaction_parent_id"):
            if isinstance(id, str) and id and id not in above:
                self._rows[id], above[id], onward[id] = row, parent, continues
            else:
                nameless += 1
        for id, parent in above.items():
            self.parents[id] = parent if isinstance(parent, str) and parent in above else None
            if parent not in ("", self.parents[id]):
                lost.append(id)
        if nameless:
            self.unreadable["table messages"] = f"{nameless:,} of them without an id of their own"
        self._tell(lost, "the parent is not there: a conversation begins with each")
        return onward

    def _read_blocks(self) -> dict[object, list[tuple[int, object]]]:
        """Return the rows of each message's blocks. CPE leaves blocks behind when it deletes: those are left out."""
        found: dict[object, list[tuple[int, object]]] = {}
        for row, message, order in self._file.all("blocks", "message_id", "sequence_order"):
            found.setdefault(message, []).append((order if isinstance(order, int) else 0, row))
        gone = sum(len(found.pop(id)) for id in found.keys() - self._rows.keys())
        if gone:
            _log.debug("%s: %d blocks of messages that are gone were left out", self._file.path, gone)
        return found

    def _tell(self, ids: Sequence[str], what: str) -> None:
        if ids:
            which = ", ".join(ascii(id[:40])[1:-1] for id in ids[:5])  # escaped: the ids are untrusted
            more = f" and {len(ids) - 5:,} more" if len(ids) > 5 else ""
            self.unreadable[f"message{'s' if ids[1:] else ''} {which}{more}"] = what

    def _hang(self, root: str, continues: object) -> str | None:
        """Return the message of another tree that this root continues, or None."""
        note = self.hear(root).note
        link = next((id for id in (continues, note.link) if isinstance(id, str) and id in self._rows), None)
        if link is not None:
            self.links[root] = link
        return link or (note.within if note.within in self._rows else None)

    def trees(self) -> Iterator[list[str]]:
        """Yield the messages of each conversation: parents first, then in the order of the file."""
        reached: set[str] = set()
        for start in [*self._below.get(None, ()), *self.links]:
            if start not in reached:
                self.links.pop(start, None)  # a link here would close a circle, so it is cut
                yield list(self._walk(start, reached))
        circling = [id for id in self._rows if id not in reached]
        self._tell(circling, "in, or below, a circle of parents: no beginning can be found")

    def _walk(self, start: str, reached: set[str]) -> Iterator[str]:
        reached.add(start)
        ready: list[tuple[Any, str]] = [(self._rows[start], start)]
        while ready:
            _, id = heappop(ready)
            yield id
            for child in self._below.get(id, ()):
                if child not in reached:
                    reached.add(child)
                    heappush(ready, (self._rows[child], child))

    def hear(self, id: str) -> RowMessage:
        """Read a message. Invalid positions stay in the row, and so in its extra. An unreadable message becomes an
        empty event, so that the messages below keep their position."""
        try:
            row = self._file.row("messages", self._rows[id])
            blocks = [self._file.row("blocks", number) for _, number in sorted(self._blocks.get(id, ()))]
            place = {"id": id, "parent_id": self.parents[id], "compaction_parent_id": self.links.get(id)}
            return read_message({c: v for c, v in row.items() if c not in place or v not in (place[c], "")}, blocks)
        except InvalidMessage as error:
            self._tell([id], f"{error}; an empty event stands in its place")
            return RowMessage(Message("event", extra={"cpe": {"unreadable": True}}))


def _conversation(forest: _Forest, ids: Sequence[str]) -> PortableConversation:
    found = {id: forest.hear(id) for id in ids}
    try:
        talk = _portable(forest, found)
        check_tree(talk)
    except (InvalidArgument, msgspec.ValidationError):  # notes are untrusted: an invalid one is ignored
        talk = _portable(forest, {id: one._replace(note=Note()) for id, one in found.items()})
    return talk


def _portable(forest: _Forest, found: Mapping[str, RowMessage]) -> PortableConversation:
    names = {id: one.note.id or id for id, one in found.items()}
    sessions = [session for id in found for session in forest.sessions.get(id, ())]
    plain = _plain(names, [one.model for one in found.values()], sessions)
    noted = next(iter(found.values())).note.about
    talk = msgspec.convert({**asdict(plain), **noted}, PortableConversation) if noted else plain
    said = tuple(_messages(forest, found, names, talk.setups))
    head = next((one.id for one in said if one.main and one.id == talk.head), None)  # a head is on the main flow
    head = talk.head if talk.head == "" else head
    return replace(talk, messages=said, head=head, partials=())


def _messages(
    forest: _Forest, found: Mapping[str, RowMessage], names: Mapping[str, str], setups: Sequence[Setup]
) -> Iterator[PortableMessage]:
    created, mains = dict[str | None, int](), dict[str | None, bool]()
    numbers = _numbers([one.model for one in found.values()], setups)
    for (id, (message, at, _, note)), number in zip(found.items(), numbers, strict=True):
        parent, link = forest.parents[id], forest.links.get(id)
        aside = trace_of(message.label) is not None
        created[id] = created.get(parent, 0) if at is None else at
        mains[id] = note.main and not aside and mains.get(parent, True)
        yield PortableMessage(
            id=names[id], message=message, parent=names.get(parent or ""), link=names.get(link or ""), main=mains[id],
            created_us=created[id], setup=number if note.setup is None else note.setup, origin=note.origin,
            format=note.format,
        )  # fmt: skip


# -- what the columns say of a conversation


def _plain(
    names: Mapping[str, str], models: Sequence[tuple[str, str]], sessions: Iterable[Row]
) -> PortableConversation:
    """Return a conversation without its messages. `names` are their ids, by those in the file, the root first."""
    root = next(iter(names))
    ordered = sorted(sessions, key=lambda session: when(session["created_at"]) or 0)
    newest: Row = ordered[-1] if ordered else {}
    theirs = [session for session in ordered if session["id"] != root]  # the one that we write has the id of the root
    setups = tuple(Setup(provider=m[0], model=m[1]) for m in dict.fromkeys(models) if any(m))
    if not setups and theirs and newest["model_ref"]:
        setups = (Setup(model=text(newest["model_ref"])),)
    setup = setup_at = 0
    for place, number in enumerate(_numbers(models, setups)):
        if number not in (0, setup):
            setup, setup_at = number, place
    metadata = {
        f"cpe.session.{number}.{field}": names[text(cell)] if field == "last_message_id" else text(cell)
        for number, session in enumerate(theirs, 1)
        for field, cell in session.items()
        if cell not in (None, "", 0)
    }
    return PortableConversation(
        id=root, title=text(newest.get("title")), project=text(newest.get("cwd")) or None, metadata=metadata,
        setups=setups, setup=setup or min(len(setups), 1), setup_at=setup_at,
        head=names.get(text(newest.get("last_message_id"))),
    )  # fmt: skip


def _numbers(models: Iterable[tuple[str, str]], setups: Sequence[Setup]) -> list[int]:
    """For each message, the number (from 1) of the first setup with its provider and model; 0 if unknown."""
    known = {(setups[n].provider, setups[n].model): n + 1 for n in reversed(range(len(setups)))}
    return [known.get(model, 0) if any(model) else 0 for model in models]


# -- writing


def _write(talks: Iterable[PortableConversation], path: Path, key: Key | None, schema: str) -> int:
    if key is not None:
        raise InvalidArgument("a .cpeconvo file is plain: it cannot be sealed", hint="leave out the key")
    taken, count = set[str](), 0
    with create_writer(path, schema) as file:
        for talk in talks:
            if talk.messages:
                check_tree(talk)
                _Saying(file, talk, {said.id: _free(said.id, taken) for said in talk.messages}, taken).write()
                count += 1
            else:
                _log.debug("a conversation without messages was left out: the format has none")
    return count


def _free(id: str, taken: set[str]) -> str:
    """Reserve an id: the given one, or a new one if it is taken or cannot be typed."""
    while id in taken or not (len(id) <= 64 and id.isprintable() and encodable(id)):
        id = urandom(3).hex()
    taken.add(id)
    return id


class _Saying:
    """Writes one conversation into a file."""

    def __init__(self, file: Writer, talk: PortableConversation, names: dict[str, str], taken: set[str]) -> None:
        """`names` are the ids in the file, by those of the messages."""
        self._file, self._talk, self._names, self._taken = file, talk, names, taken
        self._columns = file.columns["messages"]
        self._root = names[talk.messages[0].id]

    def write(self) -> None:
        talk, models = self._talk, [self._model(said.setup) for said in self._talk.messages]
        sessions = self._sessions() if self._file.columns["acp_sessions"] else []
        plain = asdict(_plain({id: name for name, id in self._names.items()}, models, sessions))
        about = {f: v for f, v in asdict(talk).items() if v != plain[f] and f not in ("messages", "partials")}
        for said, model, number in zip(talk.messages, models, _numbers(models, talk.setups), strict=True):
            note = self._note(said, number, about if said is talk.messages[0] else {})
            row, blocks = message_rows(said.message, note, model, self._columns)
            id, at = self._names[said.id], format_time(said.created_us)
            place = {"parent_id": self._names.get(said.parent or ""), "compaction_parent_id": self._continues(said)}
            self._file.add("messages", {**row, **place, "id": id, "created_at": at})
            for order, block in enumerate(blocks):
                self._file.add("blocks", {**block, "message_id": id, "sequence_order": order, "created_at": at})
        for session in sessions:
            self._file.add("acp_sessions", session)

    def _model(self, number: int) -> tuple[str, str]:
        """Return the provider and the model of a setup, for the columns."""
        setup = self._talk.setups[number - 1] if number and "model_id" in self._columns else Setup()
        return setup.provider, setup.model

    def _continues(self, said: PortableMessage) -> str | None:
        """Return the message that a root continues. CPE has a column for it; the link of a sub-agent goes into a
        note."""
        return self._names.get(said.link or "") if said.main and "compaction_parent_id" in self._columns else None

    def _note(self, said: PortableMessage, number: int, about: dict[str, object]) -> Note:
        id, link = self._names[said.id], self._names.get(said.link or "")
        return Note(
            id=said.id if said.id != id else None, main=said.main, link=None if self._continues(said) else link,
            within=self._root if said.parent is None and link is None and id != self._root else None,
            setup=said.setup if said.setup != number else None, origin=said.origin,
            format=said.format if said.format != name else None, about=about,
        )  # fmt: skip

    def _sessions(self) -> list[Row]:
        """Return the sessions that the conversation was read with, from its metadata, or one for its title and
        directory. The newest one gets the current values."""
        talk, found = self._talk, dict[str, Row]()
        blank: Row = {"cwd": "", "title": "", "model_ref": "", "created_at": format_time(talk.messages[0].created_us)}
        for field, value in talk.metadata.items():
            if match := _SESSION_FIELD.fullmatch(field):
                found.setdefault(match[1], {**blank})[match[2]] = value
        known = [row for row in found.values() if row.get("id") and row.get("last_message_id") in self._names]
        rows = [row for row in known if f"session {row['id']}" not in self._taken]
        self._taken.update(f"session {row['id']}" for row in rows)
        if not rows and (talk.title or talk.project):
            rows = [{**blank, "id": self._root, "model_ref": self._model(talk.setup)[1]}]
        last = talk.head or next((said.id for said in reversed(talk.messages) if said.main), talk.messages[0].id)
        for row in sorted(rows, key=lambda row: when(row["created_at"]) or 0)[-1:]:
            row |= {"title": talk.title, "cwd": talk.project or "", "last_message_id": last}
        return [row | {"last_message_id": self._names[text(row["last_message_id"])]} for row in rows]

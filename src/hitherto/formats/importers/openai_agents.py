"""openai-agents: the SQLite files of its sessions, those with branches included.

A file has a table of sessions and one of items, which a program may name as it likes, so they are found by their
columns. `AdvancedSQLiteSession` adds `message_structure`: an item is in one or more branches, each with an order of its
own. What branches share is the beginning of the tree.

An item has no id that is the same in every file. A message gets one from the item and all above it, so a copy of the
file, or a file that has grown, adds nothing twice.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress

import apsw
from msgspec import Struct
from msgspec.structs import replace

from ...errors import HithertoError, InvalidMessage
from ...model import Block, Message, Usage
from ...snapshots import Unreadable
from .._files import Files
from .._importer import Importer, chain_id, clean_text, decode_json, parts, storable, time_us
from .._sqlite_file import columns_of, open_foreign
from .._types import Found, PortableConversation, PortableMessage, Source
from ._fields import count, fields, text

_PROGRAM = "openai-agents"
_SESSIONS = {"session_id", "created_at", "updated_at"}
_ITEMS = {"id", "session_id", "message_data", "created_at"}
_STRUCTURE = {"id", "session_id", "message_id", "branch_id", "sequence_number", "user_turn_number"}
_USAGE = {"session_id", "branch_id", "user_turn_number", "input_tokens", "output_tokens"}
_NAME = re.compile(r"\w{1,200}", re.ASCII)
_MOST_TABLES = 200
_MAIN = "main"


class OpenAIAgents(Importer):
    name = _PROGRAM
    title = _PROGRAM
    suffixes = (".db", ".sqlite")

    def recognises(self, source: Source) -> str | None:
        if {"agent_sessions", "agent_messages"} <= source.tables:
            return "tables of openai-agents: agent_sessions and agent_messages"
        if source.tables and len(source.tables) <= _MOST_TABLES and source.path.is_file():
            with suppress(HithertoError), open_foreign(source.path, _PROGRAM) as connection:
                for pair in _tables(connection, sorted(source.tables)):
                    return f"tables with the columns of openai-agents: {pair.sessions} and {pair.items}"
        return None

    def read_files(self, files: Files, names: Sequence[str]) -> Iterator[Found]:
        for name in names:
            label = files.label(name)
            try:
                with files.local(name) as path, open_foreign(path, _PROGRAM) as connection:
                    connection.execute("BEGIN")
                    query = "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name"
                    there = [str(row[0]) for row in connection.execute(query).fetchall()]
                    for pair in _tables(connection, there):
                        yield from _File(connection, pair, label).read()
            except HithertoError as error:
                yield Unreadable(label, str(error))


FORMAT = OpenAIAgents()


class _Tables(Struct, frozen=True):
    """The tables of one set of sessions."""

    sessions: str
    items: str
    structure: bool  # of branches
    usage: bool  # of turns


def _tables(connection: apsw.Connection, there: Sequence[str]) -> Iterator[_Tables]:
    """Yield the tables of items, each with its table of sessions."""
    columns = {name: set(columns_of(connection, name.lower())) for name in there if _NAME.fullmatch(name)}
    structure = columns.get("message_structure", set()) >= _STRUCTURE
    usage = columns.get("turn_usage", set()) >= _USAGE
    sessions = [name for name, found in columns.items() if found >= _SESSIONS and not found >= _ITEMS]
    for name, found in columns.items():
        if found >= _ITEMS and sessions:
            keys = connection.execute(f"PRAGMA foreign_key_list({name})").fetchall()
            owner = next((str(key[2]) for key in keys if key[2] in sessions), sessions[0])
            yield _Tables(owner, name, structure, usage)


class _Node(Struct):
    """A place in the tree: an item below another place."""

    row: int
    parent: int  # among the nodes; -1: none
    usage: Usage | None = None


class _File:
    """One set of sessions."""

    def __init__(self, connection: apsw.Connection, tables: _Tables, label: str) -> None:
        self._connection, self._tables, self._label = connection, tables, label

    def read(self) -> Iterator[Found]:
        query = f"SELECT DISTINCT session_id FROM {self._tables.items} ORDER BY session_id"
        for (session,) in self._connection.execute(query).fetchall():
            if isinstance(session, str) and session:
                yield from self._session(session)
            else:
                yield Unreadable(self._label, "items of a session whose id is no text")

    def _session(self, session: str) -> Iterator[Found]:
        query = f"SELECT created_at FROM {self._tables.sessions} WHERE session_id = ?"
        created = next(iter(self._connection.execute(query, (session,)).fetchall()), (None,))[0]
        name = clean_text(session)
        talk = PortableConversation(
            id=name, key=name, metadata={"source": FORMAT.name}, by_id=True, created_us=time_us(created)
        )
        problems: list[Unreadable] = []
        yield from (part for part in parts(talk, self._messages(session, problems)) if part.messages)
        yield from problems

    def _messages(self, session: str, problems: list[Unreadable]) -> Iterator[PortableMessage]:
        ids: list[str | None] = []
        above: list[str | None] = []  # what stands above the messages below a node
        sealed = 0
        query = f"SELECT message_data, created_at FROM {self._tables.items} WHERE id = ?"
        for node in self._tree(session):
            parent = above[node.parent] if node.parent >= 0 else None
            above.append(parent)
            data, at = self._connection.execute(query, (node.row,)).fetchall()[0]
            try:
                item = decode_json(data) if isinstance(data, str) else None
                if not isinstance(item, dict):
                    raise InvalidMessage("it is no JSON object")
            except InvalidMessage as error:
                problems.append(Unreadable(f"{self._label}, item {node.row}", str(error)))
                continue
            if item.get("__enc__") == 1 and "payload" in item:
                sealed += 1
                continue
            message = _message_of(item)
            id = chain_id(parent, message)
            above[-1] = id
            if id not in ids:  # two branches that say the same
                ids.append(id)
                message = message if node.usage is None else replace(message, usage=node.usage)
                yield PortableMessage(id=id, parent=parent, message=message, created_us=time_us(at))
        if sealed:
            what = f"{sealed} items of session {session:.60} are encrypted by EncryptedSession, and were left out"
            problems.append(Unreadable(self._label, f"{what}: copy them into a plain session with its key"))

    def _tree(self, session: str) -> list[_Node]:
        """Return the tree of a session, each node behind the one above it. The tokens of a turn are with its last
        item."""
        nodes: list[_Node] = []
        known: dict[tuple[int, int], int] = {}
        for branch, rows in self._branches(session):
            usage = self._usage(session, branch)
            last = {turn: place for place, (_, turn) in enumerate(rows)}
            at = -1
            for place, (row, turn) in enumerate(rows):
                if (at, row) not in known:
                    known[at, row] = len(nodes)
                    nodes.append(_Node(row, at))
                at = known[at, row]
                if last[turn] == place and nodes[at].usage is None:
                    nodes[at].usage = usage.get(turn)
        return nodes

    def _branches(self, session: str) -> Iterator[tuple[str, list[tuple[int, object]]]]:
        """Yield the branches with their items, in order, and the turn of each. A plain session is one branch."""
        rows: dict[str, list[tuple[int, object]]] = {}
        if self._tables.structure:
            query = (
                f"SELECT s.branch_id, m.id, s.user_turn_number FROM message_structure s JOIN {self._tables.items} m"
                " ON m.id = s.message_id AND m.session_id = s.session_id WHERE s.session_id = ?"
                " ORDER BY s.sequence_number, s.id"
            )
            for branch, row, turn in self._connection.execute(query, (session,)):
                rows.setdefault(text(branch) or _MAIN, []).append((row, turn))
        placed = {row for found in rows.values() for row, _ in found}
        query = f"SELECT id FROM {self._tables.items} WHERE session_id = ? ORDER BY id"
        loose = [(row, None) for (row,) in self._connection.execute(query, (session,)) if row not in placed]
        rows.setdefault(_MAIN, []).extend(loose)
        yield from sorted(rows.items(), key=lambda one: (one[0] != _MAIN, one[0]))

    def _usage(self, session: str, branch: str) -> dict[object, Usage]:
        """Return the tokens of the turns of a branch."""
        if not self._tables.usage:
            return {}
        columns = "user_turn_number, input_tokens, output_tokens"
        query = f"SELECT {columns} FROM turn_usage WHERE session_id = ? AND branch_id = ?"
        found = self._connection.execute(query, (session, branch)).fetchall()
        return {turn: Usage(count(read), count(said)) for turn, read, said in found}


def _message_of(item: dict[str, object]) -> Message:
    """Return an item as a message. One that is no item of the Responses API is an event that keeps it."""
    kept = fields(storable(item))
    try:
        return Message.from_openai_responses(kept)
    except InvalidMessage:
        said = item.get("content")
        blocks = (Block.text(clean_text(said)),) if isinstance(said, str) else ()
        return Message("event", blocks, extra={"dialect": "openai-responses"}, raw=kept)

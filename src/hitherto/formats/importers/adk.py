"""Google ADK: the SQLite files of `SqliteSessionService` and of `DatabaseSessionService`.

A file has a table of sessions and one of events, each event as JSON. A session becomes the conversation that the
adapter would have made of it, with its state, so that `adapters.adk.SessionService` goes on with it. State of an app or
of a user comes with each of its sessions, and is set where it is not set yet.

Files of before ADK 1.22 hold pickled objects. Those are never opened: ADK itself migrates them.
"""

import json
from collections.abc import Iterator, Sequence
from hashlib import blake2b

import apsw

from ...dialects._kept_objects import first_words
from ...dialects.adk_events import (
    EVENTS,
    SESSION_ITEM,
    STATE_ITEM,
    SessionRecord,
    SharedChange,
    encode_item,
    metadata_of,
    session_key,
)
from ...errors import HithertoError, InvalidArgument, InvalidMessage
from ...snapshots import Unreadable
from .._files import Files
from .._importer import Importer, time_us
from .._sqlite_file import columns_of, open_foreign
from .._types import Found, PortableConversation, PortableItem, PortableMessage, Source
from ._fields import Fields

_PROGRAM = "ADK"
_TABLES = {"sessions", "events", "app_states", "user_states"}
_EVENTS = {"id", "app_name", "user_id", "session_id", "timestamp", "event_data"}
_OLD = "python -m google.adk.sessions.migration.migrate_from_sqlalchemy_sqlite makes a new file of it"


class ADK(Importer):
    name = "adk"
    title = _PROGRAM
    suffixes = (".db", ".sqlite")

    def recognises(self, source: Source) -> str | None:
        return "tables of Google's ADK: sessions, events and states" if source.tables >= _TABLES else None

    def read_files(self, files: Files, names: Sequence[str]) -> Iterator[Found]:
        for name in names:
            label = files.label(name)
            try:
                with files.local(name) as path, open_foreign(path, _PROGRAM) as connection:
                    connection.execute("BEGIN")
                    if not set(columns_of(connection, "events")) >= _EVENTS:
                        raise InvalidArgument("the file is of an older ADK, and holds pickled objects", hint=_OLD)
                    yield from _File(connection, label).read()
            except HithertoError as error:
                hint = f" ({error.hint})" if error.hint else ""
                yield Unreadable(label, f"{error}{hint}")


FORMAT = ADK()


class _File:
    """One file of sessions."""

    def __init__(self, connection: apsw.Connection, label: str) -> None:
        self._connection, self._label = connection, label

    def read(self) -> Iterator[Found]:
        query = "SELECT app_name, user_id, id, state, create_time, update_time FROM sessions ORDER BY rowid"
        for app, user, id, state, created, updated in self._connection.execute(query).fetchall():
            if isinstance(app, str) and isinstance(user, str) and isinstance(id, str):
                yield from self._session((app, user, id), state, time_us(created), time_us(updated))
            else:
                yield Unreadable(self._label, "a session whose names are no text")

    def _session(self, name: tuple[str, str, str], state: object, created: int, updated: int) -> Iterator[Found]:
        app, user, _ = name
        problems: list[Unreadable] = []
        messages = list(self._messages(name, problems))
        shared = SharedChange(
            id=blake2b(session_key(*name).encode(), digest_size=16).hexdigest(),
            app=self._state("SELECT state FROM app_states WHERE app_name = ?", (app,)),
            user=self._state("SELECT state FROM user_states WHERE app_name = ? AND user_id = ?", (app, user)),
            is_default=True,
        )
        record = SessionRecord(shared.id, updated / 1e6, shared if shared.app or shared.user else None)
        items = ((SESSION_ITEM, encode_item(record)), (STATE_ITEM, encode_item(_json(state))))
        asked = next((one.message.text for one in messages if one.message.role == "user"), "")
        yield PortableConversation(
            id=session_key(*name),
            key=session_key(*name),
            title=first_words(asked) or "",
            metadata={**metadata_of(*name), "source": FORMAT.name},
            messages=tuple(messages),
            items=tuple(PortableItem(*item) for item in items),
            created_us=created,
        )
        yield from problems

    def _messages(self, name: tuple[str, str, str], problems: list[Unreadable]) -> Iterator[PortableMessage]:
        above: str | None = None
        where = "app_name = ? AND user_id = ? AND session_id = ?"
        query = f"SELECT id, timestamp, event_data FROM events WHERE {where} ORDER BY rowid"
        for id, at, data in self._connection.execute(query, name):
            try:
                whole = json.loads(data) if isinstance(data, str | bytes) else None
                if not isinstance(whole, dict):
                    raise InvalidMessage("it is no JSON object")
                message, _ = EVENTS.keep(_by_alias(whole))
            except (ValueError, RecursionError, HithertoError) as error:
                reason = str(error) if isinstance(error, HithertoError) else "it is no JSON"
                problems.append(Unreadable(f"{self._label}, event {id!s:.60}", reason))
                continue
            yield PortableMessage(id=str(id), parent=above, message=message, created_us=time_us(at))
            above = str(id)

    def _state(self, query: str, values: tuple[str, ...]) -> Fields:
        found = self._connection.execute(query, values).fetchall()
        return _json(found[0][0]) if found else {}


def _json(value: object) -> Fields:
    """Return a state; an empty one for a cell that holds none."""
    try:
        found = json.loads(value) if isinstance(value, str | bytes) else None
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _by_alias(whole: Fields) -> Fields:
    """Return an event with the names of its JSON form. Files have them in Python's spelling, which the framework reads
    as well."""
    found: Fields = {}
    for name, value in whole.items():
        first, *rest = name.split("_")
        found[first + "".join(word.title() for word in rest)] = value
    content = found.get("content")
    if isinstance(content, dict):
        found["content"] = _camel(content)
    used = found.get("usageMetadata")
    if isinstance(used, dict):
        found["usageMetadata"] = _camel(used)
    return found


_VERBATIM = {"args", "response", "partMetadata", "part_metadata", "videoMetadata"}  # a program's own names are in them


def _camel(value: object) -> object:
    if isinstance(value, list):
        return [_camel(item) for item in value]
    if not isinstance(value, dict):
        return value
    found: Fields = {}
    for name, item in value.items():
        first, *rest = name.split("_")
        found[first + "".join(word.title() for word in rest)] = item if name in _VERBATIM else _camel(item)
    return found

"""A session service for Google's Agent Development Kit: `Runner(session_service=SessionService(store))`.

A session is a conversation, and its events are messages in their order: what is said as what it is, in the words of
Gemini's API, and events without content (changes of state, transfers) as events, which no thread shows. The state of a
session is an item of its conversation and changes in the commit of the event that changes it.

State that all sessions of an app or of a user share is an item of the workspace. A commit reaches one conversation, so
such a change is noted in the commit of its event first and then applied to that item, once: if the process dies in
between, the next one that opens the session applies it.

A session object knows which revision it has seen. An append to a session that others have changed is
`StaleSessionError`, and the runner reads the session again.
"""

import json
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar
from uuid import uuid4

from msgspec import Struct

from .._system.task_threads import shared_threads
from ..aio import AsyncStore
from ..conversation import Conversation
from ..dialects._framework_names import key_of, unescape
from ..dialects._kept_objects import Whole, first_words
from ..dialects.adk_events import (
    EVENTS,
    SESSION_ITEM,
    STATE_ITEM,
    SessionRecord,
    SharedChange,
    decode_item,
    encode_item,
    metadata_of,
    session_key,
)
from ..errors import Conflict, Damaged, NotFound
from ..model import Saved
from ..store import Store
from ._opening import Location, import_framework, open_any

__all__ = ["SessionService"]

_TRIED: Final = ">=2.13,<3"


def _adk(module: str, *names: str) -> Any:
    return import_framework(f"google.adk.{module}", "google-adk", "adk", _TRIED, *names)


_base = _adk("sessions.base_session_service", "BaseSessionService", "GetSessionConfig", "ListSessionsResponse")
_Base: Any = _base.BaseSessionService
_session = _adk("sessions.session", "Session")
_event = _adk("events.event", "Event")
_errors = _adk("errors", "StaleSessionError")
_not_found = _adk("errors.session_not_found_error", "SessionNotFoundError")
_exists = _adk("errors.already_exists_error", "AlreadyExistsError")
_pydantic = import_framework("pydantic_core", "pydantic-core", "adk", ">=2", "to_jsonable_python")

_MARKER: Final = "_storage_update_marker"  # where a session object of ADK has the revision that it has seen
_APPLIED: Final = 200  # changes of shared state that are remembered as applied
_PAGE: Final = 1000
_STALE: Final = "The session has been modified in storage since it was loaded. Load it again before appending to it."

_log = logging.getLogger(__name__)
T = TypeVar("T")
State = dict[str, Any]


class _SharedState(Struct, omit_defaults=True):
    """The state of an app or of a user."""

    state: State = {}
    applied: list[str] = []  # the last changes


class _Name(Struct, frozen=True):
    """A session, as the framework names it."""

    app: str
    user: str
    session: str

    @property
    def key(self) -> str:
        return session_key(self.app, self.user, self.session)

    @property
    def metadata(self) -> dict[str, str]:
        return metadata_of(self.app, self.user, self.session)


class SessionService(_Base):
    """Sessions of ADK, kept in hitherto."""

    def __init__(self, store: Store | AsyncStore | Location) -> None:
        self.store = open_any(store)

    def __repr__(self) -> str:
        return f"<SessionService on {self.store!r}>"

    # -- what the framework calls

    async def create_session(
        self, *, app_name: str, user_id: str, state: State | None = None, session_id: str | None = None
    ) -> Any:
        """Make a session; `AlreadyExistsError` if the id is taken."""
        name = _Name(app_name, user_id, (session_id or "").strip() or str(uuid4()))
        return await _in_thread(lambda: self._create(name, state or {}))

    async def get_session(self, *, app_name: str, user_id: str, session_id: str, config: Any = None) -> Any:
        """Return a session with its events, or the last ones; None if there is none."""
        return await _in_thread(lambda: self._get(_Name(app_name, user_id, session_id.strip()), config))

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> Any:
        """Return the sessions of a user, or of all users, without their events, by the time of the last change."""
        found = await _in_thread(lambda: list(self._list(app_name, user_id)))
        found.sort(key=lambda session: (session.last_update_time, session.user_id, session.id))
        return _base.ListSessionsResponse(sessions=found)

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Delete a session. No file keeps any of it. The state of the app and of the user stays."""
        await _in_thread(lambda: self._delete(_Name(app_name, user_id, session_id.strip())))

    async def get_user_state(self, *, app_name: str, user_id: str) -> State:
        """Return the state that all sessions of a user share."""
        return await _in_thread(lambda: self._shared_state(_user_item(app_name, user_id)))

    async def append_event(self, session: Any, event: Any) -> Any:
        """Keep an event, and then add it to the session object. One that is partial is not kept."""
        if event.partial:
            return event
        self._apply_temp_state(session, event)
        event = self._trim_temp_delta_state(event)
        name = _Name(session.app_name, session.user_id, session.id)
        whole = event.model_dump(mode="json", by_alias=True, exclude_none=True)
        seen = getattr(session, _MARKER, None)
        last = session.events[-1].id if session.events else None
        record = await _in_thread(lambda: self._append(name, whole, seen, last))
        session.last_update_time = record.updated
        setattr(session, _MARKER, record.marker)
        self._update_session_state(session, event)
        session.events.append(event)
        return event

    # -- how

    def _create(self, name: _Name, state: State) -> Any:
        app, user, own = _split(_as_json(state))
        record = SessionRecord(uuid4().hex, time.time(), _shared(app, user))
        if self._find(name) is not None:
            raise _exists.AlreadyExistsError(f"Session with id {name.session} already exists.")
        data = encode_item(record), encode_item(own)
        try:
            with self.store.ensure(name.key, metadata=name.metadata).batch() as batch:
                batch.items.put(SESSION_ITEM, data[0], expect=None)
                batch.items.put(STATE_ITEM, data[1])
        except Conflict:
            raise _exists.AlreadyExistsError(f"Session with id {name.session} already exists.") from None
        self._apply(name, record.shared)
        return self._build(name, record, own, [])

    def _get(self, name: _Name, config: Any) -> Any:
        found = self._find(name)
        if found is None:
            return None
        talk, record = found
        self._apply(name, record.shared)
        recent = None if config is None else config.num_recent_events
        after = None if config is None else config.after_timestamp
        events = [] if recent == 0 else _events(self.store, talk, recent)
        if after is not None:
            events = [event for event in events if event.timestamp >= after]
        return self._build(name, record, _state_of(talk), events)

    def _list(self, app: str, user: str | None) -> Iterator[Any]:
        cursor: str | None = None
        while True:
            page = self.store.conversations(limit=_PAGE, cursor=cursor, metadata=metadata_of(app, user))
            for info in page.items:
                try:
                    metadata, talk = info.metadata, self.store.conversation(info)
                except NotFound:  # deleted since it was listed
                    continue
                name = _Name(app, unescape(metadata["user_id"]), unescape(metadata["session_id"]))
                record = _record_of(talk)
                if record is not None:
                    self._apply(name, record.shared)
                    yield self._build(name, record, _state_of(talk), [])
            cursor = page.next_cursor
            if cursor is None:
                return

    def _delete(self, name: _Name) -> None:
        talk = self.store.find(name.key)
        if talk is not None:
            record = _record_of(talk)
            self._apply(name, None if record is None else record.shared)
            self.store.purge(talk, reason="user-requested")

    def _append(self, name: _Name, whole: Whole, seen: str | None, last: str | None) -> SessionRecord:
        """Commit an event with the state that it changes, if the session is as it was seen."""
        found = self._find(name)
        if found is None:
            raise _not_found.SessionNotFoundError(f"Session {name.session} not found.")
        talk, record = found
        item = talk.items.get(SESSION_ITEM)
        if item is None or not _is_current(talk, record, seen, last):
            raise _errors.StaleSessionError(_STALE)
        self._apply(name, record.shared)
        actions = whole.get("actions")
        app, user, own = _split(actions.get("stateDelta") or {} if isinstance(actions, dict) else {})
        new = SessionRecord(uuid4().hex, float(str(whole["timestamp"])), _shared(app, user))
        message, _ = EVENTS.keep(whole)
        title = first_words(message.text) if message.role == "user" and not talk.title else None
        try:
            with talk.batch(on_conflict="follow") as batch:
                batch.append(message)
                batch.items.put(SESSION_ITEM, encode_item(new), expect=item.revision)
                if own:
                    batch.items.put(STATE_ITEM, encode_item({**_state_of(talk), **own}))
        except Conflict:
            raise _errors.StaleSessionError(_STALE) from None
        self._apply(name, new.shared)
        if title is not None:
            talk.rename(title)
        return new

    def _find(self, name: _Name) -> tuple[Conversation, SessionRecord] | None:
        talk = self.store.find(name.key)
        record = None if talk is None else _record_of(talk)
        return None if talk is None or record is None else (talk, record)

    def _build(self, name: _Name, record: SessionRecord, own: State, events: list[Any]) -> Any:
        state = dict(own)
        state.update({f"app:{key}": value for key, value in self._shared_state(_app_item(name.app)).items()})
        shared = self._shared_state(_user_item(name.app, name.user))
        state.update({f"user:{key}": value for key, value in shared.items()})
        session = _session.Session(
            id=name.session,
            app_name=name.app,
            user_id=name.user,
            state=state,
            events=events,
            last_update_time=record.updated,
        )
        setattr(session, _MARKER, record.marker)
        return session

    def _shared_state(self, item: str) -> State:
        found = self.store.items.get(item)
        return {} if found is None else decode_item(found.value, _SharedState).state

    def _apply(self, name: _Name, shared: SharedChange | None) -> None:
        """Make a change of shared state, unless it was made before."""
        if shared is None:
            return
        for item, delta in ((_app_item(name.app), shared.app), (_user_item(name.app, name.user), shared.user)):
            while delta:
                found = self.store.items.get(item)
                value = _SharedState() if found is None else decode_item(found.value, _SharedState)
                if shared.id in value.applied or (shared.is_default and delta.keys() <= value.state.keys()):
                    break
                state = {**delta, **value.state} if shared.is_default else {**value.state, **delta}
                value = _SharedState(state, [*value.applied, shared.id][-_APPLIED:])
                try:
                    self.store.items.put(item, encode_item(value), expect=None if found is None else found.revision)
                except Conflict:  # another session changed it, too
                    continue
                break


# -- sessions and their items


def _app_item(app: str) -> str:
    return key_of("adk/app", app)


def _user_item(app: str, user: str) -> str:
    return key_of("adk/user", app, user)


def _record_of(talk: Conversation) -> SessionRecord | None:
    item = talk.items.get(SESSION_ITEM)
    return None if item is None else decode_item(item.value, SessionRecord)


def _state_of(talk: Conversation) -> State:
    item = talk.items.get(STATE_ITEM)
    return {} if item is None else json.loads(item.value)


def _is_current(talk: Conversation, record: SessionRecord, seen: str | None, last: str | None) -> bool:
    """Return True if a session object is as new as the session. One that was not made here has no marker: then its last
    event decides."""
    if seen is not None:
        return seen == record.marker
    newest = next((whole for m in reversed(talk.thread(last=1, events=True)) if (whole := EVENTS.whole(m))), None)
    return (None if newest is None else newest.get("id")) == last


def _split(state: State) -> tuple[State, State, State]:
    """Return the state of the app, of the user and of the session. Temporary state is left out."""
    app: State = {}
    user: State = {}
    own: State = {}
    for key, value in state.items():
        scope, _, rest = key.partition(":")
        if scope == "app" and rest:
            app[rest] = value
        elif scope == "user" and rest:
            user[rest] = value
        elif not key.startswith("temp:"):
            own[key] = value
    return app, user, own


def _shared(app: State, user: State) -> SharedChange | None:
    return SharedChange(uuid4().hex, app, user) if app or user else None


def _as_json(state: State) -> State:
    """Return a state as JSON. Values without JSON are kept as text, as the framework does, and a warning says so."""
    try:
        return _pydantic.to_jsonable_python(state)
    except _pydantic.PydanticSerializationError:
        _log.warning("a state holds values that are no JSON: they are kept as text")
        return _pydantic.to_jsonable_python(state, serialize_unknown=True)


# -- events


def _events(store: Store, talk: Conversation, recent: int | None) -> list[Any]:
    """Return the events that lead to the head. One that cannot be read is left out, and a warning names it: the others
    are there all the same."""
    try:
        messages = talk.thread(last=recent, events=True)
    except Damaged:
        messages = _readable(store, talk)
        messages = messages if recent is None else messages[-recent:]
    found = []
    for message in messages:
        whole = EVENTS.whole(message)
        if whole is None:
            continue
        try:
            found.append(_event.Event.model_validate(whole))
        except ValueError as error:  # of another version of the framework
            _log.warning("event %s of the session is left out: it is none of this version: %s", message.id, error)
    return found


def _readable(store: Store, talk: Conversation) -> list[Saved]:
    """Return the messages that lead to the head and can be read."""
    known = {message.id: message for message in store.messages(conversation=talk, newest_first=False)}
    path, at = [], talk.head
    while at is not None and at in known:
        message = known[at]
        at = message.parent
        if message.problem is None:
            path.append(message)
        else:
            _log.warning("event %s of the session is left out: %s", message.id, message.problem)
    return path[::-1]


async def _in_thread(work: Callable[[], T]) -> T:
    """Run the work in a thread. A task that is cancelled waits for its end."""
    return await shared_threads().run(work)

"""Sessions and storage for Strands: `RepositorySessionManager(id, session_repository=Repository(store))`.

The messages of an agent in a session are a conversation. The agent's state is an item of it. The session itself, and
the states of graphs and swarms, are items of a conversation of the kind `strands`, which lists do not show.

Messages have numbers, which the framework counts. Two processes that continue the same session count the same one, and
the slower one gets a `SessionException`; nothing is overwritten.

`Storage` is the framework's newer protocol: bytes by key, as items of one conversation of that kind.
"""

import copy
import json
from collections.abc import Iterator
from typing import Any, Final

from .._system.task_threads import shared_threads
from ..aio import AsyncStore
from ..conversation import Conversation
from ..dialects._framework_names import escape, key_of
from ..dialects._kept_objects import first_words
from ..dialects.strands_messages import (
    AGENT_ITEM,
    KIND,
    MESSAGES,
    MULTI_AGENT_ITEM,
    SESSION_ITEM,
    agent_key,
    metadata_of,
    session_key,
)
from ..errors import Conflict, HithertoError, InvalidArgument
from ..model import Message, Saved
from ..store import Store
from ._opening import Location, describe, import_framework, open_any

__all__ = ["Repository", "Storage"]

_TRIED: Final = ">=1.50,<2"


def _strands(module: str, *names: str) -> Any:
    return import_framework(f"strands.{module}", "strands-agents", "strands", _TRIED, *names)


_Repository: Any = _strands("session.session_repository", "SessionRepository").SessionRepository
_types = _strands("types.session", "Session", "SessionAgent", "SessionMessage")
_exceptions = _strands("types.exceptions", "SessionException")

_NAMESPACED: Final = "_namespaced"  # by this the framework knows that a storage has a prefix already
_PAGE: Final = 1000
_REMEMBERED: Final = 10_000  # conversations whose last message is known


class Repository(_Repository):
    """Sessions of Strands, kept in hitherto."""

    def __init__(self, store: Store | AsyncStore | Location) -> None:
        self.store = open_any(store)
        self._last: dict[str, tuple[str | None, int]] = {}  # of conversations of agents: the last message, its number

    def __repr__(self) -> str:
        return f"<Repository on {self.store!r}>"

    # -- sessions

    def create_session(self, session: Any, **kwargs: Any) -> Any:  # noqa: ARG002  # the framework's own, here and below
        """Keep a new session; `SessionException` if the id is taken."""
        data = _encode(session.to_dict())
        talk = self.store.ensure(session_key(session.session_id), kind=KIND)
        try:
            talk.items.put(SESSION_ITEM, data, expect=None)
        except Conflict:
            raise _exceptions.SessionException(f"Session {session.session_id} already exists") from None
        return session

    def read_session(self, session_id: str, **kwargs: Any) -> Any:  # noqa: ARG002
        """Return a session; None if there is none."""
        talk = self._session(session_id)
        item = None if talk is None else talk.items.get(SESSION_ITEM)
        return None if item is None else _types.Session.from_dict(json.loads(item.value))

    def delete_session(self, session_id: str, **kwargs: Any) -> None:  # noqa: ARG002
        """Delete a session with all its agents. No file keeps any of it."""
        talk = self._session(session_id)
        if talk is None:
            raise _exceptions.SessionException(f"Session {session_id} does not exist")
        for agent in list(self._agents(session_id)):
            self.store.purge(agent, reason="user-requested")
        self.store.purge(talk, reason="user-requested")

    # -- agents

    def create_agent(self, session_id: str, session_agent: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Keep a new agent of a session."""
        if self._session(session_id) is None:
            raise _exceptions.SessionException(f"Session {session_id} does not exist")
        agent_id = session_agent.agent_id
        data = _encode(session_agent.to_dict())
        metadata = metadata_of(session_id, agent_id)
        talk = self.store.ensure(agent_key(session_id, agent_id), metadata=metadata)
        try:
            talk.items.put(AGENT_ITEM, data, expect=None)
        except Conflict:
            text = f"Agent {agent_id} already exists in session {session_id}"
            raise _exceptions.SessionException(text) from None

    def read_agent(self, session_id: str, agent_id: str, **kwargs: Any) -> Any:  # noqa: ARG002
        """Return an agent; None if there is none."""
        talk = self._agent(session_id, agent_id)
        item = None if talk is None else talk.items.get(AGENT_ITEM)
        return None if item is None else _types.SessionAgent.from_dict(json.loads(item.value))

    def update_agent(self, session_id: str, session_agent: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Keep the state of an agent. The time at which it was made stays."""
        talk = self._require_agent(session_id, session_agent.agent_id)
        item = talk.items.get(AGENT_ITEM)
        if item is not None:
            session_agent.created_at = json.loads(item.value)["created_at"]
        talk.items.put(AGENT_ITEM, _encode(session_agent.to_dict()))

    # -- messages

    def create_message(self, session_id: str, agent_id: str, session_message: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Keep a new message; `SessionException` if its number is taken."""
        number = session_message.message_id
        message = _message_of(session_message)
        while True:
            talk = self._require_agent(session_id, agent_id)
            if self._last_number(talk) >= number and _find(talk, number) is not None:
                text = f"Message {number} already exists in agent {agent_id} in session {session_id}"
                raise _exceptions.SessionException(text)
            try:
                saved = talk.append(message, on_conflict="raise")
            except Conflict:  # another process was faster, perhaps with the same number
                continue
            break
        self._last[talk.id] = saved.id, number
        title = first_words(message.text) if message.role == "user" and not talk.title else None
        if title is not None:
            talk.rename(title)

    def read_message(self, session_id: str, agent_id: str, message_id: int, **kwargs: Any) -> Any:  # noqa: ARG002
        """Return a message; None if there is none of this number."""
        talk = self._agent(session_id, agent_id)
        found = None if talk is None else _find(talk, message_id)
        return None if found is None else _types.SessionMessage.from_dict(found[1])

    def update_message(self, session_id: str, agent_id: str, session_message: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Replace a message in its place. The time at which it was made stays."""
        talk = self._require_agent(session_id, agent_id)
        found = _find(talk, session_message.message_id)
        if found is None:
            raise _exceptions.SessionException(f"Message {session_message.message_id} does not exist")
        session_message.created_at = found[1]["created_at"]
        talk.amend(found[0], _message_of(session_message))

    def list_messages(
        self,
        session_id: str,
        agent_id: str,
        limit: int | None = None,
        offset: int = 0,
        **kwargs: Any,  # noqa: ARG002
    ) -> list[Any]:
        """Return the messages of an agent by their numbers, or a part of them."""
        talk = self._agent(session_id, agent_id)
        if talk is None:
            return []
        found = sorted((whole for _, whole in _messages(talk)), key=lambda whole: whole["message_id"])
        end = None if limit is None else offset + limit
        return [_types.SessionMessage.from_dict(whole) for whole in found[offset:end]]

    # -- graphs and swarms

    def create_multi_agent(self, session_id: str, multi_agent: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Keep the state of a graph or a swarm."""
        talk = self._session(session_id)
        if talk is None:
            raise _exceptions.SessionException(f"Session {session_id} does not exist")
        talk.items.put(MULTI_AGENT_ITEM + escape(multi_agent.id), _encode(multi_agent.serialize_state()))

    def read_multi_agent(self, session_id: str, multi_agent_id: str, **kwargs: Any) -> dict[str, Any] | None:  # noqa: ARG002
        """Return the state of a graph or a swarm; None if there is none."""
        talk = self._session(session_id)
        item = None if talk is None else talk.items.get(MULTI_AGENT_ITEM + escape(multi_agent_id))
        return None if item is None else json.loads(item.value)

    def update_multi_agent(self, session_id: str, multi_agent: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Replace the state of a graph or a swarm that is there."""
        if self.read_multi_agent(session_id, multi_agent.id) is None:
            raise _exceptions.SessionException(f"MultiAgent {multi_agent.id} does not exist in session {session_id}")
        self.create_multi_agent(session_id, multi_agent)

    # -- how

    def _session(self, session_id: str) -> Conversation | None:
        talk = self.store.find(session_key(session_id), kind=KIND)
        return None if talk is None or SESSION_ITEM not in talk.items else talk

    def _agent(self, session_id: str, agent_id: str) -> Conversation | None:
        talk = self.store.find(agent_key(session_id, agent_id))
        known = talk is not None and (talk.id in self._last or AGENT_ITEM in talk.items)
        return talk if known else None

    def _last_number(self, talk: Conversation) -> int:
        """Return the number of the last message; that of one from elsewhere says that the others have to be looked
        through."""
        at, number = self._last.get(talk.id, (None, -1))
        if talk.at is not None and talk.at != at:
            last = talk.thread(last=1)
            whole: Any = MESSAGES.whole(last[0]) if last else None
            number = 1 << 62 if whole is None else whole["message_id"]
        if len(self._last) > _REMEMBERED:
            self._last.clear()
        return number

    def _require_agent(self, session_id: str, agent_id: str) -> Conversation:
        talk = self._agent(session_id, agent_id)
        if talk is None:
            raise _exceptions.SessionException(f"Agent {agent_id} in session {session_id} does not exist")
        return talk

    def _agents(self, session_id: str) -> Iterator[Any]:
        cursor: str | None = None
        while True:
            page = self.store.conversations(limit=_PAGE, cursor=cursor, metadata=metadata_of(session_id))
            yield from page.items
            cursor = page.next_cursor
            if cursor is None:
                return


def _encode(value: object) -> bytes:
    """Return a value as JSON in ASCII: so every text and every integer can be kept."""
    try:
        return json.dumps(value).encode()
    except (TypeError, ValueError, RecursionError) as error:
        hint = "keep objects, lists, texts, numbers, booleans and None in the state of an agent"
        raise InvalidArgument(f"the state is no JSON, and cannot be kept: {error}", hint=hint) from error


def _message_of(session_message: Any) -> Message:
    return MESSAGES.keep(session_message.to_dict())[0]


def _messages(talk: Conversation) -> Iterator[tuple[Saved, dict[str, Any]]]:
    for message in talk.thread():
        whole = MESSAGES.whole(message)
        if whole is not None:
            yield message, whole


def _find(talk: Conversation, number: int) -> tuple[Saved, dict[str, Any]] | None:
    return next((found for found in _messages(talk) if found[1]["message_id"] == number), None)


# -- bytes by key


class Storage:
    """The framework's protocol `Storage`: bytes by key, in hitherto. Keys are paths, as in the framework's own."""

    def __init__(
        self, store: Store | AsyncStore | Location, *, name: str = "storage", search_strategy: Any = None
    ) -> None:
        """`name` tells storages in one store apart. `search_strategy` is one of the framework's."""
        self._scoped = getattr(_strands("storage.storage"), "_NAMESPACED", None)
        keywords = _strands("storage.search.keyword", "KeywordSearchStrategy").KeywordSearchStrategy
        self._index, self._search = search_strategy, search_strategy or keywords()
        self.store = open_any(store)
        self._key = key_of("storage", name)
        self.prefix = ""

    def __repr__(self) -> str:
        return f"<Storage on {self.store!r}>"

    def namespace(self, prefix: str) -> "Storage":
        """Return this storage with a prefix before all keys."""
        path = _checked(prefix).strip("/")
        scoped = copy.copy(self)
        scoped.prefix = f"{self.prefix}{path}/" if path else self.prefix
        setattr(scoped, _NAMESPACED, self._scoped)
        return scoped

    async def write(self, key: str, data: bytes) -> None:
        """Keep bytes under a key."""
        path = _path(key)
        name = self.prefix + path
        await self._run(lambda: self.store.ensure(self._key, kind=KIND).items.put(name, bytes(data)))
        if self._index is not None:
            await self._index.index(self, path, data)

    async def read(self, key: str) -> bytes | None:
        """Return the bytes of a key; None if there are none."""
        name = self.prefix + _path(key)

        def get() -> bytes | None:
            talk = self.store.find(self._key, kind=KIND)
            item = None if talk is None else talk.items.get(name)
            return None if item is None else item.value

        return await self._run(get)

    async def delete(self, key: str) -> None:
        """Remove a key, if it is there."""
        name = self.prefix + _path(key)

        def delete() -> None:
            talk = self.store.find(self._key, kind=KIND)
            if talk is not None:
                talk.items.delete(name, missing_ok=True)

        await self._run(delete)

    async def list(self, query: str = "") -> list[str]:
        """Return the keys that begin so, sorted."""
        prefix, scope = self.prefix + _checked(query).lstrip("/"), len(self.prefix)

        def scan() -> Any:
            talk = self.store.find(self._key, kind=KIND)
            return [] if talk is None else sorted(item.name[scope:] for item in talk.items.scan(prefix))

        return await self._run(scan)

    async def search(self, query: str) -> Any:
        """Return the keys whose bytes have the words of the query, the best first, as the framework ranks them."""
        return await self._search.search(self, query)

    async def _run(self, work: Any) -> Any:
        try:
            return await shared_threads().run(work)
        except HithertoError as error:
            raise _exceptions.StorageError(describe(error)) from error


def _path(key: str) -> str:
    """Return a key without superfluous slashes."""
    path = _checked(key).strip("/")
    if not path:
        raise _exceptions.StorageError("Storage key must not be empty")
    return path


def _checked(path: str) -> str:
    parts = path.split("/")
    if "\\" in path or ".." in parts:
        raise _exceptions.StorageError("a storage key has no backslashes and no '..' segments")
    while "//" in path:
        path = path.replace("//", "/")
    return path

"""Strands: the folders of `FileSessionManager`.

A session is a folder with `session.json`, a folder for each agent, and in it a file for each message. An agent becomes
the conversation that the adapter would have made of it, with its state, and the session is kept beside it with the
states of its graphs and swarms. So `adapters.strands.Repository` goes on with it.
"""

import json
import re
from collections.abc import Iterator, Sequence

from ...dialects._framework_names import escape
from ...dialects._kept_objects import first_words
from ...dialects.strands_messages import (
    AGENT_ITEM,
    KIND,
    MESSAGES,
    MULTI_AGENT_ITEM,
    SESSION_ITEM,
    agent_key,
    metadata_of,
    session_key,
)
from ...errors import HithertoError, InvalidMessage
from ...snapshots import Unreadable
from .._files import Files
from .._importer import Importer, time_us
from .._types import Found, PortableConversation, PortableItem, PortableMessage, Source
from ._fields import Fields, text

_SESSION = "session.json"
_AGENT = re.compile(r"agents/agent_[^/]*/agent\.json")
_MESSAGE = re.compile(r"messages/message_(\d{1,18})\.json")
_MULTI_AGENT = re.compile(r"multi_agents/multi_agent_[^/]*/multi_agent\.json")
_LARGEST = 1 << 28  # bytes of a file


class Strands(Importer):
    name = "strands"
    title = "Strands"

    def recognises(self, source: Source) -> str | None:
        """Recognise each file of a session. That of a graph is known by its place only: its state has no form."""
        path = source.path.as_posix()
        fields = {b'"session_id"', b'"session_type"'} if path.endswith(_SESSION) else set()
        if _AGENT.search(path):
            fields = {b'"agent_id"', b'"conversation_manager_state"'}
        elif _MESSAGE.search(path):
            fields = {b'"message"', b'"content"'}
        elif _MULTI_AGENT.search(path):
            fields = {b"{"}
        there = source.head.lstrip().startswith(b"{") and all(field in source.head for field in fields)
        return "a file of a session of Strands" if fields and there else None

    def read_files(self, files: Files, names: Sequence[str]) -> Iterator[Found]:
        folders = [name.removesuffix(_SESSION) for name in names if name.rpartition("/")[2] == _SESSION]
        for folder in folders:
            yield from _Folder(files, folder).read()
        for name in names:
            if not any(name.startswith(folder) for folder in folders):
                yield Unreadable(files.label(name), "the session.json of its session is not there")


FORMAT = Strands()


class _Folder:
    """The folder of one session; its name ends with `/`, or is empty."""

    def __init__(self, files: Files, folder: str) -> None:
        self._files, self._folder = files, folder
        under = folder.rstrip("/") or ("." if files.is_one else "")
        self._names = sorted(name for name in files.names(under) if name.startswith(folder))

    def read(self) -> Iterator[Found]:
        problems: list[Unreadable] = []
        session = self._object(self._folder + _SESSION, problems)
        id = text(session.get("session_id"))
        if id:
            for name in self._matching(_AGENT):
                yield from self._agent(id, name)
            items = [PortableItem(SESSION_ITEM, _encode(session))]
            for name in self._matching(_MULTI_AGENT):
                graph = name.split("/")[-2].removeprefix("multi_agent_")
                items.append(PortableItem(MULTI_AGENT_ITEM + escape(graph), _encode(self._object(name, problems))))
            yield PortableConversation(
                id=f"session/{session_key(id)}",
                key=session_key(id),
                kind=KIND,
                metadata={"source": FORMAT.name},
                items=tuple(items),
                created_us=time_us(session.get("created_at")),
            )
        elif not problems:
            yield Unreadable(self._files.label(self._folder + _SESSION), "the session has no id")
        yield from problems

    def _agent(self, session: str, name: str) -> Iterator[Found]:
        problems: list[Unreadable] = []
        agent = self._object(name, problems)
        id = text(agent.get("agent_id"))
        if id:
            messages = list(self._messages(name.removesuffix("agent.json"), problems))
            asked = next((one.message.text for one in messages if one.message.role == "user"), "")
            yield PortableConversation(
                id=agent_key(session, id),
                key=agent_key(session, id),
                title=first_words(asked) or "",
                metadata={**metadata_of(session, id), "source": FORMAT.name},
                messages=tuple(messages),
                items=(PortableItem(AGENT_ITEM, _encode(agent)),),
                created_us=time_us(agent.get("created_at")),
            )
        elif not problems:
            yield Unreadable(self._files.label(name), "the agent has no id")
        yield from problems

    def _messages(self, folder: str, problems: list[Unreadable]) -> Iterator[PortableMessage]:
        numbered = [(int(found[1]), name) for name in self._names if (found := _MESSAGE.search(name))]
        above: str | None = None
        for number, name in sorted(one for one in numbered if one[1].startswith(folder)):
            whole = self._object(name, problems)
            if not whole:
                continue
            if whole.get("message_id") != number:
                problems.append(Unreadable(self._files.label(name), "its name has another number than its message"))
                continue
            try:
                message, _ = MESSAGES.keep(whole)
            except HithertoError as error:
                problems.append(Unreadable(self._files.label(name), str(error)))
                continue
            at = time_us(whole.get("created_at"))
            yield PortableMessage(id=str(number), parent=above, message=message, created_us=at)
            above = str(number)

    def _matching(self, pattern: re.Pattern[str]) -> Iterator[str]:
        return (name for name in self._names if pattern.fullmatch(name.removeprefix(self._folder)))

    def _object(self, name: str, problems: list[Unreadable]) -> Fields:
        """Return the JSON object in a file; an empty one, with a problem noted, if there is none."""
        try:
            with self._files.open(name) as file:
                data = file.read(_LARGEST + 1)
            if len(data) > _LARGEST:
                raise InvalidMessage(f"the file has more than {_LARGEST:,} bytes")
            found = json.loads(data)
            if isinstance(found, dict):
                return found
            raise InvalidMessage("it is no JSON object")
        except (ValueError, RecursionError):
            problems.append(Unreadable(self._files.label(name), "it is no JSON"))
        except HithertoError as error:
            problems.append(Unreadable(self._files.label(name), str(error)))
        return {}


def _encode(value: object) -> bytes:
    return json.dumps(value).encode()

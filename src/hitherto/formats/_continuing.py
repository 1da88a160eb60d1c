"""Goes on in another program: writes a session of Claude Code or Codex that ends with a message of ours.

Lines that came from the program are written as they were. Other messages are put into the words of the program's
provider, and what these words cannot say is named as a loss. The store remembers the ids in the new file, so what the
program adds comes back, by an import, as a branch below that message.
"""

import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec
from msgspec import Struct

from ..dialects import dialect
from ..dialects._lossless import own_raw
from ..dialects._repair import repair
from ..dialects._types import with_names
from ..errors import InvalidArgument
from ..model import Message, Saved, to_datetime
from ._atomic_file import new_file, of_files
from ._by_identity import IdentityImport
from ._files import Files
from ._importer import Importer
from ._registry import find_format
from ._types import PortableConversation

if TYPE_CHECKING:
    from ..conversation import Conversation
    from ..store import Store

_NAMESPACE = uuid.UUID("0d6c8f0e-3b1d-5f0a-9a57-6a2b0c5f4e21")  # of lines that are made of our messages; never changed
_NOT_IN_A_FOLDER = re.compile("[^a-zA-Z0-9]")
_VERSION = "2.1.0"  # of Claude Code whose lines we write, where there is no line to go by

Line = dict[str, object]


class Continued(Struct, frozen=True):
    """A session of another program that ends with a message of ours."""

    path: Path
    session: str
    folder: Path  # where the program is to be started
    command: tuple[str, ...]  # that goes on with it
    messages: int
    losses: tuple[str, ...]  # what the program does not get, in words


def continue_in(
    store: "Store",
    talk: "Conversation",
    program: str,
    *,
    env: Mapping[str, str] | None = None,
    home: Path | None = None,
    folder: Path | None = None,
) -> Continued:
    """Write a session of `program` ("claude" or "codex") with the thread up to where the handle stands.

    `folder` is where the program is to go on; None: the conversation's project, if it is there, else the current
    folder. `env` and `home` say where the program keeps its files, in place of the environment and the home directory.
    """
    if program not in _PROGRAMS:
        raise InvalidArgument(f"no such program: {program!r:.40}", hint=f"known are {', '.join(_PROGRAMS)}")
    made = _PROGRAMS[program]
    thread = [message for message in talk.thread() if message.role != "event"]
    if not thread:
        raise InvalidArgument("there is nothing to go on from", hint="give the id of a message")
    place = _folder_of(talk, folder)
    session = str(uuid.uuid4())
    writing = made(talk, thread, session, place)
    lines = list(writing.lines())
    path = writing.path(os.environ if env is None else env, Path.home() if home is None else home)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise of_files(error, path.parent) from None
    with new_file(path) as file:
        for line in lines:
            file.write(msgspec.json.encode(line) + b"\n")
    _remember(store, talk, writing, path)
    losses = tuple(dict.fromkeys(writing.losses))
    return Continued(path, session, place, (*writing.command, session), len(thread), losses)


def _folder_of(talk: "Conversation", given: Path | None) -> Path:
    if given is not None:
        return given.resolve()
    project = talk.project
    return Path(project) if project and Path(project).is_dir() else Path.cwd()


def _remember(store: "Store", talk: "Conversation", writing: "_Writing", path: Path) -> None:
    """Note in the store which messages the new file repeats, by reading it as an import would."""
    reader = cast("Importer", find_format(writing.format))
    found = [
        one for one in reader.read_files(Files(path.parent, path.name), [path.name])
        if isinstance(one, PortableConversation)
    ]  # fmt: skip
    numbers = writing.numbers([said.id for part in found for said in part.messages])
    pairs = [
        (id, numbers[said.id])
        for part in found
        for said in part.messages
        if said.id in numbers
        for id in (said.id, *said.also)
    ]
    names = [name for part in found[:1] for name in (part.id, *part.aliases)]
    IdentityImport(store, writing.format).adopt(talk, names, pairs)


class _Writing:
    """The lines of a new session."""

    format: str
    dialect: str
    command: tuple[str, ...]

    def __init__(self, talk: "Conversation", thread: Sequence[Saved], session: str, folder: Path) -> None:
        self.talk, self.session, self.folder = talk, session, folder
        self.spoken = dialect(self.dialect)
        repaired = repair(thread, self.spoken)
        self.thread = repaired.messages
        self.losses = [str(note) for note in repaired.notes]
        if talk.system_prompt:
            self.losses.append("the system prompt: the program has its own")
        if talk.tools:
            self.losses.append("the tools: the program has its own")
        if thread[0].link is not None:
            self.losses.append("what was said before the summary that the thread begins with")

    def entries(self) -> Iterator[tuple[Message, list[Line]]]:
        """Yield each message with what the provider's words make of it."""
        for message, names in with_names(self.thread):
            own = own_raw(message, self.spoken.name)
            if own is not None:
                yield message, [own]
                continue
            built = self.spoken.build(message, names)
            self.losses += built.losses
            yield message, built.raws

    def lines(self) -> Iterator[Line]:
        raise NotImplementedError

    def path(self, env: Mapping[str, str], home: Path) -> Path:
        """Return the path of the new file."""
        raise NotImplementedError

    def numbers(self, ids: Sequence[str]) -> dict[str, int]:
        """Return the numbers of our messages by the ids that an import gives to what the file holds."""
        raise NotImplementedError

    def number_of(self, message: Message) -> int | None:
        """Return the number of a stored message; None for one that the repair made."""
        id = getattr(message, "id", "")
        return self.talk.engine.message_ids.number(id) if id else None


def _moment(message: Message) -> str:
    """Return the time of a message as these programs write it."""
    at = to_datetime(message.created_us) if isinstance(message, Saved) else datetime.now(UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03d}Z"


class _Claude(_Writing):
    """A session of Claude Code."""

    format, dialect, command = "claude-code", "anthropic", ("claude", "--resume")

    def path(self, env: Mapping[str, str], home: Path) -> Path:
        root = Path(env.get("CLAUDE_CONFIG_DIR", "").partition(",")[0] or home / ".claude")
        return root / "projects" / _NOT_IN_A_FOLDER.sub("-", str(self.folder)) / f"{self.session}.jsonl"

    def lines(self) -> Iterator[Line]:
        self._numbers: dict[str, int] = {}
        above: str | None = None
        for message, entries in self.entries():
            made = self._as_it_was(message) or [self._line(message, entry, n) for n, entry in enumerate(entries)]
            for line in made:
                line |= {"parentUuid": above, "sessionId": self.session, "isSidechain": False}
                above = cast("str", line["uuid"])
                number = self.number_of(message)
                if number is not None:
                    self._numbers[above] = number
                yield line

    def numbers(self, ids: Sequence[str]) -> dict[str, int]:
        return {id: self._numbers[id] for id in ids if id in self._numbers}

    def _as_it_was(self, message: Message) -> list[Line]:
        """Return the lines that a message came from, or none."""
        native, raw = (message.extra or {}).get("native"), own_raw(message, self.spoken.name)
        if not isinstance(native, list) or raw is None:
            return []
        lines: list[Line] = []
        at = 0
        for one in native:
            if not isinstance(one, dict) or not isinstance(one.get("uuid"), str) or one.get("type") == "attachment":
                return []
            content = raw.get("content")
            count = one.get("blocks")
            if isinstance(count, int) and isinstance(content, list):
                content = content[at : at + count]
                at += count
            about = one.get("message")
            bare = {name: value for name, value in one.items() if name not in ("blocks", "forkedFrom", "agentId")}
            whole = {**(about if isinstance(about, dict) else {}), "role": raw.get("role"), "content": content}
            lines.append({**bare, "message": whole})
        return lines

    def _line(self, message: Message, entry: Line, n: int) -> Line:
        """Return a line that says an entry of the API."""
        saved = message if isinstance(message, Saved) else None
        name = f"{saved.conversation}/{saved.id}/{n}" if saved else str(uuid.uuid4())
        id = str(uuid.uuid5(_NAMESPACE, name))
        line: Line = {
            "uuid": id,
            "type": entry["role"],
            "timestamp": _moment(message),
            "cwd": str(self.folder),
            "userType": "external",
            "version": self.talk.metadata.get("source_version", _VERSION),
            "gitBranch": self.talk.metadata.get("git_branch", ""),
        }
        if entry["role"] != "assistant":
            return {**line, "message": entry}
        content = entry.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        calls = isinstance(blocks, list) and any(
            isinstance(block, dict) and block.get("type") == "tool_use" for block in blocks
        )
        about: Line = {
            "id": f"msg_{id.replace('-', '')[:24]}",
            "type": "message",
            "model": (message.extra or {}).get("model") or self.talk.model or "unknown",
            "stop_reason": "tool_use" if calls else "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 0, "output_tokens": 0},
        }
        return {**line, "message": {**about, "role": "assistant", "content": blocks}}


class _Codex(_Writing):
    """A rollout of Codex."""

    format, dialect, command = "codex", "openai-responses", ("codex", "resume")

    def path(self, env: Mapping[str, str], home: Path) -> Path:
        now = datetime.now(UTC)
        root = Path(env.get("CODEX_HOME") or home / ".codex") / "sessions" / f"{now:%Y/%m/%d}"
        return root / f"rollout-{now:%Y-%m-%dT%H-%M-%S}-{self.session}.jsonl"

    def lines(self) -> Iterator[Line]:
        self._order: list[int | None] = []
        found = list(self.entries())
        first = _moment(found[0][0])
        yield {"timestamp": first, "type": "session_meta", "payload": {
            "id": self.session, "timestamp": first, "cwd": str(self.folder), "originator": "codex_cli_rs",
            "cli_version": self.talk.metadata.get("source_version", "0.40.0"), "instructions": None, "source": "cli",
        }}  # fmt: skip
        for message, entries in found:
            for entry in entries:
                self._order.append(self.number_of(message))
                yield {"timestamp": _moment(message), "type": "response_item", "payload": _as_item(entry)}
                event = _event_of(entry)
                if event is not None:  # what the program shows of it
                    yield {"timestamp": _moment(message), "type": "event_msg", "payload": event}

    def numbers(self, ids: Sequence[str]) -> dict[str, int]:
        if len(ids) != len(self._order):
            raise AssertionError(f"{len(self._order)} items were written, and {len(ids)} are read")
        return {id: number for id, number in zip(ids, self._order, strict=True) if number is not None}


def _as_item(entry: Line) -> Line:
    """Return an entry as an item of a rollout: with its type, and its text in a list."""
    if "role" not in entry:
        return entry
    content = entry.get("content")
    if isinstance(content, str):
        kind = "output_text" if entry["role"] == "assistant" else "input_text"
        content = [{"type": kind, "text": content}]
    return {**entry, "type": "message", "content": content}


def _event_of(entry: Line) -> Line | None:
    role, content = entry.get("role"), _as_item(entry).get("content")
    kinds = {"user": "user_message", "assistant": "agent_message"}
    if role not in kinds or not isinstance(content, list):
        return None
    texts = [str(part.get("text", "")) for part in content if isinstance(part, dict)]
    return {"type": kinds[role], "message": "".join(texts)}


_PROGRAMS: dict[str, Callable[["Conversation", Sequence[Saved], str, Path], _Writing]] = {
    "claude": _Claude,
    "codex": _Codex,
}

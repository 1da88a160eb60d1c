"""Gemini CLI: the sessions below `~/.gemini/tmp`, as one JSON object (until about 0.40) or as lines.

A line is a message, or a change of what was said before: the same id again replaces a message, `$set` replaces the list
of messages, `$rewindTo` goes back to before one. What was taken back stays as a branch.

A record of the model holds its thoughts, what it said, its calls and their results; it is taken apart as the API has
it. Newer versions write the results a second time, as a record of the user: it is left out. A list of contents, as
`/chat save` and checkpoints have it, is read as well.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path

from msgspec.structs import replace

from ...dialects import dialect
from ...dialects._json import encode
from ...errors import HithertoError, InvalidMessage
from ...model import Block, Message, Usage
from ...snapshots import Unreadable
from .._files import Files
from .._importer import Importer, Line, clean_text, decode_json, injected, lines, parts, storable, time_us
from .._types import Found, PortableConversation, PortableMessage, Source, SourceRecord
from ._fields import Fields, Setups, count, fields, first_text, objects, text, without
from ._json_elements import objects_in
from ._message_lists import Entry, read_list
from ._turns import Result, split_turn, title_of, with_extra, with_label

_SESSION = re.compile(rb'\s*\{\s*"sessionId"\s*:\s*"[^"]*"\s*,\s*"projectHash"\s*:')
_CONTENTS = re.compile(
    rb'\s*(?:\[|\{\s*"history"\s*:\s*\[)\s*\{\s*"(?:role"\s*:\s*"(?:user|model)"\s*,\s*"parts"|parts"\s*:\s*\[\s*[{"])'
)
_ROLE = re.compile(rb'"role"\s*:\s*"(?:user|model)"')
_CONTEXT = re.compile(r"\s*(?:<session_context>|<hook_context>|This is the Gemini CLI\. We are setting up the context)")
_SUMMARY = re.compile(r"\s*<state_snapshot>")
_ABOUT = ("sessionId", "projectHash", "startTime", "lastUpdated", "messages", "summary", "kind", "directories")
_DEFAULT_DAYS = 30
_DAYS = {"h": 1, "d": 24, "w": 168, "m": 720}  # in hours
_IN_BLOCKS = ("id", "timestamp", "type", "content", "thoughts", "tokens", "model", "toolCalls", "parts")


class GeminiCLI(Importer):
    name = "gemini-cli"
    title = "Gemini CLI"

    def places(self, env: Mapping[str, str], home: Path) -> Iterator[Path]:
        """Yield the folder in which Gemini CLI keeps its sessions."""
        yield Path(env.get("GEMINI_CLI_HOME") or home) / ".gemini" / "tmp"

    def retention_days(self, env: Mapping[str, str], home: Path) -> int | None:
        """Return after how many days sessions are deleted: 30, or what the settings say."""
        settings = Path(env.get("GEMINI_CLI_HOME") or home) / ".gemini" / "settings.json"
        try:
            found = fields(decode_json(settings.read_bytes()))
        except (OSError, InvalidMessage):
            found = {}
        general = fields(fields(found.get("general")).get("sessionRetention"))
        if general.get("enabled") is False:
            return None
        age = re.fullmatch(r"(\d{1,5})([hdwm])", text(general.get("maxAge")))
        return _DEFAULT_DAYS if age is None else int(age[1]) * _DAYS[age[2]] // 24

    def recognises(self, source: Source) -> str | None:
        if _SESSION.match(source.head):
            return "it begins with the id of a session and the hash of its project"
        if _CONTENTS.match(source.head) and _ROLE.search(source.head):
            return "it is a list of contents with roles and parts"
        return None

    def read_files(self, files: Files, names: Sequence[str]) -> Iterator[Found]:
        calls: dict[str, str] = {}  # the messages with the calls that started sub-agents
        for name in sorted(names, key=lambda name: (name.count("/"), name)):  # sub-agents lie in folders below
            try:
                yield from _read(files, name, calls)
            except HithertoError as error:
                yield Unreadable(files.label(name), str(error))


FORMAT = GeminiCLI()


def _read(files: Files, name: str, calls: dict[str, str]) -> Iterator[Found]:
    with files.open(name) as file:
        head = file.read(1 << 12)
    if not _SESSION.match(head):
        yield from _contents(files, name)
        return
    session = _Session(files, name, calls)
    first_line = head.partition(b"\n")[0].rstrip()
    if b'"messages"' not in first_line and first_line.endswith(b"}"):
        for line in lines(files, name):
            if isinstance(line, Line):
                session.take(line.record)
            else:
                yield line
    else:
        for _, body in objects_in(files, name):
            if isinstance(body, Unreadable):
                yield body
            else:
                session.take_whole(body)
    yield from session.conversation()


class _Session:
    """Collects what a file says, and then follows it."""

    def __init__(self, files: Files, name: str, calls: dict[str, str]) -> None:
        self._files, self._name, self._calls = files, name, calls
        self._about: Fields = {}
        self._records: dict[str, Fields] = {}
        self._steps: list[tuple[str, list[str]]] = []
        self._unknown: list[SourceRecord] = []
        self._setups = Setups()
        self._messages: list[PortableMessage] = []
        self._begin: dict[str, str | None] = {}  # the message that a record stands below
        self._end: dict[str, str | None] = {}  # the last message of a record
        self._answered: set[str] = set()  # calls

    # -- the file

    def take(self, record: Fields) -> None:
        if isinstance(record.get("$set"), dict):
            changes = fields(record["$set"])
            self._about |= without(changes, ("messages",))
            if isinstance(changes.get("messages"), list):
                self._steps.append(("reset", [self._keep(one, again=False) for one in objects(changes["messages"])]))
        elif "$rewindTo" in record:
            self._steps.append(("rewind", [text(record["$rewindTo"])]))
        elif "type" in record or "parts" in record:
            self._steps.append(("say", [self._keep(record, again=True)]))
        elif "sessionId" in record:
            self._about |= record
        else:
            self._unknown.append(SourceRecord(type="line without a type", data=storable(record)))

    def take_whole(self, body: Fields) -> None:
        self._about = without(body, ("messages",))
        for one in objects(body.get("messages")):
            self._steps.append(("say", [self._keep(one, again=True)]))

    def _keep(self, record: Fields, *, again: bool) -> str:
        """Keep a record. A record in a list does not replace one that has its tokens and results."""
        id = clean_text(record.get("id")) or f"line {len(self._records) + 1}"
        if again or id not in self._records:
            self._records[id] = record
        return id

    # -- the conversation

    def conversation(self) -> Iterator[Found]:
        about = self._about
        at: str | None = None
        for kind, ids in self._steps:
            if kind == "rewind":
                at = self._begin.get(ids[0], at)
                continue
            at = None if kind == "reset" else at
            for id in ids:
                is_new = id not in self._end
                if is_new:
                    self._place(id, at)
                if is_new or kind == "reset":
                    at = self._end[id]
        session = clean_text(about.get("sessionId"))
        metadata = {"source": FORMAT.name, "project_hash": text(about.get("projectHash"))}
        folder = self._name.split("/")[-2] if about.get("kind") == "subagent" and "/" in self._name else ""
        conversation = PortableConversation(
            by_id=True,
            id=session,
            aliases=(clean_text(folder),) if folder and folder != "chats" else (),
            title="" if self._agent else clean_text(about.get("summary")) or title_of(self._messages),
            project=self._project(),
            metadata={name: clean_text(value) for name, value in metadata.items() if value},
            setups=self._setups.all,
            created_us=time_us(about.get("startTime")),
            head=None if self._agent else at,
        )
        if rest := without(about, _ABOUT):
            self._unknown.append(SourceRecord(type="session", data=storable(rest), known=True))
        if self._messages:
            yield from parts(conversation, (*self._messages, *self._unknown))

    def _project(self) -> str | None:
        """Return the folder of the project, which a file beside the sessions names."""
        root = f"{self._name.rpartition('/chats/')[0]}/.project_root"
        if "/chats/" in self._name and root in self._files and self._files.size(root) < 1 << 12:
            with self._files.open(root) as file:
                return clean_text(file.read().decode(errors="replace").strip()) or None
        listed = self._about.get("directories")
        return clean_text(listed[0]) or None if isinstance(listed, list) and listed else None

    def _place(self, id: str, parent: str | None) -> None:
        record = self._records[id]
        self._begin[id] = parent
        kind = first_text(record, "type", "role")
        setup = self._setups.number("gemini", text(record.get("model")) if kind in _MODEL else "")
        agent = self._agent
        for own, message in self._turn(id, kind, record):
            said = PortableMessage(
                id=own,
                parent=parent,
                link=self._calls.get(agent) if agent and parent is None else None,
                message=with_label(message, f"subagent:gemini:{agent}" if agent else None),
                main=not agent,
                created_us=time_us(record.get("timestamp")),
                setup=setup if message.role == "assistant" else 0,
                also=(_state(id, record),) if own == id and kind in _MODEL else (),
            )
            self._messages.append(said)
            parent = own
        for call in objects(record.get("toolCalls")):
            if started := text(call.get("agentId")):
                self._calls.setdefault(started, id)
        self._end[id] = parent

    @property
    def _agent(self) -> str:
        """The id of the sub-agent whose session this is; "" for a session of a person. Its file is named after it."""
        if self._about.get("kind") != "subagent":
            return ""
        return clean_text(self._name.rpartition("/")[2].partition(".")[0]) or clean_text(self._about.get("sessionId"))

    def _turn(self, id: str, kind: str, record: Fields) -> Iterator[tuple[str, Message]]:
        """Yield the messages of a record. The results of calls that were given with them are left out."""
        found = _parts(record)
        native = storable(without(record, _IN_BLOCKS) | _rest_of_calls(record))
        if kind in _MODEL:
            said = [*_thoughts(record), *_said(found), *self._called(id, record)]
            for own, message in split_turn(id, said):
                whole = with_extra(message, native=native) if own == id else message
                yield own, replace(whole, usage=_usage(record)) if own == id else whole
        elif kind == "user":
            results = [one for one in _said(found) if isinstance(one, Result)]
            new = [one for one in results if one.call not in self._answered]
            blocks = [one for one in _said(found) if isinstance(one, Block)]
            for number, (_, message) in enumerate(split_turn(id, new) if new else (), 1):
                yield (id if number == 1 and not blocks else f"{id}/result/{number}"), message
            self._answered |= {one.call for one in new}
            if blocks or not results:
                yield id, _marked(with_extra(Message.user(blocks), native=native))
        else:
            blocks = [one for one in _said(found) if isinstance(one, Block)]
            yield id, injected(with_extra(Message("event", tuple(blocks)), native=native, type=kind), "hidden")

    def _called(self, id: str, record: Fields) -> Iterator[Block | Result]:
        """Yield the calls of a record, then the results that are there."""
        listed = [
            (clean_text(call.get("id")) or f"{id}/call {n}", call)
            for n, call in enumerate(objects(record.get("toolCalls")), 1)
        ]
        for call_id, call in listed:
            yield Block.tool_call(call_id, clean_text(call.get("name")), storable(call.get("args")))
        for call_id, call in listed:
            blocks = [
                block for one in _said(_listed(call.get("result"))) if isinstance(one, Result) for block in one.blocks
            ]
            if blocks or text(call.get("status")) in ("success", "error", "cancelled"):
                self._answered.add(call_id)
                shown = clean_text(call.get("resultDisplay"))
                yield Result(call_id, blocks or [Block.text(shown)], call.get("status") == "error")


_MODEL = ("gemini", "model", "assistant")


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _parts(record: Fields) -> list[object]:
    return _listed(record.get("content") if record.get("content") is not None else record.get("parts"))


def _said(found: Sequence[object]) -> Iterator[Block | Result]:
    """Yield the blocks of parts, and the results among them."""
    for part in found:
        if isinstance(part, str):
            if part:
                yield Block.text(clean_text(part))
            continue
        answer = fields(fields(part).get("functionResponse"))
        if answer:
            response = fields(answer.get("response"))
            said = response.get("output") if "output" in response else response.get("error", answer.get("response"))
            words = clean_text(said) if isinstance(said, str) else encode(storable(said))
            yield Result(
                clean_text(answer.get("id")) or clean_text(answer.get("name")),
                (Block.text(words),),
                "error" in response,
            )
            continue
        try:
            yield from dialect("gemini").parse({"role": "model", "parts": [storable(part)]}).blocks
        except InvalidMessage:
            yield Block("unknown", encode(storable(part)), mime_type="application/json")


def _thoughts(record: Fields) -> Iterator[Block]:
    for thought in objects(record.get("thoughts")):
        said = [clean_text(thought.get(name)) for name in ("subject", "description")]
        yield Block.thinking("\n\n".join(part for part in said if part))


def _rest_of_calls(record: Fields) -> Fields:
    """Return of the calls what their blocks do not say: how they ended, and what was shown."""
    rest = [without(call, ("name", "args", "result")) for call in objects(record.get("toolCalls"))]
    return {"toolCalls": rest} if rest else {}


def _state(id: str, record: Fields) -> str:
    """Return a name for this state of a record: one that grew has another, and is brought up to date."""
    said = encode(
        storable([record.get("content"), record.get("thoughts"), record.get("toolCalls"), record.get("tokens")])
    )
    return f"{id} {blake2b(said.encode(errors='replace'), digest_size=8).hexdigest()}"


def _usage(record: Fields) -> Usage | None:
    """Return the tokens of an answer. Those of thoughts are part of the output, those of tools of the input."""
    tokens = fields(record.get("tokens"))
    thoughts = count(tokens.get("thoughts"))
    usage = Usage(
        input_tokens=count(tokens.get("input")) + count(tokens.get("tool")),
        output_tokens=count(tokens.get("output")) + thoughts,
        cache_read_tokens=count(tokens.get("cached")),
        reasoning_tokens=thoughts,
    )
    return usage if usage != Usage() else None


def _marked(message: Message) -> Message:
    """Mark what Gemini CLI said in the place of the person."""
    if _CONTEXT.match(message.text):
        return injected(message, "context")
    return injected(message, "summary") if _SUMMARY.match(message.text) else message


# -- lists of contents


def _contents(files: Files, name: str) -> Iterator[Found]:
    """Read a list of contents."""
    problems: list[Unreadable] = []

    def entries() -> Iterator[Entry]:
        for place, body in objects_in(files, name):
            if isinstance(body, Unreadable):
                problems.append(body)
                continue
            for content in objects(body["history"]) if isinstance(body.get("history"), list) else [body]:
                try:
                    message = dialect("gemini").parse(fields(storable(content)))
                except InvalidMessage as error:
                    problems.append(Unreadable(place, str(error)))
                    continue
                marked = _marked(message) if message.role == "user" else message
                yield Entry(with_extra(marked, dialect="gemini"))

    talk = PortableConversation(by_id=True, id="", metadata={"source": FORMAT.name})
    yield from read_list(talk, entries(), Setups())
    yield from problems

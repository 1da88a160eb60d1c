"""Claude Code: the sessions in `~/.claude/projects`.

A session is a file of JSON lines. Lines name the line before them (`parentUuid`), so an edited prompt is a branch. A
compaction begins a new tree, and `logicalParentUuid` says where it goes on from. A fork is another file, which repeats
the lines of the first with the same ids, or with new ones and `forkedFrom`; both files become one conversation here.

Sub-agents have written in three ways: within the session (`isSidechain`), in a file `agent-….jsonl` beside it, and in a
folder `subagents` below it. They are found by the id of the agent in the result of the call, by the id of the call, or
by the prompt, and come where the call is.

Lines that are no messages (attachments, progress, snapshots of files, modes) are kept beside the conversation. Their
children hang below the message before them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from pathlib import PurePosixPath as Name

from msgspec import Struct
from msgspec.structs import replace

from ...errors import HithertoError, InvalidMessage
from ...model import Message, Setup
from ...snapshots import Unreadable
from .._files import Files
from .._importer import Importer, Line, clean_text, decode_json, lines, parts, storable, time_us
from .._types import Found, PortableConversation, PortableMessage, Source, SourceRecord, Waiting
from ._claude_messages import (
    Record,
    assistant_message,
    content_of,
    message_of,
    queued_prompt,
    results_in,
    text_of,
    user_message,
)

_WINDOW = 64  # answers that may still get another line
_AGENT_TOOLS = ("Task", "Agent")
_CONVERSATION = ("user", "assistant")
_BOOKKEEPING = frozenset(
    (
        *("agent-name", "agent-setting", "ai-title", "api-request", "api-request-blob", "api-request-shape"),
        *("atis-latch", "attachment", "bridge-session", "cost-state", "custom-title"),
        *("file-history-delta", "file-history-snapshot", "frame-link", "last-prompt", "mode", "permission-mode"),
        *("pr-link", "progress", "queue-operation", "relocated", "result", "saved_hook_context", "started", "summary"),
        *("system", "tag", "task-summary", "tools-used", "worktree-state"),
    )
)
_IS_LINE = re.compile(rb'\s*(?:\xef\xbb\xbf)?\{(?=[^\n]*"parentUuid"\s*:)(?=[^\n]*"sessionId"\s*:)')
_IS_NOTE = re.compile(rb'\s*\{"type":"(?:summary","summary"|queue-operation"|last-prompt"|file-history-snapshot")')
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_AGENT = re.compile(r"agent-(?P<id>[\w.-]+)\.jsonl")
_LAST_DAYS = 30  # the program's own cleanup
_COMPACTING = "acompact"  # agents that sum up a session, which they get whole
_PART, _PART_BYTES = 500, 4 << 20  # lines and bytes that are kept in memory


class ClaudeCode(Importer):
    """Sessions of Claude Code."""

    name = "claude-code"
    title = "Claude Code"

    def recognises(self, source: Source) -> str | None:
        """Return the evidence that a file is a session, or None."""
        if any(_IS_LINE.match(line) for line in source.head.split(b"\n", 40)[:40]):
            return "its lines have parentUuid and sessionId"
        return "its first line is a note of Claude Code" if _IS_NOTE.match(source.head) else None

    def places(self, env: Mapping[str, str], home: Path) -> Iterator[Path]:
        """Yield the folders in which the program keeps its sessions."""
        given = env.get("CLAUDE_CONFIG_DIR")
        roots = [Path(root) for root in given.split(",")] if given else [home / ".claude", home / ".config" / "claude"]
        yield from (root / "projects" for root in roots)

    def retention_days(self, env: Mapping[str, str], home: Path) -> int | None:
        """Return after how many days the program deletes its sessions."""
        for place in self.places(env, home):
            settings = place.parent / "settings.json"
            try:
                found = decode_json(settings.read_bytes())
            except (OSError, InvalidMessage):
                continue
            days = found.get("cleanupPeriodDays") if isinstance(found, dict) else None
            if isinstance(days, int) and days > 0:
                return days
        return _LAST_DAYS

    def unit_of(self, name: str) -> str:
        """Return the session that a file belongs to. Sub-agents beside sessions do not have it in their names: then it
        is the folder."""
        parts = Name(name).parts
        if "subagents" in parts:
            at = parts.index("subagents")
            return Name(*parts[:at]).with_suffix(".jsonl").as_posix()
        return Name(name).parent.as_posix() if _AGENT.fullmatch(parts[-1]) else name

    def read_files(self, files: Files, names: Sequence[str]) -> Iterator[Found]:
        """Yield the sessions in these files, with their sub-agents."""
        agents = [name for name in names if _AGENT.fullmatch(Name(name).name)]
        sessions = [name for name in names if name not in set(agents)]
        beside = _beside(files, agents)
        done: set[str] = set()
        for name in sessions:
            own = _agents_of(files, name, beside)
            done.update(agent.name for agent in own)
            yield from _Session(files, name, own).read()
        for name in agents:
            if name not in done:
                yield from _Session(files, name, []).read()


class _Agent(Struct):
    """A file of a sub-agent."""

    name: str
    id: str
    call: str = ""  # the id of the call that started it, where it is known
    kind: str = ""  # of agent


def _beside(files: Files, agents: Sequence[str]) -> dict[str, list[str]]:
    """Return the files of sub-agents that lie beside their sessions, by the name of the session's file."""
    found: dict[str, list[str]] = {}
    for name in agents:
        if "subagents" in Name(name).parts:
            continue
        try:
            first = next((line for line in lines(files, name) if isinstance(line, Line)), None)
        except HithertoError:  # its turn comes, and reports the error
            continue
        if first is not None:
            session = Name(name).parent / f"{text_of(first.record, 'sessionId')}.jsonl"
            found.setdefault(session.as_posix(), []).append(name)
    return found


def _agents_of(files: Files, session: str, beside: Mapping[str, list[str]]) -> list[_Agent]:
    """Return the files of a session's sub-agents."""
    below = Name(session).with_suffix("") / "subagents"
    found: list[_Agent] = []
    for name in (*beside.get(session, ()), *files.names(below.as_posix())):
        match = _AGENT.fullmatch(Name(name).name)
        if match is None:
            continue
        agent = _Agent(name, match["id"])
        about = Name(name).with_suffix(".meta.json").as_posix()
        if about in files:
            try:
                with files.open(about) as file:
                    meta = decode_json(file.read(1 << 20))
            except (HithertoError, OSError):
                meta = None
            if isinstance(meta, dict):
                agent.call, agent.kind = text_of(meta, "toolUseId"), text_of(meta, "agentType")
        found.append(agent)
    return found


class _Answer(Struct):
    """An answer whose lines are still arriving, and its place."""

    said: PortableMessage
    records: list[Record]


_Kept = PortableMessage | SourceRecord


class _Family:
    """The state that a session shares with the files of its sub-agents."""

    def __init__(self, files: Files, agents: Sequence[_Agent]) -> None:
        self.files = files
        self.agents = {agent.id: agent for agent in agents}  # those that were not read yet
        self.by_call = {agent.call: agent for agent in agents if agent.call}
        self.calls: dict[str, str] = {}  # calls of sub-agents: the message that each is in
        self.prompts: dict[str, tuple[str, str, str]] = {}  # by the prompt of a call: message, call, kind of agent
        self.setups: list[Setup] = []
        self.problems: list[Unreadable | Waiting] = []
        self.replays = any(agent.id.startswith(_COMPACTING) for agent in agents)
        self.answers: set[str] = set()  # the API's ids, if there may be a replay

    def setup(self, model: str) -> int:
        """Return the number of the setup with this model."""
        if not model or model == "<synthetic>":
            return len(self.setups)
        setup = Setup(provider="claude", model=model)
        if setup not in self.setups:
            self.setups.append(setup)
        return self.setups.index(setup) + 1

    def note_calls(self, record: Record, id: str) -> None:
        """Remember the calls of sub-agents in a line."""
        if self.replays:
            self.answers.add(_answer_id(record))
        for block in content_of(record):
            if block.get("type") == "tool_use" and block.get("name") in _AGENT_TOOLS:
                call, given = text_of(block, "id"), block.get("input")
                self.calls[call] = id
                if isinstance(given, dict):
                    kind = text_of(given, "subagent_type") or "agent"
                    self.prompts[text_of(given, "prompt").strip()] = id, call, kind

    def agents_of(self, record: Record, calls: set[str]) -> list[_Agent]:
        """Return the agents whose results a line has, if their files were not read yet."""
        result = record.get("toolUseResult")
        agent = self.agents.get(text_of(result, "agentId")) if isinstance(result, dict) else None
        found = [agent] if agent else [self.by_call[call] for call in calls if call in self.by_call]
        return [one for one in found if one.id in self.agents]

    def read_agent(self, agent: _Agent, link: str | None) -> Iterator[_Kept]:
        """Yield the trace of a sub-agent that has a file of its own."""
        self.agents.pop(agent.id, None)
        tree = _Tree(self, _label(agent.kind or "agent", agent.id), link or self.calls.get(agent.call))
        label = self.files.label(agent.name)
        try:
            replayed = self._count_replayed(agent)
            for line in lines(self.files, agent.name):
                if not isinstance(line, Line):
                    self.problems.append(line)
                elif line.number <= replayed:
                    yield SourceRecord(type="replay", data=storable(line.record), known=True)
                else:
                    yield from tree.take({**line.record, "isSidechain": True}, label)
            yield from tree.leave_window(0)
        except HithertoError as error:
            self.problems.append(Unreadable(label, str(error)))

    def _count_replayed(self, agent: _Agent) -> int:
        """Return how many lines at the beginning of a file repeat the session: an agent that sums it up gets it
        whole."""
        if not agent.id.startswith(_COMPACTING):
            return 0
        found = (line for line in lines(self.files, agent.name) if isinstance(line, Line))
        return max((line.number for line in found if _answer_id(line.record) in self.answers), default=0)


class _Tree:
    """Builds the tree of one file, line by line."""

    def __init__(self, family: _Family, label: str | None = None, link: str | None = None) -> None:
        """`label` and `link` are those of a sub-agent whose file this is."""
        self._family, self._label, self._link = family, label, link
        self._folded: dict[str, str | None] = {}  # lines that are no message of their own: to the one they stand for
        self._boundaries: dict[str, str | None] = {}  # of compactions: the message that each follows
        self._results: dict[str, tuple[str, set[str]]] = {}  # answers with results: the last one, the calls answered
        self._traces: dict[str, str] = {}  # labels of the messages of sub-agents
        self._window: dict[str, _Answer] = {}  # by the id of the API's message
        self._order: list[_Kept | _Answer] = []
        self._last: str | None = None  # the last message of the main flow

    def take(self, record: Record, file: str) -> Iterator[_Kept]:
        """Add a line. Yields what has left the window because of it."""
        kind, uuid = text_of(record, "type"), text_of(record, "uuid")
        queued = queued_prompt(record)
        if uuid and (queued or kind in _CONVERSATION):
            self._take_message(queued or record, uuid, kind if queued is None else "user", file)
        else:
            self._take_other(record, uuid, kind)
        yield from self.leave_window(_WINDOW)

    def leave_window(self, most: int) -> Iterator[_Kept]:
        """Yield the oldest of what was read, in order, until no more than so many are left."""
        count = max(0, len(self._order) - most)
        leaving = self._order[:count]
        del self._order[:count]
        for one in leaving:
            if isinstance(one, _Answer):
                self._window.pop(_answer_id(one.records[0]), None)
                yield _whole(one)
            else:
                yield one

    def _take_other(self, record: Record, uuid: str, kind: str) -> None:
        if uuid and record.get("subtype") == "compact_boundary":
            after = text_of(record, "logicalParentUuid")
            self._boundaries[uuid] = self._message_for(after) if after else self._last
        elif uuid:
            parent = text_of(record, "parentUuid")
            if parent in self._boundaries:
                self._boundaries[uuid] = self._boundaries[parent]
            else:
                self._folded[uuid] = self._message_for(parent)
        known = kind in _BOOKKEEPING
        data = storable(dict(record))
        self._order.append(SourceRecord(type=kind or "without a type", data=data, id=uuid or None, known=known))

    def _take_message(self, record: Record, uuid: str, kind: str, file: str) -> None:
        fork = fork_of(record)
        id = fork[1] if fork else uuid
        if id != uuid:
            self._folded[uuid] = id
        answer = self._window.get(_answer_id(record)) if kind == "assistant" else None
        try:
            if answer is not None:
                self._add_to(answer, record, id)
                return
            message = assistant_message([record]) if kind == "assistant" else user_message(record)
        except InvalidMessage as error:
            self._family.problems.append(Unreadable(f"{file}, {uuid:.36}", str(error)))
            self._folded[uuid] = self._message_for(text_of(record, "parentUuid"))
            data = storable(dict(record))
            self._order.append(SourceRecord(type=f"unreadable {kind}", data=data, id=uuid))
            return
        said = self._place(record, id, message)
        if kind == "user":
            calls = results_in(message)
            for agent in self._family.agents_of(record, calls):
                above = next((self._family.calls[call] for call in calls if call in self._family.calls), said.parent)
                self._order += self._family.read_agent(agent, above)
            self._order.append(said)
            return
        self._family.note_calls(record, id)
        new = _Answer(said, [record])
        self._order.append(new)
        if _answer_id(record):
            self._window[_answer_id(record)] = new

    def _add_to(self, answer: _Answer, record: Record, id: str) -> None:
        """Add a line to its answer. A line that is there already changes nothing."""
        if id == answer.said.id or id in answer.said.also:
            return
        assistant_message([record])  # or it is invalid, and stays out
        answer.said = replace(answer.said, also=(*answer.said.also, id))
        answer.records.append(record)
        self._folded[id] = answer.said.id
        self._family.note_calls(record, answer.said.id)

    def _place(self, record: Record, id: str, message: Message) -> PortableMessage:
        """Return the message at its place in the tree."""
        above = text_of(record, "parentUuid")
        parent, link, label = self._message_for(above), None, None
        if above in self._boundaries:
            parent, link = None, self._boundaries[above]
        is_side = bool(record.get("isSidechain"))
        if is_side:
            label = self._traces.get(parent or "")
            if label is None:
                started_by, label = self._start_of(record)
                link = link or started_by
            self._traces[id] = label
        else:
            self._last = id
        answered = results_in(message)
        if answered and parent is not None:
            parent, message = self._after_results(id, parent, answered, message)
        model = text_of(message_of(record), "model") if message.role == "assistant" else ""
        return PortableMessage(
            id=id,
            message=replace(message, label=label),
            parent=parent,
            link=link,
            main=not is_side,
            created_us=time_us(record.get("timestamp")),
            setup=self._family.setup(model),
        )

    def _after_results(self, id: str, parent: str, answered: set[str], message: Message) -> tuple[str, Message]:
        """Return the place of results. The calls of one answer are answered in several lines, each below the line of
        its call: here they follow each other. A call that is answered again is a branch."""
        last, calls = self._results.get(parent, (parent, set()))
        if calls & answered:
            return parent, message
        self._results[parent] = id, calls | answered
        if last != parent:
            message = replace(message, extra={**(message.extra or {}), "joined": True})
        return last, message

    def _message_for(self, uuid: str) -> str | None:
        """Return the id of the message that a line became, or that it stands for."""
        return self._folded.get(uuid, uuid) if uuid else None

    def _start_of(self, record: Record) -> tuple[str | None, str]:
        """Return the message that started a sub-agent, and the label of its trace."""
        if self._label is not None:
            return self._link, self._label
        texts = [clean_text(block.get("text")).strip() for block in content_of(record)]
        found = next((self._family.prompts[text] for text in texts if text in self._family.prompts), None)
        run = text_of(record, "agentId") or (found[1] if found else text_of(record, "uuid"))
        return (found[0] if found else None), _label(found[2] if found else "agent", run)


def _whole(answer: _Answer) -> PortableMessage:
    """Return an answer with all its lines."""
    if len(answer.records) == 1:
        return answer.said
    message = assistant_message(answer.records)
    return replace(answer.said, message=replace(message, label=answer.said.message.label))


class _Session:
    """Reads one file, which holds one session, or several if somebody put files together."""

    def __init__(self, files: Files, name: str, agents: Sequence[_Agent]) -> None:
        self._files, self._name, self._label = files, name, files.label(name)
        self._family = _Family(files, agents)
        self._begin()
        self._count = 0  # of the sessions so far

    def _begin(self) -> None:
        self._tree = _Tree(self._family)
        self._talk: PortableConversation | None = None
        self._titles: dict[str, str] = {}
        self._summaries: dict[str, str] = {}  # by the line that they are about
        self._ready: list[_Kept] = []
        self._size = 0

    def read(self) -> Iterator[Found]:
        """Yield the conversations of the file, in parts."""
        try:
            for line in lines(self._files, self._name):
                if isinstance(line, Line):
                    yield from self._take(line)
                else:
                    yield line
            yield from self._end()
        except HithertoError as error:
            yield from self._flush()
            yield Unreadable(self._label, str(error))

    def _take(self, line: Line) -> Iterator[Found]:
        record = line.record
        if self._begins_another(record):
            yield from self._end()
            self._begin()
        if self._talk is None and text_of(record, "uuid"):
            self._talk = self._describe(record)
        self._note_title(record)
        self._ready += self._tree.take(record, self._label)
        self._size += line.size
        if self._talk is not None and (len(self._ready) >= _PART or self._size >= _PART_BYTES):
            yield from self._flush()

    def _end(self) -> Iterator[Found]:
        self._ready += self._tree.leave_window(0)
        for agent in list(self._family.agents.values()):
            self._ready += self._family.read_agent(agent, None)
        yield from self._flush(last=True)

    def _flush(self, *, last: bool = False) -> Iterator[Found]:
        """Yield what is ready, as parts."""
        yield from self._family.problems
        self._family.problems.clear()
        if self._talk is None:
            if not self._ready:
                return
            id = Name(self._name).stem
            self._talk = PortableConversation(id=id, by_id=True, metadata={"source": ClaudeCode.name})
        title = next((self._titles[kind] for kind in ("custom", "ai", "summary") if self._titles.get(kind)), "")
        setups = tuple(self._family.setups)
        talk = replace(self._talk, setups=setups, setup=len(setups), title=title)
        if self._ready or last:
            yield from parts(talk, self._ready)
        self._ready, self._size = [], 0

    def _begins_another(self, record: Record) -> bool:
        """Return True if a line is the root of another session than the one before."""
        if self._talk is None or record.get("type") not in _CONVERSATION or record.get("isSidechain"):
            return False
        session = text_of(record, "sessionId")
        known = (self._talk.id, *self._talk.aliases)
        return not record.get("parentUuid") and bool(session) and session not in known and fork_of(record) is None

    def _describe(self, record: Record) -> PortableConversation:
        """Return the conversation that begins with this line, without messages."""
        session, stem = text_of(record, "sessionId"), Name(self._name).stem
        id = stem if _UUID.fullmatch(stem) and not self._count else session or stem
        self._count += 1
        fork = fork_of(record)
        root = "" if record.get("parentUuid") else f"root:{fork[1] if fork else text_of(record, 'uuid')}"
        aliases = (session, fork[0] if fork else "", root)
        metadata = {"source": ClaudeCode.name}
        for name, ours in (("version", "source_version"), ("gitBranch", "git_branch")):
            if text_of(record, name):
                metadata[ours] = text_of(record, name)
        return PortableConversation(
            id=id,
            by_id=True,
            aliases=tuple(dict.fromkeys(alias for alias in aliases if alias and alias != id)),
            project=text_of(record, "cwd") or None,
            metadata=metadata,
        )

    def _note_title(self, record: Record) -> None:
        """Remember a title. A summary counts if it is about a line of this session."""
        kind, uuid = text_of(record, "type"), text_of(record, "uuid")
        if uuid in self._summaries:
            self._titles["summary"] = self._summaries.pop(uuid)
        elif kind == "custom-title":
            self._titles["custom"] = text_of(record, "customTitle")
        elif kind == "ai-title":
            self._titles["ai"] = text_of(record, "aiTitle")
        elif kind == "summary" and text_of(record, "leafUuid"):
            self._summaries[text_of(record, "leafUuid")] = text_of(record, "summary")


def _label(kind: str, run: str) -> str:
    """Return the label of a trace. A colon separates its parts."""
    return f"subagent:{kind.replace(':', '-')}:{run}"


def _answer_id(record: Record) -> str:
    return text_of(message_of(record), "id")


def fork_of(record: Record) -> tuple[str, str] | None:
    """Return the session and the line that a line was copied from, or None."""
    fork = record.get("forkedFrom")
    if not isinstance(fork, dict) or not text_of(fork, "messageUuid"):
        return None
    return text_of(fork, "sessionId"), text_of(fork, "messageUuid")


FORMAT = ClaudeCode()

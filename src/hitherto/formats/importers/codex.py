"""Codex CLI: rollouts, one file of lines for each session, in all of their generations.

Until about version 0.31 a line was a bare item of the Responses API; later an envelope of time, type and payload; today
it also has an ordinal. Cold files are compressed (`.jsonl.zst`). In all of them the items are what the model was sent
and what it said, so they become the messages, and their raw is the item. Events tell the same again for the screen:
those, and the settings of each turn, are kept as records.

- Turns that were rolled back stay as a branch that nobody went on with.
- A compaction begins a new root, linked to the message before it.
- A fork copies the items of its parent, or refers to them (`history_base`). Ids are hashes of content and place, so a
  copied item is the same message. A reference is followed into the file that it names.
- Tokens are counted cumulatively, and some counts are written twice: the differences go to the answers.
"""

import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path

import msgspec
from msgspec.structs import replace

from ...dialects import dialect
from ...errors import HithertoError, InvalidMessage
from ...model import Message, Usage
from ...snapshots import Unreadable
from .._files import Files
from .._importer import Importer, Line, chain_id, clean_text, injected, parts, storable, time_us
from .._types import Found, Place, PortableConversation, PortableMessage, Source, SourceRecord, Waiting
from ._codex_files import CodexFiles
from ._fields import Fields, Setups, count, fields, first_text, objects, text, without
from ._turns import title_of
from ._zstd import beginning

_DIALECT = "openai-responses"
_ENVELOPE = re.compile(
    rb'\s*\{\s*"timestamp"\s*:\s*"[^"]*"\s*,\s*(?:"ordinal"\s*:\s*\d+\s*,\s*)?"type"\s*:\s*"session_meta"'
)
_BARE = re.compile(rb'\s*\{\s*"id"\s*:\s*"[0-9a-f-]{36}"\s*,\s*"timestamp"\s*:\s*"[^"]*"\s*,\s*"(?:instructions|git)"')
_CONTEXT = re.compile(
    r"\s*(?:# AGENTS\.md instructions"
    r"|<(?:environment_context|user_instructions|INSTRUCTIONS|turn_aborted|skill|hook_prompt|user_shell_command|"
    r"subagent_notification|codex_internal_context|goal_context|recommended_plugins|external_)"
    r"|Warning: (?:apply_patch was requested|Your account was flagged|The maximum number of unified exec))"
)
_KNOWN = frozenset(
    {"session_meta", "turn_context", "world_state", "state", "token_usage_record", "security_risk_score",
     "inter_agent_communication_metadata"}
)  # fmt: skip
_KNOWN_EVENTS = frozenset(
    {"agent_message", "agent_reasoning", "agent_reasoning_raw_content", "context_compacted", "entered_review_mode",
     "error", "exec_command_begin", "exec_command_end", "exited_review_mode", "image_generation_end", "item_completed",
     "mcp_tool_call_begin", "mcp_tool_call_end", "patch_apply_begin", "patch_apply_end", "plan_update",
     "sub_agent_activity", "task_complete", "task_started", "thread_goal_updated", "thread_rolled_back",
     "thread_settings_applied", "token_count", "turn_aborted", "turn_complete", "turn_diff", "turn_started",
     "user_message", "web_search_end"}
)  # fmt: skip
_MIRRORS = frozenset({"user_message", "agent_message", "agent_reasoning"})  # events that tell an item again
_RECENT = 64  # texts that are remembered, to recognise such an event
_WAITING = 200  # messages that may wait for the tokens of their answer
_OWN_FIELDS = ("internal_chat_message_metadata_passthrough",)  # of an item: Codex adds them, and never sends them
_THREAD = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")


class Codex(Importer):
    name = "codex"
    title = "Codex"

    def places(self, env: Mapping[str, str], home: Path) -> Iterator[Path]:
        """Yield the folders in which Codex keeps its rollouts."""
        root = Path(env.get("CODEX_HOME") or home / ".codex")
        yield from (root / "sessions", root / "archived_sessions")

    def retention_days(self, env: Mapping[str, str], home: Path) -> int | None:  # noqa: ARG002  # as other programs
        """Return None: Codex deletes nothing by age."""
        return None

    def recognises(self, source: Source) -> str | None:
        head = beginning(source.head)
        if _ENVELOPE.match(head):
            return "its first line is the session_meta of a rollout"
        if _BARE.match(head):
            return "its first line is the head of an early rollout"
        return None

    def read_files(self, files: Files, names: Sequence[str]) -> Iterator[Found]:
        known = CodexFiles(files, names)
        for name in known.in_order:
            yield from _Rollout(known, name).read()
            known.done.add(name)


FORMAT = Codex()


class _Rollout:
    """Reads one file. `_path` is the thread as it stands: its messages, and True for one that begins a turn."""

    def __init__(self, files: CodexFiles, name: str) -> None:
        self._files, self._name = files, name
        self._label = files.label(name)
        self._meta: Fields = {}
        self._aliases: dict[str, None] = {}
        self._absent: list[str] = []  # those of files that are missing
        self._setups = Setups()
        self._model = ""
        self._path: list[tuple[str, bool]] = []
        self._link: str | None = None  # of the next message, if that is a root
        self._seed: str | None = None  # of its id, in place of its parent
        self._continues: tuple[str, int] | None = None  # of the next message, if the file before it is missing
        self._places: list[Place] = []  # that follow the messages which wait
        self._agent: str | None = None  # the label of a sub-agent's messages
        self._is_own = True  # False in what stands in a parent's file as well
        self._rolled_back = False
        self._tokens = _Tokens()
        self._waiting: list[PortableMessage] = []
        self._owed: Usage | None = None  # tokens of an answer that has not come yet
        self._calls: dict[str, str] = {}  # the messages with calls that start sub-agents
        self._told: deque[str] = deque(maxlen=_RECENT)
        self._seen: Counter[bytes] = Counter()  # records, to number those that are equal
        self._problems: list[Unreadable | Waiting] = []
        self._first = ""  # what the person said first

    def read(self) -> Iterator[Found]:
        lines = self._files.lines(self._name)
        try:
            for part in parts(PortableConversation(id="", by_id=True), self._stream(lines)):
                if self._meta:
                    yield self._describe(part)
                yield from self._problems
                self._problems.clear()
        except HithertoError as error:
            yield Unreadable(f"the rest of {self._label}", str(error))

    def _describe(self, part: PortableConversation) -> PortableConversation:
        meta, thread = self._meta, _thread(self._meta)
        about = {
            "source": FORMAT.name,
            "source_version": text(meta.get("cli_version")),
            "git_branch": text(fields(meta.get("git")).get("branch")),
        }
        return replace(
            part,
            id=thread,
            aliases=tuple(name for name in self._aliases if name != thread),
            absent=tuple(self._absent),
            title="" if self._agent else clean_text(self._files.title(thread)) or self._title(part),
            project=clean_text(meta.get("cwd")) or None,
            metadata={name: clean_text(value) for name, value in about.items() if value},
            setups=self._setups.all,
            created_us=time_us(meta.get("timestamp")),
            head=self._path[-1][0] if self._rolled_back and self._path else None,
        )

    def _title(self, part: PortableConversation) -> str:
        """Return the first question of the thread as its title. A fork has none of its own."""
        if not self._first:
            self._first = title_of(part.messages)
        return "" if len(self._aliases) > 1 else self._first

    # -- the file

    def _stream(self, found: Iterable[Line | Unreadable | Waiting]) -> Iterator[PortableMessage | SourceRecord | Place]:
        ordinal: object = None
        for line in found:
            if not isinstance(line, Line):
                self._problems.append(line)
                continue
            before = self._path[-1:]
            yield from self._take(line.record) if self._meta else self._begin(line.record)
            ordinal = line.record.get("ordinal")
            if self._path[-1:] != before:
                self._stand_at(ordinal)
            if not self._waiting:  # the messages of these places were given
                yield from self._places
                self._places.clear()
        self._stand_at(ordinal)
        yield from self._flush()
        yield from self._places

    def _stand_at(self, ordinal: object) -> None:
        """Note that the thread stands at its last message after this line: forks go on from there."""
        if isinstance(ordinal, int) and self._path:
            file = self._files.rollout_id(self._name) or _thread(self._meta)
            self._places.append(Place(file, ordinal, self._path[-1][0]))

    def _begin(self, record: Fields) -> Iterator[PortableMessage | SourceRecord]:
        """Take the first line: what the rollout is, and where it goes on from."""
        self._meta = meta = fields(record.get("payload")) or record
        self._note_lineage(meta)
        bases, missing = self._files.bases(meta)
        if missing is not None:
            reason = f"it goes on from rollout {missing[0]:.40}, which is not among these files"
            self._problems.append(Waiting(self._label, reason))
            self._continues = clean_text(missing[0]), missing[1]
            named = (missing[0], "" if bases else text(meta.get("forked_from_id")))
            self._absent = [clean_text(name) for name in named if name not in ("", _thread(meta))]
        for name, end in bases:
            yield from self._take_base(name, end)
        self._follow_base(meta)
        self._agent = _agent_label(meta)
        self._is_own = self._agent is None or not isinstance(meta.get("subagent_history_start_ordinal"), int)
        yield self._record(
            "session_meta", without(record, ("payload",)) | {"payload": without(meta, ("base_instructions",))}
        )

    def _take_base(self, name: str, end: int) -> Iterator[PortableMessage | SourceRecord]:
        """Follow the thread through a file that this one goes on from. What was given already is not given
        again."""
        for n, line in enumerate(self._files.lines(name)):
            if isinstance(line, Line) and not n:
                self._follow_base(fields(line.record.get("payload")))
            elif isinstance(line, Line) and line.record.get("type") != "session_meta":
                ordinal = line.record.get("ordinal")
                if isinstance(ordinal, int) and ordinal >= end:
                    break
                again = (one for one in self._take(line.record) if isinstance(one, PortableMessage))
                if name in self._files.done:
                    deque(again, maxlen=0)
                else:
                    yield from again
        rest = list(self._flush())
        if name not in self._files.done:
            yield from rest

    def _follow_base(self, meta: Fields) -> None:
        """Let the id of the next message name the place that a file goes on from: so it is the same without the file
        before it."""
        if base := fields(meta.get("history_base")):
            self._seed = f"{base.get('thread_id')}:{base.get('end_ordinal_exclusive')}"

    def _note_lineage(self, meta: Fields) -> None:
        base = text(fields(meta.get("history_base")).get("thread_id"))
        spawn = _spawn(meta)
        parent = first_text(spawn, "parent_thread_id") or (first_text(meta, "parent_thread_id") if spawn else "")
        for id in (_thread(meta), text(meta.get("forked_from_id")), base, parent, self._files.rollout_id(self._name)):
            if id:
                self._aliases.setdefault(clean_text(id))

    def _take(self, record: Fields) -> Iterator[PortableMessage | SourceRecord]:
        if "payload" not in record:
            kind = text(record.get("record_type"))
            yield from [self._record(kind, record)] if kind else self._item(record, record)
            return
        kind, payload = text(record.get("type")), fields(record.get("payload"))
        self._follow_ordinal(record)
        match kind:
            case "response_item":
                yield from self._item(payload, record)
            case "compacted":
                yield from self._compaction(payload, record)
            case "inter_agent_communication":
                message = Message.user(clean_text(payload.get("content")), extra={"native": storable(record)})
                yield from self._add(injected(message, "context"), record, begins_turn=True)
            case "event_msg":
                yield from self._event(payload, record)
            case "session_meta":  # of the thread that was copied: the first one is ours
                self._note_lineage(payload)
                self._is_own = self._agent is None
            case _:
                yield from self._setting(kind, payload, record)

    def _follow_ordinal(self, record: Fields) -> None:
        start, ordinal = self._meta.get("subagent_history_start_ordinal"), record.get("ordinal")
        if not self._is_own and isinstance(start, int) and isinstance(ordinal, int) and ordinal >= start:
            self._is_own = True

    # -- messages

    def _item(self, item: Fields, record: Fields) -> Iterator[PortableMessage | SourceRecord]:
        own = {name: value for name, value in item.items() if name not in _OWN_FIELDS}
        try:
            message = dialect(_DIALECT).parse(own)
        except InvalidMessage as error:
            yield self._record(f"item that cannot be read: {error}"[:100], record)
            return
        native = without(record, ("payload",)) if "payload" in record else {}
        native |= {name: item[name] for name in _OWN_FIELDS if name in item}
        extra = {**(message.extra or {}), "dialect": _DIALECT, "native": storable(native)}
        message = replace(message, extra=extra)
        kind = text(item.get("type"))
        is_context = message.role == "event" or (message.role == "user" and _is_context(item))
        if is_context:
            message = injected(message, "context")
        self._told.append(" ".join(b.content for b in message.blocks if isinstance(b.content, str)))
        begins = (message.role == "user" and not is_context) or kind == "agent_message"
        said = self._place(message, record, begins_turn=begins)
        self._follow_agents(said)
        yield from self._queue(said)

    def _add(self, message: Message, record: Fields, *, begins_turn: bool) -> Iterator[PortableMessage]:
        yield from self._queue(self._place(message, record, begins_turn=begins_turn))

    def _place(self, message: Message, record: Fields, *, begins_turn: bool) -> PortableMessage:
        """Put a message below the one before it."""
        parent = self._path[-1][0] if self._path else None
        link, self._link = self._link, None
        seed, self._seed = self._seed, None
        is_agent = self._agent is not None and self._is_own
        if link is not None:
            seed, parent = seed or f"after {link}", None
        elif is_agent and parent is None:  # it begins with the same words as the thread that started it
            link, seed = self._files.spawned.get(_thread(self._meta)), seed or f"agent {_thread(self._meta)}"
        said = PortableMessage(
            id=chain_id(seed or parent, message),
            parent=parent,
            link=link,
            message=replace(message, label=self._agent) if is_agent else message,
            main=not is_agent,
            created_us=time_us(record.get("timestamp")) or (0 if self._path else time_us(self._meta.get("timestamp"))),
            setup=self._setup() if message.role == "assistant" else 0,
            continues=self._continues if parent is None and link is None else None,
        )
        self._continues = None
        self._path.append((said.id, begins_turn))
        self._rolled_back = False
        return said

    def _setup(self) -> int:
        provider = text(self._meta.get("model_provider")) or "openai"
        instructions = self._meta.get("base_instructions")
        prompt = text(fields(instructions).get("text")) or text(self._meta.get("instructions"))
        return self._setups.number("openai" if provider == "openai" else "openai-compatible", self._model, prompt)

    def _queue(self, said: PortableMessage) -> Iterator[PortableMessage]:
        """Hold an answer back until its tokens are known."""
        if self._owed is not None and said.message.role == "assistant":
            said = replace(said, message=replace(said.message, usage=self._owed))
            self._owed = None
        self._waiting.append(said)
        if len(self._waiting) > _WAITING:
            yield from self._flush()

    def _flush(self) -> Iterator[PortableMessage]:
        found, self._waiting = self._waiting, []
        yield from found

    def _follow_agents(self, said: PortableMessage) -> None:
        """Note which message started which sub-agent: the result of that call has the id of its thread."""
        for block in said.message.blocks:
            if block.type == "tool_call" and "agent" in (block.tool_name or "") and block.id:
                self._calls[block.id] = said.id
            elif said.message.role == "tool_result" and block.id in self._calls and isinstance(block.content, str):
                for thread in _THREAD.findall(block.content):
                    self._files.spawned.setdefault(thread, self._calls[block.id or ""])

    def _compaction(self, payload: Fields, record: Fields) -> Iterator[PortableMessage]:
        """Begin a new root, linked to the message before it. What the model got in place of the thread is in the
        record."""
        if self._path:
            self._link = self._path[-1][0]
        sealed = [one for one in objects(payload.get("replacement_history")) if "compaction" in text(one.get("type"))]
        said = text(payload.get("message"))
        if said or not sealed:
            message = Message.user(clean_text(said))
        else:
            message = replace(dialect(_DIALECT).parse(sealed[-1]), extra={"dialect": _DIALECT})
        extra = {**(message.extra or {}), "native": storable(record)}
        yield from self._add(injected(replace(message, extra=extra), "summary"), record, begins_turn=False)

    # -- events and settings

    def _event(self, payload: Fields, record: Fields) -> Iterator[PortableMessage | SourceRecord]:
        kind = text(payload.get("type"))
        if kind == "token_count":
            yield from self._count(self._tokens.cumulative(fields(payload.get("info"))))
        elif kind == "thread_rolled_back":
            self._roll_back(count(payload.get("num_turns")))
        elif kind in ("task_started", "turn_started"):
            self._follow_turn(payload)
        if kind not in _MIRRORS or not self._is_told(payload):
            yield self._record(f"event_msg/{kind}", record, known=kind in _KNOWN_EVENTS)

    def _setting(self, kind: str, payload: Fields, record: Fields) -> Iterator[PortableMessage | SourceRecord]:
        if kind == "turn_context":
            self._model = text(payload.get("model")) or self._model
            self._follow_turn(payload)
        elif kind == "token_usage_record":
            yield from self._count(self._tokens.of_answer(fields(payload.get("usage"))))
        yield self._record(kind, record)

    def _follow_turn(self, payload: Fields) -> None:
        """Note that a sub-agent's own turns have begun, if the id of this turn is younger than that of its thread."""
        if not self._is_own and not isinstance(self._meta.get("subagent_history_start_ordinal"), int):
            turn, thread = _time_of_id(text(payload.get("turn_id"))), _time_of_id(_thread(self._meta))
            self._is_own = turn is not None and thread is not None and turn >= thread

    def _is_told(self, payload: Fields) -> bool:
        said = first_text(payload, "message", "text")
        return not payload.get("images") and not payload.get("local_images") and any(said in one for one in self._told)

    def _roll_back(self, turns: int) -> None:
        """Go back to before so many turns. They stay as a branch."""
        begun = [place for place, (_, begins) in enumerate(self._path) if begins]
        if turns and begun:
            del self._path[begun[max(0, len(begun) - turns)] :]
            self._rolled_back = True

    def _count(self, usage: Usage | None) -> Iterator[PortableMessage]:
        """Give tokens to the answer that they were counted for: the last one that has none, or else the next one. Some
        versions write the count before the items."""
        if usage is not None:
            place = self._uncounted()
            if place is None:
                self._owed = usage
            else:
                said = self._waiting[place]
                self._waiting[place] = replace(said, message=replace(said.message, usage=usage))
        yield from self._flush()

    def _uncounted(self) -> int | None:
        """Return the place of the last message of the last answer that waits, if none of its messages has tokens."""
        last: int | None = None
        for place in reversed(range(len(self._waiting))):
            message = self._waiting[place].message
            if message.role == "assistant" or (message.extra or {}).get("injected") == "summary":
                if message.usage is not None:
                    return None
                last = place if last is None else last
            elif last is not None:
                break
        return last

    def _record(self, kind: str, record: Fields, *, known: bool | None = None) -> SourceRecord:
        """Keep a line that is no message. A copy of it in another file has another time, and is the same."""
        data = storable(record)
        bare = {name: value for name, value in record.items() if name not in ("timestamp", "ordinal")}
        hash = blake2b(msgspec.json.encode(storable(bare)), digest_size=12).digest()
        self._seen[hash] += 1
        return SourceRecord(
            type=clean_text(kind)[:100] or "line without a type",
            data=data,
            id=f"{hash.hex()}-{self._seen[hash]}",
            known=kind in _KNOWN if known is None else known,
        )


class _Tokens:
    """Turns cumulative counts of tokens into those of single answers."""

    def __init__(self) -> None:
        self._total: Usage | None = None
        self._is_counted = False  # since the last cumulative count, by a record of its own

    def of_answer(self, usage: Fields) -> Usage | None:
        self._is_counted = True
        return _usage(usage)

    def cumulative(self, info: Fields) -> Usage | None:
        """Return the tokens since the last count. The first count of a file may go on from another file: it says how
        many were its own."""
        total, last = _usage(fields(info.get("total_token_usage"))), _usage(fields(info.get("last_token_usage")))
        before, was_counted = self._total, self._is_counted
        self._is_counted = False
        if total is None:
            return None
        self._total = total
        if was_counted or total == before:
            return None
        if before is None:
            return last or total
        pairs = zip(msgspec.structs.astuple(total), msgspec.structs.astuple(before), strict=True)
        since = [now - then for now, then in pairs]
        return Usage(*since) if min(since) >= 0 else last  # less than before: counted anew


def _usage(found: Fields) -> Usage | None:
    usage = Usage(
        count(found.get("input_tokens")),
        count(found.get("output_tokens")),
        count(found.get("cached_input_tokens")),
        count(found.get("cache_write_input_tokens")),
        count(found.get("reasoning_output_tokens")),
    )
    return usage if usage != Usage() else None


def _thread(meta: Fields) -> str:
    return clean_text(first_text(meta, "id", "session_id"))


def _spawn(meta: Fields) -> Fields:
    """Return how a sub-agent was started; nothing for a session of a person."""
    agent = fields(meta.get("source")).get("subagent")
    found = fields(fields(agent).get("thread_spawn")) or fields(agent)
    return found or ({"agent_role": agent} if isinstance(agent, str) else {})


def _agent_label(meta: Fields) -> str | None:
    spawn = _spawn(meta)
    if not spawn:
        return None
    name = first_text(spawn, "agent_role", "agent_nickname") or first_text(meta, "agent_role", "agent_nickname")
    return f"subagent:{clean_text(name).replace(':', ' ') or 'agent'}:{_thread(meta)}"


def _is_context(item: Fields) -> bool:
    """Return True if no part of an item was written by a person."""
    about = fields(item.get("internal_chat_message_metadata_passthrough"))
    origins = [text(fields(one.get("provenance")).get("type")) for one in objects(about.get("content_item_metadata"))]
    if "user" in origins:
        return False
    said = [text(part.get("text")) for part in objects(item.get("content")) if part.get("type") == "input_text"]
    return bool(said) and all(_CONTEXT.match(one) for one in said)


def _time_of_id(id: str) -> int | None:
    """Return the milliseconds in a UUID of version 7."""
    digits = id.replace("-", "")
    if len(digits) != 32 or digits[12] != "7":
        return None
    try:
        return int(digits[:12], 16)
    except ValueError:
        return None

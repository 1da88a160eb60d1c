"""Repairs a thread so that a provider accepts it: every tool call gets a result, and every result has a call.

A session may end at any moment, also between a call and its result: the process was killed, the user pressed stop, a
message was deleted, a thread was forked in the middle of a turn. Providers refuse such a history, and the conversation
would be stuck. So a thread is repaired before it is sent. The repair changes the request and never the store: a call
without a result gets one that says so, a result without a call is left out, a second result for the same call too, and
a late result is moved to its place. A note reports each change.

Ids of calls are not trusted to be unique: some servers count from zero in every answer. A result belongs to the latest
call before it that has its id.

Most providers want the results directly after the answer that asks for them. OpenAI's responses accept them at any
later place; but there a thought must be followed by the item that the model wrote next, or be left out.
"""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from ..model import Block, Message
from ..reports import Repair
from ._lossless import own_raw
from ._missing_attachments import holes_in, tell_holes
from ._openai_blocks import load_block
from ._types import Dialect, calls

INTERRUPTED = "This tool call was interrupted: its result is not known."


class Repaired(Struct, frozen=True):
    messages: list[Message]  # those that needed nothing are the same objects
    notes: list[Repair]


def repair(messages: Sequence[Message], dialect: Dialect) -> Repaired:
    """Return the messages in a form that the provider accepts, and notes of the changes."""
    work = _Work([tell_holes(message) for message in messages], dialect)
    work.notes += [Repair("missing-attachment", message_id=_id_of(m)) for m in messages if holes_in(m)]
    work.match()
    found = work.put_right()
    if dialect.name == "openai-responses":
        found = _without_lone_thoughts(found, dialect, work.notes)
    return Repaired(found, work.notes)


def count_settled(messages: Sequence[Message], dialect: Dialect) -> int:
    """Return how many messages at the beginning of a repaired thread need no further check: those up to its last answer
    without calls. All calls before that answer have their results there. So either a later message needs no repair by
    itself, or the whole thread must be checked: the call of a late result may stand before that answer."""
    for at in reversed(range(len(messages))):
        message = messages[at]
        is_call = any(block.type == "tool_call" for block in message.blocks)
        if message.role == "assistant" and not is_call and not _is_thought(message, dialect):
            return at + 1
    return 0


class _Turn(Struct, gc=False):
    """An answer that calls tools, and the results after it, as indexes into the thread."""

    end: int  # the last message of the answer
    place: int  # the last message of nothing but results after it, or `end`
    window: int  # the last message that may hold a result: one more, if that mixes results and words


class _Call(Struct, eq=False):
    """A call with its index, and the index of its result."""

    at: int
    block: Block
    turn: _Turn
    result_at: int | None = None

    @property
    def id(self) -> str:
        return self.block.id or ""

    @property
    def is_theirs(self) -> bool:
        return bool((self.block.extra or {}).get("server"))


class _Work:
    """The state of one repair: open calls, removed results, and results to insert."""

    def __init__(self, messages: list[Message], dialect: Dialect) -> None:
        self.messages = messages
        self.dialect = dialect
        self.notes: list[Repair] = []
        self.calls: list[_Call] = []  # those that wait for an answer of ours
        self.left_out: dict[int, set[str]] = {}  # by message: the calls whose results in it are not sent there
        self.unanswerable: set[int] = set()
        self.silent = [is_silent(message, dialect) for message in messages]
        self.turns = self._turns()

    def _turns(self) -> dict[int, _Turn]:
        """Return the turn of each message that is part of an answer."""
        found: dict[int, _Turn] = {}
        at = 0
        while at < len(self.messages):
            if self.messages[at].role == "assistant":
                turn = self._turn(at)
                found |= dict.fromkeys(range(at, turn.end + 1), turn)
                at = turn.end
            at += 1
        return found

    def _turn(self, start: int) -> _Turn:
        """Return the turn that begins here. In OpenAI's chat an answer is one message; elsewhere it may be several in a
        row."""
        end = at = start
        while self.dialect.name != "openai-chat" and at + 1 < len(self.messages):
            at += 1
            if self.messages[at].role == "assistant":
                end = at
            elif not self.silent[at]:
                break
        place, at = end, end + 1
        while at < len(self.messages) and (self.silent[at] or self.messages[at].role == "tool_result"):
            place = at if self.messages[at].role == "tool_result" else place
            at += 1
        mixes = at < len(self.messages) and _answered_ids(self.messages[at])
        return _Turn(end, place, at if mixes else place)

    # -- finding each result's call

    def match(self) -> None:
        latest: dict[str, list[_Call]] = {}
        for at, message in enumerate(self.messages):
            for call in self._register_calls(at):
                for name in _names(call.block):
                    same = latest.get(name)
                    if same and same[0].turn is call.turn:
                        same.append(call)
                    else:
                        latest[name] = [call]
            for id in _answered_ids(message):
                self._assign(at, id, latest.get(id, []))

    def _register_calls(self, at: int) -> list[_Call]:
        message = self.messages[at]
        if message.role != "assistant":
            return []
        turn = self.turns[at]
        self.calls += (waiting := [_Call(at, load_block(block), turn) for block in calls(message)])
        theirs = [_Call(at, block, turn) for block in message.blocks if block.type == "tool_call"]
        return waiting + [call for call in theirs if call.is_theirs]

    def _assign(self, at: int, id: str, called: list[_Call]) -> None:
        for call in called:
            if call.result_at is None or call.is_theirs:
                call.result_at = at
                return
        self.left_out.setdefault(at, set()).add(id)
        tool = called[0].block.tool_name if called else None
        self._note("duplicate-result" if called else "orphan-result", id, tool, at)

    def _note(self, kind: str, call_id: str, tool: str | None, at: int) -> None:
        self.notes.append(Repair(kind, call_id or None, tool, _id_of(self.messages[at])))

    # -- putting right

    def put_right(self) -> list[Message]:
        added = self._results_to_insert()
        found: list[Message] = []
        for at, message in enumerate(self.messages):
            left_out = self.left_out.get(at)
            kept = self._without(message, left_out) if left_out else message
            if kept is not None and at not in self.unanswerable:
                found.append(kept)
            for result in added.get(at, ()):
                found.append(self._set_joined(result, found))
        return found

    def _results_to_insert(self) -> dict[int, list[Message]]:
        """Return the results to insert, by the index of the message that they go after."""
        found: dict[int, list[Message]] = {}
        for call in self.calls:
            if call.result_at is None:
                result = self._make_up_result(call)
            elif self.dialect.name != "openai-responses" and call.result_at > call.turn.window:
                result = self._move_result(call, call.result_at)
            else:
                continue
            if result is not None:
                found.setdefault(call.turn.place, []).append(result)
        return found

    def _make_up_result(self, call: _Call) -> Message | None:
        """Return a result that says that the real one is unknown. Some results cannot be made up (a screenshot): then
        the call is left out instead, if its message holds nothing else."""
        named = {"name": call.block.tool_name, "kind": (call.block.extra or {}).get("kind")}
        block = Block.text(INTERRUPTED, **{name: value for name, value in named.items() if value is not None})
        message = Message.tool_result(call.id, block, error=True)
        built = self.dialect.build(message).raws
        if not built and len(self.messages[call.at].blocks) == 1:
            self.unanswerable.add(call.at)
            self._note("unanswerable-call", call.id, call.block.tool_name, call.at)
            return None
        self._note("missing-result", call.id, call.block.tool_name, call.at)
        extra: dict[str, object] = {"synthetic": True, "dialect": self.dialect.name}
        return msgspec.structs.replace(message, extra=extra, raw=built[0] if built else None)

    def _move_result(self, call: _Call, at: int) -> Message:
        self._note("late-result", call.id, call.block.tool_name, at)
        self.left_out.setdefault(at, set()).add(call.id)
        message = self.messages[at]
        if message.role == "tool_result" and _answered_ids(message) == [call.id]:
            return message
        blocks = tuple(_as_content(block) for block in message.blocks if _answers(message, block) == call.id)
        failed = any((block.extra or {}).get("error") is True for block in blocks) or message.tool_result_error
        return self._rebuild(msgspec.structs.replace(message, role="tool_result", tool_result_error=failed), blocks)

    def _without(self, message: Message, ids: set[str]) -> Message | None:
        blocks = tuple(block for block in message.blocks if _answers(message, block) not in ids)
        return self._rebuild(message, blocks) if blocks else None

    def _rebuild(self, message: Message, blocks: tuple[Block, ...]) -> Message:
        """Return the message with fewer blocks and with a new raw, because its own raw still holds all of them."""
        fewer = msgspec.structs.replace(message, blocks=blocks, raw=None)
        built = self.dialect.build(fewer).raws
        extra = {**(message.extra or {}), "dialect": self.dialect.name}
        return msgspec.structs.replace(fewer, extra=extra, raw=built[0] if len(built) == 1 else None)

    def _set_joined(self, message: Message, before: list[Message]) -> Message:
        """Mark a result as joined if it shares the entry of the result before it, as it does in dialects with
        `joins`."""
        joined = self.dialect.joins and bool(before) and before[-1].role == "tool_result"
        if joined == ((message.extra or {}).get("joined") is True):
            return message
        extra = {**(message.extra or {}), "joined": joined}
        return msgspec.structs.replace(message, extra=extra)


def _id_of(message: Message) -> str | None:
    return getattr(message, "id", None) or None


def is_silent(message: Message, dialect: Dialect) -> bool:
    """Return True if the message is for our readers alone, so that the provider never sees it."""
    return message.role == "event" and not dialect.history([message])


def _names(call: Block) -> list[str]:
    """Return the ids by which a result may refer to a call."""
    other = (call.extra or {}).get("item_id")
    return [call.id or "", other] if isinstance(other, str) else [call.id or ""]


def _answers(message: Message, block: Block) -> str | None:
    """Return the id of the call that a block answers, or None. Results inside an answer belong to the provider."""
    if message.role == "tool_result" or (message.role != "assistant" and block.type == "tool_result"):
        return block.id or ""
    return None


def _answered_ids(message: Message) -> list[str]:
    """Return the ids of the calls that a message answers, each once."""
    ids = (_answers(message, block) for block in message.blocks)
    return list(dict.fromkeys(id for id in ids if id is not None))


def _as_content(block: Block) -> Block:
    return msgspec.structs.replace(block, type="content") if block.type == "tool_result" else block


def _without_lone_thoughts(messages: list[Message], dialect: Dialect, notes: list[Repair]) -> list[Message]:
    """Remove thoughts without a following item. Goes backwards, because a thought may be followed by another that is
    removed."""
    found: list[Message] = []
    followed = False
    for message in reversed(messages):
        if message.role == "assistant" and not followed and _is_thought(message, dialect):
            notes.append(Repair("lone-thought", message_id=_id_of(message)))
            continue
        if not is_silent(message, dialect):
            followed = message.role == "assistant"
        found.append(message)
    return found[::-1]


def _is_thought(message: Message, dialect: Dialect) -> bool:
    raw = own_raw(message, dialect.name)
    return raw is not None and raw.get("type") == "reasoning"

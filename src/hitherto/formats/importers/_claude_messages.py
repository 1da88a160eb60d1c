"""Turns lines of Claude Code into messages.

A line of the type `user` or `assistant` holds a message of Anthropic's API. One answer of the API is several lines, one
for each block, with the same `message.id`; they become one message, whose usage is the last one counted. The lines
themselves, without the content that is in `raw`, are kept in `extra["native"]`: a list, in which `blocks` says how many
blocks of the content came from each line.

Lines that no person wrote have the role `user` all the same, because the model saw them so. They are marked.
"""

import re
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from ...dialects import dialect
from ...errors import InvalidMessage
from ...model import Block, Message
from .._importer import Injected, clean_text, injected_block

DIALECT = "anthropic"
_PLACE = ("uuid", "parentUuid", "logicalParentUuid", "sourceToolAssistantUUID")
_COMMANDS = re.compile(r"\s*<(?:command-|local-command-|bash-(?:input|stdout|stderr)>)")
_REMINDERS = re.compile(r"\s*<(?:system-reminder|ide_|task-notification|post-tool-use-hook)")
_INTERRUPTED = re.compile(r"\s*\[Request interrupted by user")
_PEOPLE = ("human", "user", None)

Record = Mapping[str, object]


def text_of(record: Record, name: str) -> str:
    """Return a text of a line, or "" if it is none."""
    value = record.get(name)
    if type(value) is str and value.isascii():  # nearly all of them, many times for each line
        return value
    return clean_text(value)


def message_of(record: Record) -> dict[str, object]:
    """Return the API's message in a line, or an empty one."""
    found = record.get("message")
    return found if isinstance(found, dict) else {}


def content_of(record: Record) -> list[dict[str, object]]:
    """Return the blocks in a line."""
    content = message_of(record).get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def user_message(record: Record) -> Message:
    """Return the message of a `user` line, or of a line with a prompt that was waiting. Raises `InvalidMessage`."""
    content = message_of(record).get("content")
    parsed = dialect(DIALECT).parse({"role": "user", "content": content})
    blocks = tuple(_marked(block) for block in parsed.blocks)
    extra: dict[str, object] = {**(parsed.extra or {}), "dialect": DIALECT, "native": [_native(record)]}
    why = _injected(record, blocks)
    if why is not None:
        extra["injected"] = why
    return replace(parsed, blocks=blocks, extra=extra)


def _marked(block: Block) -> Block:
    if block.type == "content" and isinstance(block.content, str) and _REMINDERS.match(block.content):
        return injected_block(block, "reminder")
    return block


def _injected(record: Record, blocks: Sequence[Block]) -> Injected | None:
    """Return why a line of the user is not what a person wrote, or None."""
    if record.get("isCompactSummary"):
        return "summary"
    origin = record.get("origin")
    if record.get("isMeta") or (isinstance(origin, dict) and origin.get("kind") not in _PEOPLE):
        return "context"
    texts = [block.content for block in blocks if block.type == "content" and isinstance(block.content, str)]
    if texts and all(_COMMANDS.match(text) or _INTERRUPTED.match(text) for text in texts):
        return "command"
    if texts and len(texts) == len(blocks) and all("injected" in (block.extra or {}) for block in blocks):
        return "reminder"
    return None


def assistant_message(records: Sequence[Record]) -> Message:
    """Return the message of the lines of one answer. Raises `InvalidMessage`."""
    last = message_of(records[-1])
    for record in records:
        found = message_of(record).get("content")
        if not (isinstance(found, str) or (isinstance(found, list) and all(isinstance(one, dict) for one in found))):
            raise InvalidMessage("the content of an answer is neither text nor a list of blocks")
    content = [block for record in records for block in content_of(record)]
    usage = max((_usage(record) for record in records), key=_output, default=None)
    body = {**last, "role": "assistant", "content": content, "usage": usage}
    answer = dialect(DIALECT).answer(body)
    message = answer.messages[0]
    extra = {**(message.extra or {}), "dialect": DIALECT, "native": [_native(record) for record in records]}
    if last.get("model") == "<synthetic>":  # the program's own words, such as those about an error
        extra["injected"] = "hidden"
        return replace(message, extra=extra, usage=None)
    return replace(message, extra=extra)


def _usage(record: Record) -> dict[str, object]:
    usage = message_of(record).get("usage")
    return usage if isinstance(usage, dict) else {}


def _output(usage: dict[str, object]) -> int:
    count = usage.get("output_tokens")
    return count if isinstance(count, int) else -1


def _native(record: Record) -> object:
    """Return a line without the content of its message."""
    message = message_of(record)
    rest = {name: value for name, value in message.items() if name not in ("content", "role")}
    count = {} if isinstance(message.get("content"), str) else {"blocks": len(content_of(record))}
    return {**{name: value for name, value in record.items() if name != "message"}, "message": rest, **count}


def queued_prompt(record: Record) -> dict[str, object] | None:
    """Return a prompt that a person wrote while the model worked, as a `user` line; None for any other line."""
    attachment = record.get("attachment")
    if record.get("type") != "attachment" or not isinstance(attachment, dict):
        return None
    if attachment.get("type") != "queued_command" or attachment.get("commandMode") not in ("prompt", None):
        return None
    prompt = attachment.get("prompt")
    if not isinstance(prompt, str | list) or not prompt:
        return None
    bare = {name: value for name, value in attachment.items() if name != "prompt"}
    return {**record, "attachment": bare, "message": {"role": "user", "content": prompt}}


def results_in(message: Message) -> set[str]:
    """Return the ids of the calls that a message answers; empty unless it does nothing else."""
    return {block.id for block in message.blocks if block.id} if message.role == "tool_result" else set()

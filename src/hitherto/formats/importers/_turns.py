"""Takes the records apart that hold a whole turn: what the model said, its calls, and their results.

Providers want the results of tools in messages of their own, after the answer with the calls. So a record with results
in it becomes several messages: an answer up to the calls, their results, the next answer. The first of them has the id
of the record: a record that is still being written grows at its end. The conversation goes on below the last one.
"""

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ...model import Block, Message
from .._types import PortableMessage

_TITLE = 60  # characters of a title
_TITLE_FROM = 1000


class Result(Struct, frozen=True):
    """The result of a call, where it stands in a record."""

    call: str  # the id of the call; "": the earliest one without a result
    blocks: Sequence[Block]
    error: bool = False


def split_turn(id: str, said: Iterable[Block | Result]) -> Iterator[tuple[str, Message]]:
    """Yield the messages of a turn with their ids. At least one comes."""
    messages: list[Message] = []
    answer: list[Block] = []
    waiting: list[str] = []  # calls without a result
    for one in said:
        if isinstance(one, Block):
            answer.append(one)
            if one.type == "tool_call" and one.id:
                waiting.append(one.id)
            continue
        call = one.call or (waiting[0] if waiting else f"{id}/call")
        if call in waiting:
            waiting.remove(call)
        if answer:
            messages.append(Message.assistant(answer))
            answer = []
        messages.append(Message.tool_result(call, one.blocks or [Block.text("")], error=one.error))
    if answer or not messages:
        messages.append(Message.assistant(answer))
    for number, message in enumerate(messages, 1):
        yield (id if number == 1 else f"{id}/{number}"), message


def with_extra(message: Message, **extra: object) -> Message:
    """Return the message with more in its extra, but for what is empty."""
    found = {name: value for name, value in extra.items() if value not in (None, "", [], {})}
    return replace(message, extra={**(message.extra or {}), **found}) if found else message


def conversation_name(messages: Sequence[PortableMessage]) -> str:
    """Return the id of a conversation that has none, from ids that its messages have by their content: that of the
    first answer, so that two conversations that begin with the same question stay apart, and one that grew is known."""
    answers = (said.id for said in messages if said.message.role == "assistant")
    return next(answers, messages[0].id)


def title_of(messages: Iterable[PortableMessage]) -> str:
    """Return a title for a conversation whose program gives none: the beginning of what the person said first."""
    for said in messages:
        if said.message.role == "user" and said.main and "injected" not in (said.message.extra or {}):
            words = " ".join(said.message.text[:_TITLE_FROM].split())
            if words:
                return words if len(words) <= _TITLE else f"{words[: _TITLE - 1].rstrip()}…"
    return ""


def with_label(message: Message, label: str | None) -> Message:
    """Return the message with a label, if there is one."""
    return message if label is None else replace(message, label=label)

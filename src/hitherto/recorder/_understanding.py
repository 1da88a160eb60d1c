"""What a response says, and what is kept of one that cannot be taken apart.

Every response was paid for. So one that a dialect cannot read is kept all the same: as it is, in a block of the type
`response`. An event of a stream that is no JSON becomes a block of the type `unread` of the answer that it came with.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from ..dialects import Answer, Dialect
from ..dialects._json import decoded_object
from ..dialects._lossless import keepable, keepable_answer
from ..errors import InvalidMessage
from ..events import warn
from ..model import Block, Message

_JSON = "application/json"


def request_body(body: bytes) -> dict[str, object]:
    """The JSON object that a request is; `InvalidMessage` if it is none."""
    try:
        return decoded_object(body)
    except ValueError as error:
        raise InvalidMessage(f"the body of a request is no JSON object: {error}") from None


def understood(dialect: Dialect, data: bytes) -> Answer | None:
    """What the body of a response says; None if it was cut off, or is something else than JSON."""
    try:
        body = decoded_object(data)
    except ValueError:
        if not _looks_whole(data):
            warn("a response was cut off, or is no JSON; its question stands without an answer")
            return None
        warn("a response could not be understood, and is kept as it is: its JSON cannot be read")
        return _kept_as_it_is(data)
    try:
        return keepable_answer(dialect.answer(body))
    except InvalidMessage as error:
        warn(f"a response could not be understood, and is kept as it is: {error}")
        return _kept_as_it_is(data)


def with_unread(answer: Answer, unread: Sequence[bytes]) -> Answer:
    """The answer with the events of its stream that could not be read, so that they are kept with it."""
    if not unread or not answer.messages:
        return answer
    warn(f"{len(unread)} events of a stream could not be read, and are kept as they are")
    blocks = tuple(Block("unread", data, "text", _JSON) for data in unread)
    last = replace(answer.messages[-1], blocks=(*answer.messages[-1].blocks, *blocks))
    return replace(answer, messages=[*answer.messages[:-1], last])


def keepable_messages(messages: Sequence[Message]) -> list[Message]:
    return [keepable(message) for message in messages]


def _looks_whole(data: bytes) -> bool:
    """Does it begin and end as a JSON object does? A body that broke off does not."""
    text = data.strip()
    return text.startswith(b"{") and text.endswith(b"}")


def _kept_as_it_is(data: bytes) -> Answer:
    """An event that has the response as text, to be read and found, or as bytes if it is none."""
    try:
        content: str | bytes = data.decode()
    except UnicodeDecodeError:
        content = data
    return Answer([Message("event", (Block("response", content, "text", _JSON),))])

"""Parse the body of a response, and keep one that cannot be parsed.

Every response was paid for. So a response that a dialect cannot read is kept all the same: as it is, in a block of the
type `response`. An event of a stream that is no JSON becomes a block of the type `unread` in its answer.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from ..dialects import Answer, Dialect
from ..dialects._json import decode_object
from ..dialects._lossless import answer_as_it_is, keepable, keepable_answer
from ..errors import InvalidMessage
from ..events import warn
from ..model import Block, Message

_JSON = "application/json"


def decode_request(body: bytes) -> dict[str, object]:
    """Decode the JSON object of a request. Raises `InvalidMessage` if the body is none."""
    try:
        return decode_object(body)
    except ValueError as error:
        raise InvalidMessage(f"the body of a request is no JSON object: {error}") from None


def parse_response(dialect: Dialect, data: bytes) -> Answer | None:
    """The answer in the body of a response. None if the body was cut off, or is no JSON."""
    try:
        return keepable_answer(dialect.answer(decode_object(data)))
    except ValueError as error:  # among them `InvalidMessage`
        answer = answer_as_it_is(data, str(error))
    if answer is None:
        warn("a response was cut off, or is no JSON; its question stands without an answer")
    else:
        warn(f"a response could not be understood, and is kept as it is: {answer.problem}")
    return answer


def add_unread(answer: Answer, unread: Sequence[bytes]) -> Answer:
    """Add the events of a stream that could not be read to its answer, so that they are kept with it."""
    if not unread or not answer.messages:
        return answer
    warn(f"{len(unread)} events of a stream could not be read, and are kept as they are")
    blocks = tuple(Block("unread", data, "text", _JSON) for data in unread)
    last = replace(answer.messages[-1], blocks=(*answer.messages[-1].blocks, *blocks))
    return replace(answer, messages=[*answer.messages[:-1], last])


def keepable_messages(messages: Sequence[Message]) -> list[Message]:
    return [keepable(message) for message in messages]

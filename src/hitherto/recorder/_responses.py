"""What a response says, and what is kept of one that cannot be taken apart.

Every response was paid for. So one that a dialect cannot read is kept all the same: as it is, in a block of the type
`response`. An event of a stream that is no JSON becomes a block of the type `unread` of the answer that it came with.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from ..dialects import Answer, Dialect
from ..dialects._json import decoded_object
from ..dialects._lossless import answer_as_it_is, keepable, keepable_answer
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
        return keepable_answer(dialect.answer(decoded_object(data)))
    except ValueError as error:  # InvalidMessage is one
        answer = answer_as_it_is(data, str(error))
    if answer is None:
        warn("a response was cut off, or is no JSON; its question stands without an answer")
    else:
        warn(f"a response could not be understood, and is kept as it is: {answer.problem}")
    return answer


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

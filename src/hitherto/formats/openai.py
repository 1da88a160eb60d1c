"""Lines of JSON as OpenAI's chat completions take them: for training, for evaluation, for other programs.

    {"messages": [{"role": "system", "content": "…"}, {"role": "user", "content": "…"}, …], "tools": […]}

One line is one conversation. Writing gives the thread that ends at the head, with the system prompt first. Messages of
other providers are converted, and a thread that a provider would refuse is repaired, as on resuming.

Reading takes every such line as a conversation of one thread. A line has no id, so the conversation's id is made from
the line itself: the same line again is the same conversation, a line with more messages is another one.
"""

import re
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import IO

import msgspec
from msgspec.structs import replace

from ..dialects import dialect
from ..dialects._repair import repair
from ..errors import HithertoError, InvalidArgument, InvalidMessage, PayloadTooLarge
from ..keys import Key
from ..model import Message
from ..snapshots import Unreadable
from ._atomic_file import new_file, of_files
from ._sections import setup_of, thread
from ._types import PortableConversation, PortableMessage, Source

name = "openai"
suffixes = (".openai.jsonl",)
writes = True

_BEGINNING = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"(?:messages"\s*:\s*\[\s*\{|tools"\s*:\s*\[)')
_MAX_LINE_BYTES = 1 << 28
_DIALECT = "openai-chat"


# -- out


def write(talks: Iterable[PortableConversation], path: Path, key: Key | None) -> int:
    _refuse(key)
    with new_file(path) as file:
        return write_to(talks, file)


def write_to(talks: Iterable[PortableConversation], file: IO[bytes]) -> int:
    count = 0
    for talk in talks:
        file.write(msgspec.json.encode(_request(talk)) + b"\n")
        count += 1
    return count


def _request(talk: PortableConversation) -> dict[str, object]:
    spoken = dialect(_DIALECT)
    try:
        history = spoken.history(repair([said.message for said in thread(talk)], spoken).messages)
        found = spoken.request(history, setup_of(talk), {})
    except HithertoError as error:
        raise InvalidArgument(f"conversation {talk.id:.40} cannot be told in OpenAI's words: {error}") from None
    return {what: found[what] for what in ("messages", "tools") if what in found}


def _refuse(key: Key | None) -> None:
    if key is not None:
        raise InvalidArgument("this format is in clear", hint="leave the key out; seal the file yourself")


# -- and in


def recognises(source: Source) -> str | None:
    if _BEGINNING.match(source.head) and b'"role"' in source.head:
        return "its first line is JSON with a list of messages that have roles"
    return None


def read(path: Path, key: Key | None) -> Iterator[PortableConversation | Unreadable]:
    _refuse(key)
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(_MAX_LINE_BYTES + 1), b""), 1):
                if len(line) > _MAX_LINE_BYTES:
                    raise PayloadTooLarge(len(line), _MAX_LINE_BYTES, what="text in one line")
                if line.strip():
                    yield _conversation(line, number)
    except OSError as error:
        raise of_files(error, path) from None


def _conversation(line: bytes, number: int) -> PortableConversation | Unreadable:
    """Parse a line into a conversation, or return the reason why it is invalid."""
    try:
        body = msgspec.json.decode(line.removeprefix(b"\xef\xbb\xbf"))
        if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
            raise InvalidMessage("it is no object with a list of messages")
        heard = dialect(_DIALECT).parse_request(body)
    except (msgspec.DecodeError, InvalidMessage) as error:
        return Unreadable(f"line {number}", str(error))
    except RecursionError:
        return Unreadable(f"line {number}", "it is nested too deeply")
    return PortableConversation(
        id=sha256(msgspec.json.encode(body, order="sorted")).hexdigest(),
        messages=tuple(_portable_message(place, message) for place, message in enumerate(heard.messages, 1)),
        setups=(heard.setup,),
        setup=1,
    )


def _portable_message(place: int, message: Message) -> PortableMessage:
    marked = replace(message, extra={**(message.extra or {}), "dialect": _DIALECT})
    return PortableMessage(id=str(place), message=marked, parent=str(place - 1) if place > 1 else None, setup=1)

"""What a dialect is: one provider's own JSON for a conversation, and its way to our messages and back.

Providers differ in how they write a history down: Anthropic's messages, OpenAI's chat messages, OpenAI's response
items, Gemini's contents. A dialect reads and writes one of them. It is pure: JSON in, values out, no SDK, no network,
no store. What the provider wrote is never changed: it is kept in `Message.raw`, and the blocks beside it are for
reading, for searching and for other providers.

One rule holds for all of them: **the raws of a thread are its request history.** `parse` makes one `Message` of one
entry of the history, and `history` gives the entries back. So a message that was heard in a request, and one that
came as an answer, are sent again exactly as they were.

Unknown kinds of content are kept, never dropped: a block whose type is the provider's own word for it, with the JSON
as its content.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, Protocol

from msgspec import Struct

from ..model import Block, Message, Setup
from ._canonical import Likeness

Raw = dict[str, object]
NO_NAMES: Mapping[str, str] = {}


class ParsedRequest(Struct, frozen=True):
    """What a request says."""

    messages: list[Message]  # the history it carries, oldest first
    setup: Setup  # its model, system prompt and tools; `provider` is left empty
    after: str | None = None  # the id of the response it goes on from, where the provider keeps the history itself
    within: str | None = None  # the id of the provider's own conversation that it is part of
    inherits: bool = False  # the provider also has the system prompt and the tools, which the request leaves out


class Answer(Struct, frozen=True):
    """What a response says: messages to be added after the history, with `usage` on the last one."""

    messages: list[Message]
    id: str | None = None  # the provider's name for the response, where a later request may go on from it
    within: str | None = None
    complete: bool = True  # False: it was cut off in transit, and is not all that the model said
    others: tuple[list[Message], ...] = ()  # further choices, where several were asked for
    problem: str | None = None  # why it could not be taken apart: its one message is an event that has it as it came


class Encoded(Struct, frozen=True):
    """A message written in a dialect, and what it could not say."""

    raws: list[Raw]
    losses: list[str]  # in words for people: "a thought is left out"


class Assembly(Protocol):
    """An answer that arrives in pieces."""

    def feed(self, event: Mapping[str, object]) -> str:
        """Take in the next event (the JSON of its data). Returns the text of the answer that it brought, mostly a few
        characters, often none. Thoughts are not text."""

    def answer(self) -> Answer:
        """All that has arrived so far. `complete` tells whether the provider said that this was all. May be called at
        any time, any number of times; what is unfinished is as long as it is."""


class Dialect(Protocol):
    name: ClassVar[str]  # "anthropic", "openai-chat", "openai-responses", "gemini"
    joins: ClassVar[bool]  # all the results of one answer stand in one entry

    # -- reading

    def parse(self, raw: Raw) -> Message:
        """One entry of a request history as a message; `raw` is in it untouched. `InvalidMessage` if it is none."""

    def parse_request(self, body: Mapping[str, object]) -> ParsedRequest:
        """What the body of a request says."""

    def answer(self, body: Mapping[str, object]) -> Answer:
        """What the body of a response says."""

    def assembly(self) -> Assembly:
        """For an answer that is streamed."""

    def likeness(self, raw: Raw) -> Likeness:
        """What tells an entry from another. SDKs and people write the same message in several ways: text alone or in a
        list, an absent field or a null one, a cache marker that has moved on."""

    # -- writing

    def history(self, messages: Sequence[Message]) -> list[Raw]:
        """The request history of these messages: their raws, deeply copied. Tool results that belong into one entry
        (`extra["joined"]`) are put together."""

    def build(self, message: Message, names: Mapping[str, str] = NO_NAMES) -> Encoded:
        """The entries that say what the message's blocks say, whatever its raw is: for what our own user says and our
        own tools answer, and for what another provider's model said. Roles: user, assistant, tool_result, and event
        for a system message in the middle, where the dialect has such a thing. `names` are those of the calls before,
        by their ids (`with_names`): some providers want the name of a call in its result."""

    def request(self, history: list[Raw], setup: Setup, options: Mapping[str, object]) -> dict[str, object]:
        """The arguments of a request: the history, the system prompt exactly once in its place, the model, the tools.
        `options` go on top."""

    def schema_options(self, schema: Mapping[str, object]) -> dict[str, object]:
        """The options that ask for an answer that fits a JSON schema."""


def with_names(messages: Iterable[Message]) -> Iterator[tuple[Message, Mapping[str, str]]]:
    """Each message with the names of all calls up to it, by the ids of the calls."""
    names: dict[str, str] = {}
    for message in messages:
        names |= {b.id: b.tool_name for b in message.blocks if b.type == "tool_call" and b.id and b.tool_name}
        yield message, names


def joins_entry(message: Message, before: Message | None, *, is_built: bool, was_built: bool) -> bool:
    """Does a message belong into the entry of the one before, where all calls of an answer stand in one entry, and all
    their results in the next? What a provider wrote itself is left as it was."""
    if (message.extra or {}).get("joined") is True:
        return True
    if before is None or not is_built or message.role != before.role:
        return False
    return message.role == "tool_result" or (message.role == "assistant" and was_built)


def calls(message: Message) -> Iterator[Block]:
    """The calls in a message that wait for an answer of ours: not those that the provider runs itself."""
    for block in message.blocks:
        if block.type == "tool_call" and not (block.extra or {}).get("server"):
            yield block

"""The interface of a dialect: it converts between one provider's own JSON and our messages.

Providers differ in how they write a history down: Anthropic's messages, OpenAI's chat messages, OpenAI's response
items, Gemini's contents. A dialect reads and writes one of them. It is pure: JSON in, values out, no SDK, no network,
no store. The provider's JSON is never changed: `Message.raw` keeps it, and the blocks beside it are for reading, for
searching and for other providers.

One rule holds for all of them: **the raws of a thread are its request history.** `parse` makes one `Message` of one
entry of the history, and `history` gives the entries back. So a message read from a request, and one read from an
answer, are sent again exactly as they were.

Unknown kinds of content are kept, never dropped: a block whose type is the provider's own word for it, with the JSON as
its content.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, Protocol

from msgspec import Struct

from ..model import Block, Message, Setup
from ._canonical import Likeness

Raw = dict[str, object]
NO_NAMES: Mapping[str, str] = {}


class ParsedRequest(Struct, frozen=True):
    """The content of a request body."""

    messages: list[Message]  # the history it carries, oldest first
    setup: Setup  # its model, system prompt and tools; `provider` is left empty
    after: str | None = None  # the id of the response it goes on from, where the provider keeps the history itself
    within: str | None = None  # the id of the provider's own conversation that it is part of
    inherits: bool = False  # the provider also has the system prompt and the tools, which the request leaves out


class Answer(Struct, frozen=True):
    """The content of a response body: messages to append to the history, with `usage` on the last one."""

    messages: list[Message]
    id: str | None = None  # the provider's name for the response, where a later request may go on from it
    within: str | None = None
    complete: bool = True  # False: it was cut off in transit, and is not all that the model said
    others: tuple[list[Message], ...] = ()  # further choices, where several were asked for
    problem: str | None = None  # why it could not be parsed; then an event holds the body as it came


class Encoded(Struct, frozen=True):
    """A message written in a dialect, and the content that the dialect could not express."""

    raws: list[Raw]
    losses: list[str]  # in words for people: "a thought is left out"


class Assembly(Protocol):
    """An answer that arrives in pieces."""

    def feed(self, event: Mapping[str, object]) -> str:
        """Add the next event (the JSON of its data). Returns the text that it added to the answer: mostly a few
        characters, often none. Thoughts are not text."""

    def answer(self) -> Answer:
        """Return everything that has arrived so far. `complete` is True if the provider marked the end. May be called
        at any time and repeatedly; unfinished blocks are returned as far as they have come."""


class Dialect(Protocol):
    name: ClassVar[str]  # "anthropic", "openai-chat", "openai-responses", "gemini"
    joins: ClassVar[bool]  # all the results of one answer stand in one entry

    # -- reading

    def parse(self, raw: Raw) -> Message:
        """Parse one entry of a request history into a message that holds `raw` untouched. Raises `InvalidMessage` if it
        is not an entry."""

    def parse_request(self, body: Mapping[str, object]) -> ParsedRequest:
        """Parse the body of a request."""

    def answer(self, body: Mapping[str, object]) -> Answer:
        """Parse the body of a response."""

    def assembly(self) -> Assembly:
        """Return an assembly that collects a streamed answer."""

    def likeness(self, raw: Raw) -> Likeness:
        """Return the canonical form by which entries are compared. SDKs and people write the same message in several
        ways: text alone or in a list, an absent field or a null one, a cache marker that has moved."""

    # -- writing

    def history(self, messages: Sequence[Message]) -> list[Raw]:
        """Return the request history of these messages: their raws, deeply copied. Tool results that belong in one
        entry (`extra["joined"]`) are merged into it."""

    def build(self, message: Message, names: Mapping[str, str] = NO_NAMES) -> Encoded:
        """Encode the message's blocks as entries; its raw is ignored. Used for prompts of our user, results of our
        tools, and messages of another provider's model. Roles: user, assistant, tool_result, and event for a system
        message in the middle, where the dialect has such a thing. `names` are those of the calls before, by their ids
        (`with_names`): some providers want the name of a call in its result."""

    def request(self, history: list[Raw], setup: Setup, options: Mapping[str, object]) -> dict[str, object]:
        """Return the arguments of a request: the history, the system prompt exactly once and in its place, the model,
        the tools. `options` override them."""

    def schema_options(self, schema: Mapping[str, object]) -> dict[str, object]:
        """Return the request options that ask for an answer that fits a JSON schema."""


def with_names(messages: Iterable[Message]) -> Iterator[tuple[Message, Mapping[str, str]]]:
    """Yield each message with the tool names of all calls up to it, by call id."""
    names: dict[str, str] = {}
    for message in messages:
        names |= {b.id: b.tool_name for b in message.blocks if b.type == "tool_call" and b.id and b.tool_name}
        yield message, names


def joins_entry(message: Message, before: Message | None, *, is_built: bool, was_built: bool) -> bool:
    """Return True if a message belongs in the entry of the message before it. That is so where all calls of an answer
    share one entry, and all their results the next. Entries that a provider wrote itself are left as they are."""
    if (message.extra or {}).get("joined") is True:
        return True
    if before is None or not is_built or message.role != before.role:
        return False
    return message.role == "tool_result" or (message.role == "assistant" and was_built)


def calls(message: Message) -> Iterator[Block]:
    """Yield the calls in a message that we must answer, without those that the provider runs itself."""
    for block in message.blocks:
        if block.type == "tool_call" and not (block.extra or {}).get("server"):
            yield block

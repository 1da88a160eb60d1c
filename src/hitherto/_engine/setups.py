"""Setups: provider, model, system prompt and tools.

They are checked before they are kept, and stored as items of their conversation, numbered from one. Each message has
the number of the setup that it was made with.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from .._sealing.codec import Envelope
from ..backend import ItemRow
from ..errors import InvalidArgument, NotFound, PayloadTooLarge
from ..model import Setup, as_list, check_json
from .bodies import Meta, encode
from .typed_items import ItemType

if TYPE_CHECKING:
    from .state import ConversationState


Tools = Sequence[Mapping[str, object]]
SETUP: Final = ItemType(Setup, "a setup", encode)


def setup_key(number: int) -> bytes:
    """Return the key of the item that holds this setup."""
    return b"setup/%06d" % number


def setup_item(envelope: Envelope, conversation: bytes, number: int, setup: Setup) -> ItemRow:
    """Return a setup as the item that is stored."""
    return SETUP.close(envelope, conversation, setup_key(number), setup)


def open_setups(state: "ConversationState") -> list[Setup]:
    """Return all setups of a conversation, in the order of their numbers."""
    items = state.engine.backend.items(state.id, b"setup/")
    return [SETUP.open(state.envelope, item) for item in items]


def check_setup(
    provider: str,
    model: str,
    system_prompt: str,
    tools: Tools,
    limit: int,
    raw: object = None,
) -> Setup:
    """A setup as plain values, or an error that says what is wrong with it."""
    for name, value in (("provider", provider), ("model", model), ("system_prompt", system_prompt)):
        check_text(value, name, limit)
    given = as_list(tools, "tools")
    if not all(isinstance(tool, Mapping) for tool in given):
        raise InvalidArgument("a tool is a dict with its name, description and parameters")
    found = tuple({**tool} for tool in given if isinstance(tool, Mapping))
    for tool in found:
        check_json(tool, "a tool")
    check_json(raw, "the system prompt")
    setup = Setup(provider, model, system_prompt, found, raw)
    size = len(encode(setup))
    if size > limit:
        raise PayloadTooLarge(size, limit)
    return setup


def check_text(value: str, name: str, limit: int) -> str:
    """A title, a label, a prompt: text of a size that can be kept."""
    if not isinstance(value, str):
        raise InvalidArgument(f"{name} is text, not a {type(value).__name__}")
    size = len(value.encode("utf-8", "surrogatepass"))
    if size > limit:
        raise PayloadTooLarge(size, limit)
    return value


def setup_in_force(state: "ConversationState", at: int | None) -> int:
    """Return the number of the setup that is in force at this message: its own, unless the conversation was configured
    after it."""
    meta = state.meta
    if meta.setups == 0 or has_one_setup(meta) or at is None:
        return meta.setup
    engine = state.engine
    rows = engine.backend.messages(numbers=[at])
    if not rows or rows[0].conversation != state.id:
        raise NotFound("message in this conversation", [engine.message_ids.id(at)])
    if at == state.row.head and rows[0].seq < meta.setup_seq:
        return meta.setup
    return engine.read_body(rows[0], state)[1].setup


def has_one_setup(meta: Meta) -> bool:
    """Return True if all was said with the first setup."""
    return (meta.setups, meta.setup, meta.setup_seq) == (1, 1, 0)

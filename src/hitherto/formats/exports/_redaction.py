"""Takes secrets and personal data out of a conversation that leaves.

The sanitiser cleans texts, tool calls, the provider's JSON and notes; a value that it finds in one message is taken out
of all of them. What names people or places without being content is left out: the project's folder, metadata, keys,
items and records. Images and sound stay as they are: nothing looks into them.
"""

from typing import TYPE_CHECKING

from msgspec.structs import replace

from .._types import PortableConversation, PortableMessage

if TYPE_CHECKING:
    from ...sanitiser.redactor import Redactor

__all__ = ["redact"]


def redact(talk: PortableConversation, redactor: "Redactor") -> PortableConversation:
    """Return the conversation without what the redactor finds."""
    nameless = [_without_names(said, redactor) for said in talk.messages]
    cleaned = redactor.together([said.message for said in nameless])
    return PortableConversation(
        id=talk.id,
        messages=tuple(
            replace(said, message=message, origin=None) for said, message in zip(nameless, cleaned, strict=True)
        ),
        title=redactor.text(talk.title),
        setups=tuple(redactor.setup(setup) for setup in talk.setups),
        setup=talk.setup,
        setup_at=talk.setup_at,
        opening=talk.opening,
        head=talk.head,
        created_us=talk.created_us,
        kind=talk.kind,
    )


def _without_names(said: PortableMessage, redactor: "Redactor") -> PortableMessage:
    """Return a message without its key, and with its label and role cleaned. The redactor refuses secrets in these."""
    message = said.message
    label = None if message.label is None else redactor.text(message.label)
    return replace(said, message=replace(message, key=None, label=label, role=redactor.text(message.role)))

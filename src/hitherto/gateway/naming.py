"""A title for the conversation of a program that gives none: the beginning of what the person said first.

Coding agents put texts of their own before and around the words of the person, in elements with known names.
"""

import re
from collections.abc import Sequence

from ..dialects._kept_objects import first_words
from ..model import Message
from ..sanitiser.redactor import Redactor

__all__ = ["make_title"]

_NAMES = (
    "system-reminder|environment_context|user_instructions|permissions instructions|skills_instructions|context"
    "|command-[a-z]+|local-command-[a-z]+|ide_[a-z_]+|recommended_[a-z]+"
)
_ADDED = re.compile(rf"<({_NAMES})\b[^>]*>.*?</\1>|# AGENTS\.md instructions.*", re.DOTALL)
_LOOKED_AT = 20_000  # characters of a message


def make_title(messages: Sequence[Message], redactor: Redactor | None) -> str:
    """Return a title for a conversation that begins with these messages; an empty text if nobody says anything. It is
    redacted before it is cut, because half of a secret is not known for one."""
    for message in messages:
        if message.role == "user":
            text = _ADDED.sub(" ", message.text[:_LOOKED_AT])
            words = first_words(text if redactor is None else redactor.text(text))
            if words:
                return words
    return ""

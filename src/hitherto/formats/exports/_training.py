"""Threads for training: what a fine-tuning export takes from a conversation.

A record is one thread, from the root to a leaf, so a conversation with branches gives several. Sub-agents, side
conversations and messages that no model saw are left out. Text that would be a control token of a chat template is
neutralised, so that nobody's words can end a turn.
"""

import re
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ...model import Block, Message
from .._types import PortableConversation, PortableMessage

if TYPE_CHECKING:
    from ...sanitiser.redactor import Redactor

_CONTROL = re.compile(r"<\|(?=\w+\|>)")
_UNSEEN = ("hidden", "command", "side-call")  # injected texts that are about the program, not for the model
_SPOKEN = ("user", "assistant", "tool_result")


def neutral(text: str) -> str:
    """Return a text without control tokens of chat templates.

    >>> neutral("a <|im_end|> b < | c")
    'a < |im_end|> b < | c'
    """
    return _CONTROL.sub("< |", text)


def leaves(talk: PortableConversation) -> list[str]:
    """Return the ids of the messages on the main flow that no other one answers, in order."""
    main = [said for said in talk.messages if said.main]
    answered = {said.parent for said in main}
    return [said.id for said in main if said.id not in answered]


def for_training(
    talk: PortableConversation, redactor: "Redactor | None", *, tools: bool, thinking: bool
) -> PortableConversation:
    """Return a thread with what a model said and saw, redacted, and without control tokens."""
    messages: list[PortableMessage] = []
    above: str | None = None
    for said in talk.messages:
        message = _fitting(said.message, redactor, tools=tools, thinking=thinking)
        if message is not None:
            messages.append(replace(said, message=message, parent=above, link=None))
            above = said.id
    setups = talk.setups if redactor is None else tuple(redactor.setup(setup) for setup in talk.setups)
    setups = tuple(replace(one, system_prompt=neutral(one.system_prompt), raw=None) for one in setups)
    if not tools:
        setups = tuple(replace(one, tools=()) for one in setups)
    return replace(
        talk, messages=tuple(messages), setups=setups, setup_at=len(messages), head=above or "", partials=(), title=""
    )


def _fitting(message: Message, redactor: "Redactor | None", *, tools: bool, thinking: bool) -> Message | None:
    if message.role not in _SPOKEN or (message.extra or {}).get("injected") in _UNSEEN:
        return None
    if message.role == "tool_result" and not tools:
        return None
    if redactor is not None:
        message = redactor.message(message)
    blocks = tuple(
        _neutral_block(block) for block in message.blocks if _is_wanted(block, tools=tools, thinking=thinking)
    )
    if not blocks:
        return None
    extra = {name: value for name, value in (message.extra or {}).items() if name == "joined"}
    return replace(message, blocks=blocks, raw=None, extra=extra or None, key=None, usage=None)


def _is_wanted(block: Block, *, tools: bool, thinking: bool) -> bool:
    if block.type == "thinking":
        return thinking
    if block.type in ("tool_call", "tool_result"):
        return tools
    return block.type == "content"


def _neutral_block(block: Block) -> Block:
    return replace(block, content=neutral(block.content)) if isinstance(block.content, str) else block

"""Splits the messages of a thread into turns, the unit of training formats.

A turn has a speaker and a text. A message may be several turns, its words and each of its calls; neighbours of one
speaker are one.
"""

import json
from collections.abc import Iterator
from typing import Literal, NamedTuple

from ...model import Message
from .._types import PortableConversation
from ._sections import call_in, setup_of, text_in, thread

Speaker = Literal["system", "user", "assistant", "call", "result"]


class Turn(NamedTuple):
    """One turn."""

    speaker: Speaker
    text: str


def turns(talk: PortableConversation) -> Iterator[Turn]:
    """Yield the turns of the thread that ends at the head. Neighbours of one speaker are one turn."""
    before: Turn | None = None
    for turn in _turns(talk):
        if before is not None and before.speaker == turn.speaker and turn.speaker in ("user", "assistant"):
            before = Turn(before.speaker, f"{before.text}\n\n{turn.text}")
            continue
        if before is not None:
            yield before
        before = turn
    if before is not None:
        yield before


def _turns(talk: PortableConversation) -> Iterator[Turn]:
    prompt = setup_of(talk).system_prompt
    if prompt:
        yield Turn("system", prompt)
    for said in thread(talk):
        yield from _turns_in(said.message)


def _turns_in(message: Message) -> Iterator[Turn]:
    """Yield the turns of a message: its words, then its calls."""
    words: list[str] = []
    for block in message.blocks:
        if block.type == "thinking" and text_in(block):
            words.append(f"<think>\n{text_in(block)}\n</think>\n\n")
        elif block.type == "content":
            text = text_in(block)
            words.append(f"<{block.modality}>" if text is None else text)
    if message.role == "tool_result":
        yield Turn("result", "".join(words))
        return
    if "".join(words).strip():
        yield Turn("assistant" if message.role == "assistant" else "user", "".join(words))
    for block in message.blocks:
        if block.type == "tool_call":
            name, _ = call_in(block)
            yield Turn("call", json.dumps({"name": name, "arguments": _arguments(block.arguments)}, ensure_ascii=False))


def _arguments(given: object) -> object:
    """Return the arguments of a call as JSON. Some providers write them as text."""
    if isinstance(given, str):
        try:
            return json.loads(given)
        except (ValueError, RecursionError):
            return given
    return given

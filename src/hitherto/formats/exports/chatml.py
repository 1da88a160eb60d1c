"""ChatML: each thread as text, with marks between the turns, for training.

    <|im_start|>user
    Why?<|im_end|>

Only written. Calls stand in the assistant's turn, between `<tool_call>` and `</tool_call>`; results are turns of
`tool`. An empty line stands between two threads. Marks within a text are neutralised.
"""

from collections.abc import Iterable, Iterator
from typing import IO

from .._atomic_file import OnlyWritten
from .._types import PortableConversation
from ._training import neutral
from ._training_text import Turn, turns


def _write_to(talks: Iterable[PortableConversation], file: IO[bytes]) -> int:
    count = 0
    for talk in talks:
        text = "".join(f"<|im_start|>{role}\n{said}<|im_end|>\n" for role, said in _roles(turns(talk)))
        file.write((("\n" if count else "") + text).encode())
        count += 1
    return count


def _roles(said: Iterable[Turn]) -> Iterator[tuple[str, str]]:
    """Yield role and text of each turn. A call belongs to the turn of the assistant before it."""
    role, texts = "", list[str]()
    for turn in said:
        name = {"call": "assistant", "result": "tool"}.get(turn.speaker, turn.speaker)
        text = neutral(turn.text)
        if turn.speaker == "call":
            text = f"<tool_call>\n{text}\n</tool_call>"
        if turn.speaker == "call" and role == "assistant":
            texts.append(text)
            continue
        if role:
            yield role, "\n".join(texts)
        role, texts = name, [text]
    if role:
        yield role, "\n".join(texts)


FORMAT = OnlyWritten("chatml", (".chatml.txt",), _write_to)

"""ShareGPT: a line of JSON for each thread, for training.

    {"id": "…", "conversations": [{"from": "human", "value": "…"}, {"from": "gpt", "value": "…"}]}

Only written. The speakers are `system`, `human`, `gpt`, `function_call` and `observation`. Images are named, not kept.
"""

from collections.abc import Iterable
from typing import IO

import msgspec

from .._atomic_file import OnlyWritten
from .._types import PortableConversation
from ._sections import setup_of
from ._training import neutral
from ._training_text import turns

_NAMES = {"system": "system", "user": "human", "assistant": "gpt", "call": "function_call", "result": "observation"}


def _write_to(talks: Iterable[PortableConversation], file: IO[bytes]) -> int:
    count = 0
    for talk in talks:
        said = [{"from": _NAMES[turn.speaker], "value": neutral(turn.text)} for turn in turns(talk)]
        record: dict[str, object] = {"id": f"{talk.id}/{talk.head or ''}", "conversations": said}
        tools = setup_of(talk).tools
        if tools:
            record["tools"] = msgspec.json.encode(tools).decode()
        file.write(msgspec.json.encode(record) + b"\n")
        count += 1
    return count


FORMAT = OnlyWritten("sharegpt", (".sharegpt.jsonl",), _write_to)

"""Messages that look like text, from a seed: words with natural (Zipf) frequencies, in the sizes that agents produce.

A turn is what goes to a model and what comes back. What goes is a question (40-400 bytes) or the result of a tool
(1-20 KB); what comes back is an answer (up to 4 KB) or the call of a tool. The mean is about 1.6 KB a message.
"""

import random
from itertools import accumulate, islice

from ._messages import Plain

Turn = tuple[Plain, Plain]

_WORDS = 12_000
_POOL = 1_000  # turns that differ; after them they come again
_TOOLS = ("search", "read_file", "run_tests", "fetch")


class _Writer:
    """Writes text."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        letters, weights = "etaoinshrdlucmfwypvbgkqjxzéü", range(28, 0, -1)
        lengths = self.random.choices(range(2, 11), (9, 14, 16, 14, 12, 10, 8, 6, 4), k=_WORDS)
        self.words = ["".join(self.random.choices(letters, weights, k=length)) for length in lengths]
        self._weights = list(accumulate(1 / (rank + 3) for rank in range(_WORDS)))

    def text(self, size: int) -> str:
        words = self.random.choices(self.words, cum_weights=self._weights, k=size // 4 + 2)
        for place in range(11, len(words), 13):
            words[place] += ".\n" if place % 3 else ","
        return " ".join(words)[:size]

    def size(self, low: int, high: int) -> int:
        """More small ones than large ones."""
        return low + int((high - low) * self.random.random() ** 3.4)

    def turns(self, count: int) -> list[Turn]:
        found: list[Turn] = []
        call: Plain | None = None
        for _ in range(count):
            if call is None:
                said: Plain = {"role": "user", "content": self.text(self.random.randint(40, 400))}
            else:
                content = self.text(self.size(1_000, 20_000))
                said = {"role": "tool", "tool_call_id": call["id"], "name": call["name"], "content": content}
            answer: Plain = {"role": "assistant", "content": ""}
            call = None
            if self.random.random() < 0.3:
                name = self.random.choice(_TOOLS)
                arguments = f'{{"query": "{self.text(60).translate(_NO_QUOTES)}", "limit": {len(found)}}}'
                call = {"id": f"call_{self.random.getrandbits(64):016x}", "name": name, "arguments": arguments}
                answer["tool_calls"] = [call]
            else:
                answer["content"] = self.text(self.random.randint(60, 4_000))
            found.append((said, answer))
        return found


_LONG = 4_000_000  # characters, of which passages are cut
_NO_QUOTES = str.maketrans('"\\\n', "   ")
_pool: list[Turn] = []  # filled before the first measured process is forked


def turns(count: int, start: int = 0) -> list[Turn]:
    """So many turns of the pool, from one of them on. The same every time."""
    if not _pool:
        _pool.extend(_Writer(20_250_711).turns(_POOL))
    return [_pool[(start + n) % _POOL] for n in range(count)]


def messages(count: int, start: int = 0) -> list[Plain]:
    return list(islice((message for turn in turns((count + 1) // 2, start) for message in turn), count))


class Passages:
    """Texts that differ, as many as wanted: cut out of one long text, which is made once."""

    def __init__(self) -> None:
        writer = _Writer(20_261_116)
        self.words = writer.words  # the most frequent first
        self.whole = writer.text(_LONG)

    def text(self, number: int, low: int, high: int) -> str:
        """A passage of about `low` to `high` characters, the same every time."""
        size = low + number * 1_103 % (high - low)
        start = number * 104_729 % (_LONG - high)
        return self.whole[start : start + size].partition(" ")[2].rpartition(" ")[0]


def content_bytes(given: list[Plain]) -> int:
    """Bytes of what was said: text, and of calls their id, name and arguments."""
    total = 0
    for message in given:
        total += len(str(message["content"]).encode()) + len(str(message["role"]))
        total += len(str(message.get("tool_call_id", ""))) + len(str(message.get("name", "")))
        total += sum(len(part.encode()) for call in message.get("tool_calls", ()) for part in call.values())
    return total

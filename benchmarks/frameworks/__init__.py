"""Contestants of the measurement `adapters`: for each framework a module with its own SQLite store and hitherto's.

A module is named like its environment below `.tools/adapters`, with `_` for `-`, and has three names:

- `SIDES`: a class for each side. The first one is the framework's own store, the others are compared with it.
- `GOALS`: for each side that has one, the most that its CPU for a turn may be, as a share of the first side's.
- `MOST_TURNS`: for each side that cannot hold the usual number of turns in reasonable time, how many it is given.

It may have three more:

- `CHAT`: the least and the most characters of a question and of an answer. Then the turns are of a plain chat, without
  tools. By default they are of an agent, with results of some kilobytes.
- `MOST_MEGABYTES`, `MOST_READ_MS`: for each side that has such a goal, the most that 1,000 turns may be on the disk,
  and that a cold read of them may take.

A class has the methods of `Side`. All of them run in the environment of the framework, in one event loop; imports of
hitherto and of the framework belong into `__init__`, so that they are done before the clock starts.
"""

from typing import NamedTuple, Protocol


class Turn(NamedTuple):
    """What is said in one turn: a question, one call of a tool with its result, and the answer. A plain chat has no
    call: `arguments` and `result` are empty."""

    number: int
    question: str
    arguments: str  # of the tool `search`, as the text of a JSON object
    result: str
    answer: str

    @property
    def call_id(self) -> str:
        return f"call_{self.number:06d}"


class Side(Protocol):
    """A store with conversations of a framework. Each process has one, which is kept open; so are the objects that the
    framework has for a conversation. The calls on them are the same on all sides."""

    def __init__(self, folder: str) -> None:
        """Open or make the store in this folder."""

    async def keep(self, name: str, turn: Turn) -> None:
        """Make the calls by which the framework keeps this turn, in its order, each durable when it returns."""

    async def read(self, name: str) -> int:
        """Read the conversation as the framework does when a run begins. Return how many turns there are."""

    async def close(self) -> None: ...

    # A side that tidies its files behind its writes may have a method `maintain()`, which does it now. Then its bytes
    # are measured before and after it.

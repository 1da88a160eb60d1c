"""Which messages of a conversation are there already: finding a history again in a tree.

People who use an SDK send the whole history with every request. What of it is new? Each message is known by the digest
of its likeness, that is of what a dialect says must be equal for two entries to be the same message, and a history is
followed from the root down as far as it goes. Where it leaves the tree, it branches.

Only digests are kept, so that a long conversation takes little memory.
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import pairwise

import msgspec
from msgspec import Struct

from ..dialects import Dialect
from ..model import Message, Saved

Digest = bytes
_encode = msgspec.json.Encoder(order="deterministic").encode


class Known(Struct, frozen=True):
    """A message that is there."""

    id: str
    parent: str | None
    digest: Digest | None  # None: it is like nothing that can be heard
    seq: int
    assistant: bool


class Step(Struct, frozen=True):
    """A way to go on from one place of a history: what the next message is like, and how many entries it takes."""

    digest: Digest
    entries: int


History = Sequence[Sequence[Step]]


class Followed(Struct, frozen=True):
    """How much of a history is in a tree."""

    count: int  # entries
    at: str | None  # the message that is the last of them
    cut: bool = False  # the history begins in the middle of the conversation


def digest_of(dialect: Dialect, raws: Sequence[dict[str, object]]) -> Digest:
    """The digest of a message that is written as these entries."""
    return blake2b(_encode([dialect.likeness(raw) for raw in raws]), digest_size=16).digest()


def digest_of_message(dialect: Dialect, message: Message) -> Digest | None:
    """What a message is like, in the words of this dialect; None if it cannot say it."""
    if message.raw is None or (message.extra or {}).get("dialect", dialect.name) != dialect.name:
        raws = dialect.build(message).raws
        return digest_of(dialect, raws) if raws else None
    return digest_of(dialect, [message.raw]) if isinstance(message.raw, dict) else None


def steps(dialect: Dialect, messages: Sequence[Message]) -> list[list[Step]]:
    """For each place of a history, the ways to go on. Mostly there is one. Gemini's SDK keeps an answer that was
    streamed as it came, in many entries, where the tree has one."""
    digests = [digest_of_message(dialect, message) for message in messages]
    found = [[] if digest is None else [Step(digest, 1)] for digest in digests]
    for start, end in _stretches(messages) if dialect.name == "gemini" else ():
        joined: dict[str, object] = {
            "role": "model",
            "parts": [part for m in messages[start:end] for part in _parts(m)],
        }
        found[start].append(Step(digest_of(dialect, [joined]), end - start))
    return found


def _stretches(messages: Sequence[Message]) -> Iterable[tuple[int, int]]:
    """Where several answers follow each other."""
    start = None
    for i, message in enumerate([*messages, Message("")]):
        if message.role != "assistant":
            if start is not None and i - start > 1:
                yield start, i
            start = None
        elif start is None:
            start = i


def _parts(message: Message) -> list[object]:
    parts = message.raw.get("parts") if isinstance(message.raw, dict) else None
    return parts if isinstance(parts, list) else []


class Tree:
    """The messages of one conversation, by what they are like."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self._by_id: dict[str, Known] = {}
        self._below: dict[str | None, list[Known]] = {}
        self._alike: dict[Digest, list[Known]] = {}
        self._answers: set[Digest] = set()
        self.seen = (0, 0)  # the sequence and the rewrites up to which everything is here

    def add(self, message: Saved) -> None:
        if message.id in self._by_id:
            return
        digest = None if message.problem is not None else digest_of_message(self.dialect, message)
        known = Known(message.id, message.parent, digest, message.seq, message.role == "assistant")
        self._by_id[known.id] = known
        self._below.setdefault(known.parent, []).append(known)
        if digest is not None:
            self._alike.setdefault(digest, []).append(known)
            if known.assistant:
                self._answers.add(digest)

    def begins_with(self, ways: Sequence[Step]) -> bool:
        """Is there a root like this?"""
        return any(known.digest == step.digest for known in self._below.get(None, ()) for step in ways)

    def answered(self, id: str | None) -> bool:
        """Is there an answer on the way to this message?"""
        while id is not None:
            known = self._by_id[id]
            if known.assistant:
                return True
            id = known.parent
        return False

    def follow(self, history: History) -> Followed:
        """How much of a history is there. It is followed from the first message of the conversation on; or from one in
        the middle, if that leads further and past an answer: people send only the last so many messages."""
        whole = self._follow(history, [(0, None)])
        if whole.count == len(history) or not history:
            return whole
        starts: list[tuple[int, str | None]] = [
            (step.entries, known.id)
            for step in history[0]
            for known in self._alike.get(step.digest, ())
            if known.parent is not None
        ]
        end = self._follow(history, starts)
        answered = any(step.digest in self._answers for ways in history[: end.count] for step in ways)
        return Followed(end.count, end.at, cut=True) if end.count > max(whole.count, 1) and answered else whole

    def _follow(self, history: History, starts: list[tuple[int, str | None]]) -> Followed:
        """As far as it goes from these places. If there are several ways, the longest; of several as long, the one that
        ends with the newest message."""
        best, at = (0, -1), None
        seen = set(starts)
        while starts:
            i, place = starts.pop()
            if place is not None and (i, self._by_id[place].seq) > best:
                best, at = (i, self._by_id[place].seq), place
            for step in history[i] if i < len(history) else ():
                for known in self._below.get(place, ()):
                    end = (i + step.entries, known.id)
                    if known.digest == step.digest and end not in seen:
                        seen.add(end)
                        starts.append(end)
        return Followed(best[0], at)

    def resembles(self, history: History) -> int:
        """How many answers of the history were given in this conversation, to the same question."""
        return sum(
            known.assistant and known.parent is not None and self._is_one_of(known.parent, before)
            for before, ways in pairwise(history)
            for step in ways
            for known in self._alike.get(step.digest, ())
        )

    def _is_one_of(self, id: str, ways: Sequence[Step]) -> bool:
        return any(step.digest == self._by_id[id].digest for step in ways)

    @property
    def newest(self) -> str | None:
        """The message that was written last."""
        return max(self._by_id.values(), key=lambda known: known.seq).id if self._by_id else None

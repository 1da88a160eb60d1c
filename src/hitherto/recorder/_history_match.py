"""Which messages of a conversation are there already: finding a history again in a tree.

People who use an SDK send the whole history with every request. What of it is new? Each message is known by its
likeness (see `dialects/_canonical`): a digest of what it says, which must be equal, and digests of the marks beside it,
which must not contradict. A history is followed from the root down as far as it goes. Where it leaves the tree, it
branches. A silent message, such as a thought alone, may be missing in the history or in the tree: it is passed over.

Anybody may begin with the same words. What proves that a history belongs to a conversation is an answer in it that was
given there, to the same question. An answer that was only heard in a request (an example in a prompt, a history from
elsewhere) proves nothing, so such messages are marked (`FROM_REQUEST`).

Only digests are kept, so that a long conversation takes little memory.
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from ..dialects import Dialect
from ..dialects._canonical import Likeness, Marks, agree
from ..dialects._lossless import own_raw
from ..model import Message, Saved

Digest = bytes
FROM_REQUEST = "from_request"  # in the extras of an answer that was heard in a request, and not given to one


class Print(Struct, frozen=True):
    """What a message is known by."""

    digest: Digest
    marks: Marks = {}
    is_silent: bool = False

    def fits(self, other: "Print | None") -> bool:
        if other is None or self.digest != other.digest:
            return False
        return not self.marks or not other.marks or agree(self.marks, other.marks)

    def shares_a_mark(self, other: "Print | None") -> bool:
        """Do both have the same id, or the same signature?"""
        if other is None:
            return False
        return any(not self.marks[at].isdisjoint(other.marks[at]) for at in self.marks.keys() & other.marks.keys())


class Known(Struct, frozen=True):
    """A message that is there."""

    id: str
    parent: str | None
    print: Print | None  # None: it is like nothing that can be heard
    seq: int
    main: bool
    is_assistant: bool
    is_answer: bool  # one that was given here


class Step(Struct, frozen=True):
    """A way to go on from one place of a history: what the next message is like, and how many entries it takes."""

    print: Print
    entries: int
    is_assistant: bool = False

    @property
    def digest(self) -> Digest:
        return self.print.digest


History = Sequence[Sequence[Step]]
Exchange = tuple[Digest, Digest]  # a question and an answer that was given to it


def last_answer(history: History) -> int:
    """How far a history goes up to its last answer: in entries; 0 if there is none."""
    for i in reversed(range(len(history))):
        for step in history[i]:
            if step.is_assistant and (not step.print.is_silent or step.print.marks):
                return i + step.entries
    return 0


def _question(history: History) -> Sequence[Step]:
    """The last message of a history that is not the model's."""
    return next((ways for ways in reversed(history) if not any(step.is_assistant for step in ways)), ())


def last_exchanges(history: History) -> set[Exchange]:
    """The last answer of a history with its question, in all ways that it can be read."""
    last = last_answer(history)
    return {
        (asked.digest, step.digest)
        for i, ways in enumerate(history)
        for step in ways
        if step.is_assistant and i + step.entries >= last
        for asked in _question(history[:i])
    }


class Followed(Struct, frozen=True):
    """How much of a history is in a tree."""

    count: int = 0  # entries
    at: str | None = None  # the message that is the last of them
    main: bool = True
    proven: int = 0  # entries up to the last answer among them that was given here
    is_whole: bool = True  # it was followed from the first message of the conversation on


class Position(Struct, frozen=True, eq=False):
    """The one place in a tree where a history ends, and how large the tree was then."""

    tree: "Tree"
    at: str
    size: int
    question: Sequence[Step]  # what the last message of the history is like


def print_of(dialect: Dialect, raws: Sequence[dict[str, object]]) -> Print:
    """What a message is known by that is written as these entries."""
    all_like = [dialect.likeness(raw) for raw in raws]
    if len(all_like) == 1:
        return Print(all_like[0].digest(), all_like[0].mark_digests(), all_like[0].is_silent)
    return Print(blake2b(b"".join(like.digest() for like in all_like), digest_size=16).digest())


def print_of_message(dialect: Dialect, message: Message) -> Print | None:
    """What a message is known by, in the words of this dialect; None if it cannot say it."""
    own = own_raw(message, dialect.name)
    if own is not None:
        return print_of(dialect, [own])
    if message.raw is not None and (message.extra or {}).get("dialect", dialect.name) == dialect.name:
        return None
    raws = dialect.build(message).raws
    if not raws and message.role == "assistant" and not message.blocks:  # an answer that ended without a word
        return Print(Likeness("assistant", ()).digest(), is_silent=True)
    return print_of(dialect, raws) if raws else None


def steps(dialect: Dialect, messages: Sequence[Message]) -> list[list[Step]]:
    """For each place of a history, the ways to go on. Mostly there is one. Gemini's SDK keeps an answer that was
    streamed as it came, in many entries, where the tree has one."""
    prints = [print_of_message(dialect, message) for message in messages]
    found = [
        [] if one is None else [Step(one, 1, message.role == "assistant")]
        for one, message in zip(prints, messages, strict=True)
    ]
    for start, end in _stretches(messages) if dialect.name == "gemini" else ():
        joined: dict[str, object] = {
            "role": "model",
            "parts": [part for m in messages[start:end] for part in _parts(dialect, m)],
        }
        found[start].append(Step(print_of(dialect, [joined]), end - start, is_assistant=True))
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


def _parts(dialect: Dialect, message: Message) -> list[object]:
    parts = (own_raw(message, dialect.name) or {}).get("parts")
    return parts if isinstance(parts, list) else []


# Where a history may stand in a tree: how much of it is behind, at which message, whether its last entry was silent and
# was passed over, and how much is behind its last answer that was given here.
_State = tuple[int, str | None, bool, int]


class Tree:
    """The messages of one conversation, by what they are like."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self._by_id: dict[str, Known] = {}
        self._below: dict[str | None, list[Known]] = {}
        self._alike: dict[Digest, list[Known]] = {}
        self._exchanges: set[Exchange] = set()
        self.has_main_answer = False
        self.seen = (0, 0)  # the sequence and the rewrites up to which everything is here

    def add(self, message: Saved) -> None:
        if message.id in self._by_id:
            return
        found = None if message.problem is not None else print_of_message(self.dialect, message)
        is_assistant = message.role == "assistant"
        is_answer = is_assistant and not (message.extra or {}).get(FROM_REQUEST)
        known = Known(message.id, message.parent, found, message.seq, message.main, is_assistant, is_answer)
        self._by_id[known.id] = known
        self._below.setdefault(known.parent, []).append(known)
        self.has_main_answer = self.has_main_answer or (is_answer and known.main)
        if found is not None:
            self._alike.setdefault(found.digest, []).append(known)
        if is_answer and found is not None:
            asked = self._asked(known)
            if asked is not None and asked.print is not None:
                self._exchanges.add((asked.print.digest, found.digest))

    def _children(self, id: str | None) -> Iterable[Known]:
        """The messages below a place, and those below a silent one there."""
        waiting = [id]
        while waiting:
            for known in self._below.get(waiting.pop(), ()):
                yield known
                if known.print is not None and known.print.is_silent:
                    waiting.append(known.id)

    def _like(self, step: Step) -> Iterable[Known]:
        """The messages that are like this one, wherever they are."""
        return (known for known in self._alike.get(step.digest, ()) if step.print.fits(known.print))

    def has_exchange(self, exchanges: set[Exchange]) -> bool:
        """Was one of these answers given here, to its question?"""
        return not self._exchanges.isdisjoint(exchanges)

    def has(self, id: str | None) -> bool:
        return id in self._by_id

    def has_below(self, id: str | None) -> bool:
        """Does anything stand below this message?"""
        return id in self._below

    def follow(self, history: History, *, is_bound: bool = False) -> Followed:
        """How much of a history is there. It is followed from the first message of the conversation on; or from one in
        the middle, if that leads further and past an answer: people send only the last so many messages. Nothing leads
        further than past its last answer. `is_bound` says that the history is known to be said in this conversation:
        then one answer alone is enough for that."""
        whole = self._follow(history, [(0, None, False, 0)])
        if whole.count == len(history) or not history or 0 < last_answer(history) <= whole.proven:
            return whole
        starts = [
            (step.entries, known.id, False, self._proven(step, known, step.entries, 0))
            for step in history[0]
            for known in self._like(step)
            if known.parent is not None
        ]
        cut = self._follow(history, starts)
        least = max(whole.count, 0 if is_bound else 1)
        return replace(cut, is_whole=False) if cut.count > least and cut.proven else whole

    def follow_on(self, position: Position, history: History) -> Followed:
        """How much is there of a history that goes on from a position. The rest of what `follow` says is the same."""
        return self._follow(history, [(0, position.at, False, 0)])

    def is_free_after(self, position: Position, history: History, found: Followed) -> bool:
        """Does what was found of a history, from a position on, end with its last answer, and was that given to its
        last question, and has nobody gone on from it?"""
        known = None if found.at is None else self._by_id[found.at]
        if known is None or found.count != found.proven or found.count < last_answer(history):
            return False
        return not self.has_below(known.id) and self._is_asked(known, [position.question, *history[: found.count]])

    def position(self, ids: Sequence[str], added: History) -> Position | None:
        """The position at the last of these messages, which were just added for the end of a history; None if another
        look at that history might end elsewhere. It cannot if each of them is known again, and if the last one is not
        the model's: on the way from the root to it, every such message is the same in the tree and in the history."""
        question = added[-1] if added else ()
        if not question or any(step.is_assistant or step.print.is_silent for step in question):
            return None
        if len(ids) != len(added) or not all(map(self._is_known_again, ids, added)):
            return None
        return Position(self, ids[-1], len(self._by_id), question)

    def _is_known_again(self, id: str, ways: Sequence[Step]) -> bool:
        known = self._by_id.get(id)
        return known is not None and any(step.entries == 1 and step.print.fits(known.print) for step in ways)

    def holds(self, position: Position) -> bool:
        """Does the history of a position still end there, and nowhere else? It does if all that was added since stands
        below it, or below roots of its own, where nothing is like its last message."""
        if self is not position.tree:
            return False
        below, beside = {position.at}, set[str | None]((None,))
        for known in reversed(list(islice(reversed(self._by_id.values()), len(self._by_id) - position.size))):
            if known.parent in below:
                below.add(known.id)
            elif known.parent in beside and not self._may_be_taken(known, position):
                beside.add(known.id)
            else:
                return False
        return True

    def _may_be_taken(self, known: Known, position: Position) -> bool:
        """Might a history end, or begin, with this message instead of its own?"""
        is_silent_root = known.parent is None and (known.print is None or known.print.is_silent)
        return is_silent_root or any(step.print.fits(known.print) for step in position.question)

    def _follow(self, history: History, starts: Sequence[_State]) -> Followed:
        """As far as it goes from these places. If there are several ways, the longest; of several as long, one on the
        main flow, and of these the one that ends with the newest message."""
        best, rank = Followed(), (0, False, -1)
        waiting = list(starts)
        seen = {state[:3] for state in waiting}
        while waiting:
            i, place, skipped, proven = waiting.pop()
            if place is not None and not skipped:
                here = self._by_id[place]
                if (i, here.main, here.seq) > rank:
                    best, rank = Followed(i, place, here.main, proven), (i, here.main, here.seq)
            for step in history[i] if i < len(history) else ():
                for state in self._next(step, i, place, proven, skipped=skipped):
                    if state[:3] not in seen:
                        seen.add(state[:3])
                        waiting.append(state)
        return best

    def _next(self, step: Step, i: int, place: str | None, proven: int, *, skipped: bool) -> list[_State]:
        """Where a history may stand after this step. Between two messages that fit, silent ones are passed over on one
        side only: where both have some, these are different, and so is what follows."""
        end = i + step.entries
        candidates = self._below.get(place, ()) if skipped else self._children(place)
        found: list[_State] = [
            (end, known.id, False, self._proven(step, known, end, proven))
            for known in candidates
            if step.print.fits(known.print)
        ]
        return [(end, place, True, proven)] if not found and step.print.is_silent else found

    def _proven(self, step: Step, known: Known, end: int, proven: int) -> int:
        """A silent answer, which may be empty, proves something by its marks alone."""
        is_proof = not step.print.is_silent or step.print.shares_a_mark(known.print)
        return end if known.is_answer and is_proof else proven

    def last_answer(self, history: History, *, is_bound: bool = False) -> int:
        """How far a history goes up to its last answer that was given in this conversation, to the same question: in
        entries; 0 if there is none. An answer may be several messages, of which clients leave some out: the question is
        what stands before all of them."""
        return self._last_answer(history, is_bound=is_bound)[0]

    def is_last_answer_free(self, history: History) -> bool:
        """Does nothing stand below that answer yet?"""
        return any(not self.has_below(known.id) for known in self._last_answer(history, is_bound=False)[1])

    def _last_answer(self, history: History, *, is_bound: bool) -> tuple[int, list[Known]]:
        for i in reversed(range(len(history))):
            for step in history[i] if any(step.is_assistant for step in history[i]) else ():
                found = [
                    known
                    for known in self._like(step)
                    if self._proven(step, known, 1, 0) and (is_bound or self._is_asked(known, history[:i]))
                ]
                if found:
                    return i + step.entries, found
        return 0, []

    def _is_asked(self, answer: Known, before: History) -> bool:
        """Does this history end with the question of an answer, or with the beginning of that answer?"""
        asked = self._asked(answer)
        return asked is not None and any(step.print.fits(asked.print) for step in _question(before))

    def _asked(self, answer: Known) -> Known | None:
        """The message that an answer answers: the last one before it that is not the model's."""
        asked: Known | None = answer
        while asked is not None and asked.is_assistant:
            asked = None if asked.parent is None else self._by_id.get(asked.parent)
        return asked

    @property
    def newest(self) -> str | None:
        """The message that was written last."""
        return max(self._by_id.values(), key=lambda known: known.seq).id if self._by_id else None

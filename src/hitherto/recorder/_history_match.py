"""Match the history of a request with the tree of a conversation, to find the messages that are new.

An SDK sends the whole history with every request. Each message is compared by its fingerprint (see
`dialects/_canonical`): a digest of its content, which must be equal, and digests of the marks beside it (ids and
signatures), which must not contradict. A history is followed from the root down as far as it goes. Where it leaves the
tree, it branches. A silent message, such as a thought alone, may be missing in the history or in the tree: the match
skips it.

Many conversations begin with the same words. A history belongs to a conversation if it holds an answer that was given
there, to the same question. An answer that only stood in a request (an example in a prompt, a history from elsewhere)
proves nothing, so such messages are marked (`FROM_REQUEST`).

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
FROM_REQUEST = "from_request"  # in the extras of an answer that stood in a request, and was not given to one


class Fingerprint(Struct, frozen=True):
    """A digest of a message, and digests of its marks."""

    digest: Digest
    marks: Marks = {}
    is_silent: bool = False

    def fits(self, other: "Fingerprint | None") -> bool:
        if other is None or self.digest != other.digest:
            return False
        return not self.marks or not other.marks or agree(self.marks, other.marks)

    def shares_a_mark(self, other: "Fingerprint | None") -> bool:
        """Do both have the same id, or the same signature?"""
        if other is None:
            return False
        return any(not self.marks[at].isdisjoint(other.marks[at]) for at in self.marks.keys() & other.marks.keys())


class TreeMessage(Struct, frozen=True):
    """A message of the tree."""

    id: str
    parent: str | None
    fingerprint: Fingerprint | None  # None: no entry of a request can be equal to it
    seq: int
    main: bool
    is_assistant: bool
    is_answer: bool  # it was given in this conversation


class Step(Struct, frozen=True):
    """One way to read the next entries of a history: the fingerprint of a message, and how many entries it takes."""

    fingerprint: Fingerprint
    entries: int
    is_assistant: bool = False

    @property
    def digest(self) -> Digest:
        return self.fingerprint.digest


History = Sequence[Sequence[Step]]
Exchange = tuple[Digest, Digest]  # a question and an answer that was given to it


def last_answer(history: History) -> int:
    """The number of entries up to the last answer of a history; 0 if there is none."""
    for i in reversed(range(len(history))):
        for step in history[i]:
            if step.is_assistant and (not step.fingerprint.is_silent or step.fingerprint.marks):
                return i + step.entries
    return 0


def _last_question(history: History) -> Sequence[Step]:
    """The last message of a history that is not the model's."""
    return next((ways for ways in reversed(history) if not any(step.is_assistant for step in ways)), ())


def last_exchanges(history: History) -> set[Exchange]:
    """The last answer of a history with its question, for each way to read them."""
    last = last_answer(history)
    return {
        (asked.digest, step.digest)
        for i, ways in enumerate(history)
        for step in ways
        if step.is_assistant and i + step.entries >= last
        for asked in _last_question(history[:i])
    }


class HistoryMatch(Struct, frozen=True):
    """The part of a history that is in a tree."""

    count: int = 0  # entries
    at: str | None = None  # the message that is the last of them
    main: bool = True
    proven: int = 0  # entries up to the last answer among them that was given in this conversation
    is_whole: bool = True  # the match begins with the first message of the conversation


class Position(Struct, frozen=True, eq=False):
    """The one place in a tree where a history ends, and how large the tree was then."""

    tree: "Tree"
    at: str
    size: int
    question: Sequence[Step]  # the last message of the history


def fingerprint(dialect: Dialect, raws: Sequence[dict[str, object]]) -> Fingerprint:
    """The fingerprint of a message that is written as these entries."""
    all_like = [dialect.likeness(raw) for raw in raws]
    if len(all_like) == 1:
        return Fingerprint(all_like[0].digest(), all_like[0].mark_digests(), all_like[0].is_silent)
    return Fingerprint(blake2b(b"".join(like.digest() for like in all_like), digest_size=16).digest())


def fingerprint_message(dialect: Dialect, message: Message) -> Fingerprint | None:
    """The fingerprint of a message in this dialect; None if the dialect cannot express the message."""
    own = own_raw(message, dialect.name)
    if own is not None:
        return fingerprint(dialect, [own])
    if message.raw is not None and (message.extra or {}).get("dialect", dialect.name) == dialect.name:
        return None
    raws = dialect.build(message).raws
    if not raws and message.role == "assistant" and not message.blocks:  # an answer that ended without a word
        return Fingerprint(Likeness("assistant", ()).digest(), is_silent=True)
    return fingerprint(dialect, raws) if raws else None


def fingerprint_of_one(ways: Sequence[Step]) -> Fingerprint | None:
    """The fingerprint of one message, among the ways to read a history from there on."""
    return next((step.fingerprint for step in ways if step.entries == 1), None)


def steps(dialect: Dialect, messages: Sequence[Message]) -> list[list[Step]]:
    """For each entry of a history, the ways to read it. Mostly there is one. Gemini's SDK keeps a streamed answer in
    many entries, one for each piece, where the tree has one message."""
    prints = [fingerprint_message(dialect, message) for message in messages]
    found = [
        [] if one is None else [Step(one, 1, message.role == "assistant")]
        for one, message in zip(prints, messages, strict=True)
    ]
    for start, end in _answer_runs(messages) if dialect.name == "gemini" else ():
        joined: dict[str, object] = {
            "role": "model",
            "parts": [part for m in messages[start:end] for part in _parts(dialect, m)],
        }
        found[start].append(Step(fingerprint(dialect, [joined]), end - start, is_assistant=True))
    return found


def _answer_runs(messages: Sequence[Message]) -> Iterable[tuple[int, int]]:
    """The start and end of each run of several answers."""
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


# A position in the search: the number of matched entries, the message that was matched last, whether the last entry was
# silent and was skipped, and the number of entries up to the last answer that was given here.
_State = tuple[int, str | None, bool, int]


class Tree:
    """The messages of one conversation, by their fingerprints."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self._by_id: dict[str, TreeMessage] = {}
        self._children_of: dict[str | None, list[TreeMessage]] = {}
        self._alike: dict[Digest, list[TreeMessage]] = {}
        self._exchanges: set[Exchange] = set()
        self.has_main_answer = False
        self.seen = (0, 0)  # the row's `next_seq` and `rewrites` up to which the tree is complete

    def add(self, message: Saved, known: Fingerprint | None = None) -> None:
        """Add a message. `known` is its fingerprint, if the caller has it."""
        if message.id in self._by_id:
            return
        found = known
        if found is None and message.problem is None:
            found = fingerprint_message(self.dialect, message)
        is_assistant = message.role == "assistant"
        is_answer = is_assistant and not (message.extra or {}).get(FROM_REQUEST)
        added = TreeMessage(message.id, message.parent, found, message.seq, message.main, is_assistant, is_answer)
        self._by_id[added.id] = added
        self._children_of.setdefault(added.parent, []).append(added)
        self.has_main_answer = self.has_main_answer or (is_answer and added.main)
        if found is not None:
            self._alike.setdefault(found.digest, []).append(added)
        if is_answer and found is not None:
            asked = self._find_question(added)
            if asked is not None and asked.fingerprint is not None:
                self._exchanges.add((asked.fingerprint.digest, found.digest))

    def _list_children(self, id: str | None) -> Iterable[TreeMessage]:
        """The messages below this one. A silent message is listed too, and so are the messages below it."""
        waiting = [id]
        while waiting:
            for message in self._children_of.get(waiting.pop(), ()):
                yield message
                if message.fingerprint is not None and message.fingerprint.is_silent:
                    waiting.append(message.id)

    def _like(self, step: Step) -> Iterable[TreeMessage]:
        """The messages of the tree with this fingerprint."""
        return (message for message in self._alike.get(step.digest, ()) if step.fingerprint.fits(message.fingerprint))

    def may_hold(self, ways: Sequence[Step]) -> bool:
        """Return False if no message of the tree is like this entry. A silent one may be missing in the tree."""
        return any(step.fingerprint.is_silent or step.digest in self._alike for step in ways)

    def has_exchange(self, exchanges: set[Exchange]) -> bool:
        """Was one of these answers given in this conversation, to its question?"""
        return not self._exchanges.isdisjoint(exchanges)

    def has(self, id: str | None) -> bool:
        return id in self._by_id

    def has_below(self, id: str | None) -> bool:
        """Does anything stand below this message?"""
        return id in self._children_of

    def follow(self, history: History, *, is_bound: bool = False) -> HistoryMatch:
        """Match a history with the tree.

        The match begins with the first message of the conversation, or with one in the middle if that match is longer
        and contains an answer: some programs send only the last few messages. A match that contains the last answer of
        the history is long enough. `is_bound` says that the caller has named this conversation: then one answer alone
        justifies a start in the middle.
        """
        whole = self._follow(history, [(0, None, False, 0)])
        if whole.count == len(history) or not history or 0 < last_answer(history) <= whole.proven:
            return whole
        starts = [
            (step.entries, message.id, False, self._count_proven(step, message, step.entries, 0))
            for step in history[0]
            for message in self._like(step)
            if message.parent is not None
        ]
        cut = self._follow(history, starts)
        least = max(whole.count, 0 if is_bound else 1)
        return replace(cut, is_whole=False) if cut.count > least and cut.proven else whole

    def follow_on(self, position: Position, history: History) -> HistoryMatch:
        """Match a history that continues from a position. The other fields of the result are the same as those of
        `follow`."""
        return self._follow(history, [(0, position.at, False, 0)])

    def is_free_after(self, position: Position, history: History, found: HistoryMatch) -> bool:
        """Does a match from a position on end with the last answer of the history, was that answer given to the last
        question, and does no message continue it?"""
        message = None if found.at is None else self._by_id[found.at]
        if message is None or found.count != found.proven or found.count < last_answer(history):
            return False
        return not self.has_below(message.id) and self._is_answer_to(
            message, [position.question, *history[: found.count]]
        )

    def position(self, ids: Sequence[str], added: History) -> Position | None:
        """The position at the last of these messages, which were just added for the end of a history.

        None if another match of that history might end elsewhere. It cannot if each message has the fingerprint of its
        entry, and if the last one is not the model's: on the path from the root to it, every such message is the same
        in the tree and in the history.
        """
        question = added[-1] if added else ()
        if not question or any(step.is_assistant or step.fingerprint.is_silent for step in question):
            return None
        if len(ids) != len(added) or not all(map(self._is_recognised, ids, added)):
            return None
        return Position(self, ids[-1], len(self._by_id), question)

    def _is_recognised(self, id: str, ways: Sequence[Step]) -> bool:
        message = self._by_id.get(id)
        return message is not None and any(
            step.entries == 1 and step.fingerprint.fits(message.fingerprint) for step in ways
        )

    def is_current(self, position: Position) -> bool:
        """Does the history of a position still end there, and at no other message?

        It does if all messages that were added since stand below it, or below new roots where no message has the
        fingerprint of its last message.
        """
        if self is not position.tree:
            return False
        below, beside = {position.at}, set[str | None]((None,))
        for message in reversed(list(islice(reversed(self._by_id.values()), len(self._by_id) - position.size))):
            if message.parent in below:
                below.add(message.id)
            elif message.parent in beside and not self._is_alternative(message, position):
                beside.add(message.id)
            else:
                return False
        return True

    def _is_alternative(self, message: TreeMessage, position: Position) -> bool:
        """Might the history of a position end, or begin, with this message instead?"""
        is_silent_root = message.parent is None and (message.fingerprint is None or message.fingerprint.is_silent)
        return is_silent_root or any(step.fingerprint.fits(message.fingerprint) for step in position.question)

    def _follow(self, history: History, starts: Sequence[_State]) -> HistoryMatch:
        """The longest match from these positions. Of several with the same length one on the main flow is preferred,
        and of these the one that ends with the newest message."""
        best, rank = HistoryMatch(), (0, False, -1)
        waiting = list(starts)
        seen = {state[:3] for state in waiting}
        while waiting:
            i, place, skipped, proven = waiting.pop()
            if place is not None and not skipped:
                here = self._by_id[place]
                if (i, here.main, here.seq) > rank:
                    best, rank = HistoryMatch(i, place, here.main, proven), (i, here.main, here.seq)
            for step in history[i] if i < len(history) else ():
                for state in self._next_states(step, i, place, proven, skipped=skipped):
                    if state[:3] not in seen:
                        seen.add(state[:3])
                        waiting.append(state)
        return best

    def _next_states(self, step: Step, i: int, place: str | None, proven: int, *, skipped: bool) -> list[_State]:
        """The positions after this step. Between two messages that match, silent messages are skipped on one side only:
        where both sides have some, they differ, and then the messages after them differ too."""
        end = i + step.entries
        candidates = self._children_of.get(place, ()) if skipped else self._list_children(place)
        found: list[_State] = [
            (end, message.id, False, self._count_proven(step, message, end, proven))
            for message in candidates
            if step.fingerprint.fits(message.fingerprint)
        ]
        return [(end, place, True, proven)] if not found and step.fingerprint.is_silent else found

    def _count_proven(self, step: Step, message: TreeMessage, end: int, proven: int) -> int:
        """The entries that are proven after this step. A silent answer may be empty: only its marks prove something."""
        is_proof = not step.fingerprint.is_silent or step.fingerprint.shares_a_mark(message.fingerprint)
        return end if message.is_answer and is_proof else proven

    def last_answer(self, history: History, *, is_bound: bool = False) -> int:
        """The number of entries up to the last answer that was given in this conversation, to the same question; 0 if
        there is none. An answer may be several messages, of which clients leave some out: its question is the message
        before all of them."""
        return self._last_answer(history, is_bound=is_bound)[0]

    def is_last_answer_free(self, history: History) -> bool:
        """Does no message stand below that answer yet?"""
        return any(not self.has_below(message.id) for message in self._last_answer(history, is_bound=False)[1])

    def _last_answer(self, history: History, *, is_bound: bool) -> tuple[int, list[TreeMessage]]:
        for i in reversed(range(len(history))):
            for step in history[i] if any(step.is_assistant for step in history[i]) else ():
                found = [
                    message
                    for message in self._like(step)
                    if self._count_proven(step, message, 1, 0)
                    and (is_bound or self._is_answer_to(message, history[:i]))
                ]
                if found:
                    return i + step.entries, found
        return 0, []

    def _is_answer_to(self, answer: TreeMessage, before: History) -> bool:
        """Does this answer belong to the end of a history: to its last question, or to the answer that begins there?"""
        asked = self._find_question(answer)
        return asked is not None and any(step.fingerprint.fits(asked.fingerprint) for step in _last_question(before))

    def _find_question(self, answer: TreeMessage) -> TreeMessage | None:
        """The question of an answer: the last message before it that is not the model's."""
        asked: TreeMessage | None = answer
        while asked is not None and asked.is_assistant:
            asked = None if asked.parent is None else self._by_id.get(asked.parent)
        return asked

    @property
    def newest(self) -> str | None:
        """The message that was written last."""
        return max(self._by_id.values(), key=lambda message: message.seq).id if self._by_id else None

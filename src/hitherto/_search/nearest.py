"""The nearest messages: those which fit a question in plain words best, although none has all of its words.

It stands above the indexes and needs nothing of them but `TextIndex.find`, so it ranks alike on all of them:

1. A question becomes **wanted words**, without those that weigh nothing. Each is looked up by the beginning that its
   stem leaves, newest first and up to a limit. A word with fewer messages than the limit weighs more, the rarer it is;
   of the others, messages that have several at once are looked up as well. So the cost depends on the number of wanted
   words, and not on the size of the store.
2. **Candidates** are compared by the weight of the wanted words in them and around them: what was said a few messages
   before and after belongs to the same subject.
3. Of the best candidates the texts are read and scored as bm25 does, with the words in their own forms, the neighbours,
   and the title of the conversation.

The constants were chosen on half of the conversations of a public set of questions (docs/benchmarks.md). There, most
of them can be halved or doubled for about a point. The weight of the length is higher than was best for that set, whose
messages are all short.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from math import log
from typing import Final

from msgspec import Struct

from ..textindex import Found
from .query import All, Either, Query, Term, Tree, is_spaceless, parse_loosely, split
from .word_stems import LEAST, stem, stop_words

CANDIDATES: Final = 1_000  # messages whose places are compared
READ: Final = 100  # messages whose texts are read: no more are ever found

_MOST_WANTED = 24
_LOOKED_UP = 1_000  # messages of one word: a word that more have is common
_TOGETHER = 200  # messages that have several common words
_MOST_PAIRS = 8
_CHARACTERS = 20_000  # of a text that are scored

_K1, _B = 1.2, 0.5  # of bm25
_WEAK = 0.3  # of a word that only begins like the wanted one
_AROUND, _FADING = 10, 0.9  # messages before and after that count, and how fast they count less
_CONTEXT, _CONTEXT_K1 = 0.6, 1.2  # weight of what stands around
_NEIGHBOUR = 0.15  # of the score of the message before, and of the one after
_TITLE = 0.5

Find = Callable[[Query, int], list[Found]]


class Wanted(Struct, frozen=True):
    """A word of the question, or a phrase: the term that finds it, and the stem that its forms share."""

    term: Term
    stem: str


class Question(Struct, frozen=True):
    """The wanted words, and what to leave out."""

    wanted: tuple[Wanted, ...]
    without: tuple[Tree, ...] = ()

    @property
    def query(self) -> Query:
        """Any of the wanted words. Snippets are made with it."""
        return query_of(Either(tuple(one.term for one in self.wanted)), self.without)


class Place(Struct, frozen=True, gc=False):
    """Where a candidate stands."""

    conversation: bytes
    seq: int
    created_at: int


def query_of(tree: Tree, without: tuple[Tree, ...] = ()) -> Query:
    """Return a tree as a query, without what is to be left out."""
    return Query.of(All((tree,), without) if without else tree)


def parse_question(text: str) -> Question:
    """Parse a question in plain words, or raise `InvalidQuery`.

    Quotes, `begin*` and `-without` mean what they mean in a query. A text that is no query, because a quotation mark or
    a parenthesis is not closed, is taken as its words.

    >>> [one.term.words for one in parse_question("how did we fix the broken linting?").wanted]
    [('fix',), ('broken',), ('lint',)]
    """
    query = parse_loosely(text)
    tree = query.tree
    found = [part for term in query.terms for part in _parts(term)]
    heavy = [term for term in found if term.prefix or len(term.words) > 1 or term.words[0] not in stop_words()]
    wanted = {one.stem: one for one in reversed([_wanted(term) for term in heavy or found])}
    return Question(tuple(wanted.values())[::-1][:_MOST_WANTED], tree.without if isinstance(tree, All) else ())


def _parts(term: Term) -> Iterable[Term]:
    """Yield a term, and the words of which a phrase consists; of scripts without spaces, each pair of characters."""
    if len(term.words) == 1:
        yield term
        return
    words = term.words
    if all(map(is_spaceless, words)):
        yield from (Term(pair) for pair in pairwise(words))
        return
    yield term
    yield from (Term((word,)) for word in words)


def _wanted(term: Term) -> Wanted:
    if term.prefix or len(term.words) > 1:
        return Wanted(term, " ".join(term.words))
    begin = stem(term.words[0])
    return Wanted(Term((begin,), len(begin) >= (LEAST if begin.isascii() else 2)), begin)


class Candidates:
    """The messages that have any wanted word, and the weights of the words."""

    def __init__(self, question: Question, find: Find) -> None:
        self.wanted = question.wanted
        self.has: defaultdict[int, int] = defaultdict(int)  # number -> the wanted words it has, as bits
        self._conversations: dict[int, bytes] = {}
        self.weights: list[float] = []
        common: list[Tree] = []
        for place, one in enumerate(question.wanted):
            found = find(query_of(one.term, question.without), _LOOKED_UP)
            self.weights.append(log(1 + _LOOKED_UP / (len(found) + 0.5)))
            self._add(found, 1 << place)
            if len(found) == _LOOKED_UP:
                common.append(one.term)
        self._common = sum(1 << place for place, one in enumerate(question.wanted) if one.term in common)
        for tree, bits in self._combinations(common):
            self._add(find(query_of(tree, question.without), _TOGETHER), bits)

    def _add(self, found: Sequence[Found], bits: int) -> None:
        for one in found:
            self.has[one.number] |= bits
            self._conversations[one.number] = one.conversation

    def _combinations(self, common: list[Tree]) -> list[tuple[Tree, int]]:
        """Return all common words together, and each with the next: their newest messages alone would miss these."""
        if len(common) < 2:
            return []
        pairs = [*pairwise(common)][:_MOST_PAIRS]
        parts = [tuple(common), *(pair for pair in pairs if len(common) > 2)]
        return [(All(part), sum(1 << n for n, one in enumerate(self.wanted) if one.term in part)) for part in parts]

    def weigh(self, bits: int) -> float:
        """Return the weight of these words."""
        return sum(weight for place, weight in enumerate(self.weights) if bits >> place & 1)

    def best(self) -> dict[int, bytes]:
        """Return the candidates with the heaviest words, of equal ones the newest: number and conversation."""
        known: dict[int, float] = {bits: self.weigh(bits) for bits in set(self.has.values())}
        numbers = sorted(self.has, key=lambda number: (known[self.has[number]], number), reverse=True)
        return {number: self._conversations[number] for number in numbers[:CANDIDATES]}


class Ranking:
    """Scores candidates by their words, and by what stands around them."""

    def __init__(self, candidates: Candidates, places: dict[int, Place]) -> None:
        self._candidates, self._places = candidates, places
        self._sequence: defaultdict[bytes, dict[int, int]] = defaultdict(dict)  # conversation -> seq -> number
        for number, place in places.items():
            self._sequence[place.conversation][place.seq] = number
        self._context = {number: self._around(number) for number in places}

    def _around(self, number: int) -> float:
        """Return the weight of the wanted words in this message and around it."""
        has, weights = self._candidates.has, self._candidates.weights
        counts = [0.0] * len(weights)
        place = self._places[number]
        there = self._sequence[place.conversation]
        for seq in range(place.seq - _AROUND, place.seq + _AROUND + 1):
            if seq in there:
                bits, strength = has[there[seq]], _FADING ** abs(seq - place.seq)
                for n in range(len(counts)):
                    if bits >> n & 1:
                        counts[n] += strength
        return sum(w * _saturate(count, _CONTEXT_K1) for w, count in zip(weights, counts, strict=True))

    def to_read(self) -> list[int]:
        """Return the candidates whose texts are worth reading."""
        weigh, has = self._candidates.weigh, self._candidates.has
        return self._in_order({n: weigh(has[n]) + _CONTEXT * self._context[n] for n in self._places})[:READ]

    def _in_order(self, scores: dict[int, float]) -> list[int]:
        return sorted(scores, key=lambda number: (scores[number], self._places[number].created_at), reverse=True)

    def rank(self, texts: dict[int, str], titles: dict[bytes, str]) -> list[tuple[int, float]]:
        """Return the messages of these texts, best first, with their scores."""
        words = {number: split(text[:_CHARACTERS]) for number, text in texts.items()}
        usual = sum(map(len, words.values())) / len(words) if words else 1.0
        own = {number: self._score(number, found, usual or 1.0) for number, found in words.items()}
        title = {id: self._title(split(text)) for id, text in titles.items()}
        scores: dict[int, float] = {}
        for number, score in own.items():
            place = self._places[number]
            there = self._sequence[place.conversation]
            near = sum(own.get(there.get(place.seq + step, -1), 0.0) for step in (-1, 1))
            around = _NEIGHBOUR * near + _CONTEXT * self._context[number]
            scores[number] = score + around + _TITLE * title.get(place.conversation, 0.0)
        return [(number, scores[number]) for number in self._in_order(scores)]

    def _score(self, number: int, words: list[str], usual: float) -> float:
        """Return bm25 of a message. A word that the index found beyond the part that is read counts once."""
        has = self._candidates.has[number]
        damping = _K1 * (1 - _B + _B * len(words) / usual)
        counts = self._count(words)
        score = 0.0
        for n, weight in enumerate(self._candidates.weights):
            count = counts[n] or (has >> n & 1) * (_WEAK if len(words) else 1.0)
            score += weight * count * (_K1 + 1) / (count + damping)
        return score

    def _count(self, words: list[str]) -> list[float]:
        """Return how often these words have each wanted one; a word that only begins so counts less."""
        text = " ".join(words)
        counts: list[float] = []
        for one in self._candidates.wanted:
            term = one.term
            if len(term.words) > 1:
                counts.append(float(f" {text} ".count(f" {' '.join(term.words)}{'' if term.prefix else ' '}")))
                continue
            begin = term.words[0]
            if begin not in text:
                counts.append(0.0)
                continue
            found = [word for word in words if word.startswith(begin)] if term.prefix else []
            same = sum(stem(word) == one.stem for word in found) if term.prefix else words.count(begin)
            counts.append(same + _WEAK * (len(found) - same if term.prefix else 0))
        return counts

    def _title(self, words: list[str]) -> float:
        return sum(w for w, count in zip(self._candidates.weights, self._count(words), strict=True) if count >= 1)


def _saturate(count: float, k1: float) -> float:
    return count * (k1 + 1) / (count + k1)

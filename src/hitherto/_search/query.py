"""The words of a text, and the query language.

The index must split a text into the same words as a question about it. SQLite's tokenizer alone does not do: its tables
of Unicode are old (it takes newer emoji for letters), and it knows nothing of scripts that are written without spaces.
So every text that is not plain ASCII is brought into a form in which nothing is left to decide: compatibility forms are
made plain (NFKC), case and the accents of Latin and Greek are gone, points of Hebrew and Arabic as well, everything
that is no part of a word is a space, and each character of Chinese, Japanese, Thai, Lao, Khmer, Burmese, Tibetan and
the like is a word of its own. A search for some of these in a row is then the search for a phrase, and finds them
wherever they stand. Korean has spaces, but its particles cling to the words: `학교*` finds 학교에서 too.

The language of questions is small. Words must all occur, in any order; `"a phrase"` in just this order; `begin*`
finds every word that begins so; `a OR b`, parentheses, and `-word`, `-"a phrase"` or `NOT word` to leave out. `AND`
may be written but need not. A word with something inside (`foo_bar`, `a/b.py`, `user@example.com`) is the phrase of its
parts. Any other text is searched for or ignored, never an error, so that people can paste text.

User input never becomes syntax of FTS5: every phrase is written again from its words, which consist of letters, digits
and marks alone, and is quoted.
"""

import re
import unicodedata
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from ..errors import InvalidQuery

MOST_CHARACTERS: Final = 2_000
MOST_TERMS: Final = 64
DEEPEST: Final = 20

# In a folded text every character beyond ASCII belongs to a word.
WORD_CHARACTERS: Final = "0-9a-z\x80-\U0010ffff"

_WORD = re.compile(f"[{WORD_CHARACTERS}]+")
# Normalising takes quadratic time in the length of a run of combining marks; no word has thirty in a row.
_HEAP = re.compile(r"([^\w\x00-\x7f]{30})[^\w\x00-\x7f]+")
_SPACELESS = re.compile(
    "["
    "\u0e00-\u0fff"  # Thai, Lao, Tibetan
    "\u1000-\u109f\u1780-\u17ff\u1950-\u19ff"  # Myanmar, Khmer, Tai Le, New Tai Lue
    "\u1a20-\u1aaf\u1b00-\u1b7f"  # Tai Tham, Balinese
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3031-\u3035\u303b"  # Han radicals and marks
    "\u3041-\u312f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"  # Kana, Bopomofo, Han
    "\ua000-\ua4cf\ua980-\ua9ff\uaa60-\uaadf\uf900-\ufaff"  # Yi, Javanese, Myanmar, Tai Viet, Han
    "\U00016fe0-\U00018dff\U0001aff0-\U0001b2ff\U00020000-\U0003ffff"  # Tangut, Khitan, Kana, Nüshu, Han
    "]"
)
_OVERLOOKED = re.compile(  # ignored inside a word
    "["
    "\u00ad\u0640\u0300-\u036f"  # soft hyphen, tatweel, accents that nothing could be composed with
    "\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7"  # Hebrew points
    "\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06dc\u06df-\u06e4\u06e7\u06e8\u06ea-\u06ed"  # Arabic vowels
    "\u180b-\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef"  # variation selectors, as after emoji
    "]"
)


class _Folding(dict[int, str]):
    """The folded form of each character, computed at its first use. The cache has a limit, because only an attack uses
    so many characters."""

    def __missing__(self, code: int) -> str:
        folded = _fold(chr(code))
        if len(self) < 50_000:
            self[code] = folded
        return folded


def _fold(character: str) -> str:
    if _OVERLOOKED.match(character):
        return ""
    kind = unicodedata.category(character)
    if kind[0] not in "LN" and kind not in ("Mn", "Mc", "Co"):
        return " "
    if _SPACELESS.match(character):
        return f" {character} "
    plain = character.casefold()
    bare = unicodedata.normalize("NFD", plain)
    if bare < "\u0400":  # Latin and Greek; in other scripts a letter with a mark is another letter
        plain = "".join(c for c in bare if not "\u0300" <= c <= "\u036f")
    return plain


_FOLDING = _Folding()


def words(text: str) -> str:
    """Return the text for the index: plain ASCII as it is, any other text in the form described above."""
    if text.isascii():
        return text.replace("\0", " ") if "\0" in text else text
    return unicodedata.normalize("NFKC", _HEAP.sub(r"\1 ", text)).translate(_FOLDING)


def fold(text: str) -> str:
    """Return the text as the index sees it: like `words`, and in lower case."""
    return text.lower() if text.isascii() else words(text)


def is_spaceless(word: str) -> bool:
    """Tell whether a word is a character of a script that is written without spaces."""
    return _SPACELESS.fullmatch(word) is not None


def split(text: str) -> list[str]:
    """Return the words of a text, in order, as the index sees them."""
    return _WORD.findall(fold(text))


class Term(Struct, frozen=True, gc=False):
    """Consecutive folded words; with `prefix`, the last one is only the beginning of a word."""

    words: tuple[str, ...]
    prefix: bool = False


class All(Struct, frozen=True):
    """All of `having`, and none of `without`."""

    having: tuple["Tree", ...]
    without: tuple["Tree", ...] = ()


class Either(Struct, frozen=True):
    """At least one of these."""

    parts: tuple["Tree", ...]


Tree = Term | All | Either


class Query(Struct, frozen=True):
    """A parsed query: the expression for FTS5, its wanted terms (without excluded ones), and the syntax tree."""

    expression: str
    terms: tuple[Term, ...]
    tree: Tree = Either(())

    @classmethod
    def of(cls, tree: Tree) -> "Query":
        """Return a syntax tree as a query."""
        return cls(_written(tree), tuple(dict.fromkeys(terms(tree, wanted=True))), tree)


def terms(tree: Tree, *, wanted: bool) -> Iterator[Term]:
    """Yield the terms of a tree; with `wanted`, without those to leave out."""
    if isinstance(tree, Term):
        yield tree
        return
    left_out = () if wanted or isinstance(tree, Either) else tree.without
    for part in (*(tree.parts if isinstance(tree, Either) else tree.having), *left_out):
        yield from terms(part, wanted=wanted)


def parse(text: str) -> Query:
    """Parse a query, or raise `InvalidQuery`.

    >>> parse('big "red dog" OR cat* -mouse').expression
    '("big" AND "red dog") OR ("cat" * NOT "mouse")'
    """
    _check(text)
    tokens = _tokens(unicodedata.normalize("NFKC", _HEAP.sub(r"\1 ", _CONTROL.sub(" ", text))))
    count = sum(isinstance(token, Term) for token in tokens)
    if count > MOST_TERMS:
        raise InvalidQuery(f"the query has {count} terms; the limit is {MOST_TERMS}")
    if not tokens:
        raise InvalidQuery("there is no word to look for in the query")
    return _Reader(tokens).read()


def parse_loosely(text: str) -> Query:
    """Parse a query, or take a text that is none for its words: any of them. Raises `InvalidQuery` if there is no word.

    >>> parse_loosely('the "red dog').terms
    (Term(words=('the',), prefix=False), Term(words=('red',), prefix=False), Term(words=('dog',), prefix=False))
    """
    _check(text)
    try:
        return parse(text)
    except InvalidQuery:  # a quotation mark that is not closed, too many words, and the like
        found = [tuple(split(piece)) for piece in _CONTROL.sub(" ", text).split()]
        if not any(found):
            raise
        return Query.of(Either(tuple(Term(words) for words in dict.fromkeys(found) if words)))


def _check(text: str) -> None:
    if not isinstance(text, str):
        raise InvalidQuery(f"a query is a str, not a {type(text).__name__}")
    if len(text) > MOST_CHARACTERS:
        raise InvalidQuery(f"the query has {len(text):,} characters; the limit is {MOST_CHARACTERS:,}")
    if _SURROGATE.search(text):
        raise InvalidQuery("the query has half a character in it (a lone surrogate)")


_SURROGATE = re.compile("[\ud800-\udfff]")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_SPACE = re.compile(r"\s+")
_OPERATOR = re.compile(r"(AND|OR|NOT)(?=[\s()\"]|$)")
_EXCLUDE = re.compile(r"-(?=[^\s)-])")  # but `--verbose` and `a - b` exclude nothing
_PHRASE = re.compile(r'"([^"]*)"(\*?)')
_STOP = re.compile(r'[\s"()]')

_Token = Term | str


def _tokens(text: str) -> list[_Token]:
    """Return parentheses, operators (a minus is "NOT") and terms. Text without a word is left out."""
    tokens: list[_Token] = []
    at = 0
    after_minus = False
    while at < len(text):
        if space := _SPACE.match(text, at):
            at = space.end()
        elif text[at] in "()":
            tokens.append(text[at])
            at += 1
        elif not after_minus and (operator := _OPERATOR.match(text, at)):
            tokens.append(operator[1])
            at = operator.end()
        elif not after_minus and (minus := _EXCLUDE.match(text, at)):
            at = minus.end()
            after_minus = True
            tokens.append("NOT")
            continue
        else:
            end, inside, prefix = _term(text, at)
            found = split(text[at:end] if inside is None else inside)
            if found:
                tokens.append(Term(tuple(found), prefix))
            elif after_minus:
                tokens.pop()
            at = end
        after_minus = False
    return tokens


def _term(text: str, at: int) -> tuple[int, str | None, bool]:
    """Return the end of the term that begins here, the text inside its quotes, and whether a star follows."""
    if text[at] == '"':
        phrase = _PHRASE.match(text, at)
        if phrase is None:
            raise InvalidQuery("a quotation mark is not closed")
        return phrase.end(), phrase[1], phrase[2] == "*"
    end = at
    opened = 0  # parentheses inside the word, as in print(x)
    while stop := _STOP.search(text, end):
        end = stop.start()
        if stop[0] == "(":
            opened += 1
        elif stop[0] == ")" and opened:
            opened -= 1
        else:
            break
        end += 1
    else:
        end = len(text)
    return end, None, text[end - 1] == "*"


class _Reader:
    """Reads tokens by recursive descent: alternatives of conjunctions of terms and groups."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._terms: list[Term] = []

    def read(self) -> Query:
        tree = self._alternatives(0, wanted=True)
        if self._peek() is not None:
            raise InvalidQuery("a parenthesis is closed that was not opened")
        return Query(_written(tree), tuple(dict.fromkeys(self._terms)), tree)

    def _peek(self) -> _Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _alternatives(self, depth: int, *, wanted: bool) -> Tree:
        if depth > DEEPEST:
            raise InvalidQuery(f"parentheses are nested more than {DEEPEST} deep")
        found = [self._conjunction(depth, wanted=wanted)]
        while self._peek() == "OR":
            self._at += 1
            found.append(self._conjunction(depth, wanted=wanted))
        parts = _different(found)
        return parts[0] if len(parts) == 1 else Either(parts)

    def _conjunction(self, depth: int, *, wanted: bool) -> Tree:
        having: list[Tree] = []
        without: list[Tree] = []
        needed = True  # an operand must come
        while True:
            token = self._peek()
            if token is None or token in (")", "OR"):
                break
            if token == "AND":
                if needed:
                    raise InvalidQuery("AND needs something on both sides")
                self._at += 1
                needed = True
                continue
            if token == "NOT":
                self._at += 1
                without.append(self._operand(depth, wanted=False))
            else:
                having.append(self._operand(depth, wanted=wanted))
            needed = False
        if needed:
            raise InvalidQuery("something is missing beside AND, OR or a parenthesis")
        if not having:
            raise InvalidQuery("the query only says what to leave out", hint="add a word that must occur")
        kept = All(_different(having), _different(without))
        return kept.having[0] if len(kept.having) == 1 and not without else kept

    def _operand(self, depth: int, *, wanted: bool) -> Tree:
        token = self._peek()
        self._at += 1
        if isinstance(token, Term):
            if wanted:
                self._terms.append(token)
            return token
        if token != "(":
            raise InvalidQuery("NOT needs something to leave out")
        found = self._alternatives(depth + 1, wanted=wanted)
        if self._peek() != ")":
            raise InvalidQuery("a parenthesis is not closed")
        self._at += 1
        return found


def _different(parts: list[Tree]) -> tuple[Tree, ...]:
    return tuple(dict.fromkeys(parts))  # duplicates cost time and change nothing


def _written(tree: Tree) -> str:
    """Return a tree as an expression for FTS5."""
    if isinstance(tree, Term):
        return f'"{" ".join(tree.words)}"{" *" if tree.prefix else ""}'
    if isinstance(tree, Either):
        return _join(tree.parts, "OR")
    kept = _join(tree.having, "AND")
    if not tree.without:
        return kept
    kept = _inside(tree.having[0]) if len(tree.having) == 1 else f"({kept})"
    away = _inside(tree.without[0]) if len(tree.without) == 1 else f"({_join(tree.without, 'OR')})"
    return f"{kept} NOT {away}"


def _join(parts: tuple[Tree, ...], operator: str) -> str:
    return f" {operator} ".join(map(_inside, parts))


def _inside(tree: Tree) -> str:
    return _written(tree) if isinstance(tree, Term) else f"({_written(tree)})"

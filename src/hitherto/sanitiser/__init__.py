"""The sanitiser: it replaces secrets and personal data in a text by markers, before the text is kept.

    Sanitiser.secrets().clean("token=ghp_…").text    # token=[redacted:github-token]

Rules (`rules`) describe the secrets. They are data, and can be added and removed. Patterns run in RE2, and the code
around them is linear too, so no text makes them slow. A pattern runs only if the text has one of its keywords; one pass
searches all keywords of all rules.

A text is cleaned in **stretches** of at most `WINDOW` characters. A stretch ends where no secret can continue: after a
line whose end does not announce a value (as `token:` does), or after three plain words. No match crosses such an end,
so the result does not depend on how a text arrives: a stream that is fed character by character returns the same as
`clean`, which is a stream that is fed once. The text behind the last end is held back until more arrives. A stretch
without any end is cut at the last separator, at worst within a word of thousands of characters.

A value that was found once is removed everywhere in the same text: one line may name a token, and the next may hold it
without the name. Only `clean` does that, because it sees the whole text; a stream removes the matches of its rules.

A private key is a block: everything from its first line to its last is removed, however long it is. If the last line is
missing, everything is removed that looks like a key. A marker is never cleaned again, and one marker stands for all
findings that overlap.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from hashlib import blake2b

from msgspec import Struct
from msgspec.structs import replace

from ..errors import InvalidArgument
from . import rules as _rules
from .plausibility import is_no_word
from .rule_engine import Engine, Span, escape_re2
from .rules import Rule

__all__ = ["Cleaned", "Finding", "Rule", "Sanitiser", "Stream"]

WINDOW = 16_384  # characters that a stream holds back at most, apart from the current piece
_SLACK = 128  # characters behind the window: they keep the first line of a key in one piece

_ROUNDS = 6  # after which cleaning stops, even if every round finds more


# The ends of stretches. A line is open if it ends like the left side of an assignment, names the value of the next
# line, or is an item of a list; no rule needs more. Words are plain if they consist of letters and do not name a
# secret. The last of three plain words belongs to the next stretch, which else would look like the start of a line.
_OPEN = re.compile(
    r"[=:>\uff1a\uff1d](?:\*\*)?[ \t\u00a0\u3000]*(?:[|>][+-]?|\[)?\Z"
    r"|(?i:(?:name|key|variable)[\"']?(?:[ \t]*[:=][ \t]*|[ \t])[\"']?[\w.-]+[\"']?[ \t]*[,;{]?\Z)"
    r"|(?i:(?:type|sensitive|nullable)[ \t]*=[ \t]*\w+\Z)"
)
_WORD = r"[^ \t\n\f\r\"'`,\[\](){}<>]+"
_ITEM = re.compile(rf"[ \t]*(?:-[ \t]+[\"']?{_WORD}[\"']?|[\"'`]{_WORD}[\"'`],)")
_TELLING = (
    "key|token|secret|pass|pw|psk|salt|cred|auth|login|user|bear|basic|private|client|access|hook|value|name|variable"
    "|default|kennwort|wachtwoord|contrase|senha|cookie"
)
_PLAIN_WORD = rf"(?!\w*(?i:{_TELLING}))[^\W\d_]{{1,30}}[,.;!?)]?[ ]"
_PLAIN = re.compile(rf"(?<!\S)(?:{_PLAIN_WORD}){{2}}(?={_PLAIN_WORD})")
_REACH = 100  # characters: three plain words are shorter

_LAST_LINE = re.compile(
    r"-----END (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----|---- END (?:[A-Z0-9]+ ){0,3}PRIVATE KEY ----"
)
_KEY_FOLLOWS = re.compile(  # behind a real first line, not a mention of one; the whole key may stand in one line
    r"[ \t\r]{0,40}(?:\n|\\r|\\n|\Z|[A-Za-z0-9+/=]{24}|(?:Proc-Type|DEK-Info|Version|Comment): )"
)
_LINE = re.compile(r"(?:(?!\\[nr])[^\n])*(?:\n|(?:\\r)?\\n|\\r|\Z)")
_OF_A_KEY = re.compile(r"[\s\"'`+,\\>|]*(?:[A-Za-z0-9+/=]*|[A-Za-z-]+: [^\n]*?|-----[A-Z ]*-----)[\s\"'`+,;)\\nr]*")

# The rest of a secret that was cut in two.
_REST_OF_SECRET = re.compile(r"[0-9A-Za-z_+/=~%-]*(?:\.+[0-9A-Za-z_+/=~%-]+)*")

_SHORTEST, _LONGEST = 6, 1_000  # characters of a value that is searched again
_TELLING_LENGTH = 16  # characters of a value that cannot be a part of a word by chance
_MOST_VALUES = 1_000  # of one text that are searched again, the longest first

_PROCESS_KEY = os.urandom(32)


class Finding(Struct, frozen=True):
    """The rule and the position of a value that was removed. The value itself is not kept."""

    rule: str
    family: str
    start: int  # in the original text
    end: int
    marker: str
    hash: str  # a keyed hash of the value: equal values have equal hashes
    secret: bool = True  # False: personal data


class Cleaned(Struct, frozen=True):
    """A text with markers, and the findings that they stand for."""

    text: str
    findings: tuple[Finding, ...] = ()

    @property
    def contains_secrets(self) -> bool:
        """Was one of the findings a secret, rather than personal data?"""
        return any(finding.secret for finding in self.findings)


class _Cleaner:
    """Rules and a key for hashes: the part that a sanitiser shares with its streams."""

    __slots__ = ("engine", "key")

    def __init__(self, engine: Engine, key: bytes) -> None:
        self.engine = engine
        self.key = key

    def clean_stretch(self, text: str, at: int) -> Cleaned:
        """Clean a stretch, which begins at this position of the whole text."""
        spans = more = self.engine.find(text)
        if not spans:
            return Cleaned(text)
        for _ in range(_ROUNDS):  # a marker is another neighbour than the value that it replaces
            clean = _insert_markers(text, spans)
            if not (more := self.engine.find(clean)):
                break
            spans = sorted([*spans, *_shift_back(more, spans)], key=lambda span: span[0])
        findings = tuple(self.finding(rule, at + start, at + end, text[start:end]) for start, end, rule in spans)
        return Cleaned(_insert_markers(text, spans), findings)

    def finding(self, rule: Rule, start: int, end: int, value: str) -> Finding:
        return Finding(rule.name, rule.family, start, end, _marker(rule), self.hash(value).hexdigest(), rule.secret)

    def hash(self, value: str) -> blake2b:
        return blake2b(value.encode("utf-8", "surrogatepass"), key=self.key, digest_size=8)


class Sanitiser:
    """Replaces the matches of its rules by markers."""

    __slots__ = ("_cleaner",)

    def __init__(self, rules: Iterable[Rule], *, key: bytes | None = None) -> None:
        if not isinstance(rules, Iterable):
            raise InvalidArgument(
                "a sanitiser is made of rules, several of them",
                hint="Sanitiser(Sanitiser.secrets().rules) has the built-in ones",
            )
        self._cleaner = _Cleaner(Engine(tuple(rules)), _hash_key(key))

    @classmethod
    def secrets(cls) -> "Sanitiser":
        """A sanitiser for keys, tokens and passwords."""
        return _make_built_in(_rules.SECRETS)

    @classmethod
    def personal(cls) -> "Sanitiser":
        """A sanitiser for e-mail addresses, phone and card numbers, IBANs and IP addresses."""
        return _make_built_in(_rules.PERSONAL)

    @classmethod
    def everything(cls) -> "Sanitiser":
        """A sanitiser for both."""
        return _make_built_in((*_rules.SECRETS, *_rules.PERSONAL))

    @property
    def rules(self) -> tuple[Rule, ...]:
        return self._cleaner.engine.rules

    def adding(self, *rules: Rule) -> "Sanitiser":
        """A sanitiser with these rules, too."""
        return self._with(Engine((*self.rules, *rules)))

    def without(self, *names: str) -> "Sanitiser":
        """A sanitiser without these rules."""
        if not all(isinstance(name, str) for name in names):
            raise InvalidArgument("rules are named by texts, one by one", hint="sanitiser.without('email', 'phone')")
        if unknown := set(names) - {rule.name for rule in self.rules}:
            raise InvalidArgument(f"no such rule: {', '.join(sorted(ascii(n)[:60] for n in unknown))}")
        return self._with(Engine(tuple(rule for rule in self.rules if rule.name not in names)))

    def keyed(self, key: bytes) -> "Sanitiser":
        """A sanitiser with the same rules, whose hashes use this key. Processes with the same key can compare
        hashes."""
        return self._with(self._cleaner.engine, key)

    def _with(self, engine: Engine, key: bytes | None = None) -> "Sanitiser":
        other = Sanitiser.__new__(Sanitiser)
        other._cleaner = _Cleaner(engine, self._cleaner.key if key is None else _hash_key(key))
        return other

    def clean(self, text: str, *, name: str = "", complete: bool = True) -> Cleaned:
        """The text with markers. `name` is the name of the field that holds it, as in `{"password": "…"}`. With
        `complete=False` more text may follow: an end that could be the beginning of a secret is left out."""
        if not isinstance(text, str):
            raise InvalidArgument(f"only a text can be cleaned, not {type(text).__name__}")
        if not text:
            return Cleaned(text)
        if name and (named := self._clean_named(text, name, complete)):
            return named
        return self._remove_repeats(text, self._apply_rules(text, complete), complete)

    def _apply_rules(self, text: str, complete: bool) -> Cleaned:
        """Replace the matches of the rules, without a search for repeated values."""
        if complete and len(text) <= WINDOW and not self._cleaner.engine.block(text):
            return self._cleaner.clean_stretch(text, 0)  # a stream would do the same
        stream = Stream(self)
        out = stream.feed(text)
        return Cleaned(out + stream.finish() if complete else out, tuple(stream.findings))

    def _remove_repeats(self, text: str, cleaned: Cleaned, complete: bool) -> Cleaned:
        """Replace the other occurrences of the values that were found. Each round applies the rules again, because a
        new marker is another neighbour for the text beside it, and may lead to new matches."""
        for _ in range(_ROUNDS):
            values = values_in(text, cleaned.findings)
            more = _literal_engine(values).find(cleaned.text) if values else []
            if not more:
                break
            cleaned = self._with_more(text, cleaned, more)
            if complete:
                shown = self._apply_rules(cleaned.text, complete).findings
                cleaned = self._with_more(text, cleaned, self._spans(shown))
        return cleaned

    def _with_more(self, text: str, cleaned: Cleaned, more: list[Span]) -> Cleaned:
        """Replace these spans of the cleaned text as well."""
        before = self._spans(cleaned.findings)
        end = len(cleaned.text) + sum(stop - start - len(_marker(rule)) for start, stop, rule in before)
        again = list(_shift_back(more, before))
        spans = sorted([*before, *again], key=lambda span: span[0])
        findings = [self._cleaner.finding(rule, start, stop, text[start:stop]) for start, stop, rule in again]
        in_order = sorted([*cleaned.findings, *findings], key=lambda one: one.start)
        return Cleaned(_insert_markers(text[:end], spans), tuple(in_order))

    def _spans(self, findings: Iterable[Finding]) -> list[Span]:
        rules = {rule.name: rule for rule in self.rules}
        return sorted(((one.start, one.end, rules[one.rule]) for one in findings), key=lambda span: span[0])

    def searching(self, values: Mapping[str, Rule]) -> "Sanitiser":
        """A sanitiser that searches exactly these values, each under the name of its rule."""
        return self._with(_literal_engine(values))

    def _clean_named(self, text: str, name: str, complete: bool) -> Cleaned | None:
        """Replace the whole value if its name alone makes it a secret. None if it does not."""
        left, engine = f'{name}="', self._cleaner.engine
        if len(name) > 256 or not engine.may_match(left):
            return None
        if not complete:  # only the name is complete
            return Cleaned("") if any(start == len(left) for start, _, _ in engine.find(left + _UNKNOWN)) else None
        found = [rule for start, _, rule in engine.find(left + text[:WINDOW]) if start == len(left)]
        return Cleaned(_marker(found[0]), (self._cleaner.finding(found[0], 0, len(text), text),)) if found else None

    def stream(self) -> "Stream":
        """A stream for a text that arrives in pieces."""
        return Stream(self)


def values_in(text: str, findings: Iterable[Finding], at: int = 0) -> dict[str, Rule]:
    """The secrets among the findings that are searched again elsewhere, each with a rule that has the name and the
    family of the finding.

    They must be long enough, and no plain words, which may stand elsewhere with another meaning. Personal data is left
    out: its rules find it everywhere. `at` is the position of the text in the original text of the findings.
    """
    return {
        value: Rule(one.rule, one.family, "")
        for one in findings
        if one.secret
        and _SHORTEST <= len(value := text[one.start - at : one.end - at]) <= _LONGEST
        and is_no_word(value)
    }


@lru_cache(64)
def _compile_literals(values: tuple[tuple[str, Rule], ...]) -> Engine:
    """An engine that finds these values. A short value may be a part of a word by chance, so it has to stand alone."""
    patterns: dict[Rule, list[str]] = {}
    for value, rule in values:
        literal = escape_re2(value)
        if len(value) < _TELLING_LENGTH:
            before = r"\b" if value[0].isascii() and (value[0].isalnum() or value[0] == "_") else ""
            after = r"\b" if value[-1].isascii() and (value[-1].isalnum() or value[-1] == "_") else ""
            literal = f"{before}{literal}{after}"
        patterns.setdefault(rule, []).append(literal)
    return Engine(tuple(replace(rule, pattern=f"({'|'.join(found)})", group=1) for rule, found in patterns.items()))


def _literal_engine(values: Mapping[str, Rule]) -> Engine:
    return _compile_literals(tuple(sorted(values.items(), key=lambda pair: (-len(pair[0]), pair[0]))[:_MOST_VALUES]))


_UNKNOWN = "q7Zt2Lw9XkV4b8RmJ5cY"  # stands for a value that has not arrived yet


def _marker(rule: Rule) -> str:
    return f"[redacted:{rule.name}]"


def _insert_markers(text: str, spans: list[Span]) -> str:
    pieces, done = list[str](), 0
    for start, end, rule in spans:
        pieces += (text[done:start], _marker(rule))
        done = end
    return "".join(pieces) + text[done:]


def _shift_back(later: list[Span], spans: list[Span]) -> Iterator[Span]:
    """Convert spans of a text with markers into spans of the text before. `spans` are the places of the markers in that
    text. Both lists are in order."""
    shift, rest = 0, list(reversed(spans))
    for start, end, rule in later:
        while rest and rest[-1][0] - shift <= start:
            first, last, other = rest.pop()
            shift += last - first - len(_marker(other))
        yield start + shift, end + shift, rule


def _hash_key(key: bytes | None) -> bytes:
    if key is not None and (not isinstance(key, bytes) or not key):
        raise InvalidArgument("the key of a sanitiser is bytes, and not none of them")
    return _PROCESS_KEY if key is None else blake2b(key, digest_size=32, person=b"sanitiser").digest()


@cache
def _make_built_in(rules: tuple[Rule, ...]) -> Sanitiser:
    return Sanitiser(rules)


class Stream:
    """Cleans a text that arrives in pieces.

    The results of `feed` and `finish` together equal those of the rules for the whole text, however it was cut. Little
    more than `WINDOW` characters are held back.
    """

    def __init__(self, sanitiser: Sanitiser) -> None:
        self.findings: list[Finding] = []
        self.values: dict[str, Rule] = {}  # to search elsewhere: see `values_in`
        self._cleaner = sanitiser._cleaner
        self._held, self._from = "", 0  # the text that is held, and how much of it is done
        self._at = 0  # the position of the rest in the whole text
        self._seen = 0  # characters of the rest that are known to have no end of a stretch
        self._key: _Key | None = None  # the private key that is not finished
        self._open: blake2b | None = None  # the hash of the last secret, if the stretch was cut inside it

    def feed(self, piece: str) -> str:
        """Add a piece. Returns the text that is clean by now."""
        self._held = self._held[self._from :] + piece
        self._from = 0
        return "".join(self._drain(final=False))

    def finish(self) -> str:
        """End the text. Returns the clean text that was held back."""
        out = "".join(self._drain(final=True))
        if self._key:
            self._leave("")
        return out

    def _drain(self, *, final: bool) -> Iterator[str]:
        while self._from < len(self._held):
            window = self._held[self._from : self._from + WINDOW + _SLACK]
            last = final and self._from + len(window) == len(self._held)
            out = self._take_key(window, last) if self._key else self._take(window, last)
            if out is None:
                return
            yield out

    def _take(self, window: str, last: bool) -> str | None:
        """Clean the next stretch, or enter a private key. None if that needs more text."""
        first = self._cleaner.engine.block(window)
        if first and first[0] == 0:
            return self._enter(window, first, last)
        end = first[0] if first and first[0] <= WINDOW else self._cut(window, last)
        return self._clean_next(window[:end]) if end else None

    def _advance(self, count: int) -> None:
        self._from += count
        self._at += count
        self._seen = 0

    def _clean_next(self, text: str) -> str:
        """Clean a stretch. If the stretch before was cut inside a secret, this one begins with its rest."""
        rest = self._rest(text) if self._open else 0
        cleaned = self._cleaner.clean_stretch(text[rest:], self._at + rest)
        self.findings += cleaned.findings
        self.values |= values_in(text, cleaned.findings, self._at)
        last = cleaned.findings[-1] if cleaned.findings else None
        if last and last.end == self._at + len(text):
            self._open = self._cleaner.hash(text[last.start - self._at :])
        elif rest < len(text):
            self._open = None
        self._advance(len(text))
        return cleaned.text

    def _rest(self, text: str) -> int:
        """Extend the last finding by the rest of its secret. Returns the length of that rest."""
        assert self._open is not None
        end = _REST_OF_SECRET.match(text).end()  # type: ignore[union-attr]  # it matches always
        self._open.update(text[:end].encode("utf-8", "surrogatepass"))
        self.findings[-1] = replace(self.findings[-1], end=self._at + end, hash=self._open.hexdigest())
        return end

    def _cut(self, window: str, last: bool) -> int:
        """The end of the next stretch; 0 if that needs more text."""
        size = len(window)
        if last and size <= WINDOW:
            return size
        limit, full = min(size, WINDOW), last or size == WINDOW + _SLACK
        end = _find_end(window, max(0, self._seen - _REACH), limit)
        self._seen = limit
        return end or (_find_emergency_cut(window) if full else 0)

    # -- private keys

    def _enter(self, window: str, first: Span, last: bool) -> str | None:
        """The output for the first line of a private key. None if that needs more text."""
        _, end, rule = first
        self._open = None
        if len(window) - end < _SLACK and not last and len(window) < WINDOW:
            return None
        if not _KEY_FOLLOWS.match(window, end):
            self._advance(end)  # a mention of a key, not a key
            return window[:end]
        self._key = _Key(rule, self._at)
        return _marker(rule)

    def _take_key(self, window: str, last: bool) -> str | None:
        """Remove more of a private key. None if that needs more text."""
        assert self._key is not None
        window, full = window[:WINDOW], len(window) > WINDOW
        if found := _LAST_LINE.search(window):
            return self._leave(window[: found.end()])
        if not last and not full:
            return None
        end = _measure_key(window, first=not self._key.text)
        if end < len(window):
            return self._leave(window[:end])
        self._key.text += window
        self._advance(end)
        return ""

    def _leave(self, rest: str) -> str:
        assert self._key is not None
        self._advance(len(rest))
        value = self._key.text + rest
        self.findings.append(self._cleaner.finding(self._key.rule, self._key.start, self._at, value))
        self._key = None
        return ""


class _Key(Struct):
    """A private key that is being removed."""

    rule: Rule
    start: int
    text: str = ""


def _find_end(text: str, start: int, end: int) -> int:
    """The last end of a stretch between two positions; 0 if there is none."""
    at = text.rfind("\n", start, end)
    while at >= 0 and _is_open(text, at):
        at = text.rfind("\n", start, at)
    if at >= 0 or text.find(" ", start, end) < 0:
        return at + 1
    return max((found.end() for found in _PLAIN.finditer(text, start, end)), default=0)


def _is_open(text: str, end: int) -> bool:
    """May the value of the line that ends here continue in the next line?"""
    line = text[text.rfind("\n", 0, end) + 1 : end].rstrip(" \t\r\u00a0\u3000")
    return _OPEN.search(line, max(0, len(line) - 200)) is not None or _ITEM.fullmatch(line) is not None


def _find_emergency_cut(text: str) -> int:
    """The position where a stretch without any end is cut."""
    for separators in (",\n", " ;&}"):
        if at := max(text.rfind(c, WINDOW // 2, WINDOW) for c in separators) + 1:
            return at
    return WINDOW


def _measure_key(text: str, first: bool) -> int:
    """The length of the text that looks like a private key without a last line. If the text begins with the first line
    of the key, the next line always belongs to the key."""
    at, number = 0, 0 if first else 2
    while at < len(text):
        line = _LINE.match(text, at)
        assert line is not None
        if number > 1 and not _OF_A_KEY.fullmatch(line[0]):
            break
        at, number = max(line.end(), at + 1), number + 1
    return at

"""The sanitiser: takes secrets and personal data out of a text before it is kept, and leaves a marker.

    Sanitiser.secrets().clean("token=ghp_…").text    # token=[redacted:github-token]

What is looked for are rules (`rules`): data, to be added to and taken from. Patterns run in RE2, so no text makes them
slow; what surrounds them is linear too. Before a pattern runs, one of its keywords has to be there, and all keywords of
all rules are looked for in one pass.

A text is cleaned in **stretches** of at most `WINDOW` characters. A stretch ends where no secret can go on: after a
line whose end does not promise a value (as `token:` does), or after three plain words. Nothing is matched across such
an end, so it does not matter how a text arrives: a stream that is fed it character by character gives what `clean`
gives for the whole, because `clean` is a stream that is fed once. What lies behind the last such end is held back until
more comes. A stretch without any end is cut at the last separator, at worst within a word of thousands of characters.

A value that was recognised once is taken out wherever else it stands in the same text: a token is known by its name in
one line and pasted without it into the next. Only `clean` does that, which sees the whole text; a stream takes out what
its rules find.

A private key is a block: from its first line to its last nothing comes out, however long it is; where the last line is
missing, nothing that looks like a key. A marker is never cleaned again, and where findings overlap, one marker stands
for all of them.
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
from .rule_engine import Engine, Span, re2_escaped
from .rules import Rule

__all__ = ["Cleaned", "Finding", "Rule", "Sanitiser", "Stream"]

WINDOW = 16_384  # characters that a stream holds back at most, apart from the piece that it is given
_SLACK = 128  # so much more is seen before a stretch without an end is cut: a first line of a key is not cut in two

_ROUNDS = 6  # after which a text that always shows more is left as it is


# Where nothing can go on. A line is open if it ends like the left side of an assignment, names what the next one may
# hold, or is an item of a list: more lines than any rule goes beyond. Words are plain if they are made of letters alone
# and do not name a secret; the last of three is left to what follows, which else would look like the start of a line.
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
_IN_EARNEST = re.compile(  # behind a first line that is not only named; the whole key may stand in one line
    r"[ \t\r]{0,40}(?:\n|\\r|\\n|\Z|[A-Za-z0-9+/=]{24}|(?:Proc-Type|DEK-Info|Version|Comment): )"
)
_LINE = re.compile(r"(?:(?!\\[nr])[^\n])*(?:\n|(?:\\r)?\\n|\\r|\Z)")
_OF_A_KEY = re.compile(r"[\s\"'`+,\\>|]*(?:[A-Za-z0-9+/=]*|[A-Za-z-]+: [^\n]*?|-----[A-Z ]*-----)[\s\"'`+,;)\\nr]*")

_GOES_FAR = re.compile(r"[0-9A-Za-z_+/=~%-]*(?:\.+[0-9A-Za-z_+/=~%-]+)*")  # the rest of a secret that was cut

_SHORTEST, _LONGEST = 6, 1_000  # characters of a value that is looked for again
_TELLING_LENGTH = 16  # characters of a value that is not a part of a word by chance
_MOST_VALUES = 1_000  # of one text that are looked for again, the longest first

_PROCESS_KEY = os.urandom(32)


class Finding(Struct, frozen=True):
    """Something that was taken out, and where it was. What it was is not kept."""

    rule: str
    family: str
    start: int  # in the text that was given
    end: int
    marker: str
    hash: str  # of what was there, keyed: the same value has the same one
    secret: bool = True  # False: personal data


class Cleaned(Struct, frozen=True):
    """A text without what was found in it."""

    text: str
    findings: tuple[Finding, ...] = ()

    @property
    def contains_secrets(self) -> bool:
        """Was one of the findings a secret, rather than personal data?"""
        return any(finding.secret for finding in self.findings)


class Sanitiser:
    """Finds what the rules describe, and puts a marker in its place."""

    __slots__ = ("_engine", "_key")

    def __init__(self, rules: Iterable[Rule], *, key: bytes | None = None) -> None:
        self._engine = Engine(tuple(rules))
        self._key = _hash_key(key)

    @classmethod
    def secrets(cls) -> "Sanitiser":
        """Keys, tokens, passwords: what opens something."""
        return _built_in(_rules.SECRETS)

    @classmethod
    def personal(cls) -> "Sanitiser":
        """E-mail addresses, phone and card numbers, IBANs, IP addresses."""
        return _built_in(_rules.PERSONAL)

    @classmethod
    def everything(cls) -> "Sanitiser":
        """Both."""
        return _built_in((*_rules.SECRETS, *_rules.PERSONAL))

    @property
    def rules(self) -> tuple[Rule, ...]:
        return self._engine.rules

    def adding(self, *rules: Rule) -> "Sanitiser":
        """A sanitiser that looks for these, too."""
        return self._with(Engine((*self.rules, *rules)))

    def without(self, *names: str) -> "Sanitiser":
        """A sanitiser that does not look for these."""
        if not all(isinstance(name, str) for name in names):
            raise InvalidArgument("rules are named by texts, one by one", hint="sanitiser.without('email', 'phone')")
        if unknown := set(names) - {rule.name for rule in self.rules}:
            raise InvalidArgument(f"no such rule: {', '.join(sorted(ascii(n)[:60] for n in unknown))}")
        return self._with(Engine(tuple(rule for rule in self.rules if rule.name not in names)))

    def keyed(self, key: bytes) -> "Sanitiser":
        """The same rules; hashes under this key, so that they can be compared with those of another process."""
        return self._with(self._engine, key)

    def _with(self, engine: Engine, key: bytes | None = None) -> "Sanitiser":
        other = Sanitiser.__new__(Sanitiser)
        other._engine, other._key = engine, self._key if key is None else _hash_key(key)
        return other

    def clean(self, text: str, *, name: str = "", complete: bool = True) -> Cleaned:
        """The text, with markers. `name` is what it is called where it comes from: `{"password": "…"}`. With
        `complete=False` more may follow: what could be the beginning of a secret is left out."""
        if not isinstance(text, str):
            raise InvalidArgument(f"only a text can be cleaned, not {type(text).__name__}")
        if not text:
            return Cleaned(text)
        if name and (named := self._named(text, name, complete)):
            return named
        return self._without_repeats(text, self._once(text, complete), complete)

    def _once(self, text: str, complete: bool) -> Cleaned:
        """The text without what the rules find in it."""
        if complete and len(text) <= WINDOW and not self._engine.block(text):
            return self._stretch(text, 0)  # which is what a stream would do
        stream = Stream(self)
        out = stream.feed(text)
        return Cleaned(out + stream.finish() if complete else out, tuple(stream.findings))

    def _without_repeats(self, text: str, cleaned: Cleaned, complete: bool) -> Cleaned:
        """The same without the places where a recognised value stands again. What a new marker shows is taken out in
        turn: it is another neighbour than what it stands for."""
        for _ in range(_ROUNDS):
            values = values_in(text, cleaned.findings)
            more = _literal_engine(values).find(cleaned.text) if values else []
            if not more:
                break
            cleaned = self._with_more(text, cleaned, more)
            if complete:
                shown = self._once(cleaned.text, complete).findings
                cleaned = self._with_more(text, cleaned, self._spans(shown))
        return cleaned

    def _with_more(self, text: str, cleaned: Cleaned, more: list[Span]) -> Cleaned:
        """The cleaned text without these places in it as well."""
        before = self._spans(cleaned.findings)
        end = len(cleaned.text) + sum(stop - start - len(_marker(rule)) for start, stop, rule in before)
        again = list(_moved(more, before))
        spans = sorted([*before, *again], key=lambda span: span[0])
        findings = [self._finding(rule, start, stop, text[start:stop]) for start, stop, rule in again]
        in_order = sorted([*cleaned.findings, *findings], key=lambda one: one.start)
        return Cleaned(_replaced(text[:end], spans), tuple(in_order))

    def _spans(self, findings: Iterable[Finding]) -> list[Span]:
        rules = {rule.name: rule for rule in self.rules}
        return sorted(((one.start, one.end, rules[one.rule]) for one in findings), key=lambda span: span[0])

    def knowing(self, values: Mapping[str, Rule]) -> "Sanitiser":
        """A sanitiser that looks for these very values, each under the name of its rule."""
        return self._with(_literal_engine(values))

    def _named(self, text: str, name: str, complete: bool) -> Cleaned | None:
        """The value that stands under this name, if all of it is a secret for its name alone."""
        left = f'{name}="'
        if len(name) > 256 or not self._engine.worth_it(left):
            return None
        if not complete:  # only its name tells anything yet
            return Cleaned("") if any(s == len(left) for s, _, _ in self._engine.find(left + _UNKNOWN)) else None
        found = [rule for start, _, rule in self._engine.find(left + text[:WINDOW]) if start == len(left)]
        return Cleaned(_marker(found[0]), (self._finding(found[0], 0, len(text), text),)) if found else None

    def _stretch(self, text: str, at: int) -> Cleaned:
        """A stretch of a text, which begins at this place of it."""
        spans = more = self._engine.find(text)
        if not spans:
            return Cleaned(text)
        for _ in range(_ROUNDS):  # a marker is another neighbour than what it stands for
            clean = _replaced(text, spans)
            if not (more := self._engine.find(clean)):
                break
            spans = sorted([*spans, *_moved(more, spans)], key=lambda span: span[0])
        findings = tuple(self._finding(rule, at + start, at + end, text[start:end]) for start, end, rule in spans)
        return Cleaned(_replaced(text, spans), findings)

    def _finding(self, rule: Rule, start: int, end: int, value: str) -> Finding:
        return Finding(rule.name, rule.family, start, end, _marker(rule), self._hash(value).hexdigest(), rule.secret)

    def _hash(self, value: str) -> blake2b:
        return blake2b(value.encode("utf-8", "surrogatepass"), key=self._key, digest_size=8)

    def stream(self) -> "Stream":
        """For a text that comes in pieces."""
        return Stream(self)


def values_in(text: str, findings: Iterable[Finding], at: int = 0) -> dict[str, Rule]:
    """The secrets among the findings that are long enough to be recognised by themselves, each with a rule that has
    the name and the family of the finding: not plain words, which mean something else elsewhere. `at` is the place of
    the text in the one that the findings are of. Personal data is found wherever it stands, without this."""
    return {
        value: Rule(one.rule, one.family, "")
        for one in findings
        if one.secret
        and _SHORTEST <= len(value := text[one.start - at : one.end - at]) <= _LONGEST
        and is_no_word(value)
    }


@lru_cache(64)
def _literals(values: tuple[tuple[str, Rule], ...]) -> Engine:
    """Rules for values. A short one may be a part of a word by chance, so it has to stand alone."""
    patterns: dict[Rule, list[str]] = {}
    for value, rule in values:
        literal = re2_escaped(value)
        if len(value) < _TELLING_LENGTH:
            before = r"\b" if value[0].isascii() and (value[0].isalnum() or value[0] == "_") else ""
            after = r"\b" if value[-1].isascii() and (value[-1].isalnum() or value[-1] == "_") else ""
            literal = f"{before}{literal}{after}"
        patterns.setdefault(rule, []).append(literal)
    return Engine(tuple(replace(rule, pattern=f"({'|'.join(found)})", group=1) for rule, found in patterns.items()))


def _literal_engine(values: Mapping[str, Rule]) -> Engine:
    return _literals(tuple(sorted(values.items(), key=lambda pair: (-len(pair[0]), pair[0]))[:_MOST_VALUES]))


_UNKNOWN = "q7Zt2Lw9XkV4b8RmJ5cY"  # stands for a value that is not there yet


def _marker(rule: Rule) -> str:
    return f"[redacted:{rule.name}]"


def _replaced(text: str, spans: list[Span]) -> str:
    pieces, done = list[str](), 0
    for start, end, rule in spans:
        pieces += (text[done:start], _marker(rule))
        done = end
    return "".join(pieces) + text[done:]


def _moved(later: list[Span], spans: list[Span]) -> Iterator[Span]:
    """What was found in a text with markers for the spans, where it was before. Both are in order."""
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
def _built_in(rules: tuple[Rule, ...]) -> Sanitiser:
    return Sanitiser(rules)


class Stream:
    """A text that comes in pieces. What `feed` and `finish` give, one after the other, is what `clean` gives for the
    whole text, however it was cut. At most `WINDOW` characters, and a little, are held back."""

    def __init__(self, sanitiser: Sanitiser) -> None:
        self.findings: list[Finding] = []
        self.values: dict[str, Rule] = {}  # that were recognised: see `values_in`
        self._sanitiser, self._engine = sanitiser, sanitiser._engine
        self._held, self._from = "", 0  # what was given, and how much of it is done with
        self._at = 0  # where in the whole text the rest of it begins
        self._seen = 0  # so much of the rest has no end of a stretch
        self._key: _Key | None = None  # the private key that goes on
        self._open: blake2b | None = None  # of the last secret, if the stretch was cut inside of it

    def feed(self, piece: str) -> str:
        """What can come out now."""
        self._held = self._held[self._from :] + piece
        self._from = 0
        return "".join(self._drain(final=False))

    def finish(self) -> str:
        """What was held back."""
        out = "".join(self._drain(final=True))
        if self._key:
            self._leave("")
        return out

    def _drain(self, *, final: bool) -> Iterator[str]:
        while self._from < len(self._held):
            window = self._held[self._from : self._from + WINDOW + _SLACK]
            last = final and self._from + len(window) == len(self._held)
            out = self._swallow(window, last) if self._key else self._take(window, last)
            if out is None:
                return
            yield out

    def _take(self, window: str, last: bool) -> str | None:
        """Clean the next stretch, or enter a private key. None: that cannot be done yet."""
        first = self._engine.block(window)
        if first and first[0] == 0:
            return self._enter(window, first, last)
        end = first[0] if first and first[0] <= WINDOW else self._cut(window, last)
        return self._cleaned(window[:end]) if end else None

    def _advance(self, count: int) -> None:
        self._from += count
        self._at += count
        self._seen = 0

    def _cleaned(self, text: str) -> str:
        """A stretch, cleaned. If the one before was cut inside of a secret, this one begins with the rest of it."""
        rest = self._rest(text) if self._open else 0
        cleaned = self._sanitiser._stretch(text[rest:], self._at + rest)
        self.findings += cleaned.findings
        self.values |= values_in(text, cleaned.findings, self._at)
        last = cleaned.findings[-1] if cleaned.findings else None
        if last and last.end == self._at + len(text):
            self._open = self._sanitiser._hash(text[last.start - self._at :])
        elif rest < len(text):
            self._open = None
        self._advance(len(text))
        return cleaned.text

    def _rest(self, text: str) -> int:
        """How much of this text belongs to the last finding, which now ends behind it."""
        assert self._open is not None
        end = _GOES_FAR.match(text).end()  # type: ignore[union-attr]  # it matches always
        self._open.update(text[:end].encode("utf-8", "surrogatepass"))
        self.findings[-1] = replace(self.findings[-1], end=self._at + end, hash=self._open.hexdigest())
        return end

    def _cut(self, window: str, last: bool) -> int:
        """Where the next stretch ends; 0: that cannot be said yet."""
        size = len(window)
        if last and size <= WINDOW:
            return size
        limit, full = min(size, WINDOW), last or size == WINDOW + _SLACK
        end = _closed(window, max(0, self._seen - _REACH), limit)
        self._seen = limit
        return end or (_torn(window) if full else 0)

    # -- private keys

    def _enter(self, window: str, first: Span, last: bool) -> str | None:
        """At the first line of a private key: what comes out for it. None: that cannot be said yet."""
        _, end, rule = first
        self._open = None
        if len(window) - end < _SLACK and not last and len(window) < WINDOW:
            return None
        if not _IN_EARNEST.match(window, end):
            self._advance(end)  # it is only named
            return window[:end]
        self._key = _Key(rule, self._at)
        return _marker(rule)

    def _swallow(self, window: str, last: bool) -> str | None:
        """Take more of a private key out. None: there is more to come before that can be done."""
        assert self._key is not None
        window, full = window[:WINDOW], len(window) > WINDOW
        if found := _LAST_LINE.search(window):
            return self._leave(window[: found.end()])
        if not last and not full:
            return None
        end = _like_a_key(window, first=not self._key.text)
        if end < len(window):
            return self._leave(window[:end])
        self._key.text += window
        self._advance(end)
        return ""

    def _leave(self, rest: str) -> str:
        assert self._key is not None
        self._advance(len(rest))
        value = self._key.text + rest
        self.findings.append(self._sanitiser._finding(self._key.rule, self._key.start, self._at, value))
        self._key = None
        return ""


class _Key(Struct):
    """A private key that is being taken out."""

    rule: Rule
    start: int
    text: str = ""


def _closed(text: str, start: int, end: int) -> int:
    """The last place between these behind which nothing of what is before it goes on; 0: there is none."""
    at = text.rfind("\n", start, end)
    while at >= 0 and _is_open(text, at):
        at = text.rfind("\n", start, at)
    if at >= 0 or text.find(" ", start, end) < 0:
        return at + 1
    return max((found.end() for found in _PLAIN.finditer(text, start, end)), default=0)


def _is_open(text: str, end: int) -> bool:
    """May what the line says that ends here go on in the next?"""
    line = text[text.rfind("\n", 0, end) + 1 : end].rstrip(" \t\r\u00a0\u3000")
    return _OPEN.search(line, max(0, len(line) - 200)) is not None or _ITEM.fullmatch(line) is not None


def _torn(text: str) -> int:
    """Where to cut a stretch without any end."""
    for separators in (",\n", " ;&}"):
        if at := max(text.rfind(c, WINDOW // 2, WINDOW) for c in separators) + 1:
            return at
    return WINDOW


def _like_a_key(text: str, first: bool) -> int:
    """How far this text looks like a private key without a last line. With its first line, the line behind that one
    belongs to it whatever it looks like."""
    at, number = 0, 0 if first else 2
    while at < len(text):
        line = _LINE.match(text, at)
        assert line is not None
        if number > 1 and not _OF_A_KEY.fullmatch(line[0]):
            break
        at, number = max(line.end(), at + 1), number + 1
    return at

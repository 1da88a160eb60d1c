"""Run rules on a stretch of text: select them by keyword, match them, and merge overlapping matches.

Patterns run in RE2, over UTF-8, so no text makes them slow. Most patterns never run. One pass searches all keywords of
all rules (with an automaton whose size depends on the keywords alone). Keywords that are common in ordinary texts are
searched one by one, once each. For the rules without a keyword, one joined pattern says whether any of them matches.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..errors import InvalidArgument, MissingExtra, NotClean
from . import rules as _rules
from .plausibility import CHECKS, Check, entropy, is_inside_random
from .rules import Rule

Span = tuple[int, int, Rule]

GOES_ON = re.compile(r"[0-9A-Za-z_-]*")
_MAX_KEYWORDS = 64  # of keywords in a stretch, after which it is faster to search each of them once
_RESCAN_LENGTH = 64  # bytes of a value that are searched a second time
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,58}[a-z0-9])?")
_MARKER = re.compile(r"\[redacted:[a-z0-9-]{1,60}\]")
_SURROGATES = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")
_CONTINUING = bytes(range(0x80, 0xC0))  # the bytes of a character in UTF-8, but for its first
_GENERAL_FAMILIES = {"http-auth": 1, "assignment": 2}  # recognise a secret by its place; the others by its form
_BY_NAME = frozenset(("assignment",))  # families in which the value of a field ends where the next field begins
_FIELD = re.compile(rb"&([\w.-]{1,40}=)")  # of a form, or of the query of a URL
_BY_PREFIX = frozenset(("provider-key", "cloud", "token"))  # families that recognise a secret by a few letters


class Engine:
    """Compiled rules."""

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        _refuse_bad(rules)
        self.rules = rules
        self._blocks = [(rule, _compile(rule, rule.pattern)) for rule in rules if rule.check == "block"]
        usual = [rule for rule in rules if rule.check != "block"]
        self._patterns = {rule.name: _compile(rule, rule.pattern) for rule in usual}
        self._harmless = {rule.name: _compile(rule, "|".join(rule.not_)) for rule in usual if rule.not_}
        self._rank = {rule.name: _GENERAL_FAMILIES.get(rule.family, 0) for rule in rules}
        keywords = _by_keyword(usual)
        common = {word: keywords[word] for word in keywords if word.decode() in _rules.COMMON}
        self._any_common, self._common = _compile_literals(common) if common else None, _group_keywords(common)
        self._rare = {word: keywords[word] for word in keywords if word.decode() not in _rules.COMMON}
        self._gate = _compile_literals(self._rare) if self._rare else None
        self._always = [rule for rule in usual if not rule.keywords]
        union = "|".join(f"(?:{rule.pattern})" for rule in self._always)
        self._any = _compile(None, union, capture=False) if union else None
        for rule, pattern in [*self._blocks, *((r, self._patterns[r.name]) for r in usual)]:
            if not 0 <= rule.group <= pattern.groups:
                raise InvalidArgument(f"the pattern of the rule {rule.name} has no group {rule.group}")

    def may_match(self, text: str) -> bool:
        """May any rule match this text?"""
        return bool(self._worth_trying(_encode(text))) or self.block(text) is not None

    def block(self, text: str) -> Span | None:
        """The first line of the next private key."""
        found = list[Span]()
        for rule, pattern in self._blocks:
            if any(word in text for word in rule.keywords) or not rule.keywords:
                data = _encode(text)
                place = _converter(data, len(text))
                found += [(place(m.start()), place(m.end()), rule) for m in (pattern.search(data),) if m]
        return min(found, key=lambda span: span[0], default=None)

    def find(self, text: str) -> list[Span]:
        """The matches in a stretch, in order, without overlaps."""
        data = _encode(text)
        rules = self._worth_trying(data)
        if not rules:
            return []
        markers = [m.span() for m in _MARKER.finditer(text)] if "[redacted:" in text else []
        fields = _FIELD.sub(rb" \1", data) if b"&" in data else data
        spans = [
            span
            for rule in rules
            for span in self._matches(rule, text, fields if rule.family in _BY_NAME else data, markers)
        ]
        return self._merge(text, spans)

    def _worth_trying(self, data: bytes) -> list[Rule]:
        rules = list(self._always) if self._any and self._any.search(data) else []
        low, at, names = data.lower(), 0, dict[str, Rule]()
        for pattern, more in self._common if self._any_common and self._any_common.search(low) else ():
            if pattern.search(low):
                names.update(more)
        for _ in range(_MAX_KEYWORDS):
            if self._gate is None or (found := self._gate.search(low, at)) is None:
                break
            names.update(self._rare[found.group()])
            at = found.start() + 1
        else:
            for word, more in self._rare.items():
                if word in low:
                    names.update(more)
        return [*rules, *names.values()]

    def _matches(self, rule: Rule, text: str, data: bytes, markers: list[tuple[int, int]]) -> Iterator[Span]:
        """The matches of a rule that are secrets.

        If a match is no secret, the search continues behind its first character: a word that only contains a keyword
        may hide the name behind it ("Keycloak password: …"), and a short value may be the name of the next value. A
        long value is not searched for more names: that would make hostile texts slow.
        """
        place, pattern, at, done = _converter(data, len(text)), self._patterns[rule.name], 0, 0
        while at <= len(data) and (found := pattern.search(data, at)):
            first, last = found.span(rule.group)
            begin, stop = place(found.start()), place(found.end())
            span = None
            if first < last and not _touches(markers, begin, stop):
                start = place(first)
                if rule.family not in _BY_PREFIX or not is_inside_random(text, start, done):
                    span = self._find_secret(rule, text, start, place(last), begin)
            if span:
                done = span[1]
                yield *span, rule
            at = max(found.end(), at + 1)
            if span is None and found.start() < first:
                again = pattern.search(data, found.start() + 1)
                if again and (again.start() < first or last - first <= _RESCAN_LENGTH):
                    at = again.start()

    def _find_secret(self, rule: Rule, text: str, start: int, end: int, begin: int) -> tuple[int, int] | None:
        """The position of the secret in a match; None if the match is no secret."""
        value, harmless, check = text[start:end], self._harmless.get(rule.name), CHECKS.get(rule.check)
        if (harmless and harmless.search(_encode(value))) or (rule.entropy and entropy(value) < rule.entropy):
            return None
        return _run_check(rule, check, (text, start, end, begin)) if check else (start, end)

    def _merge(self, text: str, spans: list[Span]) -> list[Span]:
        """Merge overlapping matches under the name of the most specific rule, and extend each to the end of its
        word."""
        merged: list[Span] = []
        for start, end, rule in sorted(spans, key=lambda span: span[:2]):
            span = start, end, rule
            if merged and start < merged[-1][1]:
                span = self._merge_two(merged.pop(), span)
            goes_on = GOES_ON.match(text, span[1]) if span[2].secret else None
            merged.append((span[0], goes_on.end() if goes_on else span[1], span[2]))
        return merged

    def _merge_two(self, one: Span, other: Span) -> Span:
        """Merge two matches under the name of the more specific rule, or else of the longer match."""
        best = min(one, other, key=lambda span: (self._rank[span[2].name], span[0] - span[1]))
        return one[0], max(one[1], other[1]), best[2]


def _touches(markers: list[tuple[int, int]], start: int, end: int) -> bool:
    """Does one of the markers, which are in order, overlap with this span?"""
    after = bisect_right(markers, start, key=lambda marker: marker[1])
    return after < len(markers) and markers[after][0] < end


def _run_check(rule: Rule, check: Check, about: tuple[str, int, int, int]) -> tuple[int, int] | None:
    try:
        return check(*about)
    except Exception as error:  # noqa: BLE001  # its message may hold the text, so it is not passed on
        raise NotClean(
            f"the rule {rule.name} failed: {type(error).__name__}", hint="leave it out with without()"
        ) from None


def _converter(data: bytes, length: int) -> Callable[[int], int]:
    """A function that converts positions in UTF-8 into positions in the text. It is fast for increasing positions."""
    if len(data) == length:
        return int
    last = [0, 0]

    def place(offset: int) -> int:
        if offset < last[0]:
            last[:] = [0, 0]
        last[1] += len(data[last[0] : offset].translate(None, _CONTINUING))
        last[0] = offset
        return last[1]

    return place


def _encode(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:  # halves of surrogate pairs are replaced by a character of the same length
        return _SURROGATES.sub("\ufffd".encode(), text.encode("utf-8", "surrogatepass"))


def _refuse_bad(rules: tuple[Rule, ...]) -> None:
    names = set[str]()
    for rule in rules:
        if not isinstance(rule, Rule):
            raise InvalidArgument(f"a {type(rule).__name__} where a Rule is wanted", hint="Rule(name, family, pattern)")
        if not _NAME.fullmatch(rule.name) or rule.name in names:
            raise InvalidArgument("a rule has a name of its own, of small letters, digits and hyphens")
        names.add(rule.name)
        if rule.check and rule.check != "block" and rule.check not in CHECKS:
            raise InvalidArgument(f"no such check: {rule.check!a}", hint=f"there are: {', '.join(CHECKS)}, block")
        if rule.check != "block" and any(not word or word != word.lower() for word in rule.keywords):
            raise InvalidArgument(f"the keywords of the rule {rule.name} are to be in small letters")


def _load_re2() -> Any:
    """Load RE2 when rules are compiled: it takes time, and most programs never clean.

    Raises `MissingExtra` where it is not installed, for example on a system without a wheel of it. A sanitiser compiles
    its rules when it is made, so there is none that does nothing."""
    try:
        import re2  # type: ignore[import-untyped]  # noqa: PLC0415  # without types
    except ImportError:
        raise MissingExtra("google-re2") from None
    return re2


def _compile(rule: Rule | None, pattern: str, *, capture: bool = True) -> Any:
    re2 = _load_re2()
    options = re2.Options()
    options.log_errors = False
    options.never_capture = not capture
    options.max_mem = 32 << 20
    options.never_nl = r"\n" not in pattern
    try:
        return re2.compile(pattern, options)
    except (re2.error, UnicodeError):
        what = f"the pattern of the rule {rule.name}" if rule else "the rules together"
        raise InvalidArgument(f"RE2 does not take {what}", hint="see github.com/google/re2/wiki/Syntax") from None


def escape_re2(literal: str) -> str:
    """A pattern that matches exactly this text."""
    escaped: str = _load_re2().escape(_encode(literal).decode())
    return escaped


def _by_keyword(rules: Iterable[Rule]) -> dict[bytes, dict[str, Rule]]:
    """The rules of each keyword, and of every keyword that begins with it."""
    own: dict[bytes, dict[str, Rule]] = {}
    for rule in rules:
        for word in rule.keywords:
            own.setdefault(word.encode(), {})[rule.name] = rule
    return {word: {n: r for w in own if word.startswith(w) for n, r in own[w].items()} for word in own}


def _group_keywords(keywords: dict[bytes, dict[str, Rule]]) -> list[tuple[Any, dict[str, Rule]]]:
    """Join the keywords of the same rules into one pattern."""
    same: dict[tuple[str, ...], list[bytes]] = {}
    for word, rules in keywords.items():
        same.setdefault(tuple(rules), []).append(word)
    return [(_compile_literals(words), keywords[words[0]]) for words in same.values()]


def _compile_literals(words: Iterable[bytes]) -> Any:
    re2 = _load_re2()
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.longest_match = True
    return re2.compile(b"|".join(re2.escape(word) for word in words), options)

"""Redaction: a sanitiser, applied to all that is about to be kept.

What the texts of a value are is in `values`; here is what a message is made of: blocks, extras, the provider's own
form of it. What is found is noted in the message's `privacy`: that there was something, by which rules, and a keyed
hash of each value, so that the same value can be recognised and nobody can read it. Such notes are not cleaned again.

A secret may also lie across two texts that belong together: the parts of one message, the pieces of an answer that an
SDK keeps as they came. So what was cleaned one by one is looked at once more, joined: texts with texts, thoughts with
thoughts.

A value that was found once goes from all of the message: from the provider's own form of it, say, where it stands
without the name that gave it away; and from the other messages that a caller writes with it (`together`). A recorder
cleans each message by itself: it knows a history again by what each message becomes.

Names by which things are found again (keys, labels, projects) are not changed: two of them could become the same. They
are refused.

An SDK sends the whole history with each request. What was cleaned before is recognised by a keyed hash, which is held
in memory alone, and not cleaned again.
"""

import copy
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from itertools import groupby
from typing import TypeVar

from msgspec import msgpack
from msgspec.structs import replace

from ..errors import HithertoError, NotClean
from ..model import Block, Message, Setup
from . import Finding, Rule, Sanitiser
from .values import ARGUMENTS, Cleaning, is_closed, is_text

__all__ = ["Redactor", "is_text"]

M = TypeVar("M", bound=Message)
N = TypeVar("N", str, str | None)
R = TypeVar("R")

_SAID = {"text": "text", "content": "text", "thinking": "thinking"}  # names of what is said, and what is joined
_USUAL = frozenset(("content", "tool_call", "tool_result", "thinking", "text", "text/plain", "application/json"))
_OURS = re.compile(r"([a-z0-9][a-z0-9-]{0,59}):[0-9a-f]{16}")  # a rule and a hash
_REMEMBERED = 32 << 20  # bytes of what was cleaned that are held at most
_ENTRY = 200  # bytes that it takes to know that something is clean


class Redactor:
    """A sanitiser with the key of a workspace."""

    def __init__(self, sanitiser: Sanitiser, key: bytes) -> None:
        self._clean = sanitiser.keyed(key)
        self._names: set[str] = set()
        self._memory = _Memory()

    def _job(self) -> Cleaning:
        return Cleaning(self._clean, self._names)

    def _knowing(self, values: Mapping[str, Rule]) -> Cleaning:
        """For a second look, at what stands elsewhere: values that the first one found."""
        return Cleaning(self._clean.knowing(values))

    # -- messages

    def message(self, message: M, *, complete: bool = True) -> M:
        """The message without what the sanitiser takes out; the same object if there is nothing. If it is not
        `complete`, because it still comes in, what may become something of that kind is left out at its end, too."""
        return self._run([message], complete=complete)[0]

    def messages(self, messages: Sequence[M], *, complete: bool = True) -> list[M]:
        """Messages that follow each other. If they are not `complete`, the last one still comes in."""
        runs = [list(run) for _, run in groupby(messages, lambda message: message.role)]
        after: list[M] = []
        for n, run in enumerate(runs, 1):
            whole = complete or n < len(runs)
            after += self._memory.known(run, self._run) if whole else self._run(run, complete=False)
        return after

    def together(self, messages: Sequence[M]) -> list[M]:
        """Messages of one write: a value that is found in one of them goes from all of them."""
        values: dict[str, Rule] = {}
        cleaned = [self._joined([self._cleaned(message, values, complete=True)], complete=True) for message in messages]
        return [self._without(values, message) for [message] in cleaned]

    def _run(self, run: list[M], *, complete: bool = True) -> list[M]:
        """Messages of one role."""
        last = len(run) - 1
        cleaned = [self._cleaned(m, {}, complete=complete or n < last) for n, m in enumerate(run)]
        return self._joined(cleaned, complete=complete)

    def _cleaned(self, message: M, values: dict[str, Rule], *, complete: bool) -> M:
        """The message by itself, without what is found in it, wherever else in it that stands: so the same message
        becomes the same whatever it stands beside, and recorders know it again. The values that were found are added
        to `values`."""
        job = self._job()
        cleaned = self._message(job, message, complete=complete)
        values |= job.values
        return self._without(job.values, cleaned)

    def _without(self, values: Mapping[str, Rule], message: M) -> M:
        """The message without these values, wherever they stand."""
        return self._message(self._knowing(values), message, complete=True) if values else message

    def _message(self, job: Cleaning, message: M, *, complete: bool) -> M:
        grows = not complete
        last = {block.type: n for n, block in enumerate(message.blocks)} if grows else {}
        with _FailingClosed():
            for name, what in ((message.label, "the label"), (message.key, "the key"), (message.role, "the role")):
                self._named(job, name, what)
            growing = iter([last.get(block.type) == n for n, block in enumerate(message.blocks)])
            fields = {
                "blocks": job.all(message.blocks, lambda block: _block(job, block, grows=next(growing))),
                "extra": job.value(message.extra, grows=grows),
                "raw": job.value(message.raw, grows=grows),
                "privacy": self._notes(job, message.privacy),
            }
        changed = {name: value for name, value in fields.items() if value is not getattr(message, name)}
        if job.found:
            changed["privacy"] = _noted(changed.get("privacy", message.privacy), job.found)
        return replace(message, **changed) if changed else message

    def _notes(self, job: Cleaning, privacy: dict[str, object] | None) -> dict[str, object] | None:
        """What is noted of a message. Hashes that have the form of ours are left as they are: each is called like a
        secret, and is none."""
        hashes = None if privacy is None else privacy.get("hashes")
        if privacy is None or not isinstance(hashes, list) or not all(map(self._is_ours, hashes)):
            return job.value(privacy)
        rest = {name: value for name, value in privacy.items() if name != "hashes"}
        cleaned = job.value(rest)
        return privacy if cleaned is rest else cleaned | {"hashes": hashes}

    def _is_ours(self, hash: object) -> bool:
        form = _OURS.fullmatch(hash) if isinstance(hash, str) else None
        return form is not None and not self._clean.clean(form[1]).findings

    def _joined(self, run: list[M], *, complete: bool) -> list[M]:
        """Messages of one role, looked at as one text of each kind, and as one text of their providers' own."""
        job = self._job()
        with _FailingClosed():
            blocks = _together(job, [list(_said(message)) for message in run], grows=not complete)
            raws = _together(job, [list(_told(message.raw)) for message in run], grows=not complete)
        if blocks is None and raws is None:
            return run
        after = []
        for n, message in enumerate(run):
            told = {} if blocks is None else {"blocks": _with_said(message, iter(blocks[n]))}
            raw = {} if raws is None else {"raw": _with_told(message.raw, iter(raws[n]))}
            notes = {"privacy": _noted(message.privacy, job.found)} if job.found else {}
            after.append(replace(message, **told, **raw, **notes))
        return after

    # -- the rest

    def setup(self, setup: Setup) -> Setup:
        """What a conversation is held with."""
        return self._memory.known([setup], self._setups)[0]

    def _setups(self, setups: list[Setup]) -> list[Setup]:
        job = self._job()
        with _FailingClosed():
            cleaned = [_cleaned_setup(job, setup) for setup in setups]
            if job.values:
                cleaned = [_cleaned_setup(self._knowing(job.values), setup) for setup in cleaned]
        return cleaned

    def text(self, text: str, name: str = "") -> str:
        with _FailingClosed():
            return self._job().text(text, name)

    def id(self, id: N) -> N:
        """A name that others gave, in which nothing has to be found again."""
        with _FailingClosed():
            return id if id is None else "/".join(map(self._job().id, id.split("/")))

    def strings(self, values: Mapping[str, str]) -> dict[str, str]:
        with _FailingClosed():
            return {self.name(name, "a name in the metadata"): self.text(text, name) for name, text in values.items()}

    def value(self, value: object) -> object:
        """Plain JSON."""
        job = self._job()
        with _FailingClosed():
            cleaned = job.value(value)
            return self._knowing(job.values).value(cleaned) if job.values else cleaned

    def name(self, name: N, what: str, *, personal: bool = True) -> N:
        """The name, if it is clean; `NotClean` if it is not. What is `personal` may stay, if that is said."""
        return self._named(self._job(), name, what, personal=personal)

    def _named(self, job: Cleaning, name: N, what: str, *, personal: bool = True) -> N:
        if name is not None and any(one.secret or personal for one in job.findings(name)):
            raise NotClean(f"{what} holds what the sanitiser takes out, and by it things are found again")
        return name

    def folder(self, project: str | None) -> None:
        """Refuse a project that holds a secret. It is a path of this machine: on some, the name of a folder is that of
        an account, which is an address."""
        with _FailingClosed():
            self.name(project, "the project", personal=False)


class _FailingClosed:
    """What goes wrong in a rule refuses the write. Its own words may hold the text, so that they are not passed on."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, HithertoError):
            hint = "mend the rule, or open the store without it"
            raise NotClean(f"the sanitiser failed: {type(error).__name__}", hint=hint) from None


class _Memory:
    """What was cleaned before. Of what was clean only a hash is held; of the rest, what became of it."""

    def __init__(self) -> None:
        self._key = os.urandom(32)
        self._lock = threading.Lock()
        self._kept: dict[bytes, tuple[Sequence[object] | None, int]] = {}  # the oldest first
        self._size = 0

    def known(self, given: list[R], clean: Callable[[list[R]], list[R]]) -> list[R]:
        """These, cleaned."""
        data = _encoded(given)
        if data is None:
            return clean(given)
        name = blake2b(data, key=self._key, digest_size=32).digest()
        with self._lock:
            found = self._kept.get(name)
        if found is None:
            after = clean(given)
            same = after == given
            kept = None if same else copy.deepcopy(after)  # callers may change what they were given
            self._keep(name, kept, _ENTRY + (0 if same else len(data)))
            return after
        return given if found[0] is None else copy.deepcopy(found[0])  # type: ignore[arg-type]  # of the same kind

    def _keep(self, name: bytes, after: Sequence[object] | None, size: int) -> None:
        with self._lock:
            if name in self._kept or size > _REMEMBERED:
                return
            self._kept[name] = after, size
            self._size += size
            while self._size > _REMEMBERED:
                self._size -= self._kept.pop(next(iter(self._kept)))[1]


def _cleaned_setup(job: Cleaning, setup: Setup) -> Setup:
    return Setup(
        job.text(setup.provider),
        job.text(setup.model),
        job.text(setup.system_prompt),
        job.all(setup.tools, job.mapping),
        job.value(setup.raw),
    )


def _encoded(given: list[R]) -> bytes | None:
    """All of it as bytes; None if it holds what is not in memory, or what cannot be kept anyway."""
    try:
        return b"".join(msgpack.encode((type(one).__name__, one)) for one in given)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None


def _block(job: Cleaning, block: Block, *, grows: bool) -> Block:
    content = block.content
    if isinstance(content, str):
        grows = grows and block.type != "tool_call" and not is_closed(content)
        content = job.text(content, as_json=block.mime_type == "application/json", grows=grows)
    elif isinstance(content, bytes):
        content = job.binary(content, block.mime_type)
    else:
        content = job.attachment(content, block.mime_type)
    extra, id = job.value(block.extra, grows=grows), None if block.id is None else job.id(block.id)
    kinds = [kind if kind in _USUAL else job.name(kind) for kind in (block.type, block.modality, block.mime_type)]
    made = Block(kinds[0], content, kinds[1], kinds[2], id, extra)
    same = all(getattr(made, name) is getattr(block, name) for name in Block.__struct_fields__)
    return block if same else made


# -- what is said in several texts


def _said(message: Message) -> Iterator[tuple[str, str]]:
    """The texts of the blocks, each with what it is joined with."""
    for block in message.blocks:
        if isinstance(block.content, str) and block.type != "tool_call":
            yield block.type, block.content


def _with_said(message: Message, texts: Iterator[str]) -> tuple[Block, ...]:
    is_said = [isinstance(block.content, str) and block.type != "tool_call" for block in message.blocks]
    pairs = zip(message.blocks, is_said, strict=True)
    return tuple(replace(block, content=next(texts)) if said else block for block, said in pairs)


def _told(raw: object) -> Iterator[tuple[str, str]]:
    """What a provider's own message says, in order: what stands under `text`, or as a whole under `content`."""
    for holder, name in _holders(raw):
        text = holder[name]
        if isinstance(text, str):
            yield _SAID[name], text


def _holders(raw: object) -> Iterator[tuple[dict[str, object], str]]:
    if isinstance(raw, dict):
        for name, value in raw.items():
            if name in _SAID and isinstance(value, str):
                yield raw, name
            elif name not in ARGUMENTS:
                yield from _holders(value)
    elif isinstance(raw, list):
        for item in raw:
            yield from _holders(item)


def _with_told(raw: object, texts: Iterator[str]) -> object:
    changed = copy.deepcopy(raw)
    for holder, name in list(_holders(changed)):
        holder[name] = next(texts)
    return changed


def _together(job: Cleaning, said: list[list[tuple[str, str]]], *, grows: bool) -> list[list[str]] | None:
    """Texts that follow each other, those of one kind joined and cleaned; None if that changes nothing."""
    flat = [pair for texts in said for pair in texts]
    clean = partial(job.joined, grows=grows)
    kinds = {kind: iter(clean([text for other, text in flat if other == kind])) for kind, _ in flat}
    after = [[next(kinds[kind]) for kind, _ in texts] for texts in said]
    return None if after == [[text for _, text in texts] for texts in said] else after


def _noted(privacy: object, found: Iterable[Finding]) -> dict[str, object]:
    """The notes of a message, with these findings."""
    notes = dict(privacy) if isinstance(privacy, dict) else {}
    rules = {rule for rule in notes.get("rules") or () if isinstance(rule, str)}
    hashes = {one for one in notes.get("hashes") or () if isinstance(one, str)}
    found = list(found)
    notes["contains_secrets"] = bool(notes.get("contains_secrets")) or any(one.secret for one in found)
    notes["rules"] = sorted(rules | {one.rule for one in found})
    notes["hashes"] = sorted(hashes | {f"{one.rule}:{one.hash}" for one in found})
    return notes

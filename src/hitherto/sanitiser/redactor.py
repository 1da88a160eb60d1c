"""Redaction: apply a sanitiser to messages before they are kept.

`values` finds the texts of a value; this module goes through the parts of a message: blocks, extras, the provider's own
form. The findings are noted in the message's `privacy`: that there were some, the rules, and a keyed hash of each
value. The hash makes equal values recognisable, and cannot be reversed. Such notes are not cleaned again.

A secret may also lie across two texts that belong together: the parts of one message, or the pieces of an answer that
an SDK keeps as they arrived. So texts that were cleaned one by one are joined and cleaned again: texts with texts,
thoughts with thoughts.

A value that was found once is removed from the whole message: for example from the provider's own form, where it stands
without the name that revealed it. `together` removes it from the other messages of the same write too. A recorder
cleans each message by itself, because it recognises a history by the cleaned messages.

Names that are used for lookups (keys, labels, projects) are not changed, because two of them could become equal. A name
with a secret is refused.

An SDK sends the whole history with each request. A cache in memory recognises messages that were cleaned before by a
keyed hash, so that they are not cleaned again. Another one recognises texts: a client sends an answer back in another
form than it came in, but with the same texts.
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
from .values import ARGUMENTS, Cleaning, KnownTexts, is_closed, is_text

__all__ = ["Redactor", "is_text"]

M = TypeVar("M", bound=Message)
N = TypeVar("N", str, str | None)
R = TypeVar("R")

# Fields that hold text, and the kind by which their texts are joined.
_TEXT_FIELDS = {"text": "text", "content": "text", "thinking": "thinking"}
_USUAL = frozenset(("content", "tool_call", "tool_result", "thinking", "text", "text/plain", "application/json"))
_OURS = re.compile(r"([a-z0-9][a-z0-9-]{0,59}):[0-9a-f]{16}")  # a rule and a hash
_MAX_BYTES = 32 << 20  # of the cache
_ENTRY = 200  # bytes of an entry that says that a value is clean


class Redactor:
    """A sanitiser with the key of a workspace."""

    def __init__(self, sanitiser: Sanitiser, key: bytes) -> None:
        self._clean = sanitiser.keyed(key)
        self._known = KnownTexts()
        self._cache = _Cache()

    def _job(self) -> Cleaning:
        return Cleaning(self._clean, self._known)

    def _search_values(self, values: Mapping[str, Rule]) -> Cleaning:
        """A job that searches the values which a first one has found."""
        return Cleaning(self._clean.searching(values))

    # -- messages

    def message(self, message: M, *, complete: bool = True) -> M:
        """Clean a message. Returns the same object if nothing is found. If the message is not `complete`, because it is
        still streaming in, an end that may become a secret is removed too."""
        return self._run([message], complete=complete)[0]

    def messages(self, messages: Sequence[M], *, complete: bool = True) -> list[M]:
        """Clean consecutive messages. If they are not `complete`, the last one is still streaming in."""
        runs = [list(run) for _, run in groupby(messages, lambda message: message.role)]
        after: list[M] = []
        for n, run in enumerate(runs, 1):
            whole = complete or n < len(runs)
            after += self._cache.get_or_clean(run, self._run) if whole else self._run(run, complete=False)
        return after

    def together(self, messages: Sequence[M]) -> list[M]:
        """Clean the messages of one write. A value that is found in one of them is removed from all of them."""
        values: dict[str, Rule] = {}
        cleaned = [
            self._clean_joined([self._clean_message(message, values, complete=True)], complete=True)
            for message in messages
        ]
        return [self._without(values, message) for [message] in cleaned]

    def _run(self, run: list[M], *, complete: bool = True) -> list[M]:
        """Clean consecutive messages of one role."""
        last = len(run) - 1
        cleaned = [self._clean_message(m, {}, complete=complete or n < last) for n, m in enumerate(run)]
        return self._clean_joined(cleaned, complete=complete)

    def _clean_message(self, message: M, values: dict[str, Rule], *, complete: bool) -> M:
        """Clean a message by itself, and remove each value that is found everywhere in it. The result does not depend
        on other messages, so that recorders recognise it. The values are added to `values`."""
        job = self._job()
        cleaned = self._message(job, message, complete=complete)
        values |= job.values
        return self._without(job.values, cleaned)

    def _without(self, values: Mapping[str, Rule], message: M) -> M:
        """Remove these values everywhere in the message."""
        return self._message(self._search_values(values), message, complete=True) if values else message

    def _message(self, job: Cleaning, message: M, *, complete: bool) -> M:
        grows = not complete
        last = {block.type: n for n, block in enumerate(message.blocks)} if grows else {}
        with _FailingClosed():
            for name, what in ((message.label, "the label"), (message.key, "the key"), (message.role, "the role")):
                self._check_name(job, name, what)
            growing = iter([last.get(block.type) == n for n, block in enumerate(message.blocks)])
            fields = {
                "blocks": job.all(message.blocks, lambda block: _block(job, block, grows=next(growing))),
                "extra": job.value(message.extra, grows=grows),
                "raw": job.value(message.raw, grows=grows),
                "privacy": self._notes(job, message.privacy),
            }
        changed = {name: value for name, value in fields.items() if value is not getattr(message, name)}
        if job.found:
            changed["privacy"] = _add_notes(changed.get("privacy", message.privacy), job.found)
        return replace(message, **changed) if changed else message

    def _notes(self, job: Cleaning, privacy: dict[str, object] | None) -> dict[str, object] | None:
        """Clean the notes of a message. Hashes in our format are not changed: the name of a rule makes them look like
        secrets."""
        hashes = None if privacy is None else privacy.get("hashes")
        if privacy is None or not isinstance(hashes, list) or not all(map(self._is_ours, hashes)):
            return job.value(privacy)
        rest = {name: value for name, value in privacy.items() if name != "hashes"}
        cleaned = job.value(rest)
        return privacy if cleaned is rest else cleaned | {"hashes": hashes}

    def _is_ours(self, hash: object) -> bool:
        form = _OURS.fullmatch(hash) if isinstance(hash, str) else None
        return form is not None and not self._clean.clean(form[1]).findings

    def _clean_joined(self, run: list[M], *, complete: bool) -> list[M]:
        """Join the texts of messages of one role by kind, and those of the providers' own forms, and clean them
        again."""
        job = self._job()
        with _FailingClosed():
            blocks = _clean_kinds(job, [list(_list_texts(message)) for message in run], grows=not complete)
            raws = _clean_kinds(job, [list(_list_raw_texts(message.raw)) for message in run], grows=not complete)
        if blocks is None and raws is None:
            return run
        after = []
        for n, message in enumerate(run):
            told = {} if blocks is None else {"blocks": _replace_texts(message, iter(blocks[n]))}
            raw = {} if raws is None else {"raw": _replace_raw_texts(message.raw, iter(raws[n]))}
            notes = {"privacy": _add_notes(message.privacy, job.found)} if job.found else {}
            after.append(replace(message, **told, **raw, **notes))
        return after

    # -- the rest

    def setup(self, setup: Setup) -> Setup:
        """Clean a setup."""
        return self._cache.get_or_clean([setup], self._setups)[0]

    def _setups(self, setups: list[Setup]) -> list[Setup]:
        job = self._job()
        with _FailingClosed():
            cleaned = [_clean_setup(job, setup) for setup in setups]
            if job.values:
                cleaned = [_clean_setup(self._search_values(job.values), setup) for setup in cleaned]
        return cleaned

    def text(self, text: str, name: str = "") -> str:
        with _FailingClosed():
            return self._job().text(text, name)

    def id(self, id: N) -> N:
        """Clean a foreign name that is not used for lookups."""
        with _FailingClosed():
            return id if id is None else "/".join(map(self._job().id, id.split("/")))

    def strings(self, values: Mapping[str, str]) -> dict[str, str]:
        with _FailingClosed():
            return {self.name(name, "a name in the metadata"): self.text(text, name) for name, text in values.items()}

    def value(self, value: object) -> object:
        """Clean plain JSON."""
        job = self._job()
        with _FailingClosed():
            cleaned = job.value(value)
            return self._search_values(job.values).value(cleaned) if job.values else cleaned

    def name(self, name: N, what: str, *, personal: bool = True) -> N:
        """Return the name if it is clean; raise `NotClean` if not. With `personal=False` it may hold personal data."""
        return self._check_name(self._job(), name, what, personal=personal)

    def _check_name(self, job: Cleaning, name: N, what: str, *, personal: bool = True) -> N:
        if name is not None and any(one.secret or personal for one in job.findings(name)):
            raise NotClean(f"{what} holds what the sanitiser takes out, and by it things are found again")
        return name

    def folder(self, project: str | None) -> None:
        """Refuse a project that holds a secret. A project is a path of this machine, which may contain the address of
        an account, so personal data is allowed."""
        with _FailingClosed():
            self.name(project, "the project", personal=False)


class _FailingClosed:
    """Turn an error in a rule into `NotClean`, which refuses the write. The message of the error may hold the text, so
    it is not passed on."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, HithertoError):
            hint = "mend the rule, or open the store without it"
            raise NotClean(f"the sanitiser failed: {type(error).__name__}", hint=hint) from None


class _Cache:
    """A cache of the values that were cleaned before: a hash of each, and the cleaned value if it differs."""

    def __init__(self) -> None:
        self._key = os.urandom(32)
        self._lock = threading.Lock()
        self._entries: dict[bytes, tuple[Sequence[object] | None, int]] = {}  # the oldest first
        self._size = 0

    def get_or_clean(self, given: list[R], clean: Callable[[list[R]], list[R]]) -> list[R]:
        """Return the cleaned values, from the cache if possible."""
        data = _encode(given)
        if data is None:
            return clean(given)
        name = blake2b(data, key=self._key, digest_size=32).digest()
        with self._lock:
            found = self._entries.get(name)
        if found is None:
            after = clean(given)
            same = after == given
            kept = None if same else copy.deepcopy(after)  # callers may change the returned values
            self._keep(name, kept, _ENTRY + (0 if same else len(data)))
            return after
        return given if found[0] is None else copy.deepcopy(found[0])  # type: ignore[arg-type]  # of the same kind

    def _keep(self, name: bytes, after: Sequence[object] | None, size: int) -> None:
        with self._lock:
            if name in self._entries or size > _MAX_BYTES:
                return
            self._entries[name] = after, size
            self._size += size
            while self._size > _MAX_BYTES:
                self._size -= self._entries.pop(next(iter(self._entries)))[1]


def _clean_setup(job: Cleaning, setup: Setup) -> Setup:
    return Setup(
        job.text(setup.provider),
        job.text(setup.model),
        job.text(setup.system_prompt),
        job.all(setup.tools, job.mapping),
        job.value(setup.raw),
    )


def _encode(given: list[R]) -> bytes | None:
    """Encode the values; None if one holds an attachment that is not in memory, or a value that cannot be kept."""
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


# -- texts that are joined


def _list_texts(message: Message) -> Iterator[tuple[str, str]]:
    """The texts of the blocks, each with its kind."""
    for block in message.blocks:
        if isinstance(block.content, str) and block.type != "tool_call":
            yield block.type, block.content


def _replace_texts(message: Message, texts: Iterator[str]) -> tuple[Block, ...]:
    is_said = [isinstance(block.content, str) and block.type != "tool_call" for block in message.blocks]
    pairs = zip(message.blocks, is_said, strict=True)
    return tuple(replace(block, content=next(texts)) if said else block for block, said in pairs)


def _list_raw_texts(raw: object) -> Iterator[tuple[str, str]]:
    """The texts of a provider's own message in order, each with its kind: the strings under `text`, `content` and
    `thinking`."""
    for holder, name in _holders(raw):
        text = holder[name]
        if isinstance(text, str):
            yield _TEXT_FIELDS[name], text


def _holders(raw: object) -> Iterator[tuple[dict[str, object], str]]:
    if isinstance(raw, dict):
        for name, value in raw.items():
            if name in _TEXT_FIELDS and isinstance(value, str):
                yield raw, name
            elif name not in ARGUMENTS:
                yield from _holders(value)
    elif isinstance(raw, list):
        for item in raw:
            yield from _holders(item)


def _replace_raw_texts(raw: object, texts: Iterator[str]) -> object:
    changed = copy.deepcopy(raw)
    for holder, name in list(_holders(changed)):
        holder[name] = next(texts)
    return changed


def _clean_kinds(job: Cleaning, said: list[list[tuple[str, str]]], *, grows: bool) -> list[list[str]] | None:
    """Join consecutive texts of one kind and clean them. None if that changes nothing."""
    flat = [pair for texts in said for pair in texts]
    clean = partial(job.clean_joined, grows=grows)
    kinds = {kind: iter(clean([text for other, text in flat if other == kind])) for kind, _ in flat}
    after = [[next(kinds[kind]) for kind, _ in texts] for texts in said]
    return None if after == [[text for _, text in texts] for texts in said] else after


def _add_notes(privacy: object, found: Iterable[Finding]) -> dict[str, object]:
    """Add findings to the notes of a message."""
    notes = dict(privacy) if isinstance(privacy, dict) else {}
    rules = {rule for rule in notes.get("rules") or () if isinstance(rule, str)}
    hashes = {one for one in notes.get("hashes") or () if isinstance(one, str)}
    found = list(found)
    notes["contains_secrets"] = bool(notes.get("contains_secrets")) or any(one.secret for one in found)
    notes["rules"] = sorted(rules | {one.rule for one in found})
    notes["hashes"] = sorted(hashes | {f"{one.rule}:{one.hash}" for one in found})
    return notes

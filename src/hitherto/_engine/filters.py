"""Filters of conversations, and the tags that answer them.

A conversation is found by fields of its description: its project, what its first message is like, and each pair of its
metadata. Each field has a tag, which is compared for equality and nothing else, so a sealed store finds by its keyed
hash what a plain one finds by its text. The tags of a conversation are written together, with one set of names: while a
store is re-encrypted, all tags of a conversation have their old names, or all have their new ones.
"""

import os
import re
from collections.abc import Mapping

from msgspec import Struct, json

from .._sealing.codec import Codec
from ..backend import CHAT, INTERNAL_KINDS, Tag, Where
from ..errors import InvalidArgument
from ..model import check_strings
from .bodies import Meta

MOST_PAIRS = 32  # of metadata in one filter
_LONG = 200  # bytes of a pair; a longer one is found by its hash, because an index takes no long values

Path = str | os.PathLike[str]
Field = tuple[str, str]  # the name of a field, and its value


def description_fields(meta: Meta) -> list[Field]:
    """The fields that a conversation with this description is found by."""
    named = [
        (name, value) for name, value in (("project", meta.project), ("opening", meta.opening)) if value is not None
    ]
    known = [(name, value) for name, value in named if value is not None]
    return known + [_metadata_field(key, value) for key, value in meta.metadata.items()]


def description_tags(codec: Codec, meta: Meta) -> tuple[Tag, ...]:
    """The tags of a conversation with this description."""
    return tuple(Tag(codec.tag(*field)) for field in description_fields(meta))


def _metadata_field(key: str, value: str) -> Field:
    """A pair as one text: no two pairs have the same."""
    try:
        pair = json.encode((key, value))
    except UnicodeEncodeError:
        raise InvalidArgument("the metadata holds half of a surrogate pair, which is not a character") from None
    if len(pair) <= _LONG:
        return "metadata", pair.decode()
    from hashlib import sha256  # noqa: PLC0415  # it loads OpenSSL

    return "metadata", f"sha256:{sha256(pair).hexdigest()}"


class Filter(Struct, frozen=True):
    """Conditions on conversations. A field without a value matches all of them."""

    project: str | None = None
    metadata: tuple[tuple[str, str], ...] = ()
    kind: str = CHAT
    key_prefix: str | None = None

    def fits(self, meta: Meta) -> bool:
        """Return True if a conversation with this description matches."""
        if self.project is not None and meta.project != self.project:
            return False
        if self.key_prefix is not None and not (meta.key or "").startswith(self.key_prefix):
            return False
        return all(meta.metadata.get(key) == value for key, value in self.metadata)

    def where(self, codec: Codec, alive_at: int | None) -> list[Where]:
        """The questions to the backend: one for each set of names, and there is more than one only while the store is
        re-encrypted."""
        fields = [] if self.project is None else [("project", self.project)]
        fields += [_metadata_field(key, value) for key, value in self.metadata]
        names = zip(*(codec.tags(*field) for field in fields), strict=True) if fields else [()]
        prefix = None
        if self.key_prefix is not None and codec.in_clear:  # in a sealed store the descriptions decide
            prefix = codec.tag("conversation", self.key_prefix)
        return [Where(self.kind, tags, alive_at, key_prefix=prefix) for tags in names]

    @property
    def is_kind_alone(self) -> bool:
        """Return True if all conversations of a kind fit."""
        return self == Filter(kind=self.kind)


def check_kind(kind: str) -> str:
    """Return the kind of conversations that is asked for; `InvalidArgument` if it cannot be one."""
    if not isinstance(kind, str) or not re.fullmatch(r"[a-z][a-z0-9_.-]{0,31}", kind):
        hint = "a kind is a lowercase word of letters, digits, '_', '.' and '-', at most 32 characters"
        raise InvalidArgument("this is no kind of conversation", hint=hint)
    if kind in INTERNAL_KINDS:
        raise InvalidArgument(f"the kind {kind} is taken", hint="choose another word")
    return kind


def check_key(key: str) -> str:
    """Return the key of a conversation; `InvalidArgument` if it cannot be one."""
    if not isinstance(key, str) or not key:
        raise InvalidArgument("the key of a conversation is text, and not empty")
    return key


def check_pairs(metadata: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    """The pairs that are asked for, in an order that does not depend on how they are given."""
    pairs = tuple(sorted(check_strings(metadata, "metadata").items()))
    if len(pairs) > MOST_PAIRS:
        raise InvalidArgument(f"{len(pairs)} pairs of metadata are asked for: at most {MOST_PAIRS} can be")
    return pairs


def folder(project: Path | None) -> str | None:
    """Return the absolute path of a project, which is a directory; `InvalidArgument` if it cannot be one."""
    if project is None:
        return None
    place = os.fspath(project) if isinstance(project, os.PathLike) else project
    if not isinstance(place, str):
        raise InvalidArgument(f"a project is a directory, not a {type(project).__name__}")
    return os.path.abspath(os.path.expanduser(place))

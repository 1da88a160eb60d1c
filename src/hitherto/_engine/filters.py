"""Filters of conversations, and the tags that answer them.

A conversation is found by fields of its description: its project, what its first message is like, and each pair of its
metadata. Each field has a tag, which is compared for equality and nothing else, so a sealed store finds by its keyed
hash what a plain one finds by its text. The tags of a conversation are written together, with one set of names: while a
store is re-encrypted, all tags of a conversation have their old names, or all have their new ones.
"""

from collections.abc import Mapping

from msgspec import Struct, json

from .._sealing.codec import Codec
from ..backend import CHAT, Tag, Where
from ..errors import InvalidArgument
from ..model import check_strings
from .bodies import Meta

MOST_PAIRS = 32  # of metadata in one filter
_LONG = 200  # bytes of a pair; a longer one is found by its hash, because an index takes no long values

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

    def fits(self, meta: Meta) -> bool:
        """Return True if a conversation with this description matches."""
        if self.project is not None and meta.project != self.project:
            return False
        return all(meta.metadata.get(key) == value for key, value in self.metadata)

    def where(self, codec: Codec, alive_at: int | None) -> list[Where]:
        """The questions to the backend: one for each set of names, and there is more than one only while the store is
        re-encrypted."""
        fields = [] if self.project is None else [("project", self.project)]
        fields += [_metadata_field(key, value) for key, value in self.metadata]
        names = zip(*(codec.tags(*field) for field in fields), strict=True) if fields else [()]
        return [Where(CHAT, tags, alive_at) for tags in names]


def check_pairs(metadata: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    """The pairs that are asked for, in an order that does not depend on how they are given."""
    pairs = tuple(sorted(check_strings(metadata, "metadata").items()))
    if len(pairs) > MOST_PAIRS:
        raise InvalidArgument(f"{len(pairs)} pairs of metadata are asked for: at most {MOST_PAIRS} can be")
    return pairs

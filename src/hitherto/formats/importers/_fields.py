"""Reads fields of foreign records: a value of the expected type, or an empty one.

Any field of a record may be missing or of another type. These functions raise nothing, so that the importers need no
check at every step.
"""

from collections.abc import Iterable, Mapping

from ...model import Setup
from .._importer import clean_text

Fields = dict[str, object]


def text(value: object) -> str:
    """Return a text; an empty one for a value that is none."""
    return value if isinstance(value, str) else ""


def first_text(found: Mapping[str, object], *names: str) -> str:
    """Return the first of these fields that holds a text that is not empty."""
    return next((value for name in names if isinstance(value := found.get(name), str) and value), "")


def fields(value: object) -> Fields:
    """Return an object; an empty one for a value that is none."""
    return value if isinstance(value, dict) else {}


def objects(value: object) -> list[Fields]:
    """Return the objects of a list; none for a value that is no list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def count(value: object) -> int:
    """Return a number of tokens; 0 for a value that cannot be one."""
    return value if type(value) is int and 0 <= value < 2**53 else 0


def without(found: Mapping[str, object], names: Iterable[str]) -> Fields:
    """Return a copy without these fields, and without those that are null or empty."""
    left_out = frozenset(names)
    return {name: value for name, value in found.items() if name not in left_out and value not in (None, "", [], {})}


class Setups:
    """Collects the setups of a conversation, and numbers them from 1."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str, str], int] = {}
        self._setups: list[Setup] = []

    def number(self, provider: str, model: str, system_prompt: str = "") -> int:
        """Return the number of a setup; 0 if nothing is known of it."""
        key = (provider, model, system_prompt)
        if not (model or system_prompt):
            return 0
        if key not in self._numbers:
            self._setups.append(Setup(provider, clean_text(model), clean_text(system_prompt)))
            self._numbers[key] = len(self._setups)
        return self._numbers[key]

    @property
    def all(self) -> tuple[Setup, ...]:
        return tuple(self._setups)

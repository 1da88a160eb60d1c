"""Builds HTML that is escaped by construction.

    >>> tag("p", "1 < 2 ", tag("b", "always"), class_="note")
    '<p class="note">1 &lt; 2 <b>always</b></p>'

A `Markup` is HTML already; any other text is escaped when it becomes a part of one. Characters that control a terminal
or turn the reading direction become visible signs. So no page can be written that forgets to escape a text.
"""

from collections.abc import Iterable
from html import escape

from ..._system.terminal_text import escape_control_characters

__all__ = ["EMPTY", "Child", "Markup", "join", "tag"]

_VOID = frozenset({"br", "hr", "img", "input", "link", "meta", "source", "wbr"})


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


EMPTY = Markup("")
Child = str | None | Iterable["Child"]
Attribute = str | int | bool | None


def join(*children: Child) -> Markup:
    """Join the children, and escape each that is no markup."""
    return Markup("".join(map(_child, children)))


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Markup:
    """Return an element. `class_` is the attribute class, `data_id` is data-id. True is an attribute without a value;
    None and False leave it out."""
    given = "".join(_attribute(key, value) for key, value in attributes.items() if value is not None)
    if name in _VOID:
        return Markup(f"<{name}{given}>")
    return Markup(f"<{name}{given}>{''.join(map(_child, children))}</{name}>")


def _child(child: Child) -> str:
    if isinstance(child, Markup):
        return child
    if isinstance(child, str):
        return escape(escape_control_characters(child), quote=True)
    return "" if child is None else "".join(map(_child, child))


def _attribute(key: str, value: str | int | bool) -> str:
    if value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    return f' {name}="{escape(escape_control_characters(str(value)), quote=True)}"'

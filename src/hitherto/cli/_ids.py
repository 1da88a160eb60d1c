"""What an id on the command line means.

A message's id, a conversation's, or as much of one as is unique; `@` for the conversation of this folder that was
active last, `@~1` for the one before it, and so on. Where an id may be left out, `@` is meant, and where nothing was
said in this folder, the conversation that was active last anywhere. The folders below one that has a store of its own
are the same project.
"""

import os
import re
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from .. import errors

if TYPE_CHECKING:
    from ..conversation import Conversation
    from ..listing import ConversationInfo
    from ..store import Store

_RECENT = re.compile(r"@(?:~(\d{1,6}))?")
_MOST = 9_999  # conversations back: a page has no more


def here() -> str | None:
    """The project that we are in: the folder that has a `.hitherto`, here or above, else this one. None: it is gone."""
    from .._locations import near  # noqa: PLC0415  # help needs none

    try:
        found = near()
        return os.getcwd() if found is None else os.path.dirname(os.path.dirname(found))
    except OSError:
        return None


def is_message(id: str, talk: "Conversation") -> bool:
    """Was a message meant by the id that led here? Were it the beginning of a conversation's as well, it would be
    ambiguous."""
    return talk.at is not None and talk.at.startswith(id)


def find_conversation(store: "Store", id: str) -> "Conversation":
    """The conversation that an id means, at the message that it means."""
    recent = _RECENT.fullmatch(id)
    if recent is None:
        return store.conversation(id)
    back = int(recent[1] or 0)
    project = here()
    found = [] if project is None else list(islice(_recent(store, project, back + 1), back + 1))
    if len(found) <= back:
        hint = "hitherto conversation list --titles shows all that there are"
        raise errors.NotFound("conversation", [id], hint=f"of this folder, {len(found)} are kept; {hint}")
    return store.conversation(found[back])


def _recent(store: "Store", project: str, wanted: int) -> "Iterator[ConversationInfo]":
    """The conversations of a folder, the newest first, without those that have nothing but traces of sub-agents."""
    cursor: str | None = ""
    while cursor is not None:
        page = store.conversations(limit=min(wanted, _MOST), cursor=cursor or None, project=project)
        yield from (info for info in page if info.head is not None or not info.count)
        cursor = page.next_cursor


def find_or_newest(store: "Store", id: str | None) -> "Conversation":
    """The conversation that an id means; without one, the newest of this folder, or of all."""
    if id is not None:
        return find_conversation(store, id)
    project = here()
    talk = store.latest(project=project) if project is not None else None
    talk = talk or store.latest()
    if talk is None:
        raise errors.NotFound("conversation", ["@"], hint="nothing is kept here so far: hitherto chat begins")
    return talk

"""The meaning of an id on the command line.

An id is a message's, a conversation's, or a unique prefix of one. `@` is the conversation of this folder that was
active last, `@~1` the one before it, and so on. Where an id may be left out, `@` is the default; if this folder has no
conversation, the one that was active last anywhere. A folder with a store of its own and the folders below it are one
project.
"""

import os
import re
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from .. import errors
from ._paging import MAX_PAGE_SIZE, iterate_conversations

if TYPE_CHECKING:
    from ..conversation import Conversation
    from ..listing import ConversationInfo
    from ..store import Store

_RECENT = re.compile(r"@(?:~(\d{1,6}))?")


def here() -> str | None:
    """Return the current project: the nearest folder with a `.hitherto`, here or above, else this folder. None if it is
    gone."""
    from .._locations import near  # noqa: PLC0415  # help needs none

    try:
        found = near()
        return os.getcwd() if found is None else os.path.dirname(os.path.dirname(found))
    except OSError:
        return None


def is_message(id: str, talk: "Conversation") -> bool:
    """Return True if the id that led to this handle names a message. A prefix that fits a conversation, too, is
    ambiguous."""
    return talk.at is not None and talk.at.startswith(id)


def find_conversation(store: "Store", id: str) -> "Conversation":
    """Return a handle on the conversation that an id names, at the message that it names."""
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
    """Return the conversations of a folder, the newest first, without those that hold only traces of sub-agents."""
    infos = iterate_conversations(store, project=project, page_size=min(wanted, MAX_PAGE_SIZE))
    return (info for info in infos if info.head is not None or not info.count or _is_undone(store, info))


def _is_undone(store: "Store", info: "ConversationInfo") -> bool:
    """Was all that was said on the main flow undone?"""
    return any(message.main for message in store.messages(conversation=info.id, attachments="lazy"))


def find_or_newest(store: "Store", id: str | None) -> "Conversation":
    """Return the conversation that an id names; without an id, the newest of this folder, or of all."""
    if id is not None:
        return find_conversation(store, id)
    project = here()
    talk = store.latest(project=project) if project is not None else None
    talk = talk or store.latest()
    if talk is None:
        raise errors.NotFound("conversation", ["@"], hint="there are no conversations here yet: hitherto chat begins")
    return talk

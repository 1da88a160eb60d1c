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
from ._conversation_pages import MAX_PAGE_SIZE, iterate_conversations

if TYPE_CHECKING:
    from ..conversation import Conversation
    from ..listing import ConversationInfo
    from ..store import Store

_LOOKED_AT = 100  # conversations and messages that a mistyped id is compared with
_RECENT = re.compile(r"@(?:~(\d{1,6}))?")


def here() -> str | None:
    """Return the current project: the nearest folder with a `.hitherto`, here or above, else this folder. None if it is
    gone."""
    from .._system.locations import near  # noqa: PLC0415  # help needs none

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
        return _find_named(store, id)
    back = int(recent[1] or 0)
    project = here()
    found = [] if project is None else list(islice(_recent(store, project, back + 1), back + 1))
    if len(found) <= back:
        hint = "hitherto list shows all that there are"
        raise errors.NotFound("conversation", [id], hint=f"of this folder, {len(found)} are kept; {hint}")
    return store.conversation(found[back])


def _recent(store: "Store", project: str, wanted: int) -> "Iterator[ConversationInfo]":
    """Return the conversations of a folder, the newest first, without those that hold only traces of sub-agents.

    Programs often name no folder. In a store that lies in this folder, these conversations are of this folder, too. In
    another store they stand for it where it has none of its own."""
    size = min(wanted, MAX_PAGE_SIZE)
    own = _lies_below(store, project)
    infos = iterate_conversations(store, project=None if own else project, page_size=size)
    if not own and next(iter(iterate_conversations(store, project=project, page_size=1)), None) is None:
        infos, own = iterate_conversations(store, page_size=size), True
    return (
        info
        for info in infos
        if (not own or info.project in (None, project))
        and (info.head is not None or not info.count or _is_undone(store, info))
    )


def _is_undone(store: "Store", info: "ConversationInfo") -> bool:
    """Was all that was said on the main flow undone?"""
    return any(message.main for message in store.messages(conversation=info.id, attachments="lazy"))


def _lies_below(store: "Store", project: str) -> bool:
    """Return True if the store is a file in this folder or below it."""
    info = store.engine.backend.info
    is_file = info.name == "sqlite"
    return is_file and os.path.realpath(info.location).startswith(os.path.join(os.path.realpath(project), ""))


def _find_named(store: "Store", id: str) -> "Conversation":
    """Find a conversation by an id. An id that is unknown is compared with those of the newest ones: a letter may be
    wrong, or in the wrong case."""
    try:
        return store.conversation(id)
    except errors.NotFound as error:
        near = _find_near(store, id)
        if near is not None:
            error.replace_hint(f"did you mean {near}? hitherto list shows the conversations")
        raise


def _find_near(store: "Store", id: str) -> str | None:
    from difflib import get_close_matches  # noqa: PLC0415  # only a mistyped id needs it

    known = [info.id[: max(8, len(id))] for info in store.conversations(limit=_LOOKED_AT)]
    known += [message.id for message in islice(store.messages(attachments="lazy"), _LOOKED_AT)]
    same = next((one for one in known if one.lower() == id.lower()), None)
    return same or next(iter(get_close_matches(id, known, n=1, cutoff=0.8)), None)


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

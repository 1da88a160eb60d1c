"""What an id on the command line means.

A message's id, a conversation's, or as much of one as is unique; `@` for the conversation of this folder that was
active last, `@~1` for the one before it, and so on. Where an id may be left out, `@` is meant, and where nothing was
said in this folder, the conversation that was active last anywhere.
"""

import os
import re
from typing import TYPE_CHECKING

from .. import errors

if TYPE_CHECKING:
    from ..conversation import Conversation
    from ..store import Store

_RECENT = re.compile(r"@(?:~(\d{1,6}))?")


def here() -> str | None:
    """The folder that we are in; None if it is gone."""
    try:
        return os.getcwd()
    except OSError:
        return None


def named(store: "Store", id: str) -> "Conversation":
    """The conversation that an id means, at the message that it means."""
    recent = _RECENT.fullmatch(id)
    if recent is None:
        return store.conversation(id)
    back = int(recent[1] or 0)
    project = here()
    page = store.conversations(limit=back + 1, project=project) if project is not None else None
    if page is None or len(page.items) <= back:
        hint = "hitherto conversation list shows all that there are"
        count = 0 if page is None else len(page.items)
        raise errors.NotFound("conversation", [id], hint=f"{count} of this folder are kept; {hint}")
    return store.conversation(page.items[back])


def chosen(store: "Store", id: str | None) -> "Conversation":
    """The conversation that an id means; without one, the newest of this folder, or of all."""
    if id is not None:
        return named(store, id)
    project = here()
    talk = store.latest(project=project) if project is not None else None
    talk = talk or store.latest()
    if talk is None:
        raise errors.NotFound("conversation", ["@"], hint="nothing is kept here so far: hitherto chat begins")
    return talk

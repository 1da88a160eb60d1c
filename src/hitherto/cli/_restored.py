"""Replaying the erasure ledger on a store that was restored or copied, before anybody uses it.

A backup has every workspace of a store. Each is compared with the ledger of the store that is replaced, if that is the
same workspace, and with a file. If neither can be asked, that is said: what was purged since the backup is back.
"""

import os
from contextlib import closing
from typing import TYPE_CHECKING

from .. import errors
from ._output import Meter, count_of
from ._store_options import Place
from ._terminal import say

if TYPE_CHECKING:
    from .._engine.bodies import Erasure
    from ..reports import Replay
    from ..store import Store

_UNASKED = "what was purged after the backup is back: no erasure ledger was asked, and --erasures FILE names one"
_ANYWAY = "give --erasures FILE, or --even-purged to have what was purged since the backup back"


def erase_again(new: str, place: Place, old: str | None, file: str | None, *, even_purged: bool) -> list[str]:
    """Purge from the restored file what the ledgers name. Return the ids of the conversations."""
    from ..opening import open as open_store  # noqa: PLC0415  # help needs none
    from ..opening import workspaces_of  # noqa: PLC0415  # as above

    if even_purged:
        say("warning: no erasure ledger was asked, and what was purged since the backup is back")
        return []
    if old is None and file is None:
        say(_UNASKED)
        return []
    again: list[str] = []
    fitted = file is None
    for name in workspaces_of(new) or [place.workspace]:
        try:
            store = open_store(new, key=place.secret(), workspace=name, maintenance=False)
        except (errors.KeyUnavailable, errors.NotSealed) as error:
            if name == place.workspace:
                raise
            say(f"warning: workspace {name} has another key, and what was purged in it is back: {error}")
            continue
        with closing(store):
            found, fits = _ledgers(store, place, old, file)
            fitted = fitted or fits
            report = _replay(store, found)
        again += report.purge.purged
        if report.purge.failures:
            raise errors.StorageError(f"what was purged is back, and stays: {report.purge.failures[0].error}")
    if not fitted:
        raise errors.InvalidArgument(f"{file} is the erasure ledger of another workspace", hint=_ANYWAY)
    say(f"purged again: {count_of(len(again), 'conversation')}")
    return again


def _ledgers(store: "Store", place: Place, old: str | None, file: str | None) -> tuple[dict[bytes, "Erasure"], bool]:
    """Return the entries for a restored workspace, and whether the file is of this workspace."""
    from .._erasure.ledger import ledger_key  # noqa: PLC0415  # help needs none
    from .._erasure.ledger_file import of_another, read  # noqa: PLC0415  # as above

    key = ledger_key(store.engine)
    path = None if file is None else os.path.expanduser(file)
    fits = path is not None and not of_another(path, key)
    found = read(path, key) if path is not None and fits else {}
    if old is not None:
        found |= _of_replaced(store, place, old, required=not fits)
    return found, fits


def _of_replaced(store: "Store", place: Place, old: str, *, required: bool) -> dict[bytes, "Erasure"]:
    """Return the entries of the store that is replaced, if it has the same workspace."""
    from .._erasure.ledger import ledger_key  # noqa: PLC0415  # help needs none
    from .._erasure.replaying import all_entries  # noqa: PLC0415  # as above

    name = store.backend.info.workspace_name
    try:
        with closing(_open(old, place, name)) as before:
            same = ledger_key(before.engine) == ledger_key(store.engine)
            return dict(all_entries(before.engine)) if same else {}
    except errors.NotFound:  # it has no such workspace
        return {}
    except errors.HithertoError as error:
        if not required:
            return {}
        what = f"the erasure ledger of {old} cannot be read: {error}"
        raise errors.CannotOpen(what, hint=_ANYWAY) from None


def _open(path: str, place: Place, name: str) -> "Store":
    """Open the store that is replaced, for repair if it must be."""
    from ..opening import open as open_store  # noqa: PLC0415  # help needs none

    try:
        return open_store(path, key=place.secret(), workspace=name, read_only=True)
    except (errors.CannotOpen, errors.ReadOnly):
        return open_store(path, key=place.secret(), workspace=name, create=False, maintenance=False)


def _replay(store: "Store", found: dict[bytes, "Erasure"]) -> "Replay":
    from .._erasure.replaying import replay  # noqa: PLC0415  # help needs none

    with Meter("comparing", "conversation") as meter:
        return replay(store.engine, found, meter)

"""Remember, for as long as this process lives, the newest retention policy of each workspace that it has seen.

The policy is part of the workspace's row. In a sealed store that row cannot be forged, but an attacker who can write to
the file can put an older version of it back, and with it a policy that was switched off or lengthened since: the next
sweep would destroy what was meant to be kept. The store itself has nothing to compare the row with. This process has:
the version of the row rises with each write, so a row with a lower version than one that was seen is an older one.

A policy that came back that way is suspect until a caller sets a policy in this process, or until the row says again
what was seen last. It stays suspect when the row is written again, which raises its version.

A process that starts after the row was put back knows nothing of it: SECURITY.md says so.
"""

import threading
from collections import OrderedDict

from msgspec import Struct

Place = tuple[str, bytes]  # where the store is, and which workspace in it

_MAX_REMEMBERED = 1000  # workspaces that are remembered


class _Seen(Struct):
    version: int
    days: int  # 0: no policy
    is_suspect: bool = False


_seen: OrderedDict[Place, _Seen] = OrderedDict()
_lock = threading.Lock()


def note(place: Place, version: int, days: int) -> None:
    """Take note of a row that was read or written."""
    with _lock:
        seen = _seen.pop(place, None)
        _seen[place] = _Seen(version, days) if seen is None else _compare(seen, version, days)
        while len(_seen) > _MAX_REMEMBERED:
            _seen.popitem(last=False)


def _compare(seen: _Seen, version: int, days: int) -> _Seen:
    if days == seen.days:
        return _Seen(max(version, seen.version), days)
    if seen.is_suspect or version < seen.version:
        return _Seen(seen.version, seen.days, is_suspect=True)
    return _Seen(version, days)


def is_suspect(place: Place) -> bool:
    """Return True if the policy of this workspace is older than one that this process has seen."""
    with _lock:
        seen = _seen.get(place)
        return seen is not None and seen.is_suspect


def accept(place: Place, version: int, days: int) -> None:
    """Note a policy that was set here. It counts, even if it differs from those seen before."""
    with _lock:
        _seen[place] = _Seen(version, days)

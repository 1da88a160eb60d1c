"""Find foreign files beside a store that have the name of one of its own files.

Each part of the backend refuses such a file when it meets it: the store is not opened, nothing is searched, no ballast
is created. `hitherto doctor` finds all of them at once, and changes nothing.
"""

import os
from collections.abc import Iterator

from ..._system import own_files
from ...errors import StorageError
from .ballast import Ballast
from .fts_file import is_own_index


def find_foreign(store: str) -> Iterator[tuple[str, str | None]]:
    """Yield the problem and the hint for each foreign file. `store` is the real path, without a link."""
    owners = own_files.trusted_owners(store)
    for suffix in (*own_files.SIDECARS, "-search", *(f"-search{suffix}" for suffix in own_files.SIDECARS)):
        path = f"{store}{suffix}"
        try:
            if suffix == "-search":
                is_own_index(path)
            else:
                own_files.check_sidecar(path, owners)
        except StorageError as error:
            yield str(error), error.hint
    ballast = Ballast(store)
    if os.path.isfile(ballast.path) and not ballast.is_own:
        what = f"{ballast.path} is not the store's ballast: on a full disk nothing can be purged"
        yield what, own_files.MOVE_IT

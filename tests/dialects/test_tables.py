"""Each table by dialect has every dialect: a new one that a table lacks must not pass for another provider's."""

from collections.abc import Collection

import pytest

from hitherto.dialects import _NAMES, _sdk_entries
from hitherto.recorder import _requests, _sdk
from hitherto.snapshots import _thread

TABLES: dict[str, Collection[str]] = {
    "snapshots._thread": _thread._PROVIDERS,
    "recorder._requests": _requests.FIELDS,
    "recorder._sdk": _sdk._PROVIDERS,
    "dialects._sdk_entries": _sdk_entries._SHAPES,
}


@pytest.mark.parametrize("table", TABLES)
def test_a_table_has_every_dialect(table: str) -> None:
    assert set(TABLES[table]) == set(_NAMES)

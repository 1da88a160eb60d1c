"""The services of an opened store by their own types: the tests of a service look inside it.

An engine knows its services by protocols, so that no module below the store has to import one to call it.
"""

from typing import TypeVar

from hitherto import Store
from hitherto._engine.engine import Engine
from hitherto._erasure.maintenance import MaintenanceThread
from hitherto._erasure.schedule import Schedule
from hitherto._search.search import Search

T = TypeVar("T")


def _of(kind: type[T], service: object) -> T:
    assert isinstance(service, kind)
    return service


def _engine(of: Store | Engine) -> Engine:
    return of.engine if isinstance(of, Store) else of


def background_of(of: Store | Engine) -> MaintenanceThread:
    return _of(MaintenanceThread, _engine(of).background)


def schedule_of(of: Store | Engine) -> Schedule:
    return _of(Schedule, _engine(of).schedule)


def search_of(of: Store | Engine) -> Search:
    return _of(Search, _engine(of).search)

"""Iteration over a store's conversations, page by page.

The listings of the command line differ in filters and page size only.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..listing import ConversationInfo
    from ..store import Store

MAX_PAGE_SIZE = 9_999


def iterate_conversations(
    store: "Store",
    *,
    project: str | None = None,
    metadata: Mapping[str, str] | None = None,
    kind: str = "chat",
    include_expired: bool = False,
    page_size: int = 1000,
) -> "Iterator[ConversationInfo]":
    """Yield the conversations, the newest first. A page is read when its turn comes."""
    cursor = None
    while True:
        page = store.conversations(
            limit=page_size,
            cursor=cursor,
            project=project,
            metadata=metadata,
            kind=kind,
            include_expired=include_expired,
        )
        yield from page
        cursor = page.next_cursor
        if cursor is None:
            return

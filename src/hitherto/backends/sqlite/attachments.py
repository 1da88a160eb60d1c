"""Writing the chunks of attachments, and removing attachments that no message refers to.

An attachment is staged in chunks before the commit that adopts it. Its chunks are numbered from its place, shifted by
`CHUNK_BITS`, so all of them are one range of rowids.
"""

from collections.abc import Sequence

import apsw

from .connections import transaction
from .rows import CHUNK_BITS, Values, fetch_all, fetch_one


def stage_chunks(
    connection: apsw.Connection, key: Values, start: int, chunks: Sequence[bytes], *, last: bool, at: int
) -> None:
    """Write some chunks of an attachment in one transaction; `last` completes it if no chunk is missing."""
    with transaction(connection):
        query = (
            "INSERT INTO attachment (workspace, conversation, name, chunks, staged_at) VALUES (?, ?, ?, 0, ?) "
            "ON CONFLICT DO UPDATE SET staged_at = excluded.staged_at RETURNING place, chunks"
        )
        place, complete = fetch_one(connection, query, (*key, at))
        if complete:  # and verified: a chunk that comes now is the same one, or a wrong one
            return
        place <<= CHUNK_BITS
        for index, chunk in enumerate(chunks, start):
            connection.execute("INSERT OR REPLACE INTO chunk (number, body) VALUES (?, ?)", (place | index, chunk))
        if last:
            end = start + len(chunks)
            query = "SELECT count(*) FROM chunk WHERE number >= ? AND number < ?"
            if fetch_one(connection, query, (place, place + end))[0] == end:
                query = "UPDATE attachment SET chunks = ? WHERE place = ?"
                connection.execute(query, (end, place >> CHUNK_BITS))


def remove_attachments(connection: apsw.Connection, query: str, values: Values) -> int:
    """Remove the attachments whose places the query selects, and return how many there were."""
    places = [found[0] for found in fetch_all(connection, query, values)]
    for place in places:
        between = (place << CHUNK_BITS, ((place + 1) << CHUNK_BITS) - 1)
        connection.execute("DELETE FROM chunk WHERE number BETWEEN ? AND ?", between)
        connection.execute("DELETE FROM attachment WHERE place = ?", (place,))
    return len(places)

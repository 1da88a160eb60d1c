"""The tables of the text index on PostgreSQL, and the condition that makes row-level security use its index.

`text_index` says why they are as they are. They stand apart from it because `schema` creates them on every server, also
for a process that never searches.
"""

from typing import Final

# No word is as short as x, so every row matches `!x`.
_ASKED = "workspace_words @@ coalesce(nullif(current_setting('hitherto.words', true), ''), '!x')::tsquery"

TABLES: Final = {
    "word_state": (
        "workspace_id uuid PRIMARY KEY, stamp bigint NOT NULL, position bytea, next_place bigint NOT NULL, "
        "residue bigint[]"
    ),
    "word_known": (
        "workspace_id uuid, conversation bytea, created_at bigint, rewrites bigint, next_seq bigint, "
        "PRIMARY KEY (workspace_id, conversation)"
    ),
    "word": (
        "workspace_id uuid, place bigint, part integer, number bigint NOT NULL, conversation bytea NOT NULL, "
        "revision bigint NOT NULL, role bytea NOT NULL, created_at bigint NOT NULL, workspace_words tsvector NOT NULL, "
        "PRIMARY KEY (workspace_id, place, part)"
    ),
}
INDEXES: Final = (
    "CREATE UNIQUE INDEX word_by_number ON hitherto.word (workspace_id, number, part)",
    "CREATE INDEX word_by_conversation ON hitherto.word (workspace_id, conversation, place)",
    "CREATE INDEX word_by_words ON hitherto.word USING gin (workspace_words) WITH (gin_pending_list_limit = 512)",
)


def visible(table: str, bound: str) -> str:
    """Return the condition of a policy on this table: rows that are `bound`, and of the words only those asked for."""
    return f"{bound} AND {_ASKED}" if table == "word" else bound

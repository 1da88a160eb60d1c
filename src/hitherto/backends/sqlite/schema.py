"""The tables of the SQLite file, as the numbered steps that lead to them.

A released step is never changed: a change is a new step at the end. The file's `user_version` is the number of steps
applied. `docs/schema.md` explains the columns.
"""

APPLICATION_ID = 0x48544854  # "HTHT", in the header of every file of ours

MIGRATIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "the tree of messages",
        (
            """CREATE TABLE migration (
                version INTEGER PRIMARY KEY,
                name TEXT NOT NULL,
                applied_at INTEGER NOT NULL
            ) STRICT""",
            """CREATE TABLE workspace (
                place INTEGER PRIMARY KEY,
                name TEXT NOT NULL UNIQUE,
                id BLOB NOT NULL,
                retired INTEGER NOT NULL
            ) STRICT""",
            """CREATE TABLE conversation (
                place INTEGER PRIMARY KEY,
                workspace INTEGER NOT NULL REFERENCES workspace (place),
                id BLOB NOT NULL,
                kind TEXT NOT NULL,
                key BLOB,
                version INTEGER NOT NULL,
                token BLOB NOT NULL,
                generation INTEGER NOT NULL,
                head INTEGER,
                tips BLOB NOT NULL,
                next_seq INTEGER NOT NULL,
                count INTEGER NOT NULL,
                size INTEGER NOT NULL,
                removals INTEGER NOT NULL,
                created_at INTEGER NOT NULL,
                active_at INTEGER NOT NULL,
                shelf INTEGER NOT NULL,
                expires_at INTEGER,
                held INTEGER NOT NULL,
                data_key BLOB NOT NULL,
                meta BLOB NOT NULL,
                proof BLOB NOT NULL
            ) STRICT""",
            "CREATE UNIQUE INDEX conversation_by_id ON conversation (id, workspace)",
            "CREATE UNIQUE INDEX conversation_by_key ON conversation (workspace, kind, key) WHERE key IS NOT NULL",
            "CREATE INDEX conversation_by_activity ON conversation (workspace, kind, shelf, id, expires_at)",
            "CREATE INDEX conversation_by_creation ON conversation (workspace, kind, created_at, id, expires_at)",
            """CREATE TABLE message (
                number INTEGER PRIMARY KEY,
                conversation INTEGER NOT NULL REFERENCES conversation (place),
                seq INTEGER NOT NULL,
                parent INTEGER,
                link INTEGER,
                main INTEGER NOT NULL,
                role TEXT NOT NULL,
                revision INTEGER NOT NULL,
                created_at INTEGER NOT NULL,
                key BLOB,
                token BLOB NOT NULL,
                size INTEGER NOT NULL,
                body BLOB
            ) STRICT""",
            "CREATE UNIQUE INDEX message_by_seq ON message (conversation, seq)",
            "CREATE UNIQUE INDEX message_by_key ON message (conversation, key) WHERE key IS NOT NULL",
            """CREATE TABLE item (
                conversation INTEGER NOT NULL REFERENCES conversation (place),
                key BLOB NOT NULL,
                revision INTEGER NOT NULL,
                body BLOB NOT NULL,
                PRIMARY KEY (conversation, key)
            ) STRICT, WITHOUT ROWID""",
            """CREATE TABLE tag (
                workspace INTEGER NOT NULL,
                value BLOB NOT NULL,
                conversation INTEGER NOT NULL REFERENCES conversation (place),
                message INTEGER NOT NULL,
                PRIMARY KEY (workspace, value, conversation, message)
            ) STRICT, WITHOUT ROWID""",
            "CREATE INDEX tag_by_conversation ON tag (conversation, message)",
        ),
    ),
    (
        "packs, attachments and the feed of changes",
        (
            "ALTER TABLE conversation RENAME COLUMN removals TO rewrites",
            """CREATE TABLE pack (
                first INTEGER PRIMARY KEY,
                conversation INTEGER NOT NULL,
                parent INTEGER,
                count INTEGER NOT NULL,
                body BLOB NOT NULL
            ) STRICT""",
            """CREATE INDEX message_loose ON message (number & 31, number)
                WHERE body IS NOT NULL AND (number & 31) IN (0, 31)""",
            """CREATE TABLE attachment (
                place INTEGER PRIMARY KEY,
                workspace INTEGER NOT NULL REFERENCES workspace (place),
                conversation BLOB NOT NULL,
                name BLOB NOT NULL,
                chunks INTEGER NOT NULL,
                staged_at INTEGER NOT NULL
            ) STRICT""",
            "CREATE UNIQUE INDEX attachment_by_name ON attachment (workspace, conversation, name)",
            """CREATE TABLE chunk (
                number INTEGER PRIMARY KEY,
                body BLOB NOT NULL
            ) STRICT""",
            """CREATE TABLE reference (
                conversation INTEGER NOT NULL REFERENCES conversation (place),
                message INTEGER NOT NULL,
                attachment INTEGER NOT NULL REFERENCES attachment (place),
                PRIMARY KEY (conversation, message, attachment)
            ) STRICT, WITHOUT ROWID""",
            "CREATE INDEX reference_by_attachment ON reference (attachment)",
            "ALTER TABLE workspace ADD COLUMN epoch INTEGER NOT NULL DEFAULT 0",
            "ALTER TABLE conversation ADD COLUMN moved INTEGER NOT NULL DEFAULT 0",
            "CREATE INDEX conversation_by_move ON conversation (workspace, moved)",
            """CREATE TABLE mark (
                workspace INTEGER NOT NULL REFERENCES workspace (place),
                epoch INTEGER NOT NULL,
                position BLOB NOT NULL,
                PRIMARY KEY (workspace, epoch)
            ) STRICT, WITHOUT ROWID""",
            """CREATE TABLE gone (
                workspace INTEGER NOT NULL REFERENCES workspace (place),
                epoch INTEGER NOT NULL,
                conversation BLOB NOT NULL,
                PRIMARY KEY (workspace, epoch, conversation)
            ) STRICT, WITHOUT ROWID""",
        ),
    ),
    (
        "what went and may have left something behind",
        ("ALTER TABLE workspace ADD COLUMN untidy INTEGER NOT NULL DEFAULT 0",),
    ),
    (
        "how far what was removed is erased",
        (
            "ALTER TABLE workspace RENAME COLUMN untidy TO removals",
            "ALTER TABLE workspace ADD COLUMN begun INTEGER NOT NULL DEFAULT 0",
            "ALTER TABLE workspace ADD COLUMN rebuilt INTEGER NOT NULL DEFAULT 0",
            "ALTER TABLE workspace ADD COLUMN erased INTEGER NOT NULL DEFAULT 0",
            "UPDATE workspace SET removals = removals + 1",  # what earlier versions have left behind
        ),
    ),
)

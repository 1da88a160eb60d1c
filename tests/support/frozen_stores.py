"""Stores that were frozen when their format was the newest: where they are, and all that is seen of one.

`scripts/freeze_stores.py` makes them: a folder `tests/data/stores/<format>` has an archive of each SQLite store, a dump
of a PostgreSQL database, and `holds.json`, which has their content: the result of `described` at that time. The
result now has to be the same. So a field that was added since is not described here, and no described field may go.
"""

import hashlib
import io
import json
import lzma
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import hitherto
from hitherto import Block, Saved, Store
from hitherto.records import Records
from hitherto.reports import Partial

from .databases import Database

FOLDER = Path(__file__).parents[1] / "data" / "stores"
DUMP = "postgresql.sql.xz"
HOLDS = "holds.json"
START = 1_700_000_000_000_000  # the clock of what is frozen, in microseconds since 1970; it goes by seconds
LONG = 100  # characters of text that are described as they are; of more, what identifies it


@dataclass(frozen=True)
class Kept:
    """A frozen workspace."""

    format: str  # the name of its folder
    place: str  # the name of its archive; or `postgresql`, for the dump
    workspace: str
    key: str | None  # in hexadecimal: it opens the workspace now
    now: int  # a moment after all that happened in it, in microseconds since 1970
    words: tuple[str, ...]  # whose messages are searched for
    seen: dict[str, Any]  # what `described` gave
    job: str | None = None  # of a rotation that is half done
    after: str | None = None  # the key when it is done
    purged: tuple[str, ...] = ()  # texts of what was purged, and not scrubbed out of the files so far
    damaged: tuple[str, ...] = ()  # messages in quarantine

    @property
    def name(self) -> str:
        return "-".join(part for part in (self.format, self.place, self.workspace) if part != "default")

    @property
    def key_bytes(self) -> bytes | None:
        return None if self.key is None else bytes.fromhex(self.key)

    @property
    def after_bytes(self) -> bytes | None:
        return None if self.after is None else bytes.fromhex(self.after)


@dataclass
class Frozen:
    """All that was frozen of one format."""

    folder: Path
    sqlite: int  # how many steps there were, of each
    postgresql: int
    stores: list[Kept] = field(default_factory=list)


def frozen() -> list[Frozen]:
    found = []
    for folder in sorted(FOLDER.iterdir()):
        told = json.loads((folder / HOLDS).read_text())
        one = Frozen(folder, told["format"]["sqlite"], told["format"]["postgresql"])
        for kept in told["stores"]:
            tuples = {name: tuple(kept.get(name, ())) for name in ("words", "purged", "damaged")}
            one.stores.append(Kept(**{"format": folder.name, "key": None, **kept, **tuples}))
        found.append(one)
    return found


# -- out of the archive, and into it


def packed(folder: Path) -> bytes:
    """The files of a folder as an archive, the same bytes for the same files."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(folder.iterdir()):
            if path.is_file() and not path.name.endswith("-shm"):  # SQLite makes it anew
                told = tarfile.TarInfo(path.name)
                told.size, told.mode = path.stat().st_size, 0o600
                with path.open("rb") as file:
                    archive.addfile(told, file)
    return lzma.compress(made.getvalue(), preset=9 | lzma.PRESET_EXTREME)


def unpacked(archive: Path, folder: Path) -> Path:
    """The store of an archive, as a file in a folder."""
    folder.mkdir(parents=True)
    with tarfile.open(archive) as opened:
        for told in opened:
            file = opened.extractfile(told)
            assert file is not None
            (folder / Path(told.name).name).write_bytes(file.read())
    return folder / "store.db"


def restored(dump: Path, database: Database) -> str:
    """The dump, in an empty database; where that is."""
    with database.admin() as connection:
        connection.execute(lzma.decompress(dump.read_bytes()))
    return database.url()


# -- what is seen of a store


def described(store: Store, words: tuple[str, ...]) -> dict[str, Any]:
    """All that is seen of it, as plain JSON; searching for these words."""
    page = store.conversations(limit=1000, include_expired=True, total=True)
    seen: dict[str, Any] = {
        "conversations": {info.id: _conversation(store, info) for info in page},
        "order": [info.id for info in page],
        "total": page.total,
        "messages": {message.id: _message(message) for message in store.messages(newest_first=False)},
        "quota": store.quota,
        "retention_days": None if store.retention is None else store.retention.days,
    }
    labels = {message["label"] for message in seen["messages"].values() if "label" in message}
    seen["labels"] = {label: [found.id for found in store.messages(label=label)] for label in sorted(labels)}
    projects = {talk["project"] for talk in seen["conversations"].values() if "project" in talk}
    seen["projects"] = {
        project: [info.id for info in store.conversations(project=project, limit=1000)] for project in sorted(projects)
    }
    seen["found"] = {word: sorted(hit.message_id for hit in store.search(word, limit=1000)) for word in words}
    return seen


def _conversation(store: Store, info: hitherto.listing.ConversationInfo) -> dict[str, Any]:
    talk = store.conversation(info.id)
    seen: dict[str, Any] = {
        "title": info.title,
        "key": info.key,
        "project": info.project,
        "metadata": info.metadata,
        "head": info.head,
        "count": info.count,
        "created_at": _time(info.created_at),
        "active_at": _time(info.active_at),
        "expires_at": _time(info.expires_at),
        "held": info.held,
        "exportable": talk.exportable,
        "problem": info.problem is not None,
    }
    try:
        seen["thread"] = [message.id for message in talk.thread(full=True)]
    except hitherto.Damaged:
        seen["thread"] = "damaged"
        return _short(seen)
    record, left = Records(store).get(info.id), Records(store).get_snapshot(info.id)
    seen |= {
        "provider": talk.provider,
        "model": talk.model,
        "system_prompt": talk.system_prompt,
        "tools": talk.tools,
        "setups": [(change.message_id, change.setup.system_prompt) for change in talk.setups()],
        "branches": sorted((branch.id, branch.main) for branch in talk.branches()),
        "usage": talk.usage().total_tokens,
        "partials": [_partial(partial) for partial in talk.partials()],
        "state": None if left is None else left.state,
        "revision": record.revision,
        "participants": [(one.id, one.role, one.display_name) for one in record.participants],
        "summaries": [one.synopsis for one in record.summaries],
        "frames": json.dumps([(frame.sequence, frame.role, frame.content) for frame in record.messages]),
    }
    return _short(seen)


def _message(message: Saved) -> dict[str, Any]:
    if message.problem is not None:
        return {"problem": True, "conversation": message.conversation}
    return _short(
        {
            "conversation": message.conversation,
            "parent": message.parent,
            "seq": message.seq,
            "link": message.link,
            "main": message.main,
            "role": message.role,
            "label": message.label,
            "key": message.key,
            "created_us": message.created_us,
            "revision": message.revision,
            "origin": message.origin,
            "tool_result_error": message.tool_result_error,
            "blocks": [_block(block) for block in message.blocks],
            "extra": message.extra,
            "raw": message.raw,
            "privacy": message.privacy,
            "usage": None if message.usage is None else (message.usage.input_tokens, message.usage.output_tokens),
        }
    )


def _block(block: Block) -> dict[str, Any]:
    names = ("type", "content", "modality", "mime_type", "id", "extra")
    usual = {"type": "content", "modality": "text", "mime_type": "text/plain"}
    seen = {name: getattr(block, name) for name in names}
    return _short({name: value for name, value in seen.items() if usual.get(name) != value})


def _partial(partial: Partial) -> dict[str, Any]:
    return _short({"id": partial.id, "parent": partial.parent, "text": partial.text, "problem": partial.problem})


def _time(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat()


def _short(value: Mapping[str, object]) -> dict[str, Any]:
    """As JSON has it: without what says nothing, and with a checksum for what is long."""
    return {name: _json(part) for name, part in value.items() if part not in (None, False, (), [], {})}


def _json(value: object) -> object:
    if isinstance(value, Mapping):
        return _short(value)
    if isinstance(value, list | tuple):
        return [_json(part) for part in value]
    if isinstance(value, bytes):
        return f"{len(value)} bytes, sha256 {hashlib.sha256(value).hexdigest()}"
    if isinstance(value, str) and len(value) > LONG:
        return f"{len(value)} characters, sha256 {hashlib.sha256(value.encode()).hexdigest()}"
    return value

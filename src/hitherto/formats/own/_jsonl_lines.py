"""The lines of our own format, as values: what each may hold, and what is refused.

`jsonl` writes them, `_jsonl_reading` reads them.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta as Limits
from msgspec import Struct

from ..._engine.record_items import ConversationSummary, Measure, Participant
from ...errors import Damaged
from ...model import Usage

VERSION = 1
LONGEST_LINE = 1 << 27  # bytes of the longest line: more than any message of 10 MB may have, however it is escaped
ZSTD = b"\x28\xb5\x2f\xfd"
MARKS = ("$bytes", "$attachment", "$base64", "$float", "$object")


class Header(Struct, omit_defaults=True):
    hitherto: Literal["jsonl"]
    version: int


class SetupLine(Struct, omit_defaults=True, forbid_unknown_fields=True):
    provider: str = ""
    model: str = ""
    system_prompt: str = ""
    tools: list[object] = []
    raw: object = None


class RecordLine(Struct, omit_defaults=True, forbid_unknown_fields=True):
    participants: tuple[Participant, ...] = ()
    consent: str | None = None
    metrics: dict[Measure, int] = {}
    summaries: tuple[ConversationSummary, ...] = ()


class ConversationLine(Struct, omit_defaults=True, forbid_unknown_fields=True):
    id: str
    messages: Annotated[int, Limits(ge=0)]
    title: str = ""
    key: str | None = None
    project: str | None = None
    metadata: dict[str, str] = {}
    setups: Annotated[int, Limits(ge=0)] = 0
    setup: int = 0
    setup_at: int = 0
    opening: str | None = None
    head: str | None = None
    held: bool = False
    created_at: str = ""
    partials: Annotated[int, Limits(ge=0)] = 0
    expires_at: str = ""
    record: RecordLine | None = None
    kind: str | None = None  # chat
    items: Annotated[int, Limits(ge=0)] = 0


class BlockLine(Struct, omit_defaults=True, forbid_unknown_fields=True):
    type: str
    content: object
    modality: str | None = None  # text
    mime_type: str | None = None  # text/plain; defaults are left out by identity, and no text is sure to have one
    id: str | None = None
    extra: dict[str, object] | None = None


class MessageLine(Struct, omit_defaults=True, forbid_unknown_fields=True):
    id: str
    role: str
    at: str
    blocks: list[BlockLine]
    parent: str | None = None
    link: str | None = None
    main: bool = True
    setup: int = 0
    label: str | None = None
    key: str | None = None
    tool_result_error: bool = False
    extra: dict[str, object] | None = None
    raw: object = None
    usage: Usage | None = None
    privacy: dict[str, object] | None = None
    origin: str | None = None
    format: str | None = None


class AttachmentLine(Struct, omit_defaults=True, forbid_unknown_fields=True):
    number: Annotated[int, Limits(ge=0)]
    data: str = ""
    size: int | None = None  # in the last line of an attachment, with its hash
    sha256: str = ""
    text: bool = False
    missing: bool = False  # the store that was saved has lost the content: this line is all there is of it


class PartialLine(Struct, omit_defaults=True, forbid_unknown_fields=True):
    parent: str
    at: str
    messages: list[MessageLine]


class ItemLine(Struct, forbid_unknown_fields=True):
    name: str
    data: str


class End(Struct, forbid_unknown_fields=True):
    conversations: int
    sha256: str


class Line(Struct, omit_defaults=True, forbid_unknown_fields=True):
    conversation: ConversationLine | None = None
    setup: SetupLine | None = None
    message: MessageLine | None = None
    attachment: AttachmentLine | None = None
    partial: PartialLine | None = None
    item: ItemLine | None = None
    end: End | None = None


encode_line = msgspec.json.Encoder().encode
decode_line = msgspec.json.Decoder(Line).decode


def as_object(value: object) -> dict[str, object] | None:
    if value is not None and not isinstance(value, dict):
        raise Damaged(f"a {type(value).__name__} where an object is wanted")
    return value

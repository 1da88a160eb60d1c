"""Conversations as records: what a product needs that keeps histories.

    records = Records(store, retention=RetentionPolicy(days=14))
    record = records.create(title="Build", messages=[{"role": "user", "content": "Why does it fail?"}])
    records.update(record.conversation_id, append_messages=[…], expect_revision=record.revision)

A record has a title, participants, frames with a sequence, summaries, metrics, a retention and a privacy of its own. It
lies in the same tree as every conversation: what a recorder keeps is a record, and what is kept here can be resumed,
searched and forked.
"""

from .._engine.record_items import ConversationSummary, Metrics, Participant
from ..retention import RetentionPolicy as RetentionPolicy
from ._async_records import AsyncRecords
from ._records import Records
from ._types import (
    AttachmentRef,
    AudioRef,
    Frame,
    FramePrivacy,
    Privacy,
    Record,
    RecordPage,
    RecordSummary,
    Retention,
    Storage,
)

__all__ = [
    "AsyncRecords",
    "AttachmentRef",
    "AudioRef",
    "ConversationSummary",
    "Frame",
    "FramePrivacy",
    "Metrics",
    "Participant",
    "Privacy",
    "Record",
    "RecordPage",
    "RecordSummary",
    "Records",
    "Retention",
    "Storage",
]

"""Removing checkpoints of a thread, and with them the values and messages that no other checkpoint needs.

The checkpoints go first, in one commit with their writes and values; then the messages that are on no list any more. A
process that is killed in between leaves messages that no checkpoint shows, and the next removal takes them.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..conversation import Conversation
from ..errors import HasChildren, Held
from ..formats.importers import _langgraph_records as records
from ..formats.importers._langgraph_records import Listed, Place, Record
from ..model import Saved
from ..store import Store

_ATTEMPTS = 8

Checkpoint = tuple[str, str]  # a namespace and an id


def read_all(talk: Conversation) -> dict[Checkpoint, Record]:
    """Return the records of a thread."""
    found = {}
    for item in talk.items.scan(records.CHECKPOINTS):
        record = records.decode_record(item.value, item.name)
        found[record.namespace, records.checkpoint_of(item.name)] = record
    return found


def choose_latest(all_: Mapping[Checkpoint, Record], load: Callable[[records.Typed], Any]) -> set[Checkpoint]:
    """Return the checkpoints to keep: the latest one of each namespace, and those that it is rebuilt from.

    The value of a delta channel is made of the writes since its newest stored value, so these checkpoints stay. The
    namespace of a call of a subgraph goes with the checkpoint that the call started from.
    """
    latest: dict[str, str] = {}
    for namespace, id in all_:
        latest[namespace] = max(id, latest.get(namespace, ""))
    metadata = {namespace: load(all_[namespace, id].metadata) for namespace, id in latest.items()}
    kept: set[Checkpoint] = set()
    for namespace, id in latest.items():
        root = (metadata[namespace].get("parents") or {}).get("")
        is_past_call = ":" in namespace and ("", root) in all_ and root != latest.get("")
        if not is_past_call:
            kept.add((namespace, id))
            kept |= _needed(all_, namespace, id, set(metadata[namespace].get("counters_since_delta_snapshot") or ()))
    return kept


def _needed(all_: Mapping[Checkpoint, Record], namespace: str, id: str, channels: set[str]) -> set[Checkpoint]:
    """Return the ancestors that the delta channels of a checkpoint are rebuilt from."""
    found: set[Checkpoint] = set()
    record = all_[namespace, id]
    missing = channels - record.places.keys()
    while missing and record.parent is not None:
        place = namespace, record.parent
        if place in found or place not in all_:
            break
        found.add(place)
        record = all_[place]
        missing -= record.places.keys()
    return found


def keep_only(store: Store, talk: Conversation, kept: set[Checkpoint]) -> None:
    """Remove all other checkpoints of a thread. A thread that keeps none is purged."""
    all_ = read_all(talk)
    if not kept & all_.keys():
        store.purge(talk, reason="user-requested")
        return
    if talk.refresh().held:
        raise Held(f"conversation {talk.id} is on hold")
    doomed = all_.keys() - kept
    if doomed:
        _remove(talk, all_, doomed)
    for attempt in range(_ATTEMPTS):
        gone = _unneeded(list(store.messages(conversation=talk, newest_first=False)), _leaves(talk))
        try:
            if gone:
                store.delete(gone, missing_ok=True)
            return
        except HasChildren:  # a message came below one of them
            if attempt == _ATTEMPTS - 1:
                raise


def _remove(talk: Conversation, all_: Mapping[Checkpoint, Record], doomed: Iterable[Checkpoint]) -> None:
    """Remove these records, their writes, and the values that no other one has, in one commit."""
    doomed = set(doomed)
    prefixes = {records.writes_prefix(*checkpoint) for checkpoint in doomed}
    places: list[Place] = [place for one in all_.keys() - doomed for place in all_[one].places.values()]
    gone = [records.record_name(*checkpoint) for checkpoint in doomed]
    for item in talk.items.scan(records.WRITES):
        if f"{item.name.rpartition('/')[0]}/" in prefixes:
            gone.append(item.name)
        else:
            places += [write.place for _, write in records.decode_writes(item.value, item.name).writes]
    needed = set(records.kept_in(places))
    gone += [item.name for item in talk.items.scan(records.VALUES) if item.name not in needed]
    with talk.batch() as batch:
        for name in gone:
            batch.items.delete(name, missing_ok=True)
        for namespace, id in all_.keys() - doomed:
            record = all_[namespace, id]
            if record.parent is not None and (namespace, record.parent) in doomed:
                orphan = Record(namespace, record.checkpoint, record.metadata, None, record.places)
                batch.items.put(records.record_name(namespace, id), records.encode(orphan))


def _leaves(talk: Conversation) -> set[str]:
    """Return the keys of the messages that the lists of a thread end with."""
    places = [place for record in read_all(talk).values() for place in record.places.values()]
    return {place.key for place in places if isinstance(place, Listed)}


def _unneeded(messages: list[Saved], leaves: set[str]) -> list[str]:
    """Return the ids of the messages that are above none of these, nor one of them."""
    by_id = {message.id: message for message in messages}
    needed: set[str] = set()
    ahead = [message.id for message in messages if message.key in leaves]
    while ahead:
        id = ahead.pop()
        if id in by_id and id not in needed:
            needed.add(id)
            ahead += [above for above in (by_id[id].parent, by_id[id].link) if above is not None]
    return [message.id for message in messages if message.id not in needed and message.key is not None]

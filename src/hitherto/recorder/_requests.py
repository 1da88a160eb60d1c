"""Keeping a request of an SDK: as a whole, or only what it adds to an earlier one.

A body that begins with the bytes of an earlier request is read from there on, if the rest begins with an answer: what
stands before it was read, cleaned and found in the tree when the earlier one was sent. In all other cases, and whenever
the recorder is not certain where the history ends, the body is read as a whole. Both ways keep the same messages, at
the same place.
"""

from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from ..dialects import Heard
from ..dialects._json import is_entries
from ..model import Message, Setup
from ._body import Body, Grown, grown, located
from ._recorder import Kept, Place, Recorder, Said
from ._responses import keepable_messages, request_body
from ._sent_requests import SentRequest

# The field of a body that has the history, by dialect.
FIELDS = {"openai-chat": "messages", "openai-responses": "input", "anthropic": "messages", "gemini": "contents"}


def keep_request(recorder: Recorder, data: bytes, model: str | None, session: str | None) -> Place:
    """Keep what a request says, before it is sent. `model`: the one that its path names, where the body names none."""
    earlier = recorder.sent.find(data)
    found = None if earlier is None else _keep_rest(recorder, earlier, data, model, session)
    return found if isinstance(found, Place) else _keep_whole(recorder, data, model, session, found)


def _keep_whole(
    recorder: Recorder, data: bytes, model: str | None, session: str | None, kept: Kept | None = None
) -> Place:
    body = request_body(data)
    heard = recorder.dialect.heard(body)
    setup = recorder.clean_setup(_with_model(heard.setup, model))
    said = recorder.prepare(keepable_messages(heard.messages), setup)
    ask = partial(recorder.ask, said, session=session, found=kept)
    place = ask(after=heard.after, within=heard.within, inherits=heard.inherits)
    is_plain = place.position is not None and not _is_held_elsewhere(heard)
    found = located(data, FIELDS[recorder.dialect.name]) if is_plain else None
    if found is not None:
        entries = body[found.name]
        assert is_entries(entries)  # it was located as a list, and heard as one of entries
        _remember(recorder, found, entries[: len(entries) - len(said.messages)], said, model, place)
    return place


def _keep_rest(
    recorder: Recorder, earlier: SentRequest, data: bytes, model: str | None, session: str | None
) -> Place | Kept | None:
    """Keep what a request adds to an earlier one. If it has to be read as a whole: the conversation that it goes on
    with, as far as that is known."""
    found = grown(earlier.body, data)
    if found is None:
        return None
    is_same = earlier.body.foot == found.body.foot and earlier.model == model
    heard = _heard_rest(recorder, earlier, found, is_same=is_same)
    if heard is None or not _begins_with_an_answer(heard.messages):
        return None
    setup = earlier.setup if is_same else recorder.clean_setup(_with_model(heard.setup, model))
    said = recorder.prepare(keepable_messages(heard.messages), setup)
    place = recorder.go_on(earlier, said, session)
    if isinstance(place, Place) and place.position is not None:
        recorder.sent.remove(earlier)
        _remember(recorder, found.body, earlier.lead, said, model, place)
    return place


def _heard_rest(recorder: Recorder, earlier: SentRequest, found: Grown, *, is_same: bool) -> Heard | None:
    """What the new entries of a request say, and its setup if that is not the same; None if the provider has a part of
    the history, or if the request makes no sense, which is said when all of it is read."""
    entries = found.entries if is_same else [*earlier.lead, *found.entries]
    try:
        fields = {} if is_same else found.body.without_entries()
        heard = recorder.dialect.heard({**fields, found.body.name: entries})
    except ValueError:  # InvalidMessage is one, and what a decoder says
        return None
    return None if _is_held_elsewhere(heard) or len(heard.messages) != len(found.entries) else heard


def _is_held_elsewhere(heard: Heard) -> bool:
    """Does the provider have a part of the history, which the request leaves out?"""
    return heard.inherits or heard.after is not None or heard.within is not None


def _begins_with_an_answer(messages: Sequence[Message]) -> bool:
    """Does a rest begin with an answer, and with nothing that belongs to what stands before it?"""
    first = messages[0]
    return first.role == "assistant" and not any(block.type == "tool_result" for block in first.blocks)


def _with_model(setup: Setup, model: str | None) -> Setup:
    return setup if model is None else replace(setup, model=model)


def _remember(
    recorder: Recorder, body: Body, lead: list[dict[str, object]], said: Said, model: str | None, place: Place
) -> None:
    if place.position is not None:
        recorder.sent.add(SentRequest(body, lead, said.setup, model, place.kept, place.position))

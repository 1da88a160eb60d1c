"""Keep a request of an SDK: as a whole, or only the messages that it adds to an earlier request.

A body that begins with the bytes of an earlier request is read from there on, if the rest begins with an answer: the
entries before it were read, cleaned and found in the tree when the earlier request was sent. In all other cases, and
whenever the recorder is not certain where the history ends, the whole body is read. Both ways keep the same messages,
at the same place.
"""

from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from ..dialects import ParsedRequest
from ..dialects._json import is_entries
from ..model import Message, Setup
from ._body import Body, Extension, locate, read_extension
from ._recorded_conversation import CleanRequest, Place, RecordedConversation
from ._recorder import Recorder
from ._responses import decode_request, keepable_messages
from ._sent_requests import SentRequest

# The field of a body that holds the history, by dialect.
FIELDS = {"openai-chat": "messages", "openai-responses": "input", "anthropic": "messages", "gemini": "contents"}


def keep_request(
    recorder: Recorder, data: bytes, model: str | None, session: str | None, *, is_main: bool = False
) -> Place:
    """Keep the new messages of a request before it is sent. `model` is the model that the path names, for a body
    without one. `is_main` is passed to `Recorder.ask`."""
    earlier = recorder.sent.find(data)
    found = None if earlier is None else _keep_rest(recorder, earlier, data, model, session)
    return found if isinstance(found, Place) else _keep_whole(recorder, data, model, session, found, is_main=is_main)


def _keep_whole(
    recorder: Recorder,
    data: bytes,
    model: str | None,
    session: str | None,
    known: RecordedConversation | None = None,
    *,
    is_main: bool = False,
) -> Place:
    body = decode_request(data)
    heard = recorder.dialect.parse_request(body)
    setup = recorder.clean_setup(_with_model(heard.setup, model))
    request = recorder.prepare(keepable_messages(heard.messages), setup)
    ask = partial(recorder.ask, request, session=session, found=known, is_main=is_main)
    place = ask(after=heard.after, within=heard.within, inherits=heard.inherits)
    is_plain = place.position is not None and not _is_held_elsewhere(heard)
    found = locate(data, FIELDS[recorder.dialect.name]) if is_plain else None
    if found is not None:
        entries = body[found.name]
        assert is_entries(entries)  # the body has a list here, and the dialect has read it as entries
        _remember(recorder, found, entries[: len(entries) - len(request.messages)], request, model, place)
    return place


def _keep_rest(
    recorder: Recorder, earlier: SentRequest, data: bytes, model: str | None, session: str | None
) -> Place | RecordedConversation | None:
    """Keep the messages that a request adds to an earlier one.

    If the whole request has to be read, return the conversation that it continues, or None if that is unknown.
    """
    found = read_extension(earlier.body, data)
    if found is None:
        return None
    is_same = earlier.body.foot == found.body.foot and earlier.model == model
    heard = _parse_rest(recorder, earlier, found, is_same=is_same)
    if heard is None or not _begins_with_an_answer(heard.messages):
        return None
    setup = earlier.setup if is_same else recorder.clean_setup(_with_model(heard.setup, model))
    request = recorder.prepare(keepable_messages(heard.messages), setup)
    place = recorder.go_on(earlier, request, session)
    if isinstance(place, Place) and place.position is not None:
        recorder.sent.remove(earlier)
        _remember(recorder, found.body, earlier.lead, request, model, place)
    return place


def _parse_rest(recorder: Recorder, earlier: SentRequest, found: Extension, *, is_same: bool) -> ParsedRequest | None:
    """The messages of the new entries, and the setup if it has changed.

    None if the provider holds a part of the history, or if the request is invalid: reading all of it raises the error.
    """
    entries = found.entries if is_same else [*earlier.lead, *found.entries]
    try:
        fields = {} if is_same else found.body.without_entries()
        heard = recorder.dialect.parse_request({**fields, found.body.name: entries})
    except ValueError:  # of a decoder, or `InvalidMessage`
        return None
    return None if _is_held_elsewhere(heard) or len(heard.messages) != len(found.entries) else heard


def _is_held_elsewhere(heard: ParsedRequest) -> bool:
    """Does the provider hold a part of the history, which the request leaves out?"""
    return heard.inherits or heard.after is not None or heard.within is not None


def _begins_with_an_answer(messages: Sequence[Message]) -> bool:
    """Does the rest begin with an answer that has no result of an earlier tool call?"""
    first = messages[0]
    return first.role == "assistant" and not any(block.type == "tool_result" for block in first.blocks)


def _with_model(setup: Setup, model: str | None) -> Setup:
    return setup if model is None else replace(setup, model=model)


def _remember(
    recorder: Recorder,
    body: Body,
    lead: list[dict[str, object]],
    request: CleanRequest,
    model: str | None,
    place: Place,
) -> None:
    if place.position is not None:
        recorder.sent.add(SentRequest(body, lead, request.setup, model, place.recorded, place.position))

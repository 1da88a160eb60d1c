"""The names of Google's ADK that its adapter takes. `install` puts them in the place of a package that is missing."""

import sys
import time
from importlib.util import find_spec
from types import ModuleType
from typing import Any
from uuid import uuid4

import pytest
from google.genai import types
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, alias_generators


class _Model(BaseModel):
    model_config = ConfigDict(alias_generator=alias_generators.to_camel, populate_by_name=True, extra="forbid")


class EventActions(_Model):
    state_delta: dict[str, Any] = {}
    escalate: bool | None = None


class Event(_Model):
    invocation_id: str = ""
    author: str
    content: types.Content | None = None
    partial: bool | None = None
    usage_metadata: types.GenerateContentResponseUsageMetadata | None = None
    actions: EventActions = Field(default_factory=EventActions)
    id: str = Field(default_factory=lambda: str(uuid4()))
    timestamp: float = Field(default_factory=time.time)


class Session(_Model):
    id: str
    app_name: str
    user_id: str
    state: dict[str, Any] = {}
    events: list[Event] = []
    last_update_time: float = 0.0
    _storage_update_marker: str | None = PrivateAttr(default=None)


class GetSessionConfig(_Model):
    num_recent_events: int | None = None
    after_timestamp: float | None = None


class ListSessionsResponse(_Model):
    sessions: list[Session] = []


class StaleSessionError(ValueError):
    pass


class SessionNotFoundError(ValueError):
    pass


class AlreadyExistsError(Exception):
    pass


class BaseSessionService:
    """What the framework's base class does with the session object."""

    def _apply_temp_state(self, session: Session, event: Event) -> None:
        session.state.update({k: v for k, v in event.actions.state_delta.items() if k.startswith("temp:")})

    def _trim_temp_delta_state(self, event: Event) -> Event:
        kept = {k: v for k, v in event.actions.state_delta.items() if not k.startswith("temp:")}
        event.actions.state_delta = kept
        return event

    def _update_session_state(self, session: Session, event: Event) -> None:
        session.state.update(event.actions.state_delta)


_NAMES: dict[str, list[type]] = {
    "sessions": [],
    "sessions.base_session_service": [BaseSessionService, GetSessionConfig, ListSessionsResponse],
    "sessions.session": [Session],
    "events": [],
    "events.event": [Event],
    "events.event_actions": [EventActions],
    "errors": [StaleSessionError],
    "errors.session_not_found_error": [SessionNotFoundError],
    "errors.already_exists_error": [AlreadyExistsError],
}


def install(patch: pytest.MonkeyPatch) -> None:
    if find_spec("google.adk") is not None:
        return
    patch.setitem(sys.modules, "google.adk", ModuleType("google.adk"))
    for name, classes in _NAMES.items():
        module = ModuleType(f"google.adk.{name}")
        vars(module).update({one.__name__: one for one in classes})
        patch.setitem(sys.modules, module.__name__, module)

"""The routes: each reads values from the store, and answers with a page or with the values as JSON.

Store calls block, so every route is a plain function, which starlette runs in a thread. Errors of the library become
pages with their hint; anything else is a bug, and is shown as one without its details.
"""

import hmac
import json
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from urllib.parse import parse_qs

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Scope

from ..errors import (
    Ambiguous,
    BelowFloor,
    Busy,
    Closed,
    Damaged,
    Held,
    HithertoError,
    InvalidArgument,
    KeyUnavailable,
    NotExportable,
    NotFound,
    StorageError,
)
from ..formats.exports._message_html import INLINE_IMAGES
from ..formats.exports._sections import text_in
from .access import Access
from .branch_map import draw, make_map
from .changing import (
    CHANGES,
    MESSAGE_CHANGES,
    Form,
    change_page,
    delete_message_page,
    edit_page,
    label_page,
)
from .door import TOO_LARGE, Door, TooLarge
from .exporting import FORMATS, export, export_page
from .filters import Wanted
from .frame import STATIC, STATIC_TYPES, Links, static_file, static_version
from .lists import conversations_page, problem_page, search_page
from .live import Feed
from .openapi import describe
from .queries import FIRST_WINDOW, WINDOW, StoreView, media_of
from .reading import compare_page, conversation_page, map_page, prompt_list, text_page
from .retention_page import make_plan, retention_page
from .thread_view import chunk
from .usage import DAYS, conversation_usage, store_usage, usage_page
from .values import Problem

__all__ = ["Viewer", "build"]

_STATUS: tuple[tuple[type[HithertoError], int, str], ...] = (
    (NotFound, 404, "It is not here"),
    (Ambiguous, 404, "Several begin so"),
    (InvalidArgument, 400, "That cannot be asked"),
    (BelowFloor, 409, "It is too young to be deleted"),
    (Held, 409, "It is on hold"),
    (NotExportable, 403, "It must not leave its store"),
    (KeyUnavailable, 423, "The store is locked"),
    (Closed, 503, "The store is closed"),
    (Busy, 503, "The store is busy"),
    (Damaged, 500, "This cannot be read as it was written"),
    (StorageError, 503, "The store cannot be reached"),
)
# Hints of the library name its functions. A person who reads a page is told what to do about it in other words.
_CODE = re.compile(r"\b(?:store|hitherto|Key)\.\w")
_HINTS: tuple[tuple[type[HithertoError], str], ...] = (
    (NotFound, "it may have been deleted; the list has everything that is here"),
    (KeyUnavailable, "see whether the key is where --key of hitherto serve says, or start it with another one"),
    (Damaged, "hitherto verify names everything that is wrong; what was lost may be in a backup"),
    (HithertoError, "press Ctrl+C where hitherto serve runs, and start it again"),
)
_MEDIA_POLICY = "default-src 'none'; sandbox"
_PLAYABLE = re.compile(r"(?:audio|video)/[a-z0-9.+-]+")
_MOST_DAYS = 3650
_FOREVER = "public, max-age=31536000, immutable"

Endpoint = Callable[[Request], Response | Awaitable[Response]]


class Viewer:
    """The pages over one store."""

    def __init__(self, access: Access, *, base: str = "", may_write: bool = False) -> None:
        self.access = access
        self.links = Links(base, may_write)
        self._feed = Feed(access)
        self._form = Form(self.links, secrets.token_urlsafe(24))

    @property
    def view(self) -> StoreView:
        """The store. `KeyUnavailable` while it is locked."""
        return self.access.view

    def routes(self) -> list[Route]:
        def route(path: str, endpoint: Endpoint, method: str = "GET") -> Route:
            return Route(f"{self.links.base}{path}", endpoint, methods=[method])

        changing = [
            route("/c/{conversation}/edit", self.edit),
            route("/c/{conversation}/delete", self.ask_delete),
            *(route(f"/c/{{conversation}}/{name}", self.change, "POST") for name in CHANGES),
            route("/c/{conversation}/m/{message}/label", self.ask_label),
            route("/c/{conversation}/m/{message}/delete", self.ask_delete_message),
            *(route(f"/c/{{conversation}}/m/{{message}}/{name}", self.change, "POST") for name in MESSAGE_CHANGES),
        ]
        return [
            route("/", self.home),
            route("/index.json", self.home),
            route("/openapi.json", self.openapi),
            route("/search", self.search),
            route("/search.json", self.search),
            route("/static/{hash}/{name}", self.static),
            route("/usage", self.usage),
            route("/usage.json", self.usage),
            route("/retention", self.retention),
            route("/retention.json", self.retention),
            route("/c/{conversation}/usage.json", self.conversation_usage),
            route("/c/{conversation}/export", self.export),
            route("/c/{conversation}/export/file", self.export_file),
            route("/c/{conversation}/map", self.map),
            route("/c/{conversation}/map.json", self.map),
            route("/c/{conversation}.json", self.conversation),
            route("/c/{conversation}", self.conversation),
            route("/c/{conversation}/m/{message}.json", self.conversation),
            route("/c/{conversation}/m/{message}", self.conversation),
            route("/c/{conversation}/compare", self.compare),
            route("/c/{conversation}/compare.json", self.compare),
            route("/c/{conversation}/m/{message}/window", self.window),
            route("/c/{conversation}/m/{message}/find.json", self.find),
            route("/c/{conversation}/m/{message}/skeleton.json", self.skeleton),
            route("/c/{conversation}/m/{message}/prompts.json", self.prompts),
            route("/c/{conversation}/m/{message}/prompts", self.prompts),
            route("/c/{conversation}/m/{message}/text", self.text),
            route("/c/{conversation}/m/{message}/media/{block:int}", self.media),
            route("/events", self.events),
            route("/unlock", self.unlock, "POST"),
            *(changing if self.links.may_write else []),
        ]

    # -- live, and locked

    async def events(self, request: Request) -> Response:
        """What changes in the store, as server-sent events."""
        found = self._feed.listen(request.query_params.get("conversation") or None)
        return StreamingResponse(found, media_type="text/event-stream")

    async def unlock(self, request: Request) -> Response:
        """Open the store again; its key is fetched from its source."""
        await self._read_form(request)
        await run_in_threadpool(self.access.unlock)
        return RedirectResponse(self.links.home(), 303)

    # -- changes

    def edit(self, request: Request) -> Response:
        """The page on which a conversation is changed."""
        return HTMLResponse(edit_page(self._form, self.view.open(request.path_params["conversation"])))

    def ask_delete(self, request: Request) -> Response:
        """The page that asks before a conversation is deleted."""
        return HTMLResponse(change_page(self._form, self.view.open(request.path_params["conversation"])))

    def ask_label(self, request: Request) -> Response:
        """The page on which a message gets a label."""
        asked = request.path_params
        return HTMLResponse(label_page(self._form, self.view.open(asked["conversation"]), asked["message"]))

    def ask_delete_message(self, request: Request) -> Response:
        """The page that asks before a message, and what follows it, is deleted."""
        asked = request.path_params
        return HTMLResponse(delete_message_page(self._form, self.view.open(asked["conversation"]), asked["message"]))

    async def change(self, request: Request) -> Response:
        """Make a change, and lead to where it can be seen."""
        given, asked = await self._read_form(request), request.path_params
        name = request.url.path.rsplit("/", 1)[1]

        def make() -> str:
            store = self.view
            view = store.open(asked["conversation"])
            if "message" not in asked:
                return CHANGES[name](self.links, store, view, given)
            view.number(asked["message"])  # it is of this conversation
            return MESSAGE_CHANGES[name](self.links, store, view, asked["message"], given)

        return RedirectResponse(await run_in_threadpool(make), 303)

    async def _read_form(self, request: Request) -> dict[str, str]:
        """Return the fields of a form of ours. Another page does not know the secret in it."""
        given = parse_qs((await request.body()).decode(errors="replace"), keep_blank_values=True)
        fields = {name: values[-1] for name, values in given.items()}
        if not hmac.compare_digest(fields.get("secret", "").encode(), self._form.secret.encode()):
            raise HTTPException(403)
        return fields

    # -- lists

    def home(self, request: Request) -> Response:
        """The conversations, the most recently active first."""
        wanted, cursor = Wanted.read(request.query_params), request.query_params.get("cursor") or None
        found = self.view.conversations(wanted, cursor)
        return _answer(request, found, lambda: conversations_page(self.links, found, wanted, first=cursor is None))

    def search(self, request: Request) -> Response:
        """The messages that have these words."""
        asked = request.query_params
        best, role = bool(asked.get("best")), asked.get("role") or None
        found = self.view.search(asked.get("q", ""), offset=_number(asked, "offset") or 0, best=best, role=role)
        return _answer(request, found, lambda: search_page(self.links, found, best=best, role=role))

    # -- a conversation

    def conversation(self, request: Request) -> Response:
        """A conversation from its beginning, or around a message on the branch of that message."""
        id, message = request.path_params["conversation"], request.path_params.get("message")
        view = self.view.open(id)
        if view.id != id:  # by the beginning of its id, or by a message
            rest = f"/m/{message}" if message else f"/m/{id}" if view.talk.at and view.talk.at.startswith(id) else ""
            return RedirectResponse(self.links.conversation(view.id, rest + _suffix(request)), 303)
        count = _number(request.query_params, "count") or FIRST_WINDOW
        found = self.view.window(view, through=message, start=_number(request.query_params, "from"), count=count)
        query = request.query_params.get("q", "")
        return _answer(request, found.value, lambda: conversation_page(self.links, found, query=query))

    def map(self, request: Request) -> Response:
        """The branches of a conversation."""
        view = self.view.open(request.path_params["conversation"])
        at = request.query_params.get("at") or None
        found = make_map(self.view, view, at=at, everything=bool(request.query_params.get("all")))
        if request.query_params.get("part"):
            return HTMLResponse(draw(self.links, found, at=at))
        return _answer(request, found, lambda: map_page(self.links, found, at=at))

    def conversation_usage(self, request: Request) -> Response:
        """The tokens of a path and of its tree."""
        view = self.view.open(request.path_params["conversation"])
        return _json(conversation_usage(self.view, view, request.query_params.get("at") or None))

    def usage(self, request: Request) -> Response:
        """The tokens of the last days."""
        days = max(1, min(_number(request.query_params, "days") or DAYS, _MOST_DAYS))
        found = store_usage(self.view, days)
        return _answer(request, found, lambda: usage_page(self.links, found))

    def retention(self, request: Request) -> Response:
        """What the next sweep takes, and why."""
        found = make_plan(self.view)
        return _answer(request, found, lambda: retention_page(self.links, found))

    def export(self, request: Request) -> Response:
        """The form that asks what to export."""
        view = self.view.open(request.path_params["conversation"])
        at = request.query_params.get("at") or None
        return HTMLResponse(export_page(self.links, self.view.header(view), at))

    def export_file(self, request: Request) -> Response:
        """A conversation as a file to keep."""
        view, asked = self.view.open(request.path_params["conversation"]), request.query_params
        format = asked.get("format") or "html"
        if format not in FORMATS:
            raise InvalidArgument(f"there is no such format: {format!r:.40}", hint=f"known are {', '.join(FORMATS)}")
        file = export(
            self.view, view, format=format, through=asked.get("at") or None, is_redacted=asked.get("redact") == "1"
        )
        headers = {
            "Content-Disposition": f'attachment; filename="{file.name}"',
            "Content-Security-Policy": _MEDIA_POLICY,
        }
        return Response(file.data, media_type=file.mime_type, headers=headers)

    def window(self, request: Request) -> Response:
        """A part of a path as HTML, for the script of the page."""
        view = self.view.open(request.path_params["conversation"])
        asked = request.query_params
        found = self.view.window(
            view,
            through=request.path_params["message"],
            start=_number(asked, "from") or 0,
            count=_number(asked, "count") or WINDOW,
        )
        return HTMLResponse(chunk(self.links, found), headers={"X-Length": str(len(found.path))})

    def find(self, request: Request) -> Response:
        """The messages of a path that hold a text."""
        view, message = self.view.open(request.path_params["conversation"]), request.path_params["message"]
        return _json(self.view.find(view, message, request.query_params.get("q", "")))

    def skeleton(self, request: Request) -> Response:
        """The prompts and forks of a path."""
        view, message = self.view.open(request.path_params["conversation"]), request.path_params["message"]
        return _json(self.view.skeleton(view, message))

    def prompts(self, request: Request) -> Response:
        """The prompts of a path, as a list for the side of the page."""
        view, message = self.view.open(request.path_params["conversation"]), request.path_params["message"]
        found = self.view.prompts(view, message)
        return _answer(request, found, lambda: prompt_list(self.links, view.id, found))

    def compare(self, request: Request) -> Response:
        """Two branches side by side, from where they part."""
        view = self.view.open(request.path_params["conversation"])
        asked = request.query_params
        found = self.view.compare(view, asked.get("left", ""), asked.get("right", ""))
        return _answer(request, found, lambda: compare_page(self.links, view, found))

    def text(self, request: Request) -> Response:
        """A long text in full."""
        id, message = request.path_params["conversation"], request.path_params["message"]
        view = self.view.open(id)
        blocks = view.messages([view.number(message)])[0].blocks
        place = _number(request.query_params, "block") or 0
        text = text_in(blocks[place]) if place < len(blocks) else None
        if text is None:
            raise NotFound("text in this message", [message])
        return HTMLResponse(text_page(self.links, view.talk.title, view.id, message, text))

    def media(self, request: Request) -> Response:
        """The binary content of a block. Images and media have their own type; all other content, which a browser could
        run, is sent as a download. A sandbox policy takes all rights from either."""
        view = self.view.open(request.path_params["conversation"])
        message = request.path_params["message"]
        blocks = view.messages([view.number(message)])[0].blocks
        place = request.path_params["block"]
        found = media_of(blocks[place]) if place < len(blocks) else None
        if found is None:
            raise NotFound("media in this message", [message])
        mime, pieces = found
        is_shown = mime in INLINE_IMAGES or _PLAYABLE.fullmatch(mime) is not None
        how = "inline" if is_shown and not request.query_params.get("keep") else "attachment"
        return StreamingResponse(
            iter(pieces),
            media_type=mime if is_shown else "application/octet-stream",
            headers={
                "Content-Security-Policy": _MEDIA_POLICY,
                "Content-Disposition": f'{how}; filename="{message}-{place}.{_ending(mime)}"',
            },
        )

    def openapi(self, _: Request) -> Response:
        """The description of the JSON twins."""
        return _json(describe(self.links.base))

    def static(self, request: Request) -> Response:
        """A file of ours. Its address holds a hash of its content, so it may be kept."""
        name = request.path_params["name"]
        if name not in STATIC:
            raise NotFound("file", [name])
        is_exact = request.path_params["hash"] == static_version()
        kind = STATIC_TYPES[name.rpartition(".")[2]]
        return Response(static_file(name), media_type=kind, headers={"Cache-Control": _FOREVER} if is_exact else None)

    # -- errors

    def refuse(self, scope: Scope, status: int, title: str, explanation: str) -> Response:
        """Return what somebody sees who is not let in. After a body that is too large the connection is closed: nobody
        reads the rest of it."""
        problem = Problem(error=title, hint=explanation)
        headers = {"Connection": "close"} if status == TOO_LARGE else None
        if scope["path"].endswith(".json"):
            return _json(problem, status, headers)
        return HTMLResponse(problem_page(self.links, title, problem, bare=True), status, headers)

    def on_error(self, request: Request, error: Exception) -> Response:
        """Return an error of the library, with its hint."""
        assert isinstance(error, HithertoError)
        if self.access.is_locked and isinstance(error, KeyUnavailable):
            return self._locked(request, error)
        status, title = next(((s, t) for kind, s, t in _STATUS if isinstance(error, kind)), (500, "That did not work"))
        others = list(error.candidates) if isinstance(error, Ambiguous) else []
        problem = Problem(error=str(error), hint=_hint(error), candidates=others)
        if request.url.path.endswith(".json"):
            return _json(problem, status)
        return HTMLResponse(problem_page(self.links, title, problem), status)

    def _locked(self, request: Request, error: KeyUnavailable) -> Response:
        problem = Problem(error=str(error), hint=_hint(error))
        if request.url.path.endswith(".json"):
            return _json(problem, 423)
        form = self._form.make(self.links.to("/unlock"), button="Unlock")
        return HTMLResponse(problem_page(self.links, "Locked", problem, form, bare=True), 423)

    def on_forbidden(self, request: Request, _: Exception) -> Response:
        return self.refuse(
            request.scope, 403, "This form is not of this page", "Go back, load the page again, and send it again."
        )

    def on_unknown(self, request: Request, _: Exception) -> Response:
        return self.refuse(request.scope, 404, "There is no such page", "The list of conversations is a good start.")

    def on_too_large(self, request: Request, _: Exception) -> Response:
        return self.refuse(request.scope, TOO_LARGE, "That is too much", "No form of this page sends as much.")


def build(
    access: Access, *, hosts: Sequence[str] = (), cookie: str = "hitherto", base: str = "", may_write: bool = False
) -> Door:
    """Return the application."""
    viewer = Viewer(access, base=base, may_write=may_write)
    app = Starlette(
        routes=viewer.routes(),
        exception_handlers={
            HithertoError: viewer.on_error,
            TooLarge: viewer.on_too_large,
            403: viewer.on_forbidden,
            404: viewer.on_unknown,
            405: viewer.on_unknown,
        },
    )
    return Door(app, hosts=hosts, cookie=cookie, base=base, refuse=viewer.refuse)


def _hint(error: HithertoError) -> str | None:
    """Return what to do now, in words for the page."""
    hint = error.hint
    if hint is not None and _CODE.search(hint):
        return next(words for kind, words in _HINTS if isinstance(error, kind))
    return hint


def _answer(request: Request, value: msgspec.Struct, page: Callable[[], str]) -> Response:
    """Answer with a page, or with its JSON twin."""
    return _json(value) if request.url.path.endswith(".json") else HTMLResponse(page())


def _json(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    try:
        data = msgspec.json.encode(value)
    except UnicodeEncodeError:  # half of a surrogate pair, which only an escape can express
        data = json.dumps(msgspec.to_builtins(value)).encode()
    return Response(data, status, headers, media_type="application/json")


def _suffix(request: Request) -> str:
    query = request.url.query
    return (".json" if request.url.path.endswith(".json") else "") + (f"?{query}" if query else "")


def _number(asked: Mapping[str, str], name: str) -> int | None:
    """Return a number that was asked for; None if there is none, or no number."""
    given = asked.get(name, "")
    return int(given) if given.isascii() and given.isdecimal() and len(given) < 10 else None


def _ending(mime: str) -> str:
    ending = mime.partition("/")[2].partition("+")[0]
    return ending if ending.isalnum() and ending.isascii() else "bin"

"""Changes to conversations: rename, label, hold, release, delete. Only with `--allow-write`.

Each has a page that says what will happen before it happens, so nothing needs a script. A page that deletes names what
goes and what stays; what is on hold is refused there already.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from ..errors import HithertoError
from ..formats.exports._markup import Child, Markup, tag
from ..formats.exports._message_html import gist_of
from .frame import Links, count_of, page
from .queries import StoreView, View

__all__ = ["CHANGES", "MESSAGE_CHANGES", "Form", "change_page", "delete_message_page", "edit_page", "label_page"]

REASON = "user-requested"


class Form(NamedTuple):
    """What every form carries: the links, and the secret that only our pages know."""

    links: Links
    secret: str

    def make(self, action: str, *content: Child, button: str, is_grave: bool = False) -> Markup:
        return tag(
            "form",
            tag("input", type="hidden", name="secret", value=self.secret),
            *content,
            tag("button", button, class_="primary grave" if is_grave else "primary"),
            method="post",
            action=action,
            class_="form",
        )


def edit_page(form: Form, view: View) -> str:
    """Return the page on which a conversation is renamed, held, released, or deleted."""
    id, talk = view.id, view.talk
    links = form.links
    name = tag("input", type="text", name="title", value=talk.title, id="title", maxlength="500", autocomplete="off")
    held = talk.held
    words = (
        "It is on hold: no sweep, no purge and nobody here deletes it."
        if held
        else "A hold keeps it, whatever the retention says, until it is released."
    )
    delete: Child = tag("p", tag("a", "Delete this conversation…", href=links.conversation(id, "/delete")))
    if held:
        delete = tag("p", "Release it first, then it can be deleted.", class_="note")
    return _page(
        links,
        view,
        "Change",
        tag(
            "section",
            tag("h2", tag("label", "Title", for_="title")),
            form.make(links.conversation(id, "/rename"), name, button="Rename"),
        ),
        tag(
            "section",
            tag("h2", "Hold"),
            tag("p", words),
            form.make(links.conversation(id, "/release" if held else "/hold"), button="Release" if held else "Hold"),
        ),
        tag("section", tag("h2", "Delete"), delete),
    )


def change_page(form: Form, view: View) -> str:
    """Return the page that asks before a conversation is deleted."""
    id, outline = view.id, view.outline
    if view.talk.held:
        return _held(form.links, view)
    agents = sum(len(numbers) for numbers in outline.agents.values())
    goes = [
        count_of(len(outline), "message"),
        f"on {count_of(len(outline.leaves), 'branch', 'branches')}",
        f"with {count_of(agents, 'sub-agent')}" if agents else "",
    ]
    return _page(
        form.links,
        view,
        "Delete this conversation?",
        tag(
            "p",
            tag("b", "What goes: "),
            f"{' '.join(part for part in goes if part)}, its attachments, its words in the "
            "search index, and interrupted answers. Its bytes are taken out of the files.",
        ),
        tag(
            "p",
            tag("b", "What stays: "),
            "every other conversation; and copies elsewhere, such as backups, exports, and "
            "what the program that it came from still has.",
        ),
        form.make(form.links.conversation(id, "/delete"), button="Delete for good", is_grave=True),
        tag("p", tag("a", "Keep it", href=form.links.conversation(id))),
    )


def delete_message_page(form: Form, view: View, message: str) -> str:
    """Return the page that asks before a message and all that stands below it are deleted."""
    number = view.number(message)
    if view.talk.held:
        return _held(form.links, view)
    gone = below(view, number)
    traces = sum(1 for numbers in view.outline.agents.values() for n in numbers if n in gone)
    words = next((gist_of(shown.blocks) for shown in view.messages([number])), "")
    rest = len(view.outline) - len(gone)
    goes = f"this message and {count_of(len(gone) - 1, 'message')} that follow it, on all branches below it"
    return _page(
        form.links,
        view,
        "Delete from here on?",
        tag("blockquote", words, dir="auto") if words else None,
        tag("p", tag("b", "What goes: "), goes, f", with {count_of(traces, 'sub-agent')}" if traces else None, "."),
        tag("p", tag("b", "What stays: "), f"{count_of(rest, 'message')} of this conversation, and copies elsewhere."),
        form.make(form.links.message(view.id, message, "/delete"), button="Delete for good", is_grave=True),
        tag("p", tag("a", "Keep it", href=form.links.message(view.id, message))),
    )


def label_page(form: Form, view: View, message: str) -> str:
    """Return the page on which a message gets a label."""
    found = view.store.message(message, attachments="lazy")
    view.number(found.id)  # it is of this conversation
    name = tag("input", type="text", name="label", value=found.label, id="label", maxlength="200", autocomplete="off")
    return _page(
        form.links,
        view,
        "Label a message",
        tag("blockquote", gist_of(found.blocks), dir="auto"),
        tag("h2", tag("label", "Label", for_="label")),
        form.make(form.links.message(view.id, message, "/label"), name, button="Label"),
        tag("p", "An empty label takes it away.", class_="note"),
    )


def below(view: View, number: int) -> set[int]:
    """Return a message, all that stands below it, and the traces of sub-agents that were started there."""
    outline, found, waiting = view.outline, set[int](), [number]
    while waiting:
        at = waiting.pop()
        if at not in found:
            found.add(at)
            waiting += [n for n in outline.below.get(at, ()) if outline.rows[n].parent is not None]
            waiting += outline.agents.get(at, ())
    return found


def _page(links: Links, view: View, title: str, *content: Child) -> str:
    about = tag("p", tag("a", view.talk.title or view.id[:8], href=links.conversation(view.id)), class_="facts")
    head = tag("header", tag("h1", title), about, class_="title")
    return page(links, title, head, *content, body_class="list", page="change", conversation=view.id)


def _held(links: Links, view: View) -> str:
    words = "This conversation is on hold, so nothing of it is deleted. Release it first, if you may."
    return _page(links, view, "It is on hold", tag("p", words, class_="banner"))


# -- what happens; each returns the address to go to


def _rename(links: Links, _: StoreView, view: View, given: Mapping[str, str]) -> str:
    view.talk.rename(given.get("title", ""))
    return links.conversation(view.id)


def _hold(links: Links, _: StoreView, view: View, __: Mapping[str, str]) -> str:
    view.talk.hold()
    return links.conversation(view.id)


def _release(links: Links, _: StoreView, view: View, __: Mapping[str, str]) -> str:
    view.talk.release()
    return links.conversation(view.id)


def _delete(links: Links, store: StoreView, view: View, _: Mapping[str, str]) -> str:
    report = store.store.purge(view.talk, reason=REASON)
    for failure in report.failures:
        raise HithertoError(f"it was not deleted: {failure.error}")
    return links.home()


def _label(links: Links, _: StoreView, view: View, message: str, given: Mapping[str, str]) -> str:
    view.talk.label(given.get("label", "").strip() or None, message=message)
    return links.message(view.id, message)


def _delete_message(links: Links, store: StoreView, view: View, message: str, _: Mapping[str, str]) -> str:
    number = view.number(message)
    above = view.outline.above[number]
    store.store.delete([message], recursive=True)
    return links.conversation(view.id) if above is None else links.message(view.id, view.name(above))


Change = Callable[[Links, StoreView, View, Mapping[str, str]], str]
MessageChange = Callable[[Links, StoreView, View, str, Mapping[str, str]], str]
CHANGES: dict[str, Change] = {"rename": _rename, "hold": _hold, "release": _release, "delete": _delete}
MESSAGE_CHANGES: dict[str, MessageChange] = {"label": _label, "delete": _delete_message}

"""The pages with lists: conversations, hits of a search, and errors.

Each is a function from a value to a page; the value is its JSON twin.
"""

from ..formats.exports._markup import Child, Markup, join, tag
from .filters import Wanted, filter_form
from .frame import Links, count_of, facts, page, retention_badge, time_tag
from .values import ConversationCard, ConversationList, Problem, SearchHit, SearchResults, StoreState

__all__ = ["conversations_page", "problem_page", "search_page"]


def conversations_page(links: Links, found: ConversationList, wanted: Wanted, *, first: bool) -> str:
    """Return the list of conversations."""
    title = count_of(found.total, "conversation") if found.total is not None else "Conversations"
    kinds: list[Child] = []
    if len(found.kinds) > 1:
        kinds = [
            tag(
                "a",
                one,
                href=links.home(**Wanted(kind=one).query),
                aria_current="page" if one == wanted.kind else None,
            )
            for one in found.kinds
        ]
    rows = [_card(links, card) for card in found.conversations]
    words = "Nothing is here yet. What hitherto chat, a recorder or an import keeps appears on this page."
    if wanted.query or not first:
        words = "Nothing here fits." if found.next is None else "Nothing so far fits."
    older = "Older conversations" if rows else "Look further"
    return page(
        links,
        "Conversations",
        tag(
            "header",
            tag("h1", title),
            tag("nav", *kinds, class_="filters", aria_label="Kinds") if kinds else None,
            filter_form(links, wanted) if rows or wanted.query or not first else None,
            class_="title",
        ),
        tag("ol", *rows, class_="cards") if rows else tag("p", words, class_="empty"),
        tag("a", older, href=links.home(cursor=found.next, **wanted.query), class_="more", rel="next")
        if found.next
        else None,
        None if first else tag("a", "Newest conversations", href=links.home(**wanted.query), class_="more"),
        tag(
            "nav",
            tag("a", "Usage", href=links.to("/usage")),
            tag("a", "Retention", href=links.to("/retention")),
            class_="filters narrow",
            aria_label="More pages",
        ),
        _store_line(found.store),
        body_class="list",
        page="list",
    )


def _store_line(store: StoreState) -> Markup:
    """Return how the store is kept, and when all of it was read and found sound."""
    at = store.verified_at
    verified = join("verified ", time_tag(at)) if at else "not verified yet: hitherto verify --note"
    sealed = "a sealed store" if store.sealed else "a plain store"
    return tag("footer", facts(sealed, "read-only" if store.read_only else None, verified), class_="facts store")


def _card(links: Links, card: ConversationCard) -> Markup:
    title = card.title or card.first_prompt or "(no title)"
    prompt = card.first_prompt if card.title and card.first_prompt != card.title else ""
    project = card.project
    return tag(
        "li",
        tag(
            "a",
            tag("h2", title, dir="auto"),
            tag("p", card.problem, class_="problem") if card.problem else None,
            tag("p", prompt, class_="prompt", dir="auto") if prompt else None,
            href=links.conversation(card.id),
        ),
        tag(
            "p",
            facts(
                time_tag(card.active_at),
                card.source,
                card.model,
                count_of(card.messages, "message"),
                tag("span", count_of(card.branches, "branch", "branches"), class_="forked")
                if card.branches > 1
                else None,
                f"{_rounded(card.approximate_tokens)} tokens" if card.approximate_tokens else None,
                tag("a", project.rstrip("/").rsplit("/", 1)[-1], href=links.home(project=project), title=project)
                if project
                else None,
                retention_badge(card.retention),
            ),
            class_="facts",
        ),
        class_="card",
    )


def _rounded(count: int) -> str:
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if count >= size:
            return f"{count / size:.1f}{unit}" if count < 10 * size else f"{count // size:,}{unit}"
    return str(count)


def search_page(links: Links, found: SearchResults, *, best: bool, role: str | None) -> str:
    """Return the hits of a search. A hit opens at the message, on its branch."""
    about = {"q": found.query, "role": role}
    orders = [
        tag("a", name, href=links.search(**about, best=value), aria_current="page" if bool(value) == best else None)
        for name, value in (("Newest first", None), ("Best first", "1"))
    ]
    roles = [
        tag(
            "a",
            name,
            href=links.search(q=found.query, best="1" if best else None, role=value),
            aria_current="page" if value == role else None,
        )
        for name, value in (("All", None), ("Prompts", "user"), ("Answers", "assistant"), ("Results", "tool_result"))
    ]
    if not found.query.strip():
        body: Child = tag(
            "p",
            "Words that must all occur; “a phrase” in quotes; begin* for beginnings; -without; this OR that.",
            class_="empty",
        )
    elif not found.hits:
        body = tag("p", found.hint or "Nothing was found. begin* finds every word that begins so.", class_="empty")
    else:
        body = tag("ol", *(_hit(links, found.query, hit) for hit in found.hits), class_="cards hits")
    nearest = tag("p", "No message has all of these words. These are the nearest.", class_="hint")
    more = tag(
        "a",
        "More",
        class_="more",
        rel="next",
        href=links.search(**about, best="1" if best else None, offset=found.offset + len(found.hits)),
    )
    return page(
        links,
        f"{found.query} - search" if found.query else "Search",
        tag(
            "header",
            tag("h1", "Search"),
            tag("nav", *orders, tag("span", class_="gap"), *roles, class_="filters", aria_label="Order and roles"),
            class_="title",
        ),
        nearest if found.tier == "nearest" else None,
        body,
        more if found.more else None,
        query=found.query,
        body_class="list",
        page="search",
    )


def _hit(links: Links, query: str, hit: SearchHit) -> Markup:
    parts: list[Child] = []
    at = 0
    for begin, end in hit.spans:
        parts += [hit.snippet[at:begin], tag("mark", hit.snippet[begin:end])]
        at = end
    parts.append(hit.snippet[at:])
    role = hit.role.replace("_", " ")
    return tag(
        "li",
        tag(
            "a",
            tag("h2", hit.title or "(no title)", dir="auto"),
            tag("p", *parts, class_="snippet", dir="auto"),
            href=links.message(hit.conversation, hit.message, q=query),
        ),
        tag("p", facts(role, time_tag(hit.created_at), hit.message), class_="facts"),
        class_="card",
    )


def problem_page(links: Links, title: str, problem: Problem, *more: Child, bare: bool = False) -> str:
    """Return an error, with what to do now. `bare`: for somebody who is not let in."""
    others = [tag("li", tag("a", id, href=links.conversation(id))) for id in problem.candidates]
    return page(
        links,
        title,
        tag(
            "section",
            tag("h1", title),
            tag("p", problem.error) if problem.error != title else None,
            tag("p", problem.hint, class_="hint") if problem.hint else None,
            tag("ul", *others) if others else None,
            *more,
            None if bare else tag("p", tag("a", "All conversations", href=links.home())),
            class_="problem-page",
        ),
        body_class="bare" if bare else None,
        page="problem",
    )

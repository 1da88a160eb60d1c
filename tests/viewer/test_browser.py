"""The pages in a real browser. Requirement: H1.

They are skipped where there is no chromium; `apt-get install chromium` brings one.
"""

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

import hitherto
from hitherto import Conversation, Message, Store

from ..support import scenes
from ..support.browser import Browser, Page, find_browser
from ..support.serving import Served, served
from ..support.thorough import THOROUGH

pytestmark = pytest.mark.skipif(find_browser() is None, reason="there is no chromium on this machine")
thorough = pytest.mark.skipif(not THOROUGH, reason="HITHERTO_THOROUGH=1 tries it")
SERIOUS = ("serious", "critical")
MOST_IN_PAGE = 600


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = find_browser()
    assert path is not None
    found = Browser(path)
    yield found
    found.close()


@pytest.fixture
def viewer(store: Store) -> Iterator[Served]:
    with served(store, may_write=True) as running:
        yield running


@pytest.fixture
def page(browser: Browser, viewer: Served) -> Iterator[Page]:
    with browser.page() as page:
        enter(page, viewer)
        yield page


def enter(page: Page, viewer: Served) -> None:
    page.open(viewer.door)
    page.until("!location.search && document.querySelector('main')")


def opened(page: Page, viewer: Served, path: str) -> None:
    page.open(viewer.address + path)
    started = "('started' in document.documentElement.dataset || !document.querySelector('script[type=module]'))"
    page.until(f"document.readyState === 'complete' && {started}")


def test_nothing_hostile_runs_or_loads(store: Store, viewer: Served, page: Page) -> None:
    talk = scenes.hostile(store)
    said = list(store.messages(conversation=talk.id, newest_first=False))
    ends = [branch.id for branch in talk.branches()]
    page.requests.clear()
    for path in (
        "/",
        "/?model=%3Cscript%3Ealert(1)%3C/script%3E&project=javascript:alert(1)",
        "/usage",
        "/retention",
        "/search?q=script",
        "/search?q=%22%3E%3Cscript%3Ealert(1)%3C/script%3E",
        f"/c/{said[0].id}",
        *(f"/c/{talk.id}/m/{end}" for end in ends),
        f"/c/{talk.id}/map",
        f"/c/{talk.id}/compare?left={ends[0]}&right={ends[-1]}",
        f"/c/{talk.id}/edit",
        f"/c/{talk.id}/delete",
        f"/c/{talk.id}/m/{ends[0]}/label",
        f"/c/{talk.id}/m/{said[1].id}/delete",
        f"/c/{talk.id}/m/{said[1].id}/text?block=0",
        f"/c/{talk.id}/export",
    ):
        opened(page, viewer, path)
        stir(page)
    for kept in scenes.with_media(store, talk):
        for place, _ in enumerate(kept.blocks):
            page.open(f"{viewer.address}/c/{talk.id}/m/{kept.id}/media/{place}?keep=")
            page.run("1")
    assert page.dialogs == []
    assert {one for one in page.requests if not one.startswith((viewer.address, "data:"))} == set()
    # What the browser draws around a picture of its own is stopped by the policy of the file.
    assert [one for one in page.complaints if "404" not in one and "/media/" not in one] == []


def stir(page: Page) -> None:
    """Unfold everything, move over everything, and look for what could run or lead somewhere it should not."""
    page.run("for (const one of document.querySelectorAll('details')) one.open = true")
    page.run("for (const one of document.querySelectorAll('main *')) one.dispatchEvent(new MouseEvent('mouseover'))")
    assert page.run("document.querySelectorAll('iframe, object, embed, base, main script, main style').length") == 0
    attributes = "[...document.querySelectorAll('*')].flatMap((one) => one.getAttributeNames())"
    assert page.run(f"{attributes}.filter((name) => name.startsWith('on') || name === 'style')") == []
    assert set(page.run("[...document.links].map((one) => one.protocol)")) <= {"http:", "https:", "file:"}
    forms = "[...document.forms].map((one) => new URL(one.getAttribute('action'), location).host !== location.host)"
    assert not any(page.run(forms))


def test_nothing_hostile_runs_or_loads_in_an_exported_page(store: Store, browser: Browser, tmp_path: Path) -> None:
    scenes.hostile(store)
    file = tmp_path / "page.html"
    hitherto.formats.save(store, file, format="html")
    with browser.page() as page:
        page.open(file.as_uri())
        assert page.run("document.querySelectorAll('article').length") > 8
        stir(page)
        assert page.run("location.href") == file.as_uri()
        assert page.dialogs == page.complaints == []
        assert {one for one in page.requests if one != file.as_uri() and not one.startswith("data:image/")} == set()
        page.run("fetch('https://evil.example/').catch(() => 1)")  # the control: it would be heard
        page.run("new Promise((done) => setTimeout(done, 100))")
        assert page.complaints


def test_a_script_that_came_through_would_be_stopped(store: Store, viewer: Served, page: Page) -> None:
    """The control of the test above: the policy stops it, and the listener hears of it."""
    page.run("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=alert(1)>')")
    page.run("fetch('https://evil.example/').catch(() => 1)")
    page.run("new Promise((done) => setTimeout(done, 100))")
    assert page.dialogs == []
    assert any("Content Security Policy" in one for one in page.complaints)


def test_a_long_conversation_is_read_in_windows(store: Store, viewer: Served, page: Page) -> None:
    talk = scenes.long(store, 3_000)
    ids = [message.id for message in talk.thread()]
    opened(page, viewer, f"/c/{talk.id}/m/{ids[1500]}")
    assert 0 <= page.run(f"document.getElementById('m-{ids[1500]}').getBoundingClientRect().top") < 400
    most = 0
    for _ in range(60):
        page.run("new Promise((done) => { scrollBy(0, 4000); setTimeout(done, 30) })")
        most = max(most, page.run("document.querySelectorAll('article').length"))
    assert page.run("Number(document.querySelector('article').dataset.position)") > 1500  # what is far away is gone
    assert 100 < most <= MOST_IN_PAGE
    page.press("G", shift=True)
    page.until(f"document.getElementById('m-{ids[-1]}')")
    positions = page.run("[...document.querySelectorAll('article')].map((one) => Number(one.dataset.position))")
    assert positions == list(range(positions[0], 3_000))  # none twice, none left out
    page.press("g")
    page.until(f"document.getElementById('m-{ids[0]}')")
    assert page.complaints == []


@thorough
def test_earlier_messages_come_without_a_jump(store: Store, viewer: Served, page: Page) -> None:
    talk = scenes.long(store, 1_000)
    ids = [message.id for message in talk.thread()]
    opened(page, viewer, f"/c/{talk.id}/m/{ids[500]}")
    page.until("document.querySelectorAll('.chunk').length > 1")
    place = f"document.getElementById('m-{ids[500]}').getBoundingClientRect().top"
    before = page.run(place)
    page.run("new Promise((done) => { scrollBy(0, -200); setTimeout(done, 400) })")
    assert abs(page.run(place) - before - 200) < 40


def test_branches_are_followed_by_switch_map_and_keys(store: Store, viewer: Served, page: Page) -> None:
    talk = scenes.forked(store, forks=6, messages=60)
    opened(page, viewer, f"/c/{talk.id}")
    page.until("document.querySelector('#side .map')")
    address = page.run("document.querySelector('.switch a').href")
    page.run("document.querySelector('.switch a').click()")
    page.until(f"location.href === {json.dumps(address)} && document.querySelector('#side .map')")
    assert page.run("document.querySelector('.banner').textContent").startswith("This is another branch")
    page.press("m")
    assert page.run("document.activeElement.getAttribute('role')") == "treeitem"
    first = page.run("document.activeElement.dataset.id")
    page.press("ArrowUp")
    assert page.run("document.activeElement.dataset.id") != first
    page.run("document.activeElement.blur()")
    page.press("}", shift=True)
    page.until("document.querySelector('article.at .switch')")
    forked = page.run("document.querySelector('article.at').dataset.position")
    page.press("j")
    assert page.until("Number(document.querySelector('article.at').dataset.position)") == int(forked) + 1
    page.press("?", shift=True)
    assert page.run("document.querySelector('dialog').open")


def test_find_goes_through_what_is_not_loaded(store: Store, viewer: Served, page: Page) -> None:
    talk = scenes.long(store, 1_000)
    first = talk.thread()[0]
    talk.fork(at=first.id, main=False).append(Message.assistant("zebra9 on another branch"))
    opened(page, viewer, f"/c/{talk.id}")
    page.run("document.querySelector('[data-action=find]').click()")
    page.type("zebra9")
    page.until("document.querySelector('#find output').textContent === '1 of 55'")
    for _ in range(3):
        page.press("Enter")
    page.until("document.querySelector('#find output').textContent === '4 of 55'")
    assert page.run("document.querySelector('.elsewhere').textContent") == "1 more on other branches"
    assert page.run("CSS.highlights.get('find-here').size") > 0
    page.press("Enter", shift=True)
    page.until("document.querySelector('#find output').textContent === '3 of 55'")


def test_new_messages_appear_while_somebody_writes(store: Store, viewer: Served, page: Page) -> None:
    talk = store.start()
    talk.extend([Message.user(f"n{n}") for n in range(3)])
    opened(page, viewer, f"/c/{talk.id}")
    page.run("new Promise((done) => setTimeout(done, 1300))")  # the first look only marks the place
    said = talk.append(Message.assistant("**and** more"))
    page.until(f"document.getElementById('m-{said.id}')")
    assert page.run(f"document.querySelector('#m-{said.id} strong').textContent") == "and"


def test_a_tab_that_nobody_sees_holds_no_connection_and_looks_when_it_is_seen_again(
    store: Store, viewer: Served, page: Page
) -> None:
    """A browser has six connections to a host: six tabs that listen would keep the seventh from opening."""
    talk = store.start()
    talk.append(Message.user("first"))
    hide = "Object.defineProperty(document, 'hidden', {configurable: true, get: () => HIDDEN});"
    hide += "document.dispatchEvent(new Event('visibilitychange'))"
    for path in (f"/c/{talk.id}", "/"):
        opened(page, viewer, path)
        page.run("window.closed_ones = 0; const close = EventSource.prototype.close;"
                 "EventSource.prototype.close = function () { closed_ones += 1; close.call(this) }")  # fmt: skip
        page.run(hide.replace("HIDDEN", "true"))
        assert page.run("closed_ones") == 1
        page.run("new Promise((done) => setTimeout(done, 300))")
        said = talk.append(Message.assistant("while nobody looked"))
        page.run(hide.replace("HIDDEN", "false"))
        seen = f"document.getElementById('m-{said.id}')" if path != "/" else "document.querySelector('.pill')"
        page.until(seen)


def paths(store: Store, talk: Conversation) -> list[str]:
    ends = [branch.id for branch in talk.branches()]
    own = ["", "/map", f"/compare?left={ends[0]}&right={ends[1]}", f"/export?at={ends[0]}", "/edit", "/delete"]
    own += [f"/m/{ends[0]}/label", f"/m/{ends[0]}/delete", f"/m/{ends[0]}/text?block=0"]
    others = ["/", "/?forked=1", "/search", "/search?q=import", "/search?q=nothing-at-all", "/usage", "/retention"]
    others += ["/c/unknown", "/nowhere"]
    return [*others, *(f"/c/{talk.id}{one}" for one in own)]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_page_is_accessible(store: Store, viewer: Served, browser: Browser, dark: bool) -> None:
    talk = scenes.coding(store)
    evil = scenes.hostile(store)
    with browser.page(dark=dark) as page:
        opened(page, viewer, "/")  # nobody was let in yet
        assert page.run("document.querySelector('h1').textContent") == "This page is locked"
        check_with_axe(page, "the door")
        enter(page, viewer)
        for path in [*paths(store, talk), f"/c/{evil.id}"]:
            opened(page, viewer, path)
            if path == f"/c/{talk.id}":
                page.until("document.querySelector('#side .map')")
            page.run("for (const one of document.querySelectorAll('details')) one.open = true")
            check_with_axe(page, path)
        page.press("?", shift=True)
        check_with_axe(page, "the keys")


def check_with_axe(page: Page, what: str) -> None:
    """Nothing serious is in the way of people who do not see, or use no mouse."""
    axe = files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    page.run(axe + ";1")
    found = page.run("axe.run({resultTypes: ['violations']}).then((r) => JSON.stringify(r.violations))")
    wrong = [
        (one["id"], [node["html"][:160] for node in one["nodes"]][:3])
        for one in json.loads(found)
        if one["impact"] in SERIOUS
    ]
    assert wrong == [], what


@thorough
def test_pages_fit_a_phone(store: Store, viewer: Served, browser: Browser) -> None:
    talk = scenes.coding(store)
    evil = scenes.hostile(store)
    with browser.page(width=390, height=844, phone=True) as page:
        enter(page, viewer)
        for path in [*paths(store, talk), f"/c/{evil.id}"]:
            opened(page, viewer, path)
            page.run("for (const one of document.querySelectorAll('details')) one.open = true")
            assert page.run("document.documentElement.scrollWidth") <= 390, path


@thorough
def test_it_can_be_read_without_scripts(store: Store, viewer: Served, browser: Browser) -> None:
    talk = scenes.long(store, 300)
    with browser.page() as page:
        enter(page, viewer)
        page.send("Emulation.setScriptExecutionDisabled", value=True)
        page.open(f"{viewer.address}/c/{talk.id}")  # no script will say that it started
        later = page.run("document.querySelector('.more.later').href")
        assert "276 later messages" in page.run("document.querySelector('.more.later').textContent")
        page.open(later)
        assert "question 24:" in page.run("document.querySelector('article').textContent")


@thorough
def test_the_theme_is_kept_and_print_hides_what_is_around(store: Store, viewer: Served, page: Page) -> None:
    talk = scenes.coding(store)
    page.run("document.querySelector('[data-action=theme]').click()")
    opened(page, viewer, f"/c/{talk.id}")
    assert page.run("document.documentElement.dataset.theme") == "dark"
    page.look(media="print")
    assert page.run("getComputedStyle(document.querySelector('.bar')).display") == "none"


@thorough
def test_a_page_that_is_open_while_its_conversation_goes_says_so(
    store: Store, viewer: Served, page: Page, tmp_path: Path
) -> None:
    talk = store.start(title="Short")
    talk.append(Message.user("x"))
    opened(page, viewer, f"/c/{talk.id}")
    page.run("new Promise((done) => setTimeout(done, 1300))")
    with hitherto.open(store.engine.backend.info.location) as other:
        other.purge(talk.id, reason="user-requested")
    page.until("document.querySelector('.pill')?.textContent.includes('deleted')")
    assert re.search("Short", page.run("document.title"))

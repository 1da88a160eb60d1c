"""The documentation tells the truth: its examples run, its lists are complete, its links lead somewhere."""

import ast
import inspect
import itertools
import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

import hitherto
import hitherto.bundles
import hitherto.chat
import hitherto.erasures
import hitherto.formats
import hitherto.snapshots
from hitherto import Message
from hitherto._engine import bodies
from hitherto.chat import _wires, validate_base_url
from hitherto.errors import Conflict, NotFound
from hitherto.records import Record
from hitherto.snapshots import FileStore, ObjectStore, Snapshot

from .support.provider import (
    Asked,
    Json,
    Reply,
    anthropic_answer,
    anthropic_events,
    chat_answer,
    chat_events,
    gemini_answer,
    gemini_events,
    provider,
    responses_answer,
    responses_events,
    responses_text,
)

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md")])
EXAMPLES = [page for page in PAGES if page == ROOT / "README.md" or page.parent == DOCS]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NOT_RUN = "<!-- not run -->\n"


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> Iterator[tuple[int, str]]:
    """The Python examples of a page that are meant to run, with the number of the line its fence stands in."""
    text = page.read_text(encoding="utf-8")
    for fence in _FENCE.finditer(text):
        if fence[1] == "python" and not text[: fence.start()].endswith(_NOT_RUN):
            yield text.count("\n", 0, fence.start()) + 1, fence[2]


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def section(page: Path, heading: str) -> str:
    """What stands below a heading, up to the next heading."""
    found = re.search(rf"^(#+) {re.escape(heading)}\n(.*?)(?=^#{{1,6}} |\Z)", prose(page), re.MULTILINE | re.DOTALL)
    assert found, f"{name_of(page)} has no heading {heading!r}"
    return found[2]


# Examples

ANSWER = "An unused import breaks the lint step."
_ENDPOINTS: dict[str, tuple[Callable[[str], Json], Callable[[str], Json]]] = {
    "/chat/completions": (chat_answer, chat_events),
    "/responses": (lambda text: responses_answer([responses_text(text)]), responses_events),
    "/v1/messages": (anthropic_answer, anthropic_events),
    "enerateContent": (gemini_answer, gemini_events),
}


def speak(asked: Asked) -> Reply | Json:
    """What every provider says in the examples. Claude also calls the tools it is given, and keeps to a schema."""
    path, body = asked.path.split("?")[0], asked.body
    whole, events = next(made for end, made in _ENDPOINTS.items() if path.endswith(end))
    if body.get("stream") or "streamGenerateContent" in path:
        return Reply(events=events(ANSWER))
    if "output_config" in body:
        return anthropic_answer(json.dumps(_filled(body["output_config"]["format"]["schema"])))
    if path.endswith("/v1/messages") and body.get("tools") and not _is_result(body["messages"][-1]):
        tool = body["tools"][0]
        call = {"type": "tool_use", "id": "toolu_1", "name": tool["name"], "input": _filled(tool["input_schema"])}
        return anthropic_answer(call, stop="tool_use")
    return whole(ANSWER)


def _is_result(entry: Json) -> bool:
    return any(isinstance(part, dict) and part["type"] == "tool_result" for part in entry["content"])


def _filled(schema: Json) -> Json:
    """Something that fits a plain schema."""
    return {name: 7 if kind["type"] == "integer" else "setup.py" for name, kind in schema["properties"].items()}


@pytest.fixture
def providers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every provider is a server on loopback, so that examples can be written as people write them. That it needs no
    certificate is all that is changed for them."""

    def validated(url: str, allow_insecure: bool = False) -> None:
        validate_base_url(url, allow_insecure=allow_insecure or url.startswith("http://127.0.0.1:"))

    with provider(speak) as server:
        for name, path in (("ANTHROPIC", ""), ("OPENAI", "/v1"), ("GOOGLE_GEMINI", "")):
            monkeypatch.setenv(f"{name}_BASE_URL", server.url + path)
        for name in ("ANTHROPIC", "OPENAI", "GOOGLE"):
            monkeypatch.setenv(f"{name}_API_KEY", "no-key-at-all")
        monkeypatch.delenv("GEMINI_API_KEY", raising=False)
        monkeypatch.setattr(_wires, "validate_base_url", validated)
        yield


@pytest.mark.parametrize("page", EXAMPLES, ids=name_of)
@pytest.mark.usefixtures("providers")
def test_the_examples_of_a_page_run_as_they_stand(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In order, in one namespace, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HITHERTO_STORE", str(tmp_path / "never-the-users-own.db"))
    namespace: dict[str, object] = {"__name__": "example"}
    for line, source in blocks(page):
        exec(compile("\n" * line + source, name_of(page), "exec"), namespace)
    for value in namespace.values():
        if isinstance(value, hitherto.Store | hitherto.chat.Client):
            value.close()


def test_the_pages_meant_to_have_examples_have_some() -> None:
    """The control for the test above: the blocks are found."""
    counted = {page.name: len(list(blocks(page))) for page in EXAMPLES}
    learned = ("README.md", "tutorial.md", "how-to.md", "chat.md", "recording.md")
    for name in (*learned, "data-model.md", "schema.md", "backends.md"):
        assert counted[name] > 0, name


def test_a_failing_example_is_noticed_and_a_marked_one_is_not_run(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{_NOT_RUN}```python\nraise OSError\n```\n\n```python\n1 / 0\n```\n\n```\nno python\n```\n")
    assert list(blocks(page)) == [(6, "1 / 0\n")]


# Lists


MODULES = (hitherto, *(getattr(hitherto, name) for name in hitherto._MODULES))
WITH_THEIR_MODULE = (
    hitherto.bundles,
    hitherto.formats,
    hitherto.erasures,
)  # functions of these are called by two names


def called(module: ModuleType, name: str) -> str:
    """As people write it: what only has a name together with its module is named with it."""
    is_named = module in WITH_THEIR_MODULE and inspect.isfunction(getattr(module, name))
    return f"{module.__name__.removeprefix('hitherto.')}.{name}" if is_named else name


PUBLIC: dict[str, object] = {called(m, name): getattr(m, name) for m in MODULES for name in m.__all__}


def test_every_public_name_is_in_the_reference() -> None:
    text = prose(DOCS / "reference.md")
    assert len(PUBLIC) > 150
    missing = [name for name in PUBLIC if not re.search(rf"`{re.escape(name)}[`(]", text)]
    assert missing == []


def test_a_name_means_the_same_wherever_it_is_public() -> None:
    assert [n for m in MODULES for n in m.__all__ if getattr(m, n) is not PUBLIC[called(m, n)]] == []


def test_the_reference_says_in_which_module_each_name_is() -> None:
    """The table of modules, and the names that each has beside those at the top."""
    table = section(DOCS / "reference.md", "Modules")
    found = re.findall(r"\| `hitherto\.(\w+)` \|(.*)\|", table)
    rows = {module: set(re.findall(r"`(\w+)`", names)) for module, names in found}
    top = set(hitherto.__all__)
    own = {name: set(getattr(hitherto, name).__all__) - top for name in hitherto._MODULES}
    assert {name for name in own if name not in rows} == set()
    told = {"errors", "chat", "formats", "records", "snapshots"}  # each has a part or a page of its own
    assert {name: rows[name] for name in own if name not in told} == {n: v for n, v in own.items() if n not in told}


PEOPLE_HOLD = (
    hitherto.recorder.Recording,
    hitherto.snapshots.SnapshotStore,
    hitherto.chat.Client,
    hitherto.chat.Session,
    hitherto.Store,
    hitherto.Conversation,
    hitherto.listing.ConversationInfo,
    hitherto.attachment.Attachment,
    hitherto.listing.MessageListing,
    hitherto.aio.AsyncMessageListing,
)


@pytest.mark.parametrize("owner", PEOPLE_HOLD, ids=lambda owner: str(owner.__name__))
def test_every_public_method_is_in_the_reference(owner: type) -> None:
    text = prose(DOCS / "reference.md")
    public = {name for kind in owner.__mro__[:-1] for name in vars(kind) if not name.startswith("_")}
    assert public
    missing = [name for name in public if not re.search(rf"`{owner.__name__}\.{name}[`(]", text)]
    assert missing == []


@pytest.mark.parametrize(
    ("sync", "twin"),
    [(hitherto.Store, hitherto.AsyncStore), (hitherto.Conversation, hitherto.AsyncConversation)],
    ids=["Store", "Conversation"],
)
def test_what_the_async_twins_do_differently_is_in_the_reference(sync: type, twin: type) -> None:
    """Names that only one of the two has, and what is a property in one and a method in the other."""
    text = section(DOCS / "reference.md", f"`{twin.__name__}`")
    theirs, ours = ({n: v for n, v in vars(kind).items() if not n.startswith("_")} for kind in (sync, twin))
    different = [n for n in {*theirs, *ours} if type(theirs.get(n)) is not type(ours.get(n))]
    assert different
    assert [n for n in different if not re.search(rf"`(?:{twin.__name__}\.)?{n}[`(]", text)] == []


def signatures() -> Iterator[tuple[str, str]]:
    """Every signature that the reference gives: the name, and what stands in the parentheses."""
    for found in re.finditer(r"`((?:\w+\.)?\w+)\((.*?)\)(?: -> [^`]+)?`", prose(DOCS / "reference.md")):
        owner = found[1].partition(".")[0]
        if owner in PUBLIC or found[1] in PUBLIC:
            yield found[1], found[2]


def test_signatures_in_the_reference_are_those_of_the_code() -> None:
    """Names, kinds and defaults of all parameters."""
    checked = []
    for name, written in signatures():
        owner, *parts = [name] if name in PUBLIC else name.split(".")
        target = PUBLIC[owner]
        for part in parts:
            target = getattr(target, part)
        assert callable(target)
        assert _documented(written) == _real(target), name
        checked.append(name)
    assert len(checked) > 40


def _documented(written: str) -> list[tuple[str, str, object]]:
    function = ast.parse(f"def f({written}): ...").body[0]
    assert isinstance(function, ast.FunctionDef)
    a = function.args
    plain = [inspect.Parameter.empty] * (len(a.args) - len(a.defaults)) + [ast.literal_eval(d) for d in a.defaults]
    found: list[tuple[str, str, object]] = [
        (arg.arg, "plain", default) for arg, default in zip(a.args, plain, strict=True)
    ]
    if a.vararg:
        found.append((a.vararg.arg, "several", inspect.Parameter.empty))
    for arg, default in zip(a.kwonlyargs, a.kw_defaults, strict=True):
        found.append((arg.arg, "keyword", inspect.Parameter.empty if default is None else ast.literal_eval(default)))
    return found + ([(a.kwarg.arg, "rest", inspect.Parameter.empty)] if a.kwarg else [])


def _real(target: Callable[..., object]) -> list[tuple[str, str, object]]:
    kinds: dict[object, str] = {
        inspect.Parameter.POSITIONAL_OR_KEYWORD: "plain",
        inspect.Parameter.VAR_POSITIONAL: "several",
        inspect.Parameter.KEYWORD_ONLY: "keyword",
        inspect.Parameter.VAR_KEYWORD: "rest",
    }
    parameters = inspect.signature(target).parameters.values()
    return [(p.name, kinds[p.kind], p.default) for p in parameters if p.name != "self"]


STRUCTS = [value for value in PUBLIC.values() if isinstance(value, type) and issubclass(value, msgspec.Struct)]


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: str(struct.__name__))
def test_every_field_of_a_value_is_in_the_reference(struct: type[msgspec.Struct]) -> None:
    text = section(DOCS / "reference.md", f"`{struct.__name__}`")
    inherited = hitherto.Message.__struct_fields__ if struct is hitherto.Saved else ()
    missing = [f for f in struct.__struct_fields__ if f not in inherited and not re.search(rf"\b{f}\b", text)]
    assert missing == []


@pytest.mark.parametrize(
    "kind", [hitherto.chat.Config, hitherto.chat.Tool, Record], ids=lambda kind: str(kind.__name__)
)
def test_every_field_of_a_configuration_is_in_the_reference(kind: type) -> None:
    text = section(DOCS / "reference.md", f"`{kind.__name__}`")
    assert [f for f in inspect.signature(kind).parameters if f"`{f}`" not in text] == []


def test_every_error_is_explained() -> None:
    errors = [name for name in hitherto.errors.__all__ if isinstance(getattr(hitherto.errors, name), type)]
    assert len(errors) > 20
    text = (DOCS / "errors.md").read_text(encoding="utf-8")
    tree, table = _FENCE.search(text), prose(DOCS / "errors.md")
    assert tree
    for name in errors:
        assert re.search(rf"\b{name}\b", tree[2]), f"{name} is not in the tree"
        assert name == "HithertoError" or f"| `{name}` |" in table, f"{name} is not in the table"


def test_every_table_and_column_is_in_the_schema_page(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    hitherto.open(path).close()
    database = sqlite3.connect(path)
    try:
        schema = database.execute("SELECT type, name FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%'").fetchall()
        tables = [name for kind, name in schema if kind == "table"]
        assert len(tables) > 4
        for table in tables:
            written = re.findall(r"^\| `(\w+)` \| ([A-Z]+) \|", section(DOCS / "schema.md", f"`{table}`"), re.MULTILINE)
            columns = database.execute(f"SELECT name, type FROM pragma_table_info('{table}')").fetchall()
            assert written == columns, table
        for name in (name for kind, name in schema if kind == "index"):
            assert f"`{name}`" in prose(DOCS / "schema.md")
    finally:
        database.close()


CONTENT: list[tuple[str, type[msgspec.Struct]]] = [
    ("Content of a message", bodies.Body),
    ("Block", hitherto.Block),
    ("Usage", hitherto.model.Usage),
    ("Description of a conversation", bodies.Meta),
    ("Description of a workspace", bodies.WorkspaceMeta),
    ("Setup", hitherto.model.Setup),
]


@pytest.mark.parametrize(("heading", "struct"), CONTENT, ids=[heading for heading, _ in CONTENT])
def test_the_schema_page_has_the_fields_of_content_and_their_defaults(
    heading: str, struct: type[msgspec.Struct]
) -> None:
    """Defaults are left out of the stored bytes, so a reader has to know them."""
    rows = re.findall(r"^\| `(\w+)` \| .* \| (.+) \|$", section(DOCS / "schema.md", heading), re.MULTILINE)
    assert dict(rows) == {field.name: _default(field) for field in msgspec.structs.fields(struct)}


def _default(field: msgspec.structs.FieldInfo) -> str:
    """A field's default, as the page words it."""
    if field.required:
        return "always there"
    default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    if isinstance(default, str) and default:
        return f"`{default}`"
    return {"None": "nil", "False": "false", "0": "0"}.get(repr(default), "empty")


def test_every_test_that_the_guarantees_name_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (DOCS / "guarantees.md").read_text(encoding="utf-8")))
    assert len(named) > 20
    sources = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "src" / "hitherto" / "testing").rglob("*.py")]
    defined = {name for source in sources for name in re.findall(r"def (test_\w+)\(", source.read_text("utf-8"))}
    assert named - defined == set()


def test_every_measurement_is_on_the_page_of_benchmarks_with_its_goals() -> None:
    source = ast.parse((ROOT / "benchmarks" / "_rows.py").read_text("utf-8"))
    tables = [n.value for n in source.body if isinstance(n, ast.AnnAssign) and isinstance(n.value, ast.Dict)]
    names = [key.value for key in tables[-1].keys if isinstance(key, ast.Constant)]
    text = section(DOCS / "benchmarks.md", "What is measured")
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == names
    modules = [ast.parse(path.read_text("utf-8")) for path in (ROOT / "benchmarks").glob("_*.py")]
    numbers = {node.value for module in modules for node in ast.walk(module) if isinstance(node, ast.Constant)}
    goals = {float(goal) for goal in re.findall(r"[≤≥<] ([\d.]+)", text)}
    assert len(goals) > 5
    assert goals - {number for number in numbers if isinstance(number, int | float)} == set()


# Links


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_relative_to(ROOT), link
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_is_linked_from_the_index() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    assert [page.name for page in DOCS.glob("*.md") if page.name != "index.md" and f"({page.name})" not in index] == []


# The front page


README = ROOT / "README.md"


def promises() -> list[list[tuple[str, str]]]:
    """The tests that each promise of the README links to: name and file."""
    items = re.split(r"^\d\. ", section(README, "Five promises"), flags=re.MULTILINE)[1:]
    return [re.findall(r"\[`(\w+)`\]\((tests/[^)]+)\)", item) for item in items]


def test_each_promise_of_the_readme_is_linked_to_its_test_and_its_control() -> None:
    assert [len(named) for named in promises()] == [2] * 5
    for name, file in itertools.chain(*promises()):
        assert re.search(rf"^def {name}\(", (ROOT / file).read_text("utf-8"), re.MULTILINE), f"{name} is not in {file}"


def test_the_readme_is_read_in_a_few_minutes() -> None:
    assert len(README.read_text("utf-8").split()) < 900


def test_the_measured_rows_of_the_readme_are_those_of_the_comparison() -> None:
    measured = section(DOCS / "comparison.md", "What is left after a bad moment").splitlines()
    rows = [line for line in section(README, "Why not llm, SDK sessions or a checkpointer").splitlines() if "|" in line]
    assert len(rows) > 4
    assert [row for row in rows if row not in measured] == []


# The code people write: the contract by example


def test_keep_and_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    with hitherto.open("chats.db") as store:
        talk = store.start(title="Failing build", system_prompt="Be terse.", provider="openai", model="gpt-5")
        talk.append(Message.user("Why is the build failing?"))
        talk.append(Message.assistant("An unused import breaks the lint step."))

    with hitherto.open("chats.db") as store:
        resumed = store.latest()
        assert resumed is not None
        seen = [(len(message.id), message.role, message.text) for message in resumed.thread()]
        assert resumed.title == "Failing build"
        assert resumed.system_prompt == "Be terse."
        assert store.conversation(resumed.id[:8]).id == resumed.id
    assert seen == [
        (6, "user", "Why is the build failing?"),
        (6, "assistant", "An unused import breaks the lint step."),
    ]


def test_fork() -> None:
    with hitherto.open("memory:") as store:
        talk = store.start()
        at = talk.append(Message.user("Write a parser")).id
        talk.append(Message.assistant("In C, then."))

        other = talk.fork(at=at)
        assert talk.fork(before=at).at is None
        assert talk.refresh().count == 2  # no write
        other.append(Message.user("Actually, in Python instead"))
        assert {(branch.id, branch.depth, branch.label) for branch in talk.branches()} == {
            (talk.at, 2, None),
            (other.at, 2, None),
        }
        assert all(branch.active_at.tzinfo for branch in talk.branches())
        found = hitherto.compare(talk, other)
        assert [len(part) for part in (found.shared, found.left, found.right)] == [1, 1, 1]
        alone = other.detach(title="Python attempt")
        assert (alone.title, len(alone.thread()), alone.id != other.id) == ("Python attempt", 2, True)
        talk.undo()
        talk.rename("…")
        assert talk.usage().messages == 0
        assert talk.title == "…"


def test_the_narrow_protocols() -> None:
    with hitherto.open("memory:") as store:
        ids = store.save([Message.user("hi")])
        assert [message.text for message in store.get(ids)] == ["hi"]
        with pytest.raises(NotFound) as missing:
            store.get([*ids, "zzzzzz"])
        assert missing.value.ids == ("zzzzzz",)
        assert [message.id for message in hitherto.thread(store, ids[-1])] == ids
        for message in store.messages(newest_first=True, offset=0):
            assert store.message(message.id) == message
        assert store.delete(ids, recursive=True, missing_ok=False) == ids
        page = store.conversations(limit=20, cursor=None)
        assert (len(page.items), page.next_cursor, page.total) == (1, None, None)
        assert store.conversations(total=True).total == 1

        talk = store.start()
        first = talk.append(Message.user("…"))
        slower = store.conversation(talk.id)
        head = talk.append(Message.user("…"), expect_head=first.id)
        with pytest.raises(Conflict) as conflict:
            slower.append(Message.user("…"), expect_head=first.id)
        assert conflict.value.head == head.id
        assert slower.append(Message.user("…"), on_conflict="follow").parent == head.id


def test_snapshots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    key = bytes(range(32))
    with hitherto.open("memory:") as store:
        talk = store.start(title="T", provider="claude", model="m")
        talk.append(Message.user("hi"))
        snapshot = talk.snapshot()

        files = FileStore("~/.mytool/conversations", key=None)
        files.save(snapshot)
        assert files.load(snapshot.id) == snapshot
        assert [summary.id for summary in files.list()] == [snapshot.id]
        files.delete(snapshot.id)
        assert (tmp_path / ".mytool" / "conversations").is_dir()
        ObjectStore("memory://", key=key).save(snapshot)
        assert [message.text for message in store.restore(snapshot).thread()] == ["hi"]
        assert Snapshot.from_json(snapshot.to_json()) == snapshot

        hitherto.formats.save(store, "chats.cpeconvo")
        with hitherto.open("memory:") as other:
            assert hitherto.formats.load("chats.cpeconvo", other).messages == 2

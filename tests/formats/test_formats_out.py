"""Formats that are written for people and for other programs, and writing to a stream.

Requirements: C17, and STYLE on the command line.
"""

import base64
import io
import json
import os
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import apsw
import pytest

import hitherto
from hitherto import Block, Conversation, Message, Store, formats
from hitherto.attachment import Attachment
from hitherto.errors import InvalidArgument
from hitherto.formats import PortableConversation, PortableMessage
from hitherto.formats.exports import html, markdown
from hitherto.formats.importers import openai

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
HOSTILE = """</style></div></title><script>alert(1)</script><img src=x onerror=alert(1)>"' onload="x" &amp; java:"""


@pytest.fixture
def store() -> Iterator[Store]:
    with hitherto.open("memory:") as opened:
        yield opened


def written(what: Any, format: str) -> str:
    out = io.BytesIO()
    formats.save(what, out, format=format)
    return out.getvalue().decode()


def branched(store: Store) -> tuple[Conversation, list[str]]:
    """A question with two answers; the second is where it stands."""
    talk = store.start(title="Failing build", provider="claude", model="m", system_prompt="Be brief.")
    asked = talk.append(Message.user("Why?"))
    first = talk.append(Message.assistant("The compiler."))
    again = talk.append(Message.user("Really?"))
    fork = talk.fork(asked.id)
    second = fork.append(Message.assistant("The linker."))
    return fork, [asked.id, first.id, again.id, second.id]


# -- for people


@pytest.mark.parametrize("format", [markdown.FORMAT, html.FORMAT], ids=lambda format: format.name)
class TestWrittenNotRead:
    def test_it_is_written_by_its_name_and_never_read(self, format: Any, store: Store, tmp_path: Path) -> None:
        talk, _ = branched(store)
        path = tmp_path / f"x{format.suffixes[0]}"
        assert formats.save(talk, path) == 1
        assert path.read_text() == written(talk, format.name)
        assert path.stat().st_mode & 0o777 == 0o600
        with pytest.raises(InvalidArgument, match=f"the format {format.name} is written, not read"):
            formats.load(path, store, format=format.name)
        with pytest.raises(InvalidArgument, match="no format that is known"):
            formats.sniff(path)
        with pytest.raises(hitherto.AlreadyExists):
            formats.save(talk, path)


@pytest.mark.parametrize("format", [markdown.FORMAT, html.FORMAT, openai.FORMAT], ids=lambda format: format.name)
class TestWrittenInClear:
    def test_it_is_in_clear_and_a_key_is_refused(self, format: Any, store: Store, tmp_path: Path) -> None:
        for target in (tmp_path / "x", io.BytesIO()):
            with pytest.raises(InvalidArgument, match="in clear"):
                formats.save(store, target, format=format.name, key=bytes(range(32)))
        assert os.listdir(tmp_path) == []

    def test_many_conversations_and_none_are_both_written(self, format: Any, store: Store) -> None:
        assert formats.save(store, io.BytesIO(), format=format.name) == 0
        branched(store)
        branched(store)
        store.start()
        assert formats.save(store, io.BytesIO(), format=format.name) == 3


def test_the_new_formats_are_known_as_written() -> None:
    assert {"markdown", "html", "openai"} <= set(formats.names(writable=True))


# -- the setup of each thread


def configured(store: Store) -> tuple[Conversation, Conversation]:
    """Two branches that were held with two prompts and two models. The head is on the one that was begun first."""
    talk = store.start(system_prompt="prompt A", provider="openai", model="model-a")
    asked = talk.append(Message.user("Why?"))
    talk.append(Message.assistant("answer before B"))
    talk.configure(system_prompt="prompt B", model="model-b")
    talk.append(Message.user("And now?"))
    other = talk.fork(at=asked.id)
    other.append(Message.assistant("answer on A"))
    return store.conversation(talk.id), talk


def prompts(line: str) -> list[str]:
    return [m["content"] for m in json.loads(line)["messages"] if m["role"] == "system"]


def test_an_export_has_the_system_prompt_of_the_thread_at_the_head(store: Store, tmp_path: Path) -> None:
    head, other = configured(store)
    assert head.system_prompt == "prompt A"
    assert prompts(written(head, "openai")) == ["prompt A"]
    assert json.loads(written(head, "snapshot"))["system_prompt"] == "prompt A"
    formats.save(head, tmp_path / "snapshots", format="gtb")
    [kept] = (tmp_path / "snapshots").glob("*-*-*-*-*.json")
    assert "prompt A" in kept.read_text()
    assert "prompt B" not in kept.read_text()
    other.append(Message.assistant("y"))  # the head moves to the other branch
    assert prompts(written(store, "openai")) == ["prompt B"]
    assert json.loads(written(other, "snapshot"))["model"] == "model-b"


def test_a_prompt_that_was_configured_after_the_last_message_counts(store: Store) -> None:
    talk = store.start(system_prompt="prompt A")
    talk.append(Message.user("Why?"))
    talk.configure(system_prompt="prompt B")
    assert prompts(written(talk, "openai")) == ["prompt B"]
    text = written(talk, "markdown")
    assert text.index("prompt A") < text.index("Why?") < text.index("## Setup from here on") < text.index("prompt B")


@pytest.mark.parametrize("format", ["markdown", "html"])
def test_pages_for_people_tell_each_setup_where_it_begins(format: str, store: Store) -> None:
    head, _ = configured(store)
    text = written(head, format)
    order = [
        "model-a",
        "prompt A",
        "Why?",
        "answer on A",
        "answer before B",
        "Setup from here on",
        "model-b",
        "prompt B",
    ]
    places = [text.index(word) for word in (*order, "And now?")]
    assert places == sorted(places)
    assert text.count("prompt A") == text.count("prompt B") == text.count("Setup from here on") == 1


# -- streams


@pytest.mark.parametrize("format", ["jsonl", "snapshot", "markdown", "html", "openai"])
def test_a_stream_gets_the_same_bytes_as_a_file(format: str, store: Store, tmp_path: Path) -> None:
    talk, _ = branched(store)
    formats.save(talk, tmp_path / "file", format=format)
    found = (tmp_path / "file").read_text()
    same = re.compile(r'"created_at": "[^"]*"')  # of a snapshot: when it was taken
    assert same.sub("", written(talk, format)) == same.sub("", found)


def test_a_stream_never_touches_the_disk(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    branched(store)

    def forbidden(*_: object, **__: object) -> Any:
        raise AssertionError("a file was opened")

    monkeypatch.setattr(os, "open", forbidden)
    monkeypatch.setattr("builtins.open", forbidden)
    for format in ("jsonl", "markdown", "html", "openai"):
        assert written(store, format)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("format", ["cpeconvo", "cpeconvo_first", "gtb"])
def test_what_is_no_stream_of_text_says_so(format: str, store: Store) -> None:
    out = io.BytesIO()
    with pytest.raises(InvalidArgument, match="not one stream"):
        formats.save(store, out, format=format)
    assert out.getvalue() == b""


def test_a_stream_does_not_tell_its_format(store: Store) -> None:
    with pytest.raises(InvalidArgument, match="no name that tells the format"):
        formats.save(store, io.BytesIO())


def test_what_is_neither_a_path_nor_a_stream_is_refused(store: Store) -> None:
    for wrong in (5, None, b"bytes.jsonl", io.StringIO()):
        with pytest.raises(InvalidArgument):
            formats.save(store, wrong, format="jsonl")  # type: ignore[arg-type]  # that is what is tested


def test_an_error_of_the_stream_is_the_streams_own(store: Store) -> None:
    branched(store)

    class Broken(io.RawIOBase):
        def write(self, _: object) -> int:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        formats.save(store, Broken(), format="jsonl")  # type: ignore[arg-type]  # it is one to write to


def test_the_longest_ending_of_a_name_decides(store: Store, tmp_path: Path) -> None:
    branched(store)
    formats.save(store, tmp_path / "x.openai.jsonl")
    assert json.loads((tmp_path / "x.openai.jsonl").read_text()).keys() == {"messages"}
    formats.save(store, tmp_path / "openai.jsonl")
    assert formats.sniff(tmp_path / "openai.jsonl")[0] == "jsonl"


# -- Markdown


def headings(text: str) -> list[str]:
    """The headings of the first two levels, outside of fences."""
    found, fence = [], ""
    for line in text.split("\n"):
        run = re.match(r"(`{3,}|~{3,})", line)
        if fence:
            fence = "" if run and line.startswith(fence) and not line.strip("`~") else fence
        elif run:
            fence = run[1]
        elif re.match(r"##? ", line):
            found.append(line)
    assert not fence, "a fence is left open"
    return found


def test_markdown_tells_the_thread_first_and_then_where_branches_part(store: Store) -> None:
    talk, (asked, first, again, second) = branched(store)
    text = written(talk, "markdown")
    shown = [re.sub(r" · \d{4}-.*", "", line) for line in headings(text)]
    assert shown == [
        "# Failing build",
        "## System prompt",
        f"## User · `{asked}`",
        f"## Assistant · `{second}`",
        f"## Another branch, after message `{asked}`",
        f"## Assistant · `{first}`",
        f"## User · `{again}`",
    ]
    assert "Be brief." in text
    assert re.search(rf"`{second}` · \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d UTC\n\nThe linker\.\n", text)


@pytest.mark.parametrize(
    "said",
    [
        "# A heading\n\n## User · `abcdef`",
        "User\n---\ntext\n===",
        "```\n# not a heading, and never closed",
        "~~~~\n~~~\n## still inside",
        "```\n## inside\n```\n## outside",
        "<!-- a comment that swallows the rest",
        "  <details>\n<pre>",
        "line\r# after a carriage return",
        "#\n##",
    ],
)
def test_no_text_can_be_taken_for_another_message_or_swallow_one(said: str, store: Store) -> None:
    talk = store.start(title="T")
    talk.extend([Message.user(said), Message.assistant("after")])
    text = written(talk, "markdown")
    found = headings(text)
    assert len(found) == 3, found
    assert not re.search(r"^ {0,3}<", text, re.MULTILINE)
    assert not re.search(r"^[^#\n].*\n {0,3}(=+|-+)$", text, re.MULTILINE)


def test_text_is_as_it_was_said_where_it_does_no_harm(store: Store) -> None:
    said = "A list:\n\n- *one*\n- two\n\n```python\n# a comment\nx = 1 < 2\n```\n\n| a |\n|---|\n\nEnd, #1 & <b>."
    talk = store.start()
    talk.append(Message.user(said))
    assert f"\n\n{said}\n" in written(talk, "markdown")


def test_a_fence_is_longer_than_any_inside(store: Store) -> None:
    talk = store.start()
    talk.append(Message.user("run"))
    talk.append(Message.assistant([Block.thinking("hm"), Block.tool_call("c", "sh", {"run": "echo ```` \u00e4"})]))
    talk.append(Message.tool_result("c", "```\nout\n```", error=True))
    text = written(talk, "markdown")
    assert '**Calls `sh`**\n\n`````json\n{\n  "run": "echo ```` ä"\n}\n`````\n' in text
    assert "**The tool failed**\n\n````\n```\nout\n```\n````\n" in text
    assert "> **Thinking**\n> \n> hm\n" in text


def test_arguments_that_are_no_json_are_shown_as_the_model_wrote_them(store: Store) -> None:
    talk = store.start()
    talk.append(Message.user("go"))
    talk.append(Message.assistant([Block.tool_call("c", "f", '{"a": 1'), Block.tool_call("d", "g", '{"b":2}')]))
    text = written(talk, "markdown")
    assert '```json\n{"a": 1\n```' in text
    assert '```json\n{\n  "b": 2\n}\n```' in text


def test_bytes_are_named_with_their_type_and_size(store: Store) -> None:
    talk = store.start()
    talk.append(Message.user([Block.image(PNG, "image/png"), Block.audio(b"abc", "audio/wav")]))
    text = written(talk, "markdown")
    assert f"*[image, image/png, {len(PNG)} bytes]*" in text
    assert "*[audio, audio/wav, 3 bytes]*" in text


def test_what_goes_on_after_a_compaction_and_what_is_said_aside_say_so(store: Store) -> None:
    talk = store.start()
    talk.append(Message.user("long"))
    last = talk.append(Message.assistant("story"))
    aside = talk.subagent("searcher", "run-1", call=last.id)
    aside.append(Message.user("find"))
    talk.compact("a summary")
    text = written(talk, "markdown")
    assert f"## Goes on after message `{last.id}`" in text
    assert f"## Said aside, for message `{last.id}`" in text
    assert "## Another beginning" in text
    assert text.index("a summary") < text.index("story")


def test_every_message_of_a_large_tree_is_told_once(store: Store) -> None:
    talk = store.start()
    ids = [talk.append(Message.user("0")).id]
    for n in range(1, 120):
        fork = talk.fork(ids[n // 2]) if n % 4 == 0 else talk
        ids.append(fork.append(Message.user(str(n))).id)
    for format in ("markdown", "html"):
        text = written(talk, format)
        assert all(len(re.findall(rf"(?<!message )(?<!message `){id}\b", text)) == 1 for id in ids)


# -- HTML


class Seen(HTMLParser):
    """What a browser would see."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


REMOTE = "https://example.org/x.png"


def hostile() -> PortableConversation:
    """Hostile wherever there is text."""
    blocks = [
        Block.text(HOSTILE),
        Block.thinking(HOSTILE),
        Block.tool_call("c", HOSTILE, {HOSTILE: HOSTILE}),
        Block(HOSTILE, HOSTILE),
        Block("content", REMOTE, "image", "image/png"),
        Block("content", HOSTILE, HOSTILE, HOSTILE),
        Block("content", b"<svg onload='x'/>", "image", "image/svg+xml"),
        Block("content", b"x", "image", HOSTILE),
        Block("content", b"x", HOSTILE, "image/png"),
    ]
    message = Message("assistant", tuple(blocks), label=HOSTILE)
    result = Message.tool_result("c", HOSTILE, error=True)
    said = (
        PortableMessage(id=HOSTILE, message=message),
        PortableMessage(id="2", parent=HOSTILE, message=result),
        PortableMessage(id="3", parent=HOSTILE, message=message),
        PortableMessage(id="4", link=HOSTILE, main=False, message=Message(HOSTILE[:60], message.blocks)),
    )
    setup = hitherto.model.Setup(HOSTILE, HOSTILE, HOSTILE)
    return PortableConversation(
        id=HOSTILE, title=HOSTILE, project=HOSTILE, messages=said, setups=(setup,), setup=1, head="2"
    )


def test_nothing_that_was_said_is_markup_and_nothing_is_fetched() -> None:
    text = written([hostile()], "html")
    seen = Seen(text)
    allowed = {"html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "dl", "dt", "dd", "details",
               "summary", "pre", "article", "header", "b", "time", "div", "p", "a", "span"}  # fmt: skip
    assert {tag for tag, _ in seen.tags} <= allowed
    for _, attributes in seen.tags:
        assert not any(name.startswith("on") or name in ("src", "style") for name in attributes)
        assert re.fullmatch(rf"#m\d+-\d+|{re.escape(REMOTE)}", attributes.get("href") or "#m1-1")
    assert seen.text.count(HOSTILE) > 15  # each as it is, as text
    assert 'onload="x"' not in text  # which would be one in an attribute
    assert f"Image, not loaded: {REMOTE}" in seen.text  # a link to follow, and nothing that loads by itself
    assert not re.search(r"url\(|@import|https?:", text.replace(REMOTE, ""))


EVIL = """\
# Title <script>alert(1)</script>

<svg onload=alert(1)><iframe src="https://evil.example/"></iframe>

[a](javascript:alert(1)) [b](JaVaScRiPt:alert(1)) [c](&#106;avascript:alert(1)) [d](data:text/html;base64,PHN2Zz4=)
[e](vbscript:x) [f](file:///etc/passwd) [g](//evil.example) [h](x.html) [i]( javascript:alert(1)) [j](\x01javascript:a)
<javascript:alert(1)> [k][ref] ![l](https://evil.example/pixel.png) ![m](data:image/svg+xml;base64,PHN2Zz4=)
[n](https://good.example/" onmouseover="alert(1)) [o](https://good.example/x "title\" onclick=\"alert(1)")

[ref]: javascript:alert(1) "x"

```"><script>alert(1)</script> x
</code></pre><script>alert(1)</script>
```

| <b>a</b> | [b](javascript:alert(1)) |
|---|---|
| `</td><script>` | ![x](https://evil.example/y) |

&#x202E;drowssap &#x2066; \u202eesrever \u2028 \x1b[31m &#27;[31m &lt;img src=x onerror=alert(1)&gt;
"""
SAID = {"p", "h3", "h4", "h5", "h6", "a", "strong", "em", "s", "code", "pre", "figure", "figcaption", "ul", "ol", "li",
        "table", "thead", "tbody", "tr", "th", "td", "blockquote", "br", "hr", "div", "span"}  # fmt: skip


@pytest.mark.parametrize("role", ["user", "assistant", "event", "narrator"])
def test_markdown_of_an_attacker_becomes_neither_script_nor_link_nor_request(role: str) -> None:
    evil = Message(role, (Block.text(EVIL), Block.thinking(EVIL), Block.tool_call("c", EVIL, {EVIL: EVIL})), label=EVIL)
    said = (PortableMessage(id="1", message=evil), PortableMessage(id="2", parent="1", message=evil))
    setup = hitherto.model.Setup(EVIL, EVIL, EVIL)
    talk = PortableConversation(id="x", title=EVIL, project=EVIL, messages=said, setups=(setup,), setup=1)
    text = written([talk], "html")
    page = {"html", "head", "meta", "title", "style", "body", "main", "h1", "dl", "dt", "dd", "details", "summary",
            "article", "header", "b"}  # fmt: skip
    seen = Seen(text)
    assert {tag for tag, _ in seen.tags} <= SAID | page
    for tag, attributes in seen.tags:
        assert not any(name.startswith("on") or name in ("src", "srcset", "style") for name in attributes), tag
        if "href" in attributes:  # an address that was written out is a link to itself, and nothing is fetched
            assert re.match(r"https://(good|evil)\.example/", attributes["href"] or "")
            assert attributes["rel"] == "noopener noreferrer nofollow"
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u2028\x1b]", text)
    assert "<U+202E>" in seen.text


def test_an_answer_is_rendered_as_markdown(store: Store) -> None:
    """The control of the test above: tables, code, lists, emphasis and links of the web do arrive."""
    answer = (
        "# A\n\n**b** _c_ ~~d~~ `e` [f](https://good.example/)\n\n- g\n\n> h\n\n```py\ni < j\n```\n\n|k|\n|-|\n|l|\n"
    )
    talk = store.start()
    talk.append(Message.assistant(answer))
    text = written(talk, "html")
    for part in ("<h3>A</h3>", "<strong>b</strong>", "<em>c</em>", "<s>d</s>", "<code>e</code>", "<li>g</li>",
                 '<a href="https://good.example/" title="https://good.example/" rel=', "<blockquote>",
                 '<figcaption>py</figcaption><pre dir="ltr" tabindex="0"><code>',
                 '<div class="table"><table>'):  # fmt: skip
        assert part in text, part


def test_what_a_person_typed_keeps_its_signs_and_spaces_and_only_fences_are_set_apart(store: Store) -> None:
    talk = store.start()
    talk.append(Message.user("    __init__ and *args*\n\n\n# no heading\n```py\n<x>\n```\n1. one\n<b>"))
    text = written(talk, "html")
    assert "<p>    __init__ and *args*\n\n\n# no heading</p>" in text
    assert "<x>\n" in Seen(text).text
    assert "<p>1. one\n&lt;b&gt;</p>" in text


@pytest.mark.parametrize("text", ["[" * 20_000, "> " * 5_000 + "x", "*a_" * 10_000, "|a" * 500 + "\n" + "|-" * 500])
def test_markdown_that_is_nested_without_end_is_shown_all_the_same(text: str, store: Store) -> None:
    talk = store.start()
    talk.append(Message.assistant(text))
    talk.append(Message.assistant("The next one."))
    assert "The next one." in written(talk, "html")


def test_the_page_itself_forbids_scripts_and_fetching(store: Store) -> None:
    branched(store)
    tags = Seen(written(store, "html")).tags
    policy = [a["content"] for tag, a in tags if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"]
    assert policy == [
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    ]
    names = [tag for tag, _ in tags]
    assert names.index("meta") < names.index("style") < names.index("main")


@pytest.mark.parametrize("mime", ["image/png", "image/jpeg", "image/gif", "image/webp"])
@pytest.mark.parametrize("size", [0, 1, 3, 1_000_000])
def test_images_stand_in_the_page(mime: str, size: int, store: Store) -> None:
    data = (PNG * (size // len(PNG) + 1))[:size]
    talk = store.start()
    talk.append(Message.user([Block.image(data, mime)]))
    [image] = [attributes for tag, attributes in Seen(written(talk, "html")).tags if tag == "img"]
    start, _, rest = (image["src"] or "").partition(",")
    assert start == f"data:{mime};base64"
    assert base64.b64decode(rest, validate=True) == data
    assert image["alt"] == f"image, {mime}, {size:,} bytes"


def test_an_image_that_comes_in_uneven_pieces_is_whole() -> None:
    pieces = [PNG[:1], PNG[1:5], PNG[5:]]
    block = Block.image(Attachment(len(PNG), lambda: iter(pieces)), "image/png")
    text = written(
        [PortableConversation(id="x", messages=(PortableMessage(id="a", message=Message.user(block)),))], "html"
    )
    assert base64.b64encode(PNG).decode() in text


def test_other_bytes_and_svg_are_named_only(store: Store) -> None:
    talk = store.start()
    talk.append(Message.user([Block.image(b"<svg/>", "image/svg+xml"), Block.video(b"12345", "video/mp4")]))
    seen = Seen(written(talk, "html"))
    assert "img" not in [tag for tag, _ in seen.tags]
    assert "[image, image/svg+xml, 6 bytes]" in seen.text
    assert "[video, video/mp4, 5 bytes]" in seen.text


def test_tool_calls_and_thoughts_are_folded_and_branches_are_linked(store: Store) -> None:
    talk, (asked, *_) = branched(store)
    talk.append(Message.assistant([Block.thinking("hm"), Block.tool_call("c", "sh", {"run": "ls"})]))
    text = written(talk, "html")
    assert re.search(r"<details[^>]*><summary>Thinking[^<]*</summary><div><pre[^>]*>hm</pre></div></details>", text)
    assert re.search(r'<details[^>]*><summary><span class="name">sh</span>', text)
    link = re.search(rf'<h2>Another branch, after <a href="#(m\d+-\d+)">message {asked}</a></h2>', text)
    assert link is not None
    head = rf'<article class="message user" id="{link[1]}"[^>]*><header><b>User</b> <time[^>]*>[^<]*</time> '
    assert re.search(rf"{head}<span[^>]*>{asked}<", text)
    assert text.index("The linker.") < text.index(link[0]) < text.index("The compiler.")


# -- OpenAI


def test_a_line_is_what_a_request_would_say(store: Store) -> None:
    tools = [{"name": "sh", "description": "run", "parameters": {"type": "object"}}]
    talk = store.start(provider="claude", system_prompt="Be brief.", tools=tools)
    talk.append(Message.user("go"))
    talk.append(Message.assistant([Block.thinking("hm"), Block.tool_call("c", "sh", {"run": "ls"})]))
    [line] = written(talk, "openai").splitlines()
    found = json.loads(line)
    assert found.keys() == {"messages", "tools"}
    assert found["messages"] == hitherto.history(talk, "openai")
    assert found["messages"][-1]["role"] == "tool"  # a call without a result is mended
    assert found["tools"][0]["function"]["name"] == "sh"


def test_each_conversation_is_a_line_of_the_thread_to_its_head(store: Store) -> None:
    branched(store)
    branched(store)
    lines = [json.loads(line)["messages"] for line in written(store, "openai").splitlines()]
    assert [[message["content"] for message in line] for line in lines] == [["Be brief.", "Why?", "The linker."]] * 2


def test_what_json_cannot_say_does_not_break_the_line(store: Store) -> None:
    talk = store.start()
    talk.append(Message.user("x", raw={"role": "user", "content": "x\n\u2028", "odd": float("nan"), "bytes": b"ab"}))
    [line] = written(talk, "openai").split("\n")[:-1]
    assert json.loads(line)["messages"][0]["odd"] is None


def test_what_was_written_is_read_again(store: Store, tmp_path: Path) -> None:
    tools = [{"name": "sh", "description": "run", "parameters": {"type": "object"}}]
    talk = store.start(system_prompt="Be brief.", tools=tools)
    talk.append(Message.user([Block.text("look"), Block.image(PNG, "image/png")]))
    talk.append(Message.assistant([Block.text("hm"), Block.tool_call("c", "sh", {"run": "ls"})]))
    talk.append(Message.tool_result("c", "a.txt"))
    talk.append(Message.assistant("one file"))
    branched(store)
    path = tmp_path / "x.openai.jsonl"
    formats.save(store, path)
    with hitherto.open("memory:") as other:
        report = formats.load(path, other)
        assert (report.format, report.new, report.messages) == ("openai", 2, 6)
        assert sorted(written(other, "openai").splitlines()) == sorted(path.read_text().splitlines())
        found = next(one for one in report if len(one.thread()) == 4)
        assert found.system_prompt == "Be brief."
        assert [block.type for block in found.thread()[1].blocks] == ["content", "tool_call"]
        assert found.thread()[0].blocks[1].content == PNG
        again = formats.load(path, other)
        assert (again.new, again.unchanged, again.messages) == (0, 2, 0)


def test_a_line_that_cannot_be_read_does_not_hide_the_others(store: Store, tmp_path: Path) -> None:
    good = [{"messages": [{"role": "user", "content": text}]} for text in ("first", "last")]
    deep = '{"messages": ' + "[" * 5000 + "]" * 5000 + "}"
    bad = ['{"messages": [{"content": "no role"}]}', '{"messages": "text"}', "[]", deep, '{"messages": [', "\udcff"]
    lines = [json.dumps(good[0]), "", *bad, json.dumps(good[1])]
    path = tmp_path / "lines.jsonl"
    path.write_text("\n".join(lines), errors="surrogateescape")
    with pytest.raises(hitherto.PartialImport) as caught:
        formats.load(path, store)
    report = caught.value.report
    assert isinstance(report, formats.Loaded)
    assert [one.name for one in report.unreadable] == [f"lines.jsonl, line {n}" for n in range(3, 3 + len(bad))]
    assert sorted(store.conversation(info.id).thread()[0].text for info in store.conversations()) == ["first", "last"]


def test_a_file_of_messages_is_recognised_by_its_content(tmp_path: Path) -> None:
    for text in ('{"messages": [{"role": "user"}]}', '\ufeff\n{ "tools" : [], "messages" : [{"role":"user"}]}'):
        (tmp_path / "x").write_text(text)
        assert formats.sniff(tmp_path / "x")[0] == "openai"
    for text in ('{"messages": []}', '{"note": "messages", "role": 1}', '{"messages": {"role": "user"}}'):
        (tmp_path / "x").write_text(text)
        with pytest.raises(InvalidArgument):
            formats.sniff(tmp_path / "x")


# -- store to store


def test_a_copy_has_everything_and_again_adds_nothing(store: Store, tmp_path: Path) -> None:
    talk, ids = branched(store)
    talk.hold()
    seen: list[int] = []
    with hitherto.open(tmp_path / "x.db", key=bytes(range(32))) as other:
        report = formats.copy(store, other, progress=seen.append)
        assert (report.format, report.new, report.messages, seen) == ("store", 1, 4, [4])
        assert written(store, "jsonl") == written(other, "jsonl")
        assert other.conversation(talk.id).held
        assert formats.copy(store, other).unchanged == 1
        talk.append(Message.user("more"))
        grown = formats.copy(store, other)
        assert (grown.new, grown.messages, [one.id for one in grown]) == (0, 1, [talk.id])
        assert formats.copy(other, store).messages == 0  # and back
    assert len(ids) == 4


def test_a_store_is_not_copied_into_itself(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with hitherto.open(path) as one, hitherto.open(path) as same, hitherto.open(path, workspace="other") as other:
        one.start().append(Message.user("x"))
        for target in (one, same):
            with pytest.raises(InvalidArgument, match="into itself"):
                formats.copy(one, target)
        assert formats.copy(one, other).messages == 1
    with hitherto.open("memory:") as a, hitherto.open("memory:") as b:
        assert formats.copy(a, b).messages == 0
        with pytest.raises(InvalidArgument, match="a store is wanted"):
            formats.copy(a, "x.db")  # type: ignore[arg-type]  # that is what is tested


def test_a_copy_that_is_stopped_goes_on(store: Store) -> None:
    for _ in range(4):
        branched(store)

    class Stop(Exception):
        pass

    def stop(seen: int) -> None:
        if seen > 4:
            raise Stop

    with hitherto.open("memory:") as other:
        with pytest.raises(Stop):
            formats.copy(store, other, progress=stop)
        assert [info.count for info in other.conversations().items] == [4, 4]
        report = formats.copy(store, other)
        assert (report.new, report.unchanged) == (2, 2)
        assert other.verify().ok


def test_a_conversation_that_cannot_be_read_does_not_stop_the_copy(tmp_path: Path) -> None:
    with hitherto.open(tmp_path / "x.db") as store:
        for _ in range(3):
            branched(store)
        damaged = store.conversations().items[1].id
        connection = apsw.Connection(str(tmp_path / "x.db"))
        number = "SELECT place FROM conversation WHERE id = ?"
        [(place,)] = connection.execute(number, (bytes.fromhex(damaged.replace("-", "")),)).fetchall()
        connection.execute("UPDATE message SET body = x'00' WHERE conversation = ?", (place,))
        connection.close()
        with hitherto.open("memory:") as other:
            with pytest.raises(hitherto.PartialImport) as caught:
                formats.copy(store, other)
            report = caught.value.report
            assert isinstance(report, formats.Loaded)
            assert [damaged in one.name for one in report.unreadable] == [True]
            assert report.new == 2


def test_nothing_in_a_page_turns_it_around_and_nothing_in_markdown_forges_a_heading(tmp_path: Path) -> None:
    block = Block("content", b"x", "image\n## Fake", "image/png\n\n## Assistant · forged")
    with hitherto.open("memory:") as store:
        talk = store.start(title="A \u202e title")
        talk.append(Message.user([Block.text("evil \x1b[31m \u202e text"), block]))
        formats.save(talk, tmp_path / "x.html")
        formats.save(talk, tmp_path / "x.md")
    page = (tmp_path / "x.html").read_text()
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "evil ␛[31m" in page
    assert len([line for line in (tmp_path / "x.md").read_text().splitlines() if line.startswith("## ")]) == 1

"""Renders what models say, which is Markdown, as HTML that is safe to open.

A conversation may hold any text: a page that a tool has read, or a prompt that was made to do harm. So HTML in it is
shown as text, a link leads to a web page or a mail address or is no link, and an image is named and never fetched.
Characters that turn the reading direction, or that control a terminal, become visible signs, also those that Markdown
writes as entities.

Users mostly type no Markdown: `__init__` would lose its underscores, and `src/**/*.py` its stars. In their messages
only code, bold words and web addresses are rendered.

Code is highlighted if Pygments is installed, as it is with `hitherto[viewer]`.
"""

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from html import escape
from typing import TYPE_CHECKING

from ..._system.terminal_text import SIGNS

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.renderer import RendererHTML
    from markdown_it.rules_core import StateCore
    from markdown_it.token import Token
    from markdown_it.utils import EnvType, OptionsDict
    from pygments.lexer import Lexer

_LONGEST = 400_000  # characters that are rendered; a longer text is shown as it is
_SAFE_LINK = re.compile(r"(?:https?://|mailto:)\S", re.IGNORECASE)
_LONGEST_CODE = 50_000  # characters that are highlighted
_ADDRESS = re.compile(r"https?://[^\s<>\"'`]*[^\s<>\"'`.,;:!?)\]}*]", re.IGNORECASE)
_TYPED = re.compile(
    r"(?P<code>(?<![`\w])`[^`\n]+`(?![`\w]))"
    r"|(?<![\w*/\\])\*\*(?P<bold>\w(?:[^*\n]*[\w.!?:)])?)\*\*(?![\w*/])"
    rf"|(?P<address>{_ADDRESS.pattern})",
    re.IGNORECASE,
)
_SAFE_SIGNS = {code: escape(sign) for code, sign in SIGNS.items()}


def render_answer(text: str) -> str:
    """Return a text in Markdown as HTML."""
    if len(text) > _LONGEST:
        return _plain(text)
    rendered: str = _markdown().render(text)
    return rendered.translate(_SAFE_SIGNS)


def render_prompt(text: str) -> str:
    """Return a text that a person typed as HTML: as it is, with fenced code set apart."""
    if len(text) > _LONGEST:
        return _plain(text)
    parser, lines = _fences(), text.replace("\r\n", "\n").split("\n")
    found, done = "", 0
    for token in parser.parse(text):
        if token.type == "fence" and token.map:
            found += _plain("\n".join(lines[done : token.map[0]])) + _code_figure(token).translate(_SAFE_SIGNS)
            done = token.map[1]
    return found + _plain("\n".join(lines[done:]))


def _plain(text: str) -> str:
    shown = text.strip("\n")
    if not shown.strip():
        return ""
    parts, at = [], 0
    for found in _TYPED.finditer(shown):
        parts += [escape(shown[at : found.start()]), _typed(found)]
        at = found.end()
    return f"<p>{''.join(parts)}{escape(shown[at:])}</p>\n".translate(_SAFE_SIGNS)


def _typed(found: "re.Match[str]") -> str:
    if found["code"]:
        return f"<code>{escape(found['code'][1:-1])}</code>"
    return f"<strong>{escape(found['bold'])}</strong>" if found["bold"] else _address(found)


def _address(found: "re.Match[str]") -> str:
    """Return a web address as a link. Its class tells paper that the address is there already."""
    return f'<a class="address" {_target(found[0])}>{escape(found[0])}</a>'


def _target(address: str) -> str:
    """Return the attributes of a link to another site."""
    address = escape(address, quote=True)
    return f'href="{address}" title="{address}" rel="noopener noreferrer nofollow"'


def link_to(address: str, words: str) -> str:
    """Return a link with these words; if the address leads to no web page, the words alone."""
    words = escape(words.translate(SIGNS))
    return f"<a {_target(address)}>{words}</a>" if _ADDRESS.fullmatch(address) else words


@cache
def _markdown() -> "MarkdownIt":
    from markdown_it import MarkdownIt  # noqa: PLC0415  # only pages need it

    parser = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable(["table", "strikethrough"])
    parser.core.ruler.push("addresses", _mark_links)
    return _made_safe(parser)


@cache
def _fences() -> "MarkdownIt":
    from markdown_it import MarkdownIt  # noqa: PLC0415  # as above

    return MarkdownIt("zero", {"html": False}).enable(["fence"])


def _made_safe(parser: "MarkdownIt") -> "MarkdownIt":
    parser.validateLink = _is_safe_link  # type: ignore[method-assign]  # as its documentation says
    for name, rule in (
        ("image", _image),
        ("text", _text),
        ("link_open", _link),
        ("heading_open", _heading),
        ("heading_close", _heading),
        ("fence", _code),
        ("code_block", _code),
        ("table_open", _table),
        ("table_close", _table),
        ("th_open", _cell),
        ("td_open", _cell),
    ):
        parser.add_render_rule(name, rule)
    return parser


def _is_safe_link(url: str) -> bool:
    return _SAFE_LINK.match(url) is not None


# -- rules: each renders a token in a way of ours. A rule for an image is only reached if its address is safe; other
# images stay the text that they were written with. A remote image would tell its server who reads, and when: it is
# fetched if its link is followed.


def _image(_: "RendererHTML", tokens: "Sequence[Token]", at: int, *__: object) -> str:
    token = tokens[at]
    address = str(token.attrGet("src") or "")
    words = f"Image, not loaded: {token.content or address}"
    return f'<span class="note">{escape(words) if "linked" in token.meta else link_to(address, words)}</span>'


def _mark_links(state: "StateCore") -> None:
    """Note the texts that stand in a link: an address there is no link of its own."""
    for token in state.tokens:
        depth = 0
        for child in token.children or ():
            depth += child.nesting if child.type in ("link_open", "link_close") else 0
            if depth and child.type in ("text", "image"):
                child.meta["linked"] = True


def _text(_: "RendererHTML", tokens: "Sequence[Token]", at: int, *__: object) -> str:
    """Make links of web addresses."""
    text = tokens[at].content
    if "://" not in text or "linked" in tokens[at].meta:
        return escape(text)
    parts, end = [], 0
    for found in _ADDRESS.finditer(text):
        parts += [escape(text[end : found.start()]), _address(found)]
        end = found.end()
    return "".join(parts) + escape(text[end:])


def _link(renderer: "RendererHTML", tokens: "Sequence[Token]", at: int, options: "OptionsDict", env: "EnvType") -> str:
    """Show the address in a tooltip: its text may name another one."""
    token = tokens[at]
    token.attrSet("title", str(token.attrGet("href") or ""))
    token.attrSet("rel", "noopener noreferrer nofollow")
    return renderer.renderToken(tokens, at, options, env)


def _heading(
    renderer: "RendererHTML", tokens: "Sequence[Token]", at: int, options: "OptionsDict", env: "EnvType"
) -> str:
    """The first two levels are the page's own."""
    token = tokens[at]
    token.tag = f"h{min(6, int(token.tag[1]) + 2)}"
    return renderer.renderToken(tokens, at, options, env)


def _code(_: "RendererHTML", tokens: "Sequence[Token]", at: int, *__: object) -> str:
    return _code_figure(tokens[at])


def _code_figure(token: "Token") -> str:
    language = token.info.split(maxsplit=1)[0] if token.info.strip() else ""
    label = f"<figcaption>{escape(language)}</figcaption>" if language else ""
    code = _highlight(token.content, language) or escape(token.content)
    return f'<figure class="code">{label}<pre dir="ltr" tabindex="0"><code>{code}</code></pre></figure>\n'


def _highlight(code: str, language: str) -> str | None:
    """Return code with its words in spans; None if the language is not known, or nothing here knows languages."""
    lexer = _lexer(language.lower()) if language and len(code) <= _LONGEST_CODE else None
    if lexer is None:
        return None
    from pygments import highlight  # noqa: PLC0415  # as below
    from pygments.formatters import HtmlFormatter  # noqa: PLC0415  # as below

    found: str = highlight(code, lexer, HtmlFormatter(nowrap=True, classprefix="c-"))
    return found


@lru_cache(200)
def _lexer(language: str) -> "Lexer | None":
    try:
        from pygments.lexers import get_lexer_by_name  # noqa: PLC0415  # an extra; only pages need it
        from pygments.util import ClassNotFound  # noqa: PLC0415  # as above
    except ImportError:
        return None
    try:
        return get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return None


def _table(renderer: "RendererHTML", tokens: "Sequence[Token]", at: int, options: "OptionsDict", env: "EnvType") -> str:
    """A wide table scrolls by itself, so that the page does not."""
    inside = renderer.renderToken(tokens, at, options, env)
    return f'<div class="table">{inside}' if tokens[at].nesting == 1 else f"{inside}</div>\n"


def _cell(renderer: "RendererHTML", tokens: "Sequence[Token]", at: int, options: "OptionsDict", env: "EnvType") -> str:
    """Say the alignment of a cell with a class: the policy of a page may forbid styles in elements."""
    token = tokens[at]
    side = str(token.attrs.pop("style", "")).removeprefix("text-align:")
    if side:
        token.attrSet("class", side)
    return renderer.renderToken(tokens, at, options, env)

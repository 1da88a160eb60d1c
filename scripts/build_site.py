"""Build the documentation site: python scripts/build_site.py

The pages of docs/ are written to be read in the repository as they are. This puts them together for Sphinx, in
docs/_build/source: the pages at the root of the project join them, docs/index.md becomes the navigation, and the
reference is made from the code: a page a module, and one with all commands. Sphinx then writes docs/_build/html. A
warning is an error, a page that the index does not name is one too, and nothing is fetched from anywhere.
"""

import re
import shutil
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
from sphinx.cmd.build import build_main

import hitherto
from hitherto.cli._main import hitherto as command_line

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
BUILT = DOCS / "_build"
BESIDE = ("SECURITY.md", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "CHANGELOG.md")  # pages at the root of the project
FOR_AUTHORS = ("backend", "items", "telemetry", "testing", "textindex")  # public modules that `hitherto` does not load
GENERATED = "From the code"  # the last part of the navigation


def pages() -> Iterator[tuple[str, str]]:
    """Every page written by hand, with its links as they are when all pages lie in one folder."""
    for page in sorted(DOCS.glob("*.md")):
        yield page.name, page.read_text("utf-8").replace("](../", "](")
    for name in BESIDE:
        yield name, (ROOT / name).read_text("utf-8").replace("](docs/", "](")


def navigation(index: str) -> str:
    """The index, with a hidden table of contents for each of its parts: the pages that the part links to."""
    named: set[str] = set()
    trees = []
    for part in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        links = dict.fromkeys(re.findall(r"\]\(([\w-]+\.md)", part))
        trees.append(tree(part.splitlines()[0], [link for link in links if link not in named]))
        named.update(links)
    trees.append(tree(GENERATED, ["api/index.md", "command-line.md"]))
    return index + "\n" + "\n".join(filter(None, trees))


def tree(caption: str, entries: list[str]) -> str:
    if not entries:
        return ""
    return "\n".join(["```{toctree}", ":hidden:", f":caption: {caption}", "", *entries, "```", ""])


def reference() -> Iterator[tuple[str, str]]:
    """A page for each public module, and one that lists them."""
    modules = sorted({*hitherto._MODULES, *FOR_AUTHORS})
    for name in modules:
        import_module(f"hitherto.{name}")
        directive = f"```{{eval-rst}}\n.. automodule:: hitherto.{name}\n```"
        yield f"api/{name}.md", f"# `hitherto.{name}`\n\n{directive}\n"
    intro = (
        "Made from the code: every public name, its signature and what its docstring says. "
        "[The reference](../reference.md) says more about each."
    )
    parts = ["# Modules", intro, "## In `hitherto` itself", *at_the_top(), "## The modules", toc(modules)]
    yield "api/index.md", "\n\n".join(parts)


def at_the_top() -> Iterator[str]:
    """The names of `hitherto` itself: links to where they are described, and those that are described nowhere else."""
    homes = {name: module for module in hitherto._MODULES for name in getattr(hitherto, module).__all__}
    names = [name for name in hitherto.__all__ if not name.startswith("_")]
    yield "\n".join(f"- [`{name}`](#hitherto.{homes[name]}.{name})" for name in names if name in homes)
    for name in names:
        if name not in homes:
            yield f"```{{eval-rst}}\n.. autofunction:: hitherto.{name}\n```"


def toc(entries: list[str]) -> str:
    return "\n".join(["```{toctree}", ":maxdepth: 1", "", *entries, "```", ""])


def commands() -> str:
    """Every command with its usage, its help, its arguments and its options."""
    parts = ["# All commands", "Made from the code. [The commands](commands.md) shows each at work."]
    parts += describe(click.Context(command_line, info_name="hitherto"), 2)
    return "\n\n".join(parts) + "\n"


def describe(context: click.Context, level: int) -> list[str]:
    command = context.command
    parts = [f"{'#' * level} {context.command_path}", "```\n" + command.get_help(context) + "\n```"]
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                parts += describe(click.Context(below, info_name=name, parent=context), min(level + 1, 4))
    return parts


def assemble(source: Path) -> None:
    shutil.rmtree(source, ignore_errors=True)
    (source / "api").mkdir(parents=True)
    for name, text in [*pages(), *reference(), ("command-line.md", commands())]:
        (source / name).write_text(navigation(text) if name == "index.md" else text, "utf-8")
    for beside in [*DOCS.glob("*.png"), *DOCS.glob("*.json")]:
        shutil.copy(beside, source)
    shutil.copytree(DOCS / "plots", source / "plots", dirs_exist_ok=True)


def loaded_from_elsewhere() -> list[str]:
    """Scripts, styles and pictures of the built pages that a browser would ask another server for."""
    found = []
    for page in (BUILT / "html").rglob("*.html"):
        tags = re.findall(r"<(?:script|link|img|iframe)[^>]*>", page.read_text("utf-8"))
        found += [f"{page.name}: {tag}" for tag in tags if re.search(r"(?:src|href)=\"(?:https?:)?//", tag)]
    for style in (BUILT / "html").rglob("*.css"):
        found += [
            f"{style.name}: {rule}" for rule in re.findall(r"url\(.?(?:https?:)?//[^)]*", style.read_text("utf-8"))
        ]
    return found


def main() -> int:
    assemble(BUILT / "source")
    options = ["-q", "-W", "--keep-going", "-c", str(DOCS), "-d", str(BUILT / "doctrees")]
    failed = build_main([*options, str(BUILT / "source"), str(BUILT / "html")])
    if foreign := loaded_from_elsewhere():
        print("the site loads from elsewhere:", *foreign, sep="\n  ", file=sys.stderr)
    return int(bool(failed or foreign))


if __name__ == "__main__":
    sys.exit(main())

"""The group of commands, and the handling of their errors.

Each command is listed here with its module and a line of help, so that `hitherto --help` loads none of them. A library
error is printed as two lines, the error and a hint, and its kind determines the exit code. A traceback means a bug.
"""

import os
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

import click

from .. import __version__
from ._options import options
from ._safe_streams import abandon_output, streams

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_MISUSED, _INTERRUPTED = 2, 130  # exit codes; the others are in `_exit_codes`


class Entry(NamedTuple):
    """A command: its module, and its line in the list of commands."""

    module: str
    summary: str
    section: str


_TALK, _LOOKING, _MOVING, _CARE = "Talk", "Look and arrange", "Out and in", "Care"
COMMANDS = {
    "chat": Entry("_chat", "Talk to a language model; the conversation is kept.", _TALK),
    "gateway": Entry("_gateway", "Keep what any program says to its model, through a local address.", _TALK),
    "run": Entry("_run", "Run a program, and keep what it says to its model.", _TALK),
    "replay": Entry("_replay", "Run a program with kept answers in place of a provider's.", _TALK),
    "login": Entry("_login", "Keep the key of a provider.", _TALK),
    "logout": Entry("_login", "Forget the key of a provider.", _TALK),
    "list": Entry("_list", "List the conversations, a line each (ls).", _LOOKING),
    "conversation": Entry("_conversation", "Their messages as a tree; print and delete them (convo, conv).", _LOOKING),
    "log": Entry("_log", "The messages of a conversation, a line each; --graph draws its branches.", _LOOKING),
    "show": Entry("_conversation", "Print a conversation, tool calls folded.", _LOOKING),
    "serve": Entry("_serve", "Read the conversations in a browser, on this machine alone.", _LOOKING),
    "link": Entry("_serve", "Print the link of a conversation or message in the page that runs.", _LOOKING),
    "search": Entry("_search", "Find messages by their words.", _LOOKING),
    "mcp": Entry("_mcp", "Let an agent search and read earlier conversations (MCP).", _LOOKING),
    "install": Entry("_install", "Let Claude Code, Codex or Gemini CLI ask what was said before.", _LOOKING),
    "branches": Entry("_log", "List the branches of a conversation.", _LOOKING),
    "compare": Entry("_log", "Compare two threads: the shared part, and the rest of each.", _LOOKING),
    "fork": Entry("_arrange", "Go on from an earlier message; nothing is lost or copied.", _LOOKING),
    "rename": Entry("_arrange", "Give a conversation another title.", _LOOKING),
    "label": Entry("_arrange", "Give a message a name of your own.", _LOOKING),
    "hold": Entry("_arrange", "Protect a conversation from deletion.", _LOOKING),
    "release": Entry("_arrange", "Release a conversation from its hold.", _LOOKING),
    "export": Entry("_export_import", "Write conversations to a file, or to standard output.", _MOVING),
    "import": Entry("_export_import", "Import conversations from files of many programs.", _MOVING),
    "rescue": Entry("_rescue", "Bring in what programs on this machine keep, before they delete it.", _MOVING),
    "continue": Entry("_continue", "Go on with a conversation in Claude Code or Codex.", _MOVING),
    "backup": Entry("_backup_restore", "Copy the store to a file, while other processes write.", _MOVING),
    "restore": Entry("_backup_restore", "Replace the store by a backup.", _MOVING),
    "copy": Entry("_copy", "Copy a store into another one.", _MOVING),
    "usage": Entry("_usage", "Count the tokens of all answers, and what they cost.", _CARE),
    "stats": Entry("_stats", "Show the size of the store, and its activity.", _CARE),
    "verify": Entry("_purge_verify", "Read everything, and check that it is sound.", _CARE),
    "doctor": Entry("_doctor", "Look for trouble, and explain it.", _CARE),
    "purge": Entry("_purge_verify", "Destroy a conversation for good.", _CARE),
    "erasures": Entry("_erasures", "What was purged, so that no backup brings it back.", _CARE),
    "retention": Entry("_retention", "How long conversations are kept.", _CARE),
    "quarantine": Entry("_purge_verify", "Records that were found damaged or tampered with.", _CARE),
    "postgres": Entry("_postgres", "For administrators of a PostgreSQL server.", _CARE),
    "key": Entry("_key", "Make, look at and change the key of a sealed store.", _CARE),
    "config": Entry("_config", "Look at the settings, and change them.", _CARE),
    "init": Entry("_init", "Make a store for this folder.", _CARE),
    "where": Entry("_init", "Which store is used, and why.", _CARE),
    "completion": Entry("_completion", "Completion of commands for bash, zsh and fish.", _CARE),
}
ALIASES = {"ls": "list", "convo": "conversation", "conv": "conversation"}


class _OutputClosed(Exception):
    """The reader of standard output has closed it."""


class Commands(click.Group):
    """A group that loads a command's module when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's own signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  # as above
        name = ALIASES.get(cmd_name, cmd_name)
        if name not in COMMANDS:
            return None
        module = import_module(f".{COMMANDS[name].module}", __package__)
        found = getattr(module, f"{name}_" if name in ("continue", "import", "list") else name)
        assert isinstance(found, click.Command)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            name, command, rest = super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches  # noqa: PLC0415  # only a mistyped name needs it

            near = " or ".join(map(repr, get_close_matches(args[0], [*COMMANDS, *ALIASES], n=2)))
            raise click.UsageError(error.message + (f" Did you mean {near}?" if near else ""), ctx) from None
        return ALIASES.get(name or "", name), command, rest

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # click would report it as a failure
            raise _OutputClosed from None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """Return the completions. click's own method would load every command for its line of help."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415  # only completion needs it

        found = [CompletionItem(name, help=e.summary) for name, e in COMMANDS.items() if name.startswith(incomplete)]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  # as above
        for section in (_TALK, _LOOKING, _MOVING, _CARE):
            with formatter.section(section):
                formatter.write_dl([(name, e.summary) for name, e in COMMANDS.items() if e.section == section])


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="%(prog)s %(version)s")
@options
def hitherto(**_: object) -> None:
    """Keep conversations with language models, and go on with them."""


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    with streams():
        try:
            code = hitherto.main(args=arguments, prog_name="hitherto", standalone_mode=False)
            return code if isinstance(code, int) else 0
        except click.exceptions.Exit as end:
            return end.exit_code
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message(), err=True)
            return _MISUSED
        except click.ClickException as error:
            return _report_usage_error(error)
        except OSError as error:  # writing the output failed: a full disk, for example
            abandon_output()
            what = "the output cannot be written" if _has_folder() else "the folder you are in is gone"
            _print_error(f"{what}: {error.strerror or type(error).__name__}", None)
            return 1
        except (KeyboardInterrupt, click.Abort):
            return _INTERRUPTED
        except _OutputClosed:
            abandon_output()
            return 0
        except Exception as error:  # noqa: BLE001  # report_error raises foreign errors again
            from ._exit_codes import report_error  # noqa: PLC0415  # a success needs no errors

            return report_error(error)


def _has_folder() -> bool:
    try:
        os.getcwd()
    except OSError:
        return False
    return True


def _report_usage_error(error: click.ClickException) -> int:
    where = getattr(error, "ctx", None)
    path = "hitherto" if where is None else where.command_path
    hint = f"{path} --help shows how" if isinstance(error, click.UsageError) else None
    _print_error(error.format_message(), hint)
    return error.exit_code


def _print_error(what: str, hint: str | None) -> None:
    from ._terminal import print_error  # noqa: PLC0415  # as above

    print_error(what, hint)

"""The group of commands: which there are, and what becomes of an error.

A command is named here with the module that has it and a line of help, so that `hitherto --help` loads none of them.
An error of ours is said in two lines, what happened and what to do now, and the exit code tells its kind. A traceback
means that we have made a mistake.
"""

from collections.abc import Sequence
from importlib import import_module

import click

from .. import __version__, errors
from ._screen import abandon_output, complain, streams

MISUSED, INTERRUPTED = 2, 130
_LOOK = "hitherto --help shows how"
_CODES: tuple[tuple[type[errors.HithertoError], int], ...] = (
    (errors.NotFound, 4),
    (errors.Ambiguous, 4),
    (errors.InvalidID, 4),
    (errors.KeyUnavailable, 6),
    (errors.InvalidKey, 6),
    (errors.NotSealed, 6),
    (errors.Busy, 9),
    (errors.InvalidMessage, 1),
    (errors.PayloadTooLarge, 1),
    (errors.InvalidArgument, MISUSED),  # what is left of it: the call itself is wrong
)
# The commands, the modules that have them, and what the list of commands says of each.
COMMANDS = {"chat": ("_chat", "Talk to a language model; the conversation is kept.")}


class _Unread(Exception):
    """Whoever read what we write has had enough."""


class Commands(click.Group):
    """A group whose commands are loaded when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's own signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  # as above
        if cmd_name not in COMMANDS:
            return None
        found = getattr(import_module(f".{COMMANDS[cmd_name][0]}", __package__), cmd_name)
        assert isinstance(found, click.Command)
        return found

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # click would make a failure of it
            raise _Unread from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  # as above
        with formatter.section("Commands"):
            formatter.write_dl([(name, said) for name, (_, said) in COMMANDS.items()])


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="%(version)s")
def hitherto() -> None:
    """Keep conversations with language models, and go on with them."""


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command; how it went is the exit code."""
    with streams():
        try:
            code = hitherto.main(args=arguments, prog_name="hitherto", standalone_mode=False)
            return code if isinstance(code, int) else 0
        except click.exceptions.Exit as end:
            return end.exit_code
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message(), err=True)
            return MISUSED
        except click.ClickException as error:
            return _misused(error)
        except OSError as error:  # where we write to: a full disk, say
            abandon_output()
            complain(f"the output cannot be written: {error.strerror or type(error).__name__}", None)
            return 1
        except (KeyboardInterrupt, click.Abort):
            return INTERRUPTED
        except _Unread:
            abandon_output()
            return 0
        except errors.HithertoError as error:
            code = code_of(error)
            complain(str(error), error.hint or (_LOOK if code == MISUSED else None))
            return code


def code_of(error: errors.HithertoError) -> int:
    """The exit code for an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), 1)


def _misused(error: click.ClickException) -> int:
    where = getattr(error, "ctx", None)
    path = "hitherto" if where is None else where.command_path
    hint = f"{path} --help shows how" if isinstance(error, click.UsageError) else None
    complain(error.format_message(), hint)
    return error.exit_code

"""The command line: `hitherto`, or `python -m hitherto`.

Pipes come first: what was asked for goes to standard output, all talk goes to standard error, and how it went is the
exit code. Each command is a module that is loaded when the command is given, and that loads what it needs when it runs,
so that asking for help costs next to nothing.
"""

from collections.abc import Sequence
from typing import NoReturn

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit with its code. Without arguments, those of the process."""
    try:
        from ._main import run  # noqa: PLC0415  # whoever only looks for the name needs nothing of it

        code = run(arguments)
    except KeyboardInterrupt:  # before there was a command, or after it
        code = 130
    raise SystemExit(code)

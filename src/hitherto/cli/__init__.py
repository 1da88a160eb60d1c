"""The command line: `hitherto`, or `python -m hitherto`.

Pipes come first: results go to standard output, messages go to standard error, and the exit code tells the outcome.
Each command is a module that is loaded when the command runs and that loads the library as late as possible, so
`--help` costs next to nothing.
"""

from collections.abc import Sequence
from typing import NoReturn

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit with its code. Without arguments, use those of the process."""
    try:
        from ._main import run  # noqa: PLC0415  # importing the name alone must stay cheap

        code = run(arguments)
    except KeyboardInterrupt:  # before the command began, or after it ended
        code = 130
    raise SystemExit(code)

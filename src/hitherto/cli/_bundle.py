"""`hitherto export --manifest` and `hitherto verify --bundle`: the conversations of a period, and their check.

`bundles` writes and checks. The digest of the whole is printed, because it proves the folder only if it is kept
somewhere else.
"""

from typing import TYPE_CHECKING

import click

from ._exit_codes import PARTIAL, UNSOUND
from ._export_import import open_for_long_read
from ._output import Meter, count_of, print_json
from ._terminal import line, moment, print_error, say, width

if TYPE_CHECKING:
    from datetime import datetime

    from ..bundles import Manifest
    from ._store_options import Place


def write_bundle(place: "Place", output: str, between: "tuple[datetime, datetime]", *, redact: bool) -> int:
    """Write the bundle, print its digest, and return the exit code."""
    from .. import bundles  # noqa: PLC0415  # help needs none
    from ..sanitiser import Sanitiser  # noqa: PLC0415  # as above

    sanitiser = Sanitiser.everything() if redact else None
    with open_for_long_read(place) as store, Meter("writing", "message") as meter:
        done = bundles.write(store, output, since=between[0], until=between[1], sanitiser=sanitiser, progress=meter)
    click.echo(done.digest)
    say(f"{_counts(done)}: keep this digest elsewhere")
    if done.kept_in:
        say(f"{count_of(done.kept_in, 'conversation')} of the period must not leave the store")
    for id in done.unreadable:
        print_error(f"conversation {id} cannot be read, and is not in the bundle", None)
    return PARTIAL if done.unreadable else 0


def _counts(made: "Manifest") -> str:
    return f"{count_of(made.conversations, 'conversation')}, {count_of(made.messages, 'message')}"


def verify_bundle(bundle: str, digest: str | None, *, as_json: bool) -> int:
    """Check a bundle, print its problems, and return the exit code."""
    from .. import bundles  # noqa: PLC0415  # help needs none

    report = bundles.check(bundle, digest=digest)
    made = report.manifest
    if as_json:
        print_json({"ok": report.ok, "problems": report.problems, "manifest": made})
    for problem in report.problems:
        print_error(line(problem, width()), None)
    if report.ok:
        period = f"{moment(made.since)} to {moment(made.until)}"
        say(f"as it was written: {_counts(made)}, {period}")
        if digest is None:
            say("its own digest fits; --digest compares with the one that the export printed")
    return 0 if report.ok else UNSOUND

"""`hitherto doctor`: report trouble with the store and its surroundings in plain words, with advice.

It only looks. It makes and changes nothing, and repairs nothing that the next write would repair. The checks are in
`_doctor_checks`. A check that fails is a finding like any other, so the remaining checks still run.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from textwrap import wrap

import click

from .. import errors
from .._system import config_file
from .._system.terminal_text import escape_control_characters
from ._doctor_checks import CHECKS, OK, PROBLEM, WARNING, Case, Finding, content, run_check
from ._exit_codes import FAILED, LOCKED, UNSOUND
from ._options import options
from ._output import paint, print_json, print_lines
from ._server_checks import server
from ._store_options import place_of
from ._terminal import is_terminal, width

_STYLES = {OK: "green", WARNING: "yellow", PROBLEM: "red"}
_MARGIN = 9  # columns for the level


@click.command(short_help="Look for trouble, and explain it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@options
def doctor(store: str | None, workspace: str | None, key: str | None, as_json: bool) -> int:
    """Look for trouble with the store and around it, and explain each with what to do. Nothing is made or changed.

    Warnings are for you to judge. The exit code is 0 if there are no problems, 7 if the store is damaged, 6 if its key
    is missing or another one, 1 if there is another problem.
    """
    above = click.get_current_context().find_root().params
    case = _case(store or above["store"], workspace or above["workspace"], key or above["key"])
    if as_json:
        seen = list(_findings(case))
        checks = [{"name": f.name, "level": f.level, "what": f.what, "hint": f.hint} for f in seen]
        print_json({"ok": not _codes(seen), "checks": checks})
    else:
        seen = []
        print_lines(_lines(_findings(case), seen))
    codes = _codes(seen)
    return next((code for code in (UNSOUND, LOCKED) if code in codes), FAILED if codes else 0)


def _case(store: str | None, workspace: str | None, key: str | None) -> Case:
    """Return the subject of the checks. An unusable configuration file or key source does not stop the other checks."""
    settings, bad_config = {}, None
    try:
        settings = config_file.load()
    except errors.HithertoError as error:
        bad_config = error
    try:
        return Case(place_of(store, workspace, key, settings), settings, bad_config)
    except click.UsageError as error:
        place = place_of(store, workspace, "file:none", settings)
        return Case(replace(place, key=None), settings, bad_config, error.format_message())


def _findings(case: Case) -> Iterator[Finding]:
    for check in (*CHECKS, server, content):
        yield from run_check(check, case)


def _codes(seen: list[Finding]) -> set[int]:
    return {finding.code for finding in seen if finding.level == PROBLEM}


def _lines(findings: Iterator[Finding], seen: list[Finding]) -> Iterator[str]:
    for finding in findings:
        seen.append(finding)
        level = paint(f"{finding.level:<{_MARGIN}}", _STYLES[finding.level])
        first, *rest = _wrap(f"{finding.name}: {finding.what}")
        yield level + first
        for text in rest:
            yield " " * _MARGIN + text
        for text in _wrap(finding.hint or "") if finding.hint else ():
            yield paint(" " * _MARGIN + text, "dim")


def _wrap(text: str) -> list[str]:
    """Split a text into lines that fit beside the level; in a pipe it stays one line. Commands are not broken inside a
    word."""
    shown = escape_control_characters(" ".join(text.split()))
    if not is_terminal(sys.stdout):
        return [shown]
    return wrap(shown, max(10, width() - _MARGIN), break_long_words=False, break_on_hyphens=False)

"""`hitherto usage`: the tokens of all answers, and what they cost.

Each answer counts once: a fork shares it, and an import knows it again. Prices are a file of data; the one that comes
with hitherto is replaced by `prices.json` beside the configuration file, or by `--prices`.
"""

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from ._output import count_of, paint, print_json, print_lines
from ._store_options import Place, with_place
from ._terminal import in_zone, line, say

if TYPE_CHECKING:
    from ..usage import Prices, UsageReport, UsageRow

_BY = ("day", "model", "project", "source")
_NAMES = 40  # columns for the name of a row
_HEADS = ("answers", "input", "cached", "output", "thought", "cost")


@click.command(short_help="Count the tokens of all answers, and what they cost.")
@click.option("--by", type=click.Choice(_BY), default="day", show_default=True, help="What a row is.")
@click.option("--days", type=click.IntRange(1, 36600), help="Only the answers of so many days, today among them.")
@click.option("--prices", metavar="FILE", help="Prices to count with, in place of ours.")
@click.option(
    "--line", "as_line", is_flag=True, help="One short line, for a status line: the tokens and cost of today."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@with_place
def usage(place: Place, by: str, days: int | None, prices: str | None, as_line: bool, as_json: bool) -> None:
    """Print the tokens of all answers, and what they cost by the prices of a day. Each answer counts once.

    Input is all that the models read; cached is the part of it that came from a cache or went into one; thought is the
    part of the output that was reasoning.
    """
    from ..usage import count_usage  # noqa: PLC0415  # help needs none

    given = _prices(prices)
    now = in_zone(datetime.now(UTC))
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    since = today if as_line else None if days is None else today - timedelta(days=days - 1)
    with place.read() as store:
        found = count_usage(store, by="day" if as_line else by, prices=given, since=since, local=now.tzinfo is not UTC)  # type: ignore[arg-type]  # click has checked it
    if as_json:
        print_json(_object(found))
    elif as_line:
        click.echo(_short(found))
    else:
        print_lines(_table(found))
        _tell(found)


def _prices(path: str | None) -> "Prices":
    from ..usage import Prices  # noqa: PLC0415  # as above
    from ..usage.prices import load_prices  # noqa: PLC0415  # as above

    return load_prices() if path is None else Prices.from_file(os.path.expanduser(path))


def _record(row: "UsageRow") -> dict[str, object]:
    return {
        "name": row.name,
        "answers": row.answers,
        "input_tokens": row.usage.input_tokens,
        "output_tokens": row.usage.output_tokens,
        "cache_read_tokens": row.usage.cache_read_tokens,
        "cache_write_tokens": row.usage.cache_write_tokens,
        "reasoning_tokens": row.usage.reasoning_tokens,
        "cost": row.cost,
        "unpriced": row.unpriced,
    }


def _object(found: "UsageReport") -> dict[str, object]:
    return {
        "by": found.by,
        "rows": [_record(row) for row in found.rows],
        "total": _record(found.total),
        "currency": found.currency,
        "prices_of": found.prices_of,
        "unpriced_models": found.unpriced,
        "unreadable": found.unreadable,
    }


def _short(found: "UsageReport") -> str:
    total = found.total
    more = "+" if total.unpriced else ""
    return f"{_cost(total.cost, found.currency)}{more} today, {_tokens(total.usage.total_tokens)} tokens"


def _table(found: "UsageReport") -> Iterator[str]:
    rows = [_cells(row, found.currency) for row in (*found.rows, found.total)]
    names = [line(row.name, _NAMES) for row in (*found.rows, found.total)]
    room = max(map(len, (*names, found.by)))
    widths = [max(len(head), *(len(cells[n]) for cells in rows)) for n, head in enumerate(_HEADS)]
    heads = "  ".join(f"{head:>{width}}" for head, width in zip(_HEADS, widths, strict=True))
    yield paint(f"{found.by:<{room}}  {heads}", "dim")
    for n, (name, cells) in enumerate(zip(names, rows, strict=True)):
        told = "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        text = f"{name:<{room}}  {told}"
        yield paint(text, "bold") if n == len(rows) - 1 else text


def _cells(row: "UsageRow", currency: str) -> list[str]:
    used = row.usage
    cost = _cost(row.cost, currency) + ("+" if row.unpriced else "")
    counts = (used.input_tokens, used.cache_read_tokens + used.cache_write_tokens, used.output_tokens)
    return [f"{row.answers:,}", *(f"{count:,}" for count in counts), f"{used.reasoning_tokens:,}", cost]


def _cost(amount: float, currency: str) -> str:
    return f"${amount:,.2f}" if currency == "USD" else f"{amount:,.2f} {currency}"


def _tokens(count: int) -> str:
    """Return a number of tokens in a few characters.

    >>> _tokens(950), _tokens(12_300), _tokens(4_560_000)
    ('950', '12.3k', '4.6M')
    """
    if count < 1000:
        return str(count)
    return f"{count / 1000:.1f}k" if count < 999_950 else f"{count / 1_000_000:.1f}M"


def _tell(found: "UsageReport") -> None:
    say(f"prices of {found.prices_of}; a subscription costs what it costs")
    if found.unpriced:
        models = ", ".join(line(model, _NAMES) for model in found.unpriced[:10])
        answers = count_of(found.total.unpriced, "answer")
        say(f"{answers} of models without a price: {models}; --prices takes a file with more")
    if found.unreadable:
        say(f"{count_of(found.unreadable, 'conversation')} cannot be read, and not counted: hitherto verify says why")

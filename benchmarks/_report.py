"""The figures of a run, kept: `results.json` beside this file, a table and plots in docs/benchmarks.md.

A whole run replaces all of it, a run of some measurements replaces theirs. Every measurement has the day and the
machine it was taken on. The page is made from the file alone, so a test can tell that no figure was written by hand.
"""

import json
from pathlib import Path

from ._plots import draw
from ._sizes import TITLES
from ._table import Point, Row

_ROOT = Path(__file__).resolve().parents[1]
RESULTS = _ROOT / "benchmarks/results.json"
PAGE = _ROOT / "docs/benchmarks.md"
PLOTS = _ROOT / "docs/plots"
_BEGIN, _END = "<!-- figures: begin -->", "<!-- figures: end -->"

Machine = dict[str, object]
Result = dict[str, object]


def keep(name: str, day: str, machine: Machine, rows: list[Row]) -> None:
    """Put the rows of one measurement into the file of results."""
    results = read_results()
    results[name] = {"day": day, "machine": machine, "rows": [row._asdict() for row in rows]}
    RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def publish(order: list[str]) -> None:
    """Write the page's figures and the plots anew, from the file of results."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    figures = render_figures(order)
    PAGE.write_text(f"{before}{_BEGIN}\n{figures}{_END}{after}", encoding="utf-8")
    PLOTS.mkdir(exist_ok=True)
    for name, svg in render_plots().items():
        (PLOTS / f"{name}.svg").write_text(svg, encoding="utf-8")


def published_figures() -> str:
    """What stands on the page between the marks."""
    return PAGE.read_text(encoding="utf-8").partition(f"{_BEGIN}\n")[2].partition(_END)[0]


def read_results() -> dict[str, Result]:
    if not RESULTS.exists():
        return {}
    found: dict[str, Result] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return found


def render_figures(order: list[str]) -> str:
    """The plots, and a table for each measurement, in this order."""
    results = read_results()
    parts = [f"![{TITLES[name]}](plots/{name}.svg)\n" for name in render_plots()]
    if parts:
        parts.append(
            "Both axes of the plots are logarithmic. Their figures stand below, with their day and their spread.\n"
        )
    parts += [_table(name, results[name]) for name in order if name in results]
    return "\n".join(parts)


def render_plots() -> dict[str, str]:
    """Each plot as SVG, by name."""
    points = [Point(*row["point"]) for result in read_results().values() for row in _rows(result) if row["point"]]
    plots = {name: [point for point in points if point.plot == name] for name in TITLES}
    return {name: draw(TITLES[name], found) for name, found in plots.items() if found}


def _rows(result: Result) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = result["rows"]
    return rows


def _table(name: str, result: Result) -> str:
    machine: Machine = result["machine"]
    facts = ", ".join(f"{what} {value}" for what, value in machine.items())
    lines = [f"### {name}", "", f"{result['day']}; {facts}.", ""]
    lines += ["| | figure | least to most | goal | |", "|---|---|---|---|---|"]
    lines += [_line(row) for row in _rows(result)]
    return "\n".join([*lines, ""])


def _line(row: dict[str, object]) -> str:
    spread = "" if row["low"] == row["high"] else f"{number(row['low'])} to {number(row['high'])}"
    verdict = {True: "met", False: "**not met**", None: ""}[row["met"]]
    return f"| {row['name']} | {number(row['value'])} | {spread} | {row['goal']} | {verdict} |"


def number(value: float) -> str:
    return f"{value:.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.2f}"

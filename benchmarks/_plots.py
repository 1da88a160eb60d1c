"""Plots of cost against size, as SVG: both axes logarithmic, a line for each series, its name to the right."""

import math
from collections.abc import Iterable
from html import escape

from ._table import Point

_WIDTH, _HEIGHT = 720, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 160, 40, 50
_COLOURS = ("#888888", "#0b6bcb", "#7a3fb5", "#c2410c", "#15803d", "#a16207")  # by the order of the series
_GAP = 14  # between labels

_Places = list[tuple[float, float]]


def draw(title: str, points: Iterable[Point]) -> str:
    """One plot: sizes from left to right, milliseconds from below upwards."""
    series: dict[str, list[Point]] = {}
    for point in sorted(points, key=lambda point: point.size):
        series.setdefault(point.series, []).append(point)
    everything = [point for line in series.values() for point in line]
    across = _Axis([point.size for point in everything], _LEFT, _WIDTH - _RIGHT)
    upwards = _Axis([point.ms for point in everything], _HEIGHT - _BOTTOM, _TOP)
    lines = {
        name: [(across.place(point.size), upwards.place(point.ms)) for point in line] for name, line in series.items()
    }
    parts = [*_frame(title), *_grid(across, upwards)]
    for places, colour in zip(lines.values(), _COLOURS, strict=False):
        parts += _line(places, colour)
    parts += _labels(lines)
    return "\n".join([*parts, "</g>", "</svg>", ""])


class _Axis:
    """A logarithmic axis that begins and ends at a power of ten."""

    def __init__(self, values: list[float], begin: float, end: float) -> None:
        self.low = math.floor(math.log10(min(values)))
        self.high = max(math.ceil(math.log10(max(values))), self.low + 1)
        self._begin, self._end = begin, end

    def place(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return self._begin + share * (self._end - self._begin)

    def powers(self) -> list[tuple[float, float]]:
        """Each power of ten, and where it stands."""
        return [(10.0**power, self.place(10.0**power)) for power in range(self.low, self.high + 1)]


def _frame(title: str) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
        '<g font-family="sans-serif" font-size="12" fill="#333333">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="22" font-size="15">{escape(title)}</text>',
    ]


def _grid(across: _Axis, upwards: _Axis) -> list[str]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    parts = []
    for size, x in across.powers():
        parts.append(f'<path d="M{x:.1f} {_TOP}V{bottom}" stroke="#eeeeee"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{size:,.0f}</text>')
    for ms, y in upwards.powers():
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="#dddddd"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{ms:,g} ms</text>')
    return parts


def _line(places: _Places, colour: str) -> list[str]:
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in places]
    return [
        f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>',
        f'<g fill="{colour}">',
        *dots,
        "</g>",
    ]


def _labels(lines: dict[str, _Places]) -> list[str]:
    """The names in a column, as near to the ends of their lines as they fit; a dotted line leads to the end of one that
    stops earlier."""
    colours = dict(zip(lines, _COLOURS, strict=False))
    ends = sorted(((name, *places[-1]) for name, places in lines.items()), key=lambda end: end[2])
    right, left = _WIDTH - _RIGHT, _WIDTH - _RIGHT + 14
    parts = []
    for (name, x, y), at in zip(ends, _spread([y for *_, y in ends]), strict=True):
        colour = colours[name]
        if x < right:
            dots = f'stroke="{colour}" stroke-width="0.7" stroke-dasharray="1 4"'
            parts.append(f'<path d="M{x + 5:.1f} {y:.1f}L{left - 3} {at:.1f}" fill="none" {dots}/>')
        parts.append(f'<text x="{left}" y="{at + 4:.1f}" fill="{colour}">{escape(name)}</text>')
    return parts


def _spread(wanted: list[float]) -> list[float]:
    """Move these places apart, from above downwards, and up again where the last would be below the axis."""
    found: list[float] = []
    for y in wanted:
        found.append(max([y, *(place + _GAP for place in found[-1:])]))
    lowest = float(_HEIGHT - _BOTTOM)
    for number in reversed(range(len(found))):
        found[number] = min(found[number], lowest)
        lowest = found[number] - _GAP
    return found

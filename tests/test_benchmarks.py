"""The figures of the documentation come from a run, and from nothing else."""

import itertools
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from benchmarks import _report
from benchmarks._plots import draw
from benchmarks._rows import MEASUREMENTS
from benchmarks._table import Point, Row, at_most


def test_the_figures_on_the_page_are_those_of_the_last_run() -> None:
    assert _report.published_figures() == _report.render_figures([*MEASUREMENTS])
    assert {path.stem: path.read_text(encoding="utf-8") for path in _report.PLOTS.glob("*.svg")} == (
        _report.render_plots()
    )


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(_report, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr(_report, "PAGE", tmp_path / "benchmarks.md")
    monkeypatch.setattr(_report, "PLOTS", tmp_path / "plots")
    (tmp_path / "benchmarks.md").write_text("before\n<!-- figures: begin -->\nold\n<!-- figures: end -->\nafter\n")
    return tmp_path / "benchmarks.md"


def rows(value: float) -> list[Row]:
    point = Point("append", "hitherto", 10, value)
    return [at_most("a turn", [value, value + 1], 1.1)._replace(point=point)]


def test_a_run_of_one_measurement_leaves_the_figures_of_the_others(page: Path) -> None:
    _report.keep("append", "2026-01-01", {"cores": 2}, rows(1.0))
    _report.keep("resume", "2026-01-02", {"cores": 2}, rows(3.0))
    _report.keep("append", "2026-01-03", {"cores": 4}, rows(2.0))
    _report.publish(["append", "resume"])
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "2026-01-01" not in text
    assert text.index("2026-01-03; cores 4.") < text.index("2026-01-02; cores 2.")
    assert "| a turn | 2.50 | 2 to 3 | ≤ 1.1 | **not met** |" in text
    assert _report.published_figures() == _report.render_figures(["append", "resume"])


def test_the_names_of_the_lines_of_a_plot_neither_meet_nor_leave_it() -> None:
    points = [Point("append", f"series {n}", 10**k, 1 + n / 1000) for n in range(6) for k in range(1, 7 - n)]
    root = ET.fromstring(draw("close together, at the bottom", points))
    texts = [element for element in root.iter() if (element.text or "").startswith("series")]
    places = sorted(float(element.attrib["y"]) for element in texts)
    assert len(places) == 6
    assert all(below - above >= 13 for above, below in itertools.pairwise(places))
    assert places[-1] <= 360
    assert {element.attrib["x"] for element in texts} == {texts[0].attrib["x"]}


def test_a_plot_is_xml_with_a_line_and_a_label_for_each_series() -> None:
    points = [Point("append", name, 10**n, n + 0.5) for name in ("one & all", "other") for n in range(1, 7)]
    root = ET.fromstring(draw("a < b", points))
    texts = [element.text for element in root.iter() if element.tag.endswith("}text")]
    assert {"a < b", "one & all", "other", "1,000,000", "10 ms"} <= set(texts)
    assert sum(element.tag.endswith("}circle") for element in root.iter()) == 12

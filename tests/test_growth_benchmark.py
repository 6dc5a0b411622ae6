from __future__ import annotations

import json
import re
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest
from benchmarks.contenders.environments import PINS
from benchmarks.growth import OURS, ROOT, SYSTEMS, Chart, ContenderProcess, System
from benchmarks.growth_charts import spread
from benchmarks.report import at_most_times
from hypothesis import given
from hypothesis import strategies as st


def test_a_figure_compares_the_end_of_a_curve_with_its_beginning_in_each_round() -> None:
    chart = Chart("append", "Append", "messages", "CPU, µs", {"Clew": at_most_times(1.2)})
    for slow in (1, 3, 1):  # the machine is slow in the second round
        chart.add("Clew", 10, 100 * slow)
        chart.add("Clew", 1_000, 110 * slow)
        chart.add("peer", 10, 50 * slow)
        chart.add("peer", 100, 500 * slow)
    ours, peer = chart.figures()
    assert (ours.name, ours.unit) == ("append: Clew, 1,000 messages against 10", "µs")
    assert (ours.measured, ours.baseline, ours.verdict) == (110, 100, "met")
    assert ours.ratio == pytest.approx(1.1)
    assert not ours.note
    assert peer.ratio == pytest.approx(10)
    assert peer.note
    assert peer.budget is None


def test_the_data_of_a_chart_has_the_median_of_each_point_in_order() -> None:
    chart = Chart("append", "Append", "messages", "CPU, µs")
    for value in (3.0, 1.0, 2.0):
        chart.add("Clew", 100, value)
        chart.add("Clew", 10, value / 2)
    assert chart.as_json()["curves"] == {"Clew": {10: 1.0, 100: 2.0}}


def test_a_contender_measures_its_operations_without_changing_the_thread(tmp_path: Path) -> None:
    with ExitStack() as stack:
        process = ContenderProcess(SYSTEMS[OURS], tmp_path / "clew", stack)
        process.grow(60, (10, 20))
        assert [*process.sizes] == [10, 20]
        for _ in range(2):  # a thread of another length would not have as many messages as the read expects
            measured = process.measure(10)
            assert {*measured} == {"newest", "fork", "append", "run"}
            assert all(seconds > 0 for seconds in measured.values())


def test_a_contender_that_has_no_time_left_has_no_more_lengths(tmp_path: Path) -> None:
    with ExitStack() as stack:
        process = ContenderProcess(SYSTEMS[OURS], tmp_path / "clew", stack)
        process.grow(0, (10, 20))
        assert not process.sizes


def test_a_chat_of_a_contender_grows_by_whole_runs(tmp_path: Path) -> None:
    with ExitStack() as stack:
        process = ContenderProcess(System("clew_chat", arguments=("2",)), tmp_path / "clew", stack)
        process.grow(60, (20, 30))
        assert [*process.sizes] == [20, 30]
        assert process.measure(30)["turn"] > 0


def test_an_error_of_a_contender_is_shown(tmp_path: Path) -> None:
    with ExitStack() as stack:
        process = ContenderProcess(SYSTEMS[OURS], tmp_path / "clew", stack)
        with pytest.raises(RuntimeError, match="FileNotFoundError"):
            process.measure(10)


@pytest.mark.parametrize(
    "environment", sorted({"charts", *(each.environment for each in SYSTEMS.values() if each.environment)})
)
def test_an_environment_names_the_version_of_every_package(environment: str) -> None:
    lines = (PINS / f"{environment}-pins.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert pins
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins)


def test_the_documents_show_every_chart_with_the_names_of_its_curves() -> None:
    folder = ROOT / "docs" / "growth"
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    files = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")]
    charts = [chart for data in files for chart in data["charts"]]
    assert {path.stem for path in folder.glob("*.svg")} == {chart["name"] for chart in charts}
    for chart in charts:
        drawn = (folder / f"{chart['name']}.svg").read_text(encoding="utf-8")
        assert f"](growth/{chart['name']}.svg)" in page
        for text in (chart["title"], chart["x"], *chart["curves"]):
            assert f">{text}<" in drawn
    assert all(version in page for data in files for version in data["versions"].values())


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12).map(sorted), st.floats(0.01, 0.1))
def test_labels_are_moved_apart_in_their_order(heights: list[float], distance: float) -> None:
    moved = spread(heights, distance)
    assert all(high - low >= distance - 1e-9 for low, high in pairwise(moved))
    assert sum(moved) == pytest.approx(sum(heights))
    if all(high - low >= distance for low, high in pairwise(heights)):
        assert moved == pytest.approx(heights)

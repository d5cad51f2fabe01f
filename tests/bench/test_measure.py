from __future__ import annotations

import pytest

from bench.measure import BenchmarkReport, times


def test_percentiles_are_of_sorted_durations() -> None:
    figures = times([float(n) for n in range(100, -1, -1)])
    assert (figures.p50, figures.p95, figures.longest) == (50.0, 95.0, 100.0)


def test_all_percentiles_of_one_duration_are_equal() -> None:
    figures = times([3.0])
    assert (figures.p50, figures.p95, figures.longest) == (3.0, 3.0, 3.0)


def test_targets_have_a_direction(capsys: pytest.CaptureFixture[str]) -> None:
    report = BenchmarkReport("title")
    report.compare("slow enough", "2 s", "1 s", 2.0, ("≤", 3.0))
    report.compare("not fast enough", "2 s", "1 s", 2.0, ("≥", 3.0))
    report.at_most("small", "5 ms", 5, 20, "ms")
    report.fact("known", "7")
    assert [line.met for line in report.lines] == [True, False, True, None]
    report.show()
    printed = capsys.readouterr().out
    assert "MISSED" in printed
    assert "≥ 3 x" in printed


def test_only_a_failed_check_makes_a_report_wrong() -> None:
    report = BenchmarkReport("title")
    report.compare("slow", "9 s", "1 s", 9.0, ("≤", 3.0))
    assert not report.wrong
    report.check("equal", "1 difference", ok=False)
    assert report.wrong

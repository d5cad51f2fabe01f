from __future__ import annotations

from xml.etree import ElementTree as ET

from bench.growth_picture import apart, markdown, svg

ROWS = (10_000, 100_000, 5_000_000)
FIGURES = {"inject": [1.2, 1.3, 1.2], "node get": [0.3, 0.31, 0.6]}


def test_the_picture_holds_a_line_for_each_kind_within_its_frame() -> None:
    drawn = ET.fromstring(svg(ROWS, FIGURES))  # noqa: S314 - it is our own
    lines = [each for each in drawn if each.tag.endswith("polyline")]
    points = [tuple(map(float, point.split(","))) for line in lines for point in line.attrib["points"].split()]
    assert len(points) == 6
    assert all(0 <= across <= 640 and 0 <= down <= 360 for across, down in points)
    assert points[0][1] < points[3][1], "what takes longer is drawn higher"


def test_labels_do_not_lie_on_each_other() -> None:
    assert apart([100.0, 20.0, 104.0], 15.0) == [100.0, 20.0, 115.0]


def test_the_table_compares_the_last_size_with_the_first() -> None:
    assert "| node get | 0.3 | 0.31 | 0.6 | 2.00 x |" in markdown(ROWS, FIGURES, "growth.svg")

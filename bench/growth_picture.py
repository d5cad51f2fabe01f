"""The figures of growth as a picture and as a page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from bench.measure import rounded

WIDTH, HEIGHT = 640, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 150, 20, 50
# Told apart also by those who see no colours: each line ends in its name.
_COLOURS = ("#0b6e99", "#b5541c", "#4f7a28", "#7b3f98")

Figures = Mapping[str, Sequence[float]]


def svg(rows: Sequence[int], figures: Figures) -> str:
    """Milliseconds over rows, both axes logarithmic, one line for each kind."""
    every = [value for values in figures.values() for value in values]
    low, high = math.floor(math.log10(min(every))), math.ceil(math.log10(max(every)))
    left, right = math.log10(rows[0]), math.log10(rows[-1])

    def x(value: float) -> float:
        return _LEFT + (math.log10(value) - left) / ((right - left) or 1) * (WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return HEIGHT - _BOTTOM - (math.log10(value) - low) / ((high - low) or 1) * (HEIGHT - _TOP - _BOTTOM)

    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="Milliseconds over rows">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for power in range(low, high + 1):
        at, edge = y(10.0**power), WIDTH - _RIGHT
        parts.append(f'<path d="M{_LEFT} {at:.1f}H{edge}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{10.0**power:g} ms</text>')
    below = HEIGHT - _BOTTOM + 18
    parts += [f'<text x="{x(count):.1f}" y="{below}" text-anchor="middle">{count:,}</text>' for count in rows]
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 10}" text-anchor="middle">rows in the store</text>')
    for values, colour in zip(figures.values(), _COLOURS, strict=False):
        points = [(x(count), y(value)) for count, value in zip(rows, values, strict=True)]
        line = " ".join(f"{across:.1f},{down:.1f}" for across, down in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{across:.1f}" cy="{down:.1f}" r="3" fill="{colour}"/>' for across, down in points]
    labels = apart([y(values[-1]) for values in figures.values()])
    for kind, down, colour in zip(figures, labels, _COLOURS, strict=False):
        parts.append(f'<text x="{x(rows[-1]) + 8:.1f}" y="{down + 4:.1f}" fill="{colour}">{kind}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def apart(places: Sequence[float], least: float = 15.0) -> list[float]:
    """The same places, from the top moved down where two were nearer than `least`."""
    moved, above = list(places), -math.inf
    for number in sorted(range(len(places)), key=lambda number: places[number]):
        above = moved[number] = max(places[number], above + least)
    return moved


def markdown(rows: Sequence[int], figures: Figures, picture: str) -> str:
    """The page: the picture, and a table of p50 in milliseconds with the ratio of the last size to the first."""
    head = ["p50, ms", *(f"{count:,} rows" for count in rows), "last to first"]
    lines = [head, ["---", *("---:" for _ in head[1:])]]
    for kind, values in figures.items():
        lines.append([kind, *map(rounded, values), f"{values[-1] / values[0]:.2f} x"])
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return (
        "# Growth\n\nWhat a store costs as it grows, over HTTP, as this measures it:\n\n"
        "<!-- shown: it makes stores of up to 5,000,000 rows -->\n```bash\nmake bench ARGS=growth\n```\n\n"
        "Ready: from the start of the process to its first answer; first walk: from then on.\n\n"
        f"![Milliseconds over the rows of a store]({picture})\n\n{table}\n"
    )

"""Plots as SVG, written by hand so that the same results give the same file."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any
from xml.sax.saxutils import escape

import goals

OURS, OTHER, FAULTY, LINE = "#0b5fa5", "#777777", "#c0392b", "#dddddd"
FONT = 'font-family="sans-serif" font-size="12"'


def text(x: float, y: float, words: str, *, anchor: str = "start", colour: str = "#222") -> str:
    """Words."""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} fill="{colour}">{escape(words)}</text>'


def line(points: list[tuple[float, float]], colour: str, width: float = 1) -> str:
    """A line through points."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"/>'


def dot(x: float, y: float, colour: str, words: str) -> str:
    """A dot that says what it is when pointed at."""
    title = f"<title>{escape(words)}</title>"
    place = f'cx="{x:.1f}" cy="{y:.1f}" r="5"'
    return f'<circle {place} fill="{colour}" fill-opacity="0.75">{title}</circle>'


def cross(x: float, y: float, words: str) -> str:
    """A cross, for what is at fault."""
    path = f"M{x - 4:.1f},{y - 4:.1f} l8,8 m0,-8 l-8,8"
    title = f"<title>{escape(words)}</title>"
    return f'<path d="{path}" stroke="{FAULTY}" stroke-width="2">{title}</path>'


def drawing(width: int, height: int, parts: Iterator[str]) -> str:
    """A whole file."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" {FONT}>'
    ground = f'<rect width="{width}" height="{height}" fill="white"/>'
    return "\n".join([head, ground, *parts, "</svg>"]) + "\n"


def overlap(result: dict[str, Any]) -> str:
    """Every contender in every row of the grid, in multiples of the least possible."""
    cells = result["cells"]
    left, right, top, step = 250, 30, 62, 34
    most = max(one["over_ideal"] for cell in cells for one in cell["contenders"].values())
    most = math.ceil(most * 2) / 2
    width, height = 860, top + step * len(cells) + 40

    def at(value: float) -> float:
        return left + (value - 0.9) / (most - 0.9) * (width - left - right)

    def parts() -> Iterator[str]:
        yield text(12, 20, "Time per step, in multiples of the least possible (lower is better)")
        for number, (colour, words) in enumerate(
            ((OURS, "sidestream"), (OTHER, "others"), (FAULTY, "wrong values or races"))
        ):
            x = 20 + 110 * number
            yield cross(x, 38, words) if colour == FAULTY else dot(x, 38, colour, words)
            yield text(x + 10, 42, words)
        for tick in range(2, int(most * 2) + 1):
            yield line([(at(tick / 2), top), (at(tick / 2), height - 30)], LINE)
            yield text(at(tick / 2), height - 12, f"{tick / 2:g}", anchor="middle")
        for row, cell in enumerate(cells):
            y = top + step * (row + 0.5)
            yield text(12, y + 4, cell["name"])
            named = sorted(cell["contenders"].items(), key=lambda one: one[0] == goals.OURS)
            for name, one in named:
                words = f"{name}: {one['over_ideal']:.3f}"
                x = at(one["over_ideal"])
                if goals.without_fault(one):
                    yield dot(x, y, OURS if name == goals.OURS else OTHER, words)
                else:
                    yield cross(x, y, words)

    return drawing(width, height, parts())


def bandwidth(result: dict[str, Any]) -> str:
    """A line for each contender, over the size of a batch."""
    sizes = {int(size): one for size, one in result["sizes"].items()}
    left, top, width, height = 60, 40, 860, 380
    low, high = math.log2(min(sizes)), math.log2(max(sizes))
    colours = [OURS, "#444444", "#888888", "#b07d2b", "#5b8c5a", "#8e5ea2"]

    def at(size: int, value: float) -> tuple[float, float]:
        x = left + (math.log2(size) - low) / (high - low) * (width - left - 250)
        return x, height - 40 - min(value, 1.1) * (height - 40 - top)

    def parts() -> Iterator[str]:
        yield text(12, 20, "Bytes per second that arrive, as a part of the link's")
        for tenth in range(0, 11, 2):
            _, y = at(min(sizes), tenth / 10)
            yield line([(left, y), (width - 250, y)], LINE)
            yield text(left - 8, y + 4, f"{tenth / 10:g}", anchor="end")
        for size in sizes:
            x, _ = at(size, 0)
            words = f"{size >> 20} MiB" if size >> 20 else f"{size >> 10} KiB"
            yield text(x, height - 18, words, anchor="middle")
        names = list(next(iter(sizes.values())))
        for number, name in enumerate(names):
            colour = colours[number % len(colours)]
            points = [at(size, one[name]["of_link"]) for size, one in sizes.items()]
            yield line(points, colour, 2.5 if name == goals.OURS else 1.5)
            yield text(width - 235, top + 20 * number + 10, name, colour=colour)

    return drawing(width, height, parts())

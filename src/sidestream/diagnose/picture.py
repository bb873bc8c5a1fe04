"""Spans as an SVG picture. Knows neither torch nor the loader."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol
from xml.sax.saxutils import escape


class _Span(Protocol):
    @property
    def row(self) -> str: ...
    @property
    def number(self) -> int: ...
    @property
    def began_s(self) -> float: ...
    @property
    def ended_s(self) -> float: ...


_LABELS = 130  # room for the names of the rows, at the left [px]
_WIDTH = 1000  # of the rows [px]
_ROW = 26
_GAP = 6
_TOP = 34
_WAITING = "#d1495b"
_SHADES = ("#2e6f95", "#7fb3d0")  # of one batch and the next, so that two can be told apart
_DEVICE = ("#3a7d44", "#8fc08f")
_ON_DEVICE = ("copy", "compute")


def draw(spans: Sequence[_Span], rows: tuple[str, ...]) -> str:
    """A picture of spans: a row each, time to the right; waiting is red.

    Args:
        spans: What to draw.
        rows: Which rows, from top to bottom; those without a span are left out.

    Returns:
        An SVG document.
    """
    used = [row for row in rows if any(span.row == row for span in spans)]
    end_s = max((span.ended_s for span in spans), default=0.0) or 1.0
    begin_s = min((span.began_s for span in spans), default=0.0)
    scale = _WIDTH / (end_s - begin_s)
    height = _TOP + len(used) * (_ROW + _GAP) + 48
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LABELS + _WIDTH + 20}" '
        f'height="{height}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_LABELS}" y="18" fill="#222">{_title(spans, begin_s, end_s)}</text>',
    ]
    bottom = _TOP + len(used) * (_ROW + _GAP)
    for tick_s in _ticks(end_s - begin_s):
        x = _LABELS + tick_s * scale
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 4}" y2="{bottom}" stroke="#ddd"/>'
            f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle" fill="#555">'
            f"{tick_s * 1e3:g} ms</text>"
        )
    for index, row in enumerate(used):
        y = _TOP + index * (_ROW + _GAP)
        parts.append(
            f'<text x="{_LABELS - 8}" y="{y + 17}" text-anchor="end" fill="#222">{escape(row)}'
            "</text>"
            f'<line x1="{_LABELS}" x2="{_LABELS + _WIDTH}" y1="{y + _ROW}" y2="{y + _ROW}" '
            'stroke="#eee"/>'
        )
        parts += [_bar(span, y, begin_s, scale) for span in spans if span.row == row]
    parts.append(_legend(bottom + 34))
    return "\n".join([*parts, "</svg>", ""])


def _bar(span: _Span, y: float, begin_s: float, scale: float) -> str:
    x = _LABELS + (span.began_s - begin_s) * scale
    width = (span.ended_s - span.began_s) * scale
    if width < 0.2:  # nothing that could be seen
        return ""
    colour = _colour(span)
    text = (
        f'<text x="{x + width / 2:.1f}" y="{y + 17}" text-anchor="middle" fill="white" '
        f'pointer-events="none">{span.number}</text>'
        if width > 7 * len(str(span.number)) + 3
        else ""
    )
    took_ms = (span.ended_s - span.began_s) * 1e3
    return (
        f'<rect x="{x:.1f}" y="{y}" width="{max(width, 0.8):.1f}" height="{_ROW}" rx="2" '
        f'fill="{colour}"><title>{escape(span.row)} {span.number}: {took_ms:.2f} ms</title></rect>'
        + text
    )


def _colour(span: _Span) -> str:
    if "wait" in span.row:
        return _WAITING if span.row in ("loop waits", "device waits") else "#c9c9c9"
    shades = _DEVICE if span.row in _ON_DEVICE else _SHADES
    return shades[span.number % 2]


def _title(spans: Sequence[_Span], begin_s: float, end_s: float) -> str:
    starved = [span for span in spans if span.row == "device waits"]
    whose = "the device"
    if not starved:
        starved = [span for span in spans if span.row == "loop waits"]
        whose = "the loop"
    if not starved:
        return "no step was seen"
    waited = sum(span.ended_s - span.began_s for span in starved)
    return (
        f"{len(starved)} batches in {(end_s - begin_s) * 1e3:.0f} ms; {whose} waited "
        f"{waited * 1e3:.0f} ms of them for a batch"
    )


def _ticks(length_s: float) -> list[float]:
    """Round times, about ten of them."""
    raw = length_s / 10
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw)
    return [step * index for index in range(int(length_s / step) + 1)]


def _legend(y: float) -> str:
    entries = [
        (_SHADES[0], "loader's thread"),
        (_DEVICE[0], "device"),
        (_WAITING, "starved: waits for a batch"),
        ("#c9c9c9", "held up: the next stage is slower"),
    ]
    parts, x = [], float(_LABELS)
    for colour, name in entries:
        parts.append(
            f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{colour}"/>'
            f'<text x="{x + 17}" y="{y}" fill="#222">{name}</text>'
        )
        x += 40 + 7 * len(name)
    return "".join(parts) + (
        f'<text x="{_LABELS + _WIDTH}" y="{y}" text-anchor="end" fill="#222">'
        "numbers are batches</text>"
    )

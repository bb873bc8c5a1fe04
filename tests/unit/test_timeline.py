"""The timeline: spans of a few steps, as a picture and as a trace."""

from __future__ import annotations

import itertools
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import torch

from sidestream import AsynchronousLoader
from sidestream.diagnose.picture import draw
from sidestream.diagnose.timeline import ROWS, Span, Timeline, as_trace

SVG = "{http://www.w3.org/2000/svg}"
SPANS = [
    Span("read", 0, 0.000, 0.010),
    Span("read", 1, 0.010, 0.030),
    Span("loop waits", 1, 0.015, 0.031),
    Span("copy", 1, 0.031, 0.036),
    Span("device waits", 1, 0.012, 0.036),
    Span("compute", 1, 0.036, 0.046),
]


def rectangles(svg: str) -> dict[str, tuple[float, float]]:
    """Title of each bar -> its left edge and its width [px]."""
    found = {}
    for rect in ElementTree.fromstring(svg).iter(f"{SVG}rect"):
        title = rect.find(f"{SVG}title")
        if title is not None and title.text:
            found[title.text] = float(rect.attrib["x"]), float(rect.attrib["width"])
    return found


def test_a_bar_is_as_long_as_its_span() -> None:
    bars = rectangles(draw(SPANS, ROWS))
    assert len(bars) == len(SPANS)
    left, width = bars["read 1: 20.00 ms"]
    first, half = bars["read 0: 10.00 ms"]
    assert width == pytest.approx(2 * half, abs=0.2)
    assert left == pytest.approx(first + half, abs=0.2)
    assert sum(bars["compute 1: 10.00 ms"]) == pytest.approx(first + 4.6 * half, abs=0.5)


def test_a_picture_says_who_waited_and_leaves_out_empty_rows() -> None:
    svg = draw(SPANS, ROWS)
    assert "1 batches in 46 ms; the device waited 24 ms of them for a batch" in svg
    host = draw([span for span in SPANS if span.row in ("read", "loop waits")], ROWS)
    assert "the loop waited 16 ms of them" in host
    texts = {text.text for text in ElementTree.fromstring(host).iter(f"{SVG}text")}
    assert "read" in texts
    assert not texts & {"copy", "stage", "compute"}


def test_a_picture_of_nothing_is_one() -> None:
    assert "no step was seen" in draw([], ROWS)
    assert rectangles(draw([], ROWS)) == {}


def test_a_trace_has_a_row_for_each_stage_and_times_in_us() -> None:
    events = as_trace(SPANS)["traceEvents"]
    rows = {
        event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"
    }
    assert tuple(rows[tid] for tid in sorted(rows)) == ROWS
    copy = next(event for event in events if event["name"] == "copy 1")
    assert (copy["ph"], copy["ts"], copy["dur"]) == ("X", pytest.approx(31e3), pytest.approx(5e3))
    assert rows[copy["tid"]] == "copy"


def test_the_steps_in_the_block_are_seen_and_no_others(tmp_path: Path) -> None:
    loader = AsynchronousLoader([torch.full((3,), number) for number in range(12)], "cpu")
    passed = iter(loader)
    next(passed)
    with Timeline(loader) as timeline:
        assert len(list(itertools.islice(passed, 5))) == 5
    assert len(list(passed)) == 6
    waits = [span.number for span in timeline.spans if span.row == "loop waits"]
    assert waits == [1, 2, 3, 4, 5]
    assert {span.row for span in timeline.spans} <= set(ROWS[:5])
    assert all(0 <= span.began_s <= span.ended_s for span in timeline.spans)
    timeline.save(tmp_path / "steps.svg")
    assert len(rectangles((tmp_path / "steps.svg").read_text())) <= len(timeline.spans)
    timeline.save(tmp_path / "steps.json")
    events = json.loads((tmp_path / "steps.json").read_text())["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == len(timeline.spans)
    with pytest.raises(ValueError, match=r"as \.svg or \.json, got .*steps\.png"):
        timeline.save(tmp_path / "steps.png")


def test_one_timeline_at_a_time() -> None:
    loader = AsynchronousLoader([1], "cpu")
    with Timeline(loader), pytest.raises(RuntimeError, match="another timeline"):
        Timeline(loader).__enter__()
    with Timeline(loader):
        pass

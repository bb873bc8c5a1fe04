"""What the benchmarks were to show, and whether they do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness import table

OURS = "sidestream"
LEVEL = 1.01  # within a hundredth nobody is first: rounds differ by more
NEAR = 1.03  # of the least possible
SHARE = 0.95  # of the gain that is possible
HANDOVER = 1.5  # of a bare queue's
FLAT = 1.05  # of the memory in the middle


def without_fault(one: dict[str, Any]) -> bool:
    """Whether a contender gave right values and did not race."""
    return not one["wrong"] and not one["races"]


def ours_and_best(cell: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], str]:
    """Our row, the fastest other one without fault, and its name."""
    others = {
        name: one
        for name, one in cell["contenders"].items()
        if name != OURS and without_fault(one)
    }
    name = min(others, key=lambda each: others[each]["step_ms"]["median"])
    return cell["contenders"][OURS], others[name], name


def checks(results: dict[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """What was to be shown, what was found, and whether that is it."""
    found = {name: one["result"] for name, one in results.items()}
    for cell in found.get("overlap", {}).get("cells", []):
        ours, best, name = ours_and_best(cell)
        behind = ours["step_ms"]["median"] / best["step_ms"]["median"]
        yield (
            f"overlap, {cell['name']}: nobody without fault more than {LEVEL - 1:.0%} faster",
            f"{behind:.3f} of {name}",
            behind <= LEVEL,
        )
        yield (
            f"overlap, {cell['name']}: within {NEAR - 1:.0%} of the least possible",
            f"{ours['over_ideal']:.3f}",
            ours["over_ideal"] <= NEAR,
        )
        yield (
            f"overlap, {cell['name']}: no wrong value and no race",
            f"{ours['wrong']} wrong, {sum(ours['races'].values())} races",
            without_fault(ours),
        )
    if "matrices" in found:
        share = found["matrices"]["share"]
        yield (
            f"large batches: {SHARE:.0%} of the gain that the stages allow",
            f"{share:.0%}",
            share >= SHARE,
        )
    for key in ("buffer 2", "buffer 10"):
        if "handover" in found:
            ways = found["handover"][key]
            ratio = ways[OURS]["over_queue"]["median"]
            yield (
                f"hand-over, {key}: a batch at most {HANDOVER} times a bare queue's",
                f"{ratio:.2f}",
                ratio <= HANDOVER,
            )
            waiting = [
                ways[name]["full_us"]["median"] for name in (OURS, "queue.Queue and a thread")
            ]
            yield (
                f"hand-over, {key}: when a batch waits, at most {HANDOVER} times",
                f"{waiting[0] / waiting[1]:.2f}",
                waiting[0] / waiting[1] <= HANDOVER,
            )
    if "memory" in found:
        ours = found["memory"]["contenders"][OURS]
        for kind in ("peak", "pinned", "resident"):
            growth = ours["the end"][kind] / ours["the middle"][kind]
            yield (
                f"memory: flat over epochs, {kind}",
                f"{growth:.3f} of the middle at the end",
                growth <= FLAT,
            )


def lines(results: dict[str, Any], reasons: dict[str, str]) -> Iterator[str]:
    """A table of how many of each kind are met, then each that is not, with its reason."""
    kinds: dict[str, list[bool]] = {}
    missed = []
    for what, figure, met in checks(results):
        first, _, last = what.partition(": ")
        kind = f"{first.partition(',')[0]}: {last}"
        kinds.setdefault(kind, []).append(met)
        if not met:
            missed.append((what, figure, reasons.get(what, "not known")))
    yield from table(
        ("to be shown", "met"),
        [(kind, f"{sum(met)} of {len(met)}") for kind, met in kinds.items()],
    )
    if missed:
        yield ""
        yield "Not met:"
        yield ""
        yield from table(("what", "found", "why"), missed)

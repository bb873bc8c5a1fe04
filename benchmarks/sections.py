"""How each benchmark's result is shown on the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import goals
from harness import table

Result = dict[str, Any]
Lines = Iterator[str]


def number(value: float | None) -> str:
    """Three significant digits, without an exponent."""
    if value is None:
        return ""
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}" if abs(value) < 1 else f"{value:.{1 if abs(value) >= 10 else 2}f}"


def ranged(spread: dict[str, float]) -> str:
    """A median with its range."""
    low, high = number(spread["low"]), number(spread["high"])
    return f"{number(spread['median'])} ({low} to {high})"


# ---- one section for each benchmark


def matrices(result: Result) -> Lines:
    """Large batches."""
    name = f"{result['size_bytes'] >> 20} MiB, {result['steps']} steps"
    yield from seed_table("step", {name: result})
    stages = ", ".join(
        f"{k.removesuffix('_s')} {number(1e3 * v)} ms" for k, v in result["stages"].items()
    )
    yield ""
    yield (
        f"Each stage alone: {stages}. No loop can take less than "
        f"{number(1e3 * result['ideal_s'])} ms a step; the ratio that this "
        f"allows is {number(result['ratio_allowed'])}, and "
        f"{100 * result['share']:.0f}% of it is reached. Same values in all rounds: "
        f"{'yes' if result['same values'] else 'NO'}."
    )


def seed_table(unit: str, results: dict[str, Result]) -> Lines:
    """Plain against loader."""
    yield from table(
        ("", f"plain loop, s a {unit}", f"loader, s a {unit}", "ratio"),
        [
            (name, ranged(one["plain_s"]), ranged(one["loader_s"]), ranged(one["ratio"]))
            for name, one in results.items()
        ],
    )


def mnist(result: Result) -> Lines:
    """Digits."""
    yield from seed_table("pass", {part: result[part] for part in ("training", "validation")})
    yield ""
    same = "the same" if result["same losses"] else "NOT THE SAME"
    yield (
        f"Images: {result['images']}; batches of {result['batch_size']}. "
        f"The losses of both are {same}."
    )


def overlap(result: Result) -> Lines:
    """The grid: a table of all, and one of each row."""
    rows = []
    for cell in result["cells"]:
        ours, best, name = goals.ours_and_best(cell)
        rows.append(
            (
                cell["name"],
                number(cell["ideal_ms"]),
                f"{ours['over_ideal']:.3f}",
                f"{best['over_ideal']:.3f} ({name})",
                f"{cell['contenders']['plain loop']['over_ideal']:.2f}",
                f"{cell['sum_ms'] / cell['ideal_ms']:.2f}",
            )
        )
    head = ("read / copy / compute ms", "least possible, ms", "sidestream")
    yield from table((*head, "best other without fault", "plain loop", "sum of the stages"), rows)
    judged = "races are those that the simulator reported" if result["judged"] else "not judged"
    yield ""
    yield (
        "All in multiples of the least possible; staging is measured, not declared, and part of "
        "it. Below, each row in full: time a step, steps with a wrong value in the worst round, "
        f"races ({judged}), and the most device memory reserved, in batches."
    )
    for cell in result["cells"]:
        yield ""
        yield f"<details><summary>{cell['name']}: all contenders</summary>"
        yield ""
        in_order = sorted(cell["contenders"].items(), key=lambda one: one[1]["step_ms"]["median"])
        yield from table(
            ("contender", "ms a step", "of the least possible", "wrong steps", "races", "memory"),
            [
                (
                    name,
                    ranged(one["step_ms"]),
                    f"{one['over_ideal']:.3f}",
                    one["wrong"] or "",
                    ", ".join(f"{n} {kind}" for kind, n in one["races"].items()),
                    number(one["reserved_batches"]),
                )
                for name, one in in_order
            ],
        )
        yield ""
        yield "</details>"
    failed = {name: why for cell in result["cells"] for name, why in cell["failed"].items()}
    yield ""
    yield "Not measured:"
    yield ""
    for name, why in {**result["missing"], **failed}.items():
        yield f"- {name}: {why}"


def handover(result: Result) -> Lines:
    """The hand-over."""
    for key in ("buffer 2", "buffer 10"):
        yield from table(
            (key, "µs a batch", "of queue.Queue", "`next` when a batch waits, µs"),
            [
                (
                    name,
                    ranged(one["us"]),
                    number(one["over_queue"]["median"]),
                    ranged(one["full_us"]),
                )
                for name, one in result[key].items()
            ],
        )
        yield ""


def tensors(result: Result) -> Lines:
    """Many small tensors."""
    counts = [key for key in result if key.endswith("tensors")]
    for kind, title in (("us", "µs a batch"), ("processor_us", "processor time, µs a batch")):
        yield from table(
            (title, *counts),
            [
                (name, *(number(result[count][name][kind]["median"]) for count in counts))
                for name in result[counts[0]]
            ],
        )
        yield ""


def bandwidth(result: Result) -> Lines:
    """Bandwidth by size."""
    sizes = result["sizes"]
    yield f"Of the link's {number(result['link_bytes_per_s'] / 1e9)} GB/s, by the size of a batch:"
    yield ""
    yield from table(
        ("", *(size_name(int(size)) for size in sizes)),
        [
            (name, *(number(one[name]["of_link"]) for one in sizes.values()))
            for name in next(iter(sizes.values()))
        ],
    )


def size_name(size_bytes: int) -> str:
    """A size for people."""
    for unit, shift in (("MiB", 20), ("KiB", 10)):
        if size_bytes >> shift:
            return f"{size_bytes >> shift} {unit}"
    return f"{size_bytes} B"


def memory(result: Result) -> Lines:
    """Memory over epochs."""
    kinds = {"peak": "device, peak", "pinned": "page-locked", "resident": "resident"}
    rows = [
        (name, *(" / ".join(number(moment[kind]) for moment in one.values()) for kind in kinds))
        for name, one in result["contenders"].items()
    ]
    yield f"MiB at epoch 2, in the middle, and at the end of {result['epochs']} epochs:"
    yield ""
    yield from table(("", *kinds.values()), rows)


def processors(result: Result) -> Lines:
    """Threads and processor time."""
    on, busy = result["accelerator"], result["busy"]
    yield from table(
        ("", "threads beside the loop's", "processor time, ms a batch"),
        [
            (name, one["threads"], ranged(one["processor_ms"]))
            for name, one in on["contenders"].items()
        ],
    )
    yield ""
    yield from table(
        ("spinning processes beside it", "plain loop, ms a step", "loader, ms a step", "ratio"),
        [
            (others, ranged(one["plain_ms"]), ranged(one["loader_ms"]), ranged(one["ratio"]))
            for others, one in busy.items()
        ],
    )


def scaling(result: Result) -> Lines:
    """Workers and ranks."""
    for kind in ("workers", "ranks"):
        columns = result[kind]
        yield from table(
            (f"ms a step, by {kind}", *columns),
            [
                (name, *(ranged(column[name]) for column in columns.values()))
                for name in next(iter(columns.values()))
            ],
        )
        yield ""


def engine(result: Result) -> Lines:
    """Packing and staging."""
    yield from table(
        ("small tensors", "one by one, µs", "packed, µs", "ratio"),
        [
            (
                f"{one['tensors']} of {one['size_bytes']} bytes",
                number(one["one_by_one_us"]),
                number(one["packed_us"]),
                number(one["packed_over_one_by_one"]),
            )
            for one in result["packing"]
        ],
    )
    one = result["staging"]
    yield ""
    yield (
        f"Staging {one['size_bytes'] >> 20} MiB: {number(one['staged_bytes_per_s'] / 1e9)} GB/s, "
        f"{number(one['staged_over_plain'])} of a plain copy in memory."
    )


def threads(result: Result) -> Lines:
    """Threads in the place of worker processes."""
    for name, found in result.items():
        if not isinstance(found, dict):
            continue
        yield from table(
            (name, "median and range", f"of {found['reference']}"),
            [
                (each, ranged(one["rate"]), number(one["over_reference"]["median"]))
                for each, one in found["rates"].items()
            ],
        )
        yield ""
        for missing, why in found["missing"].items():
            yield f"Not measured: {missing}: {why}."
        yield ""


def verify(result: Result) -> Lines:
    """The checks that can be switched on."""
    yield from table(
        ("batch", "without, ms", "with it: time", "with it: device memory"),
        [
            (
                f"{one['tensors']} x {size_name(one['tensor_bytes'])}",
                number(1e3 * one["off_s"]),
                f"x {number(one['time_ratio'])}",
                f"x {number(one['memory_ratio'])}",
            )
            for one in result
        ],
    )


def walk(result: Result) -> Lines:
    """The walk through a batch."""
    yield from table(
        ("batch", "written by hand, µs", "the loader's, µs", "ratio"),
        [
            (
                name,
                number(one.get("by hand", {}).get("median")),
                number(one["ours"]["median"]),
                number(one.get("ratio", {}).get("median")),
            )
            for name, one in result.items()
        ],
    )


def resume(result: Result) -> Lines:
    """States."""
    yield from table(
        ("StatefulDataLoader with", "ms a batch", "with states: ratio", "of the shortest times"),
        [
            (
                name,
                number(one["ms_a_batch"]),
                ranged(one["ratio"]),
                number(one["ratio_of_shortest"]),
            )
            for name, one in result.items()
        ],
    )


SECTIONS: list[tuple[str, str, Callable[[Result], Lines]]] = [
    ("overlap", "Overlap: time per step against the least possible", overlap),
    ("matrices", "Large batches of random numbers, multiplied", matrices),
    ("matrices-cpu", "The same on the CPU, where nothing is copied", matrices),
    ("mnist", "Classifying digits", mnist),
    ("mnist-sim", "Classifying digits on the simulated accelerator", mnist),
    ("handover", "What handing a batch over costs", handover),
    ("tensors", "Many small tensors", tensors),
    ("bandwidth", "Bandwidth", bandwidth),
    ("memory", "Memory over epochs", memory),
    ("processors", "Threads, processor time, and a busy machine", processors),
    ("scaling", "Workers and ranks", scaling),
    ("threads", "Threads in the place of worker processes", threads),
    ("engine", "Packing and staging", engine),
    ("verify", "The cost of `SIDESTREAM_VERIFY=1`", verify),
    ("walk", "The walk through a batch", walk),
    ("resume", "The cost of being able to resume", resume),
]

"""Make docs/benchmarks.md, and its plots, of the results in benchmarks/results/.

    python benchmarks/page.py

Every figure on the page comes from a result file; a test makes the page again and compares.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import goals
import plots
from harness import ROOT
from sections import SECTIONS, Lines, Result

RESULTS = ROOT / "benchmarks" / "results"
DOCS = ROOT / "docs"

BUSY_LOAD = 3.5  # more than the benchmarks themselves leave behind on two cores

HEAD = """# Benchmarks

Made by `scripts/bench --publish` from the files in `benchmarks/results/`; no figure here is typed
by hand. Repeat it with that command: it needs two cores, no GPU, and under 15 minutes.

How it is measured: all contenders of a table run in one process, by turns, in an order that
changes from round to round; a round before the first is thrown away. Shown are medians; where a
range stands beside them, it is the least and the most of all rounds. Ratios are taken within a
round. Other libraries run their own code, as installed, in their defaults and in their best
setting where the two differ. A contender that gives a wrong value or races is marked beside its
speed. The simulated accelerator ([what it is](simulator.md)) is made of host threads: a copy or a
computation takes the time that is declared, and every access is judged."""


def load(folder: Path) -> dict[str, Result]:
    """All results in a folder, by the file's name."""
    return {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(folder.glob("*.json"))
        if path.stem not in ("reasons", "gpu")
    }


def load_gpu(file: Path) -> dict[str, Result]:
    """What scripts/gpu-check kept: the results of its benchmarks; nothing where it never ran."""
    if not file.exists():
        return {}
    parts = json.loads(file.read_text(encoding="utf-8"))["parts"]
    return {name: one["result"] for name, one in parts.items() if "result" in one}


def render(results: dict[str, Result], gpu: dict[str, Result], reasons: dict[str, str]) -> str:
    """The page."""
    return "\n".join(page(results, gpu, reasons)) + "\n"


def page(results: dict[str, Result], gpu: dict[str, Result], reasons: dict[str, str]) -> Lines:
    """The page, by lines."""
    yield HEAD
    yield ""
    yield measured_on_gpu(gpu)
    yield ""
    busy = [name for name, one in results.items() if one["load_average"]["before"] > BUSY_LOAD]
    if busy:
        yield f"**Provisional: other programs kept the machine busy during {', '.join(busy)}.**"
        yield ""
    yield "## What was to be shown"
    yield ""
    yield from goals.lines(results, reasons)
    if "overlap" in results:
        yield ""
        yield "![Time per step of all contenders](benchmarks/overlap.svg)"
    yield from sections(results, "##")
    if gpu:
        yield ""
        yield "## On a GPU"
        yield ""
        yield from goals.lines(gpu, reasons)
        yield from sections(gpu, "###")


def sections(results: dict[str, Result], level: str) -> Lines:
    """All sections that there is a result for."""
    known = {name for name, _, _ in SECTIONS}
    others = [(name, f"`{name}`", as_written) for name in results if name not in known]
    for name, title, lines in [*SECTIONS, *others]:
        if name not in results:
            continue
        result = results[name]
        yield ""
        yield f"{level} {title}"
        yield ""
        yield facts(result)
        yield ""
        yield description(name)
        yield ""
        yield from list(trimmed(list(lines(result["result"]))))
        if name == "bandwidth" and level == "##":
            yield ""
            yield "![Bandwidth by size](benchmarks/bandwidth.svg)"


def as_written(result: Result) -> Lines:
    """A result that has no tables of its own yet."""
    yield "```json"
    yield from json.dumps(result, indent=1).splitlines()
    yield "```"


def trimmed(lines: list[str]) -> list[str]:
    """Without empty lines at the end."""
    while lines and not lines[-1]:
        lines.pop()
    return lines


def description(name: str) -> str:
    """What the benchmark's own file says of it, from its second paragraph on."""
    file = ROOT / "benchmarks" / f"{name.partition('-')[0]}.py"
    text = file.read_text(encoding="utf-8").split('"""')[1]
    paragraphs = [one for one in text.strip().split("\n\n") if not one.startswith("    ")]
    return "\n\n".join(paragraphs).strip()


def facts(result: Result) -> str:
    """What it was measured on."""
    machine, load = result["machine"], result["load_average"]
    versions = machine["versions"]
    device = {"cpu": "CPU", "sim": "simulated accelerator"}.get(
        result["device"], machine["accelerator"]
    )
    return (
        f"*{device}; {machine['processor']}, {machine['cpus']} cores, Python {machine['python']}, "
        f"torch {versions['torch']}; {result['date']}, commit {result['commit']}, "
        f"{'quick' if result['quick'] else 'full'} settings, seed {result['seed']}; load average "
        f"{load['before']} before, {load['after']} after. `scripts/bench {result['benchmark']}`*"
    )


def measured_on_gpu(gpu: dict[str, Result]) -> str:
    """One plain sentence."""
    if not gpu:
        return (
            "**Nothing here was measured on a GPU: none was at hand.** Device times are those of "
            "the simulated accelerator; `scripts/gpu-check` measures the same on a GPU."
        )
    one = next(iter(gpu.values()))
    return (
        f"**On a GPU ({one['machine']['accelerator']}) were measured: {', '.join(gpu)}; they "
        "stand under their own heading.** All else is from the CPU and the simulated accelerator."
    )


def files() -> dict[Path, str]:
    """All files that are made, with what belongs in them."""
    results, gpu = load(RESULTS), load_gpu(RESULTS / "gpu.json")
    reasons = json.loads((RESULTS / "reasons.json").read_text(encoding="utf-8"))
    made = {DOCS / "benchmarks.md": render(results, gpu, reasons)}
    for name, draw in (("overlap", plots.overlap), ("bandwidth", plots.bandwidth)):
        if name in results:
            made[DOCS / "benchmarks" / f"{name}.svg"] = draw(results[name]["result"])
    return made


def main() -> int:
    """Write them."""
    for path, text in files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())

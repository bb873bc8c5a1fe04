"""Make docs/faults.md out of the lists that the tests run.

python tests/faults/table.py > docs/faults.md
"""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "faults.md"

TEXT = """# What goes wrong, when, and what the loader makes of it

Made by `python tests/faults/table.py` out of the lists that the tests run; a test compares the
two. Every cell is run: in this process on "cpu", "meta" and the simulated accelerator, with
buffer sizes 0, 1 and 2. After each, the loader's thread has ended, a full pass follows, no
device memory and no page-locked memory is held, and stderr is empty.

The source has {length} batches. "3, it" means: 3 batches came, all right, and then the very
exception object that was raised; nothing follows it. Each has to be over within the limit.

| fault | {moments} | limit [s] |
| --- | {lines} | --- |
{faults}

`StopIteration` that a source's own `__next__` lets out is, as in a plain loop, the end; nothing
can tell it from one. When the device's memory runs out, `torch.OutOfMemoryError` comes in the
place of the batch. When page-locked memory does, the batch is staged in pageable memory:
slower, right, and with a warning.

## Processes

Each runs as a script of its own, on "cpu" and on the simulated accelerator, with buffer sizes 0
and 2, at the moments named. "good" batches are all before the fault, each checked. stderr is
empty but for the traceback named. The process has to be gone within the limit.

| fault | moments | what comes of it | limit [s] |
| --- | --- | --- | --- |
{processes}

A process takes a second, so the usual run has one moment of each on the simulator and of worker
processes, and buffer size 2; `pytest tests/faults --long` and `pytest tests/simulator --long`
run all. What is not there: a source that never comes back, which makes `close()` raise a
`TimeoutError` after 10 s and lets the interpreter exit after 2 s
(tests/lifetime/test_blocked_source.py).
"""


def table() -> str:
    from support.faults import FAULTS, LENGTH, MOMENTS
    from support.process_faults import PROCESS_FAULTS

    faults = [
        " | ".join([f.name, *(f.expected.get(m, "cannot be") for m in MOMENTS), f"{f.limit_s:g}"])
        for f in FAULTS
    ]
    processes = [
        " | ".join([f.name, ", ".join(f.moments), f.outcome, f"{f.limit_s:g}"])
        for f in PROCESS_FAULTS
    ]
    return TEXT.format(
        length=LENGTH,
        moments=" | ".join(MOMENTS),
        lines=" | ".join("---" for _ in MOMENTS),
        faults="\n".join(f"| {row} |" for row in faults),
        processes="\n".join(f"| {row} |" for row in processes),
    )


if __name__ == "__main__":
    sys.path.insert(0, str(TESTS))
    sys.stdout.write(table())

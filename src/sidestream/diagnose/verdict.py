"""From statistics to a verdict: which stage bounds the loop, and what could be gained.

Pure functions; nothing is measured here, and torch is not known. The model is that of a pipeline:
the loader's thread reads and stages a batch, one after the other; the link copies it; the loop
computes. All three go on at once, so a step takes as long as the slowest.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sidestream.statistics import LoaderStatistics

THRESHOLDS: dict[str, tuple[float, str]] = {
    "steps": (
        8,
        "fewer steps than this are not judged [steps]: the buffer that the warm-up filled, two "
        "batches by default, still hides a slow stage for some of them",
    ),
    "starved": (
        0.05,
        "a loop that waits for less of its time than this share is bound by itself: that is how "
        "exactly the stages are measured, and more than 5% is not there to be gained",
    ),
    "close": (
        0.10,
        "a stage within this share of the slowest is named beside it: once the slowest is made "
        "faster, it bounds the loop at a gain too small to be worth the work",
    ),
    "uneven": (
        0.80,
        "where the slowest stage takes less than this share of a step on average and the loop "
        "waits all the same, single batches are late, and a larger buffer evens them out",
    ),
}
"""All numbers that a verdict hangs on, each with its reason. None is from elsewhere: the first is
arithmetic, the second the accuracy that `benchmarks/statistics.py` shows, the others judgement."""

_ADVICE = {
    "reading": "give the DataLoader more workers, or make the dataset cheaper",
    "staging": "let the DataLoader pin the batches (pin_memory=True), or make them smaller",
    "link": "copy fewer bytes: uint8 or half precision, converted on the device in `transform`",
    "compute": "nothing of the loader: make the step itself faster",
}
_UNEVEN = "make buffer_size larger: single batches are late, not all of them"
_SERIAL = (
    "let them overlap: leave buffer_size=0 out; or, where reading and the loop are both Python "
    "code and take turns, give the DataLoader workers"
)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What bounds a loop."""

    bound: str
    """"reading", "staging", "link", "compute" or "not measurable"."""

    reason: str
    """Why, in one sentence."""

    gain: float | None
    """How many times faster the loop would be if loading cost it nothing [factor, 1 or more]: the
    most that any change of loading can bring. None where it cannot be told."""

    advice: str
    """What to change; empty where that cannot be told."""

    def __str__(self) -> str:
        if self.gain is None:
            return f"{self.bound}: {self.reason}"
        return (
            f"bound by {self.bound}: {self.reason}; the best gain still possible is "
            f"{self.gain:.2f}x; {self.advice}"
        )


@dataclasses.dataclass(frozen=True)
class StepTimes:
    """What a step is made of, each on average [s]; None where it cannot be told."""

    step: float | None
    wait: float | None
    compute: float | None
    read: float | None
    stage: float | None
    link: float | None

    def metrics(self) -> dict[str, float]:
        """Those that are known [ms], and the share of the wait."""
        found = {f"{name}_ms": value * 1e3 for name, value in self._known().items()}
        if self.step and self.wait is not None:
            found["wait_share"] = self.wait / self.step
        return found

    def _known(self) -> dict[str, float]:
        return {name: value for name, value in vars(self).items() if value is not None}


def times_of(seen: LoaderStatistics) -> StepTimes:
    """The times of a step: on the device's clock where it keeps one, else on the host's."""
    step = wait = None
    if seen.num_timed and seen.device_elapsed_s is not None and seen.device_wait_s is not None:
        step = seen.device_elapsed_s / seen.num_timed
        wait = min(step, seen.device_wait_s / seen.num_timed)
    elif seen.num_steps:
        step = seen.elapsed_s / seen.num_steps
        wait = min(step, seen.consumer_wait_s / seen.num_steps)
    read = stage = link = None
    if seen.num_loaded:
        read = seen.source_wait_s / seen.num_loaded
        stage = seen.staging_s / seen.num_loaded
    if seen.link_bytes_per_s and seen.num_batches:
        link = seen.num_bytes / seen.num_batches / seen.link_bytes_per_s
    compute = None if step is None or wait is None else step - wait
    return StepTimes(step, wait, compute, read, stage, link)


def metrics_of(seen: LoaderStatistics) -> dict[str, float]:
    """`LoaderStatistics.metrics`."""
    buffer = {"buffer": seen.mean_waiting} if seen.num_steps else {}
    return times_of(seen).metrics() | buffer


def judge(seen: LoaderStatistics) -> Verdict:
    """What bounds the loop that these statistics are of."""
    times = times_of(seen)
    fewest = _limit("steps")
    if seen.num_steps < fewest:
        return _unknown(f"{seen.num_steps} steps were seen, and a verdict takes {fewest:g}")
    step, wait, compute = times.step, times.wait, times.compute
    if not step or wait is None or compute is None or times.read is None or times.stage is None:
        return _unknown("no batch was loaded after the first of its pass")
    stages = {"reading": times.read, "staging": times.stage, "link": _link(seen, times)}
    thread = stages["reading"] + stages["staging"]
    bound = max(("reading", "staging"), key=stages.__getitem__)
    slowest = max(thread, stages["link"])
    if stages["link"] > thread:
        bound = "link"
    gain = step / compute if compute > 0 else None
    if wait < _limit("starved") * step:
        reason = f"the loop waits for {_ms(wait)} of a step of {_ms(step)}"
        if slowest > (1 - _limit("close")) * step:
            reason += f", though {bound} is close behind at {_ms(stages[bound])} a batch"
        return Verdict("compute", reason, gain, _ADVICE["compute"])
    reason = (
        f"the loop waits for {_ms(wait)} of a step of {_ms(step)}, "
        f"and {bound} takes {_ms(stages[bound])} a batch"
    )
    advice = _ADVICE[bound]
    parts = [compute, *stages.values()]
    if step > (1 - _limit("close")) * sum(parts) and max(parts) < _limit("uneven") * sum(parts):
        reason += ", one after the other with the rest instead of beside it"
        advice = _SERIAL
    elif slowest < _limit("uneven") * step:
        reason += ", which alone does not explain it: some batches are late"
        advice = _UNEVEN
    elif near := [name for name, time in stages.items() if _is_near(name, bound, time, slowest)]:
        reason += f"; {' and '.join(near)} would be next"
    return Verdict(bound, reason, gain, advice)


def in_one_line(seen: LoaderStatistics) -> str:
    """The bound and the times of a step, short enough for a progress bar."""
    times = times_of(seen)
    if times.step is None or times.wait is None:
        return f"{seen.num_batches} batches: no step to measure yet"
    parts = ", ".join(
        f"{name} {_ms(value)}"
        for name in ("read", "stage", "link", "compute")
        if (value := getattr(times, name)) is not None
    )
    found = judge(seen)
    bound = found.bound if found.gain is None else f"bound by {found.bound}"
    return f"{bound}: step {_ms(times.step)}, of it waiting {_ms(times.wait)} ({parts})"


def _link(seen: LoaderStatistics, times: StepTimes) -> float:
    """The link's time for a batch [s]: without a device's clock, what was waited for it."""
    if times.link is not None:
        return times.link
    return seen.staging_wait_s / seen.num_loaded if seen.num_bytes else 0.0


def _is_near(name: str, bound: str, time: float, slowest: float) -> bool:
    return name != bound and time > (1 - _limit("close")) * slowest


def _limit(name: str) -> float:
    return THRESHOLDS[name][0]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def _unknown(reason: str) -> Verdict:
    return Verdict("not measurable", reason, None, "")

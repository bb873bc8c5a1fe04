"""What a loop would gain, told before anybody changes it: the largest stage against their sum.

Pure functions, as in `verdict`; nothing is measured here, and torch is not known.
"""

from __future__ import annotations

import dataclasses

from sidestream.diagnose.verdict import THRESHOLDS


@dataclasses.dataclass(frozen=True)
class PlainStep:
    """A step of a plain loop, and what its batches cost the loader; each on average [s]."""

    step_s: float
    """Between two batches."""
    wait_s: float
    """Of that, waiting for the next batch to be read."""
    transfer_s: float
    """Of that, copying to the device."""
    read_s: float
    """Time in the DataLoader's `next`; more than the wait where the device is busy meanwhile."""
    stage_s: float = 0.0
    """What staging such a batch takes in the loader's thread; 0 where nothing is copied."""
    link_s: float = 0.0
    """What copying it from page-locked memory takes; 0 where nothing is copied."""
    num_workers: int = 0
    """Of the DataLoader."""

    @property
    def compute_s(self) -> float:
        """The rest of the step."""
        return max(0.0, self.step_s - self.wait_s - self.transfer_s)


@dataclasses.dataclass(frozen=True)
class Prediction:
    """A step with `AsynchronousLoader`, by the model of `verdict`."""

    step_s: float
    """How long it would take [s]."""
    gain: float
    """How many times faster that is [factor]."""
    bound: str
    """What would bound it: "reading", "staging", "link" or "compute"."""
    note: str
    """What the model does not know of this loop; empty for nothing."""


def predict(plain: PlainStep) -> Prediction:
    """What the loop would come to with its reading, staging and copying beside its computing."""
    read, note = plain.read_s, ""
    starved = plain.wait_s > THRESHOLDS["starved"][0] * plain.step_s
    if plain.num_workers and starved:
        read = plain.step_s  # the workers never pause then: this is what they give a batch in
        note = (
            "the worker processes are the slowest stage already, and no loader makes them faster"
        )
    elif plain.num_workers:
        note = "whether the workers keep up with a faster loop cannot be told from a slower one"
    elif read > 0.1 * plain.step_s:
        note = "if reading and the loop are both Python code, they take turns and overlap less"
    stages = {
        "compute": plain.compute_s,
        "link": plain.link_s,
        "reading": read + plain.stage_s,  # one thread does both
    }
    bound = max(stages, key=stages.__getitem__)
    # No loader takes time away that a plain loop does not spend.
    step_s = min(plain.step_s, stages[bound])
    if bound == "reading" and plain.stage_s > read:
        bound = "staging"
    return Prediction(step_s, plain.step_s / step_s if step_s else 1.0, bound, note)

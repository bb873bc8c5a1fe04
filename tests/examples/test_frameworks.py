"""Every framework's example runs, and training goes somewhere."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from support.launch import launch

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.mark.integration
@pytest.mark.parametrize("name", ["lightning", "fabric", "accelerate", "transformers", "ignite"])
def test_an_example_trains(name: str) -> None:
    needed = {"fabric": "lightning"}.get(name, name)
    if importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    out = launch(EXAMPLES / f"with_{name}.py")
    (loss,) = re.findall(r"^loss (\S+)$", out, re.MULTILINE)
    assert float(loss) < (3 if name == "transformers" else 0.1)


@pytest.mark.parametrize("model", [(), ("--fsdp",)], ids=["ddp", "fsdp"])
def test_the_example_for_torchrun_comes_to_the_same_losses_as_without(model: tuple) -> None:
    script = EXAMPLES / "with_torchrun.py"
    line = re.compile(r"process \d, epoch \d: loss \d\.\d{8}")  # two processes write at once
    ours, plain = (
        sorted(line.findall(launch(script, *model, *extra, processes=2)))
        for extra in ((), ("--plain",))
    )
    assert ours == plain
    assert len(ours) == 6

"""G7, G5: a short soak, and that it notices; half an hour is `scripts/soak 30`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).parent / "soak.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SOAK), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


@pytest.mark.timeout(250)
def test_random_use_gives_right_values_and_nothing_grows(tmp_path: Path) -> None:
    result = run("--seconds", "25", "--json", str(tmp_path / "soak.json"))
    assert result.returncode == 0, result.stdout + result.stderr
    found = json.loads((tmp_path / "soak.json").read_text(encoding="utf-8"))
    assert found["not_flat"] == []
    assert found["done"]["programs"] > 10
    assert found["done"]["tensors"] > 100
    assert found["done"]["faults"] > 2
    assert len(found["samples"]) > 10


@pytest.mark.timeout(250)
@pytest.mark.parametrize(
    ("leak", "name"),
    [
        pytest.param("memory", "resident memory", marks=pytest.mark.long),
        ("device", "device_bytes"),
        pytest.param("thread", "threads", marks=pytest.mark.long),
        pytest.param("file", "file_descriptors", marks=pytest.mark.long),
    ],
)
def test_what_grows_is_noticed(leak: str, name: str) -> None:
    result = run("--seconds", "4", "--samples", "9", "--leak", leak)
    assert result.returncode == 1, result.stdout + result.stderr
    assert name in result.stdout.splitlines()[-1] + result.stdout

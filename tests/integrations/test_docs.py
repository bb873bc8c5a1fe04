"""docs/integrations.md says nothing about code that was not run."""

from __future__ import annotations

import re
import unittest
from pathlib import Path

import pytest

from support.integration import needs

for name in ("lightning.pytorch", "lightning.fabric", "accelerate", "ignite.engine"):
    needs(name)

from sybil import Sybil  # noqa: E402
from sybil.example import NotEvaluated  # noqa: E402
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser  # noqa: E402

PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
    # Lightning asks torch in a way that torch is giving up.
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated"),
]


def test_every_python_block_runs_but_those_that_say_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sybil = Sybil(parsers=[PythonCodeBlockParser(), SkipParser()], encoding="utf-8")
    skipped = 0
    for example in sybil.parse(PAGE).examples():
        try:
            example.evaluate()
        except (NotEvaluated, unittest.SkipTest):
            skipped += 1
    assert skipped == 1, "Ray's: it takes a cluster"


def test_every_test_that_the_page_names_is_there() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for line in text.splitlines():
        if line.startswith("[") and "]: " in line:
            assert (PAGE.parent / line.partition("]: ")[2]).is_file(), line
    lightning = (Path(__file__).parent / "test_lightning.py").read_text(encoding="utf-8")
    for name in set(re.findall(r"`(test_\w+)`", text)):
        assert f"def {name}(" in lightning, name

"""The README and the docs say nothing about code that was not run: every Python block is.

A block after `<!-- skip: next "reason" -->` is left out, and the reason shown.
"""

import re
import sys
import unittest
from pathlib import Path

import pytest
from sybil import Sybil
from sybil.example import NotEvaluated
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

ROOT = Path(__file__).parents[2]
# Run in the simulator's own process, and where the frameworks are installed.
ELSEWHERE = {"docs/simulator.md", "docs/integrations.md"}
DOCUMENTS = sorted(
    name
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    if (name := path.relative_to(ROOT).as_posix()) not in ELSEWHERE
)
SKIP = re.compile(r"<!--+\s*skip:(?P<rest>.*?)-->", re.DOTALL)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_python_block_of_a_document_runs(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    sybil = Sybil(parsers=[PythonCodeBlockParser(), SkipParser()], encoding="utf-8")
    skipped = []
    # In the order of the page, and in one namespace: a page is read from top to bottom.
    for example in sybil.parse(ROOT / name).examples():
        try:
            example.evaluate()
        except NotEvaluated:
            skipped.append(f"{name}:{example.line}: no reason given")
        except unittest.SkipTest as skip:
            skipped.append(f"{name}:{example.line}: {skip}")
    if skipped:
        with capsys.disabled():
            sys.stdout.write("\n  ".join(["\nnot run:", *skipped]) + "\n")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_block_is_left_out_for_a_reason_only(name):
    for found in SKIP.finditer((ROOT / name).read_text(encoding="utf-8")):
        assert re.fullmatch(
            r'\s*(next\s+"[^"]{10,}"|start\s+"[^"]{10,}"|end)\s*', found["rest"]
        ), f'{name}: write {found[0]!r} as <!-- skip: next "why this cannot run" -->'


def test_the_readme_shows_code():
    sybil = Sybil(parsers=[PythonCodeBlockParser()], encoding="utf-8")
    assert list(sybil.parse(ROOT / "README.md").examples())

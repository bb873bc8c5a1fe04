"""The code of docs/simulator.md runs, in order, and prints the report that the page shows."""

import re
from pathlib import Path

import pytest
import sybil
from sybil.parsers.markdown import PythonCodeBlockParser

DOCS = Path(__file__).parents[2] / "docs" / "simulator.md"


@pytest.mark.simulated_accelerator
@pytest.mark.timeout(60)
def test_the_page_runs(simulator, capsys, monkeypatch):
    document = sybil.Sybil(parsers=[PythonCodeBlockParser()], filenames=[DOCS.name]).parse(DOCS)
    examples = list(document.examples())
    assert len(examples) >= 9
    monkeypatch.syspath_prepend(str(DOCS.parent))
    for example in examples:
        example.evaluate()
    assert simulator.races() == []
    printed = capsys.readouterr().out.splitlines()
    shown = DOCS.read_text().split("error: read before copy")[1].splitlines()
    assert printed[0] == "error: read before copy" + shown[0]
    for ours, theirs in zip(printed[1:4], shown[1:4], strict=True):
        assert text_of(ours) == text_of(theirs)
        assert ours.startswith("  is not") or "simulator.md:" in ours


def text_of(line):
    """The line without place and number of the stream, which depend on the process."""
    return re.sub(r"/stream[1-9]\d*", "/streamN", line.partition(", at ")[0])

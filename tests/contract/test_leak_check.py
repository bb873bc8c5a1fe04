"""The check that no test leaves anything behind can fail."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import sidestream
from sidestream import AsynchronousLoader
from support.leaks import Snapshot
from support.sources import Counting

TESTS = Path(__file__).parents[1]


def test_a_thread_left_behind_is_named_with_its_stack() -> None:
    before = Snapshot()
    gate = threading.Event()
    thread = threading.Thread(target=gate.wait, name="left-behind")
    thread.start()
    (leak,) = before.leaks(join_s=0.05)
    gate.set()
    thread.join()
    assert "left-behind" in leak
    assert "wait" in leak
    assert before.leaks() == []


def test_an_iterator_left_behind_is_named_with_its_thread() -> None:
    before = Snapshot()
    iterator = iter(AsynchronousLoader(Counting(None), "cpu"))
    next(iterator)
    leaks = "\n".join(before.leaks(join_s=0.05))
    assert "an iterator is alive" in leaks
    assert "sidestream-epoch" in leaks
    del iterator
    assert before.leaks() == []


def test_a_child_process_left_behind_is_named() -> None:
    before = Snapshot()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    (leak,) = before.leaks(join_s=0.05)
    child.communicate()
    assert str(child.pid) in leak
    assert before.leaks() == []


def test_a_test_that_leaves_something_fails_and_one_that_does_not_passes(tmp_path: Path) -> None:
    conftest = (TESTS / "conftest.py").read_text()
    assert ".leaks()" in conftest
    (tmp_path / "conftest.py").write_text(conftest.replace(".leaks()", ".leaks(join_s=0.1)"))
    (tmp_path / "test_leaving.py").write_text(
        textwrap.dedent(
            """
            import threading
            from sidestream import AsynchronousLoader
            from support.sources import Counting

            gate, kept = threading.Event(), []

            def test_a_thread():
                threading.Thread(target=gate.wait, name="left-behind", daemon=True).start()

            def test_an_iterator():
                kept.append(iter(AsynchronousLoader(Counting(None), "cpu")))
                next(kept[0])

            def test_nothing():
                assert len(list(AsynchronousLoader(Counting(5), "cpu"))) == 5
            """
        )
    )
    paths = [TESTS, Path(sidestream.__file__).parents[1]]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider",
         "--rootdir", str(tmp_path), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
    )  # fmt: skip
    assert "2 failed, 1 passed" in result.stdout, result.stdout + result.stderr
    assert "left-behind" in result.stdout
    assert "an iterator is alive" in result.stdout

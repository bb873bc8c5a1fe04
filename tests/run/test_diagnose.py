"""`sidestream diagnose` changes nothing in a script, keeps its exit code, and says what it saw."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from sidestream.__main__ import main
from sidestream.diagnose.measure import EnoughError, Limit, Measurement, measuring
from support.launch import python

SCRIPT = Path(__file__).with_name("imagenet_style.py")
NEXT = _BaseDataLoaderIter.__next__


def diagnose(*arguments: object) -> subprocess.CompletedProcess[str]:
    return python("-m", "sidestream", "diagnose", *arguments)


@pytest.fixture
def script(tmp_path: Path):
    def make(text: str) -> str:
        path = tmp_path / "script.py"
        path.write_text("from torch.utils.data import DataLoader\n" + text)
        return str(path)

    yield make
    assert _BaseDataLoaderIter.__next__ is NEXT
    assert "to" not in vars(torch.Tensor)
    assert "cuda" not in vars(torch.Tensor)


@pytest.mark.parametrize("arguments", [(), ("-j", "2"), ("-j", "1", "--persistent")], ids=str)
@pytest.mark.timeout(130)
def test_a_script_comes_to_the_same(arguments: tuple[str, ...]) -> None:
    plain, ours = python(SCRIPT, *arguments), diagnose("--steps", 0, SCRIPT, *arguments)
    assert plain.returncode == ours.returncode == 0, ours.stderr
    assert ours.stdout == plain.stdout
    assert "  a step takes " in ours.stderr
    assert ours.stderr.count("with AsynchronousLoader, predicted") == 1
    workers = arguments[1] if arguments else 0
    assert f"num_workers={workers}): " in ours.stderr


def test_the_scripts_own_end_is_the_end() -> None:
    assert diagnose(SCRIPT, "--exit", "3").returncode == 3
    failed = diagnose(SCRIPT, "--fail")
    assert failed.returncode == 1
    assert "ValueError: the script's own error" in failed.stderr
    assert "2 steps, fewer than the 8 it takes" in failed.stderr


def test_what_cannot_be_done_is_said(capsys: pytest.CaptureFixture[str], script) -> None:
    assert main(["diagnose", "no_such.py"]) == 2
    assert "there is no file 'no_such.py'" in capsys.readouterr().err
    assert main(["diagnose", "--steps", "-1", script("")]) == 2
    assert "--steps must be 1 or more, got -1" in capsys.readouterr().err


def test_a_script_without_loaders_is_told_so(capsys: pytest.CaptureFixture[str], script) -> None:
    assert main(["diagnose", script("print(__name__)")]) == 0
    out, err = capsys.readouterr()
    assert out == "__main__\n"
    assert err.startswith("sidestream diagnose: no DataLoader was iterated in this process")


def test_it_ends_the_script_after_the_steps_asked_for(
    capsys: pytest.CaptureFixture[str], script
) -> None:
    text = """
try:
    for number, batch in enumerate(DataLoader(range(100))):
        pass
except Exception:
    print("caught")
finally:
    print("tidied up after", number)
print("not reached")
"""
    assert main(["diagnose", "--steps", "12", script(text)]) == 0
    out, err = capsys.readouterr()
    assert out == "tidied up after 11\n"  # the batch that ends step 12 is not handed out
    assert "DataLoader(range, batch_size=1, num_workers=0): 12 steps" in err
    assert "stopped the script after 12 steps" in err


def test_a_script_that_catches_the_end_goes_on(capsys: pytest.CaptureFixture[str], script) -> None:
    text = """
try:
    for batch in DataLoader(range(100)):
        pass
except BaseException as error:
    print(type(error).__name__)
print(len(list(DataLoader(range(30)))))
"""
    assert main(["diagnose", "--steps", "12", script(text)]) == 0
    assert capsys.readouterr().out == "EnoughError\n30\n"


def test_a_script_that_ends_early_is_told_so(capsys: pytest.CaptureFixture[str], script) -> None:
    assert main(["diagnose", script("list(DataLoader(range(4)))")]) == 0
    err = capsys.readouterr().err
    assert "3 steps, fewer than the 8 it takes" in err
    assert "the script ended by itself before 100 steps of one loader" in err


def test_loaders_that_are_asynchronous_already_are_named(
    capsys: pytest.CaptureFixture[str], script
) -> None:
    text = """
from sidestream import AsynchronousLoader
print(len(list(AsynchronousLoader(DataLoader(range(4)), "cpu"))))
"""
    assert main(["diagnose", script(text)]) == 0
    out, err = capsys.readouterr()
    assert out == "4\n"
    assert "read by an AsynchronousLoader already" in err


FORKS = """
import os, sys
MINE = True
child = os.fork()
said = f"{len(list(DataLoader(range(20))))}\\n" if MINE else ""
os.write(1, said.encode())  # whole: the two processes may write at once
if not child:
    sys.exit(5)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_script_that_forks_is_measured_in_the_first_process(script) -> None:
    ended = diagnose("--steps", 0, script(FORKS))
    assert (ended.returncode, ended.stdout) == (0, "20\n20\n5\n")
    assert ended.stderr.count("19 steps") == 1


def test_a_script_that_leaves_the_loops_to_children_is_told_so(script) -> None:
    ended = diagnose(script(FORKS.replace("if MINE", "if not child")))
    assert (ended.returncode, ended.stdout) == (0, "20\n5\n")
    assert "where the script starts processes of its own" in ended.stderr


@pytest.mark.timeout(130)
def test_json_stands_alone_on_stdout_and_a_second_run_is_measured(script) -> None:
    text = """
print("printed")
for loader in (DataLoader(range(40)), DataLoader(range(9), batch_size=2)):
    for batch in loader:
        batch.sum()
"""
    ended = diagnose("--steps", 0, "--try", "--json", script(text), "--its", "own")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["arguments"] == ["--its", "own"]
    assert found["stopped"] is False
    assert ended.stderr.count("printed") == 1
    first, second = found["loaders"]
    assert (first["num_steps"], second["num_steps"]) == (39, 4)
    assert first["predicted"]["gain"] >= 1
    assert first["measured_gain"] == first["plain"]["step_s"] / first["measured_step_s"]
    assert second["plain"] is second["predicted"] is second["measured_gain"] is None


def test_a_second_run_that_fails_is_left_out(script, tmp_path: Path) -> None:
    text = f"""
import os
os.mkdir({str(tmp_path / "once")!r})
list(DataLoader(range(20)))
"""
    ended = diagnose("--steps", 0, "--try", script(text))
    assert ended.returncode == 0
    assert "the second run ended with code 1 and 0 loaders instead of 1" in ended.stderr
    assert "predicted" in ended.stderr


def test_what_is_measured_is_the_very_object() -> None:
    batches = [object() for _ in range(3)]
    loader = DataLoader(batches, batch_size=None, collate_fn=lambda item: item)
    measurement = Measurement(Limit(None))
    tensor = torch.zeros(2)
    with measuring(measurement):
        passed = iter(loader)
        assert [next(passed) is batch for batch in batches] == [True] * 3
        assert tensor.to("cpu") is tensor
        with pytest.raises(StopIteration):
            next(passed)
    (seen,) = measurement.found.values()
    assert seen.recorder.snapshot().num_steps == seen.num_steps == 2


def test_passes_of_one_loader_are_one_and_first_batches_apart() -> None:
    measurement = Measurement(Limit(None))
    with measuring(measurement):
        loader = DataLoader(range(5), num_workers=1, persistent_workers=True)
        other = DataLoader(range(3))
        for _ in range(3):
            assert len(list(loader)) == 5
        assert len(list(other)) == 3
        del loader
    assert [seen.recorder.snapshot().num_epochs for seen in measurement.found.values()] == [3, 1]
    assert [seen.num_steps for seen in measurement.found.values()] == [12, 2]


def test_the_limit_is_for_the_main_thread_and_for_once() -> None:
    limit = Limit(2)
    limit.check(1)
    with pytest.raises(EnoughError):
        limit.check(2)
    limit.check(3)
    assert limit.was_reached


def test_bench_measures_a_machine_without_an_accelerator(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "--device", "nowhere"]) == 2
    assert "device 'nowhere' is not understood" in capsys.readouterr().err
    assert main(["bench", "--device", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["device"] == "cpu"
    assert found["pinned_bytes_per_s"] is found["pageable_bytes_per_s"] is None
    assert found["missing"].startswith("the link")
    assert found["staging_bytes_per_s"] > 0
    assert found["hand_over_s"] > 0
    assert main(["bench", "--device", "cpu"]) == 0
    assert "not measured: the link" in capsys.readouterr().out

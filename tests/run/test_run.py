"""`sidestream run` runs an unchanged script, comes to the same, and says what it did."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from sidestream.__main__ import main
from support.launch import LAUNCHED, python

SCRIPT = Path(__file__).with_name("imagenet_style.py")
UNTOUCHED = DataLoader.__iter__


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "sidestream", "run", *arguments)


@pytest.mark.parametrize(
    "arguments", [(), ("-j", "2"), ("-j", "1", "--persistent"), ("--epochs", "3")], ids=str
)
@pytest.mark.timeout(130)
def test_a_script_comes_to_the_same(arguments: tuple[str, ...]) -> None:
    plain, ours = python(SCRIPT, *arguments), run(SCRIPT, *arguments)
    assert plain.returncode == ours.returncode == 0, ours.stderr
    assert ours.stdout == plain.stdout
    epochs = 3 if "--epochs" in arguments else 2
    assert ours.stderr.startswith(
        f"sidestream run: 2 loaders, {2 * epochs} passes, {8 * epochs} batches on cpu; "
    )
    assert len(ours.stderr.splitlines()) == 1


def test_reading_goes_on_in_the_background() -> None:
    assert "read by ['']" in python(SCRIPT, "--say-threads").stdout
    assert "sidestream-epoch" in run(SCRIPT, "--say-threads").stdout
    assert "read by ['']" in run("--buffer-size", "0", SCRIPT, "--say-threads").stdout


@pytest.mark.slow
@pytest.mark.timeout(130)
def test_a_script_for_several_processes_comes_to_the_same() -> None:
    script = SCRIPT.with_name("distributed_style.py")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(LAUNCHED)]
    plain = python(*torchrun, str(script))
    ours = python(*torchrun, "-m", "sidestream", "run", str(script))
    assert plain.returncode == ours.returncode == 0, ours.stderr
    expected, found = json.loads(plain.stdout), json.loads(ours.stdout)
    assert [seen for seen, _ in found] == [seen for seen, _ in expected]
    assert {reader for _, readers in found for reader in readers} == {"", "sidestream-epoch"}
    assert ours.stderr.count("sidestream run: 1 loaders, 2 passes, 6 batches on cpu; ") == 2


def test_the_scripts_own_end_is_the_end() -> None:
    assert run(SCRIPT, "--exit", "3").returncode == 3
    failed = run(SCRIPT, "--fail")
    assert failed.returncode == 1
    assert "ValueError: the script's own error" in failed.stderr
    assert "batches of DataLoaders are on cpu already" in failed.stderr or sys.version_info < (
        3,
        11,
    )
    assert "sidestream run: 1 loaders, 1 passes, 3 batches" in failed.stderr


@pytest.fixture
def script(tmp_path: Path):
    def make(text: str) -> str:
        path = tmp_path / "script.py"
        path.write_text("from torch.utils.data import DataLoader\n" + text)
        return str(path)

    yield make
    assert DataLoader.__iter__ is UNTOUCHED


def test_what_cannot_be_run_is_said(capsys: pytest.CaptureFixture[str], script) -> None:
    assert main(["run", "no_such.py"]) == 2
    assert "there is no file 'no_such.py'" in capsys.readouterr().err
    assert main(["run", "--device", "nowhere", script("")]) == 2
    assert "device 'nowhere' is not understood" in capsys.readouterr().err
    assert main(["run", "--buffer-size", "-1", script("")]) == 2
    assert "buffer_size must be 0 or more" in capsys.readouterr().err


def test_a_script_without_loaders_is_told_so(capsys: pytest.CaptureFixture[str], script) -> None:
    assert main(["run", script("print(__name__)")]) == 0
    out, err = capsys.readouterr()
    assert out == "__main__\n"
    assert "no DataLoader was iterated" in err


def test_loaders_that_are_not_its_business_are_left_alone(
    capsys: pytest.CaptureFixture[str], script
) -> None:
    text = """
from sidestream import AsynchronousLoader
class Own(DataLoader):
    def __iter__(self):
        return iter([1, 2])
print(list(Own(range(2))))
class Through(DataLoader):
    def __iter__(self):
        yield from super().__iter__()
print(len(list(Through(range(4)))))
print(len(list(AsynchronousLoader(DataLoader(range(4)), "cpu"))))
"""
    assert main(["run", script(text)]) == 0
    out, err = capsys.readouterr()
    assert out.split("\n")[:3] == ["[1, 2]", "4", "4"]
    assert err == (
        "sidestream run: not asynchronous, passes: 1; Through iterates in its own way\n"
    )


def test_a_framework_that_drives_a_loader_is_left_to_it(
    capsys: pytest.CaptureFixture[str], script
) -> None:
    text = """
import types
driver = types.ModuleType("lightning.pytorch.loops")
exec("def first(loader): return next(iter(loader))", vars(driver))
print(driver.first(DataLoader(range(4))))
"""
    assert main(["run", script(text)]) == 0
    assert "lightning drives the loader: give the Trainer the callback" in capsys.readouterr().err


def test_a_loader_goes_when_the_script_lets_go(capsys: pytest.CaptureFixture[str], script) -> None:
    text = """
import copy, weakref
loader = DataLoader(range(6), batch_size=2)
for batch in loader:
    break
print([batch.tolist() for batch in loader])
other = copy.copy(loader)
print([batch.tolist() for batch in other])
print([batch.tolist() for batch in DataLoader(range(2))])
gone = weakref.ref(loader)
del loader
print(gone())
"""
    assert main(["run", script(text)]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [*["[[0, 1], [2, 3], [4, 5]]"] * 2, "[[0], [1]]", "None"]
    assert "3 loaders, 4 passes" in err


def test_the_ground_it_stands_on() -> None:
    """`for batch in loader` asks the class for `__iter__`, and every DataLoader shares it."""
    assert UNTOUCHED.__module__ == "torch.utils.data.dataloader"
    assert "_iterator" in vars(DataLoader(range(2)))

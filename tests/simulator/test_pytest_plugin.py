"""The fixture and the marker, in pytest runs of their own."""

import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

TESTS = """
import pytest, torch

def race():
    side = torch.Stream(device="sim")
    with side:
        x = torch.ones(10, device="sim")
    x + 1
    side.synchronize()

@pytest.mark.simulated_accelerator(kernel_s=0.25)
def test_marked_race():
    race()

def test_fixture_race(simulated_accelerator):
    race()

def test_race_and_failure(simulated_accelerator):
    race()
    assert "own" == "failure"

@pytest.fixture
def late(simulated_accelerator):
    yield
    race()

def test_race_in_teardown(late):
    pass

def test_race_that_is_meant(simulated_accelerator):
    race()
    assert len(simulated_accelerator.races()) == 1

def test_no_race_and_defaults_after_the_marked_test(simulated_accelerator):
    assert simulated_accelerator.current_settings().kernel_s == 0
    assert torch.ones(1, device="sim").item() == 1

@pytest.mark.simulated_accelerator(kernel_s=0.25)
def test_marker_sets(simulated_accelerator):
    assert simulated_accelerator.current_settings().kernel_s == 0.25

def test_stream_left_current(simulated_accelerator):
    torch.accelerator.set_stream(torch.Stream("sim:1"))

def test_stream_is_the_default_again(simulated_accelerator):
    assert torch.accelerator.current_device_index() == 0
    assert torch.accelerator.current_stream("sim:0").stream_id == 0
"""


def run_pytest(folder, *arguments):
    # No configuration of this project: -c of an empty file, and no other plug-ins of ours.
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "sidestream.simulator.pytest_plugin"]
    return subprocess.run(
        [*command, "-p", "no:randomly", "-p", "no:cacheprovider", "-rA", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ,
        check=False,
    ).stdout


def test_races_fail_their_tests_and_are_shown(tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS)
    out = run_pytest(tmp_path, "--strict-markers")
    summary = {
        line.split()[1].partition("::")[2]: line.split()[0]
        for line in out.splitlines()
        if line.startswith(("PASSED test", "FAILED test", "ERROR test"))
    }
    assert summary == {
        "test_marked_race": "FAILED",
        "test_fixture_race": "FAILED",
        "test_race_and_failure": "FAILED",
        "test_race_in_teardown": "ERROR",
        "test_race_that_is_meant": "PASSED",
        "test_no_race_and_defaults_after_the_marked_test": "PASSED",
        "test_marker_sets": "PASSED",
        "test_stream_left_current": "PASSED",
        "test_stream_is_the_default_again": "PASSED",
    }, out
    assert "3 failed, 6 passed, 1 error" in out
    assert out.count("1 race on the simulated accelerator") >= 4
    assert out.count("error: read before write in 40 bytes of device memory") >= 4
    assert "AssertionError: assert 'own' == 'failure'" in out
    assert "test_it.py:8" in out  # the line of the racy read


def test_unused_it_enables_nothing(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import torch\ndef test_it():\n    assert not torch.accelerator.is_available()\n"
    )
    assert "1 passed" in run_pytest(tmp_path)
    assert "simulated_accelerator(**settings)" in run_pytest(tmp_path, "--markers")

"""What a script says before it does anything: its help, and what is wrong with its arguments."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("scripts/*"))


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")


@pytest.mark.parametrize("name", [*SCRIPTS, ".ci/run"])
def test_a_script_is_valid_bash_and_stops_at_the_first_error(name):
    path = ROOT / name
    assert run("bash", "-n", path).stderr == ""
    assert "set -euo pipefail" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["scripts/demo", "scripts/install", "scripts/test"])
def test_help_comes_from_any_folder_and_installs_nothing(name):
    result = run(ROOT / name, "--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert f"Usage: {name}" in result.stdout


def test_install_names_what_it_does_not_know():
    result = run(ROOT / "scripts/install", "tests")
    assert result.returncode != 0
    assert "there is no 'tests' to install" in result.stderr


def test_install_says_that_a_python_is_unusable(tmp_path):
    result = run("env", "PYTHON=/nowhere/python", ROOT / "scripts/install")
    assert result.returncode != 0
    assert "'/nowhere/python', which is no Python of version 3.10" in result.stderr


def test_test_names_what_it_does_not_know():
    result = run(ROOT / "scripts/test", "al")
    assert result.returncode == 2
    assert "there is no 'al'" in result.stderr

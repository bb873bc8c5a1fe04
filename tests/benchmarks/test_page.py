"""docs/benchmarks.md says what the result files say, and tells of what was not reached."""

import copy
import json
import subprocess
from pathlib import Path

import goals
import page
import pytest
from sections import SECTIONS

ROOT = Path(__file__).parents[2]
RESULTS = page.load(page.RESULTS)


def test_the_page_and_its_plots_are_what_the_results_give():
    made = page.files()
    assert len(made) == 3
    for path, text in made.items():
        assert path.read_text(encoding="utf-8") == text, f"run benchmarks/page.py for {path.name}"


def test_every_result_has_a_section():
    text = page.render(RESULTS, {}, {})
    titles = {name: title for name, title, _ in SECTIONS}
    assert len(RESULTS) > 10
    assert all(f"\n## {titles.get(name, f'`{name}`')}\n" in text for name in RESULTS)


def test_a_result_without_tables_of_its_own_is_shown_as_it_is():
    new = {**RESULTS["tensors"], "result": {"a key": 1.5}}
    text = page.render({"walk": RESULTS["walk"], "tensors-cpu": new}, {}, {})
    assert "## `tensors-cpu`" in text
    assert ' "a key": 1.5' in text


def test_scripts_bench_runs_all_that_the_page_shows():
    ran = subprocess.run(
        [ROOT / "scripts/bench", "--list"], capture_output=True, text=True, check=True
    )
    names = ran.stdout.split()
    assert RESULTS.keys() <= set(names)
    assert len(names) == len(set(names))
    assert all((ROOT / "benchmarks" / f"{name.partition('-')[0]}.py").exists() for name in names)
    assert not {"harness", "page", "gpu_check", "contenders"} & set(names)


@pytest.fixture
def results():
    return copy.deepcopy(RESULTS)


def met(results):
    return {what: met for what, _, met in goals.checks(results)}


def first_cell(results):
    return results["overlap"]["result"]["cells"][0]


def test_a_race_of_ours_would_be_told(results):
    first_cell(results)["contenders"]["sidestream"]["races"] = {"READ_BEFORE_COPY": 1}
    what = f"overlap, {first_cell(results)['name']}: no wrong value and no race"
    assert met(RESULTS)[what]
    assert not met(results)[what]
    text = page.render(results, {}, {what: "because of a test"})
    assert "| because of a test |" in text


def test_a_faster_one_with_a_fault_is_not_ahead_and_one_without_is(results):
    cell = first_cell(results)
    rival = cell["contenders"]["plain loop"]
    what = f"overlap, {cell['name']}: nobody without fault more than 1% faster"
    rival["step_ms"]["median"] = 0.1
    assert not met(results)[what]
    rival["wrong"] = 1
    assert met(results)[what] == met(RESULTS)[what]


def test_growth_of_memory_is_told(results):
    results["memory"]["result"]["contenders"]["sidestream"]["the end"]["pinned"] *= 2
    assert not met(results)["memory: flat over epochs, pinned"]


def test_the_page_says_whether_a_gpu_was_there():
    without = page.render(RESULTS, {}, {})
    assert "**Nothing here was measured on a GPU" in without
    assert "## On a GPU" not in without
    one = copy.deepcopy(RESULTS["tensors"])
    one["machine"]["accelerator"] = "Some GPU"
    with_one = page.render(RESULTS, {"tensors": one}, {})
    assert "**On a GPU (Some GPU) were measured: tensors" in with_one
    assert with_one.count("Many small tensors") == 2


def test_the_page_says_that_the_machine_was_busy(results):
    for one in results.values():
        one["load_average"]["before"] = 0.2
    assert "Provisional" not in page.render(results, {}, {})
    results["tensors"]["load_average"]["before"] = 6.0
    assert "busy during tensors.**" in page.render(results, {}, {})


def test_the_readme_says_whether_a_gpu_was_there():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    measured = (page.RESULTS / "gpu.json").exists()
    assert ("Nothing has been measured on a GPU" in readme) != measured
    assert "(docs/benchmarks.md)" in readme


def test_what_scripts_gpu_check_kept_is_found(tmp_path):
    assert page.load_gpu(tmp_path / "gpu.json") == {}
    parts = {
        "tensors": {"state": "well", "result": {"some": "thing"}},
        "contract": {"state": "well"},
    }
    (tmp_path / "gpu.json").write_text(json.dumps({"parts": parts}))
    assert page.load_gpu(tmp_path / "gpu.json") == {"tensors": {"some": "thing"}}


def test_scripts_bench_names_what_it_does_not_know():
    command = [ROOT / "scripts/bench", "speed"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert "there is no benchmark 'speed'; there is: " in ran.stderr

"""The benchmarks' common parts: turns, ratios, limits, trials, the result file."""

import argparse
import json
import time

import contenders
import harness
import pytest


def test_each_round_runs_every_contender_once_and_not_always_in_the_same_order():
    order = []
    runs = {name: lambda name=name: order.append(name) for name in "abc"}
    results = harness.by_turns(runs, rounds=4, warmup=1)
    rounds = [order[at : at + 3] for at in range(0, 15, 3)]
    assert all(sorted(one) == ["a", "b", "c"] for one in rounds)
    assert {one[0] for one in rounds} == {one[-1] for one in rounds} == {"a", "b", "c"}
    assert {name: len(each) for name, each in results.items()} == {"a": 4, "b": 4, "c": 4}


def test_warm_up_rounds_are_thrown_away():
    numbers = iter(range(10))
    assert harness.by_turns({"a": lambda: next(numbers)}, rounds=3, warmup=2) == {"a": [2, 3, 4]}


def test_ratios_are_those_within_a_round():
    assert harness.ratios([2.0, 30.0, 5.0], [1.0, 10.0, 5.0]) == {
        "median": 2.0,
        "low": 1.0,
        "high": 3.0,
    }


def test_a_contender_that_fails_or_hangs_is_told_of_in_one_line(monkeypatch):
    def fails():
        raise OSError("first line\nsecond line")

    assert harness.trial(fails, required=False) == "OSError: first line"
    assert harness.trial(lambda: None, required=False) is None
    monkeypatch.setattr(harness, "TRIAL_S", 0.05)
    assert "no end within 0.05 s" in harness.trial(lambda: time.sleep(20), required=False)


def test_ours_may_not_fail():
    with pytest.raises(ZeroDivisionError):
        harness.trial(lambda: 1 / 0, required=True)


def test_a_limit_leaves_no_alarm_behind():
    with harness.limit(0.2):
        pass
    time.sleep(0.3)  # an alarm that was left would end the process


def test_the_file_says_all_that_is_needed_to_repeat_it(tmp_path, monkeypatch):
    file = tmp_path / "new folder" / "result.json"
    monkeypatch.setattr("sys.argv", ["one", "--json", str(file), "--quick", "--only", "this"])

    def measure(options: argparse.Namespace) -> object:
        return {"only": options.only, "numbers": (1.23456789, float("inf"), 7)}

    assert harness.run("one", measure, "What it is.", only="help") == 0
    written = json.loads(file.read_text())
    assert written["result"] == {"only": "this", "numbers": [1.2346, None, 7]}
    assert (written["benchmark"], written["device"], written["quick"]) == ("one", "cpu", True)
    assert written["seed"] == harness.SEED
    assert {"commit", "date", "took_s", "load_average"} <= written.keys()
    assert written["machine"]["versions"]["torch"]
    assert {"processor", "cpus", "platform", "python"} <= written["machine"].keys()


def test_what_is_not_installed_is_named_with_the_reason(monkeypatch):
    absent = contenders.Contender("a loader", lambda *_: None, needs=("no_such_module", "no-such"))
    monkeypatch.setattr(contenders, "CONTENDERS", [*contenders.CONTENDERS[:2], absent])
    there, missing = contenders.present()
    assert [one.name for one in there] == ["sidestream", "plain loop"]
    assert missing["a loader"] == "no-such is not installed"
    assert {"DALI", "FFCV"} <= missing.keys()


def test_contenders_are_chosen_by_parts_of_their_names():
    there, _ = contenders.present("side,forty")
    assert [one.name for one in there] == ["sidestream", "forty lines by hand"]

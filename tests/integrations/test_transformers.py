"""transformers' Trainer, on a small model made from a configuration: with and without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.integration import needs
from support.launch import results

needs("accelerate")
transformers = needs("transformers")

from sidestream.integrations import MADE_FOR  # noqa: E402
from support.transformers_runs import Tokens, made, run  # noqa: E402

RUN = Path(__file__).with_name("transformers_run.py")

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(60)]


@pytest.fixture(autouse=True)
def _no_monitor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tqdm.tqdm.monitor_interval", 0)  # its thread would outlive the test


CASES: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "workers": {"dataloader_num_workers": 2},
    "persistent workers": {"dataloader_num_workers": 1, "dataloader_persistent_workers": True},
    "another sampler": {"accelerator_config": {"use_seedable_sampler": False}},
    "last batch dropped": {"dataloader_drop_last": True, "per_device_train_batch_size": 3},
    "max_steps": {"max_steps": 5},
}


@pytest.mark.parametrize("case", CASES)
def test_training_evaluation_and_prediction_are_the_same(case: str, tmp_path) -> None:
    plain = run(tmp_path / "plain", ours=False, **CASES[case])
    assert plain["seen"]
    assert run(tmp_path / "ours", ours=True, **CASES[case]) == plain


@pytest.mark.timeout(150)
def test_two_processes_see_what_they_saw_without() -> None:
    found = results(RUN, processes=2)
    assert [one["same"] for one in found] == [True, True]
    first = [row for one in found for batch in one["first"] for row in batch]
    assert len(first) == 32, "28, filled up to full batches in both"
    assert {row[0] for row in first} == set(range(16))
    assert found[0]["first"] != found[1]["first"]


def test_resuming_within_an_epoch_is_the_same(tmp_path) -> None:
    results = []
    for ours in (False, True):
        folder = tmp_path / str(ours)
        saving = {"save_strategy": "steps", "save_steps": 2}
        run(folder, ours=ours, **saving)
        resume = str(folder / "checkpoint-4")
        results.append(run(folder, ours=ours, resume=resume, **saving))
    assert results[0] == results[1]


def test_every_loader_is_asynchronous_also_after_a_search_began_anew(tmp_path) -> None:
    trainer, _ = made(tmp_path, ours=True)
    for _ in range(2):
        for loader in (
            trainer.get_train_dataloader(),
            trainer.get_eval_dataloader(),
            trainer.get_test_dataloader(Tokens()),
        ):
            assert type(loader.base_dataloader).__name__ == "_Under"
        trainer.create_accelerator_and_postprocess()


def test_the_trainers_own_move_costs_nothing(tmp_path) -> None:
    trainer, _ = made(tmp_path, ours=True)
    batch = next(iter(trainer.get_train_dataloader()))
    again = trainer._prepare_inputs(batch)
    assert all(again[name] is one for name, one in batch.items())


def test_the_installed_version_is_one_that_was_tested() -> None:
    release = tuple(map(int, transformers.__version__.split(".")[:2]))
    oldest, newest = (tuple(map(int, one.split("."))) for one in MADE_FOR["transformers"])
    assert oldest <= release <= newest, "run the tests with it, then write it down"

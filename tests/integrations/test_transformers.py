"""transformers' Trainer, on a small model made from a configuration: with and without."""

from __future__ import annotations

import os
import warnings
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from support.integration import needs

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing here is to be fetched
needs("accelerate")
transformers = needs("transformers")

from sidestream.integrations import MADE_FOR  # noqa: E402
from sidestream.integrations.transformers import asynchronous  # noqa: E402

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(60)]


@pytest.fixture(autouse=True)
def _no_monitor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tqdm.tqdm.monitor_interval", 0)  # its thread would outlive the test


class Tokens(Dataset):
    def __len__(self) -> int:
        return 28

    def __getitem__(self, index: int) -> Any:
        ids = (torch.arange(6) + index) % 16
        return {"input_ids": ids, "labels": ids}


def made(folder: Any, *, ours: bool, **kwargs: Any) -> Any:
    config = transformers.GPT2Config(
        n_layer=1, n_head=2, n_embd=8, vocab_size=16, n_positions=8, bos_token_id=0, eos_token_id=0
    )
    transformers.set_seed(7)
    model = transformers.GPT2LMHeadModel(config)
    options = {
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "num_train_epochs": 2,
        "gradient_accumulation_steps": 3,
        "learning_rate": 0.01,
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "seed": 1,
        "logging_steps": 1,
        "eval_strategy": "steps",
        "eval_steps": 3,
        "save_strategy": "no",
        "dataloader_pin_memory": False,
        **kwargs,
    }
    arguments = transformers.TrainingArguments(str(folder), **options)
    trainer = transformers.Trainer(model, arguments, train_dataset=Tokens(), eval_dataset=Tokens())
    seen: list[Any] = []
    model.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(kwargs["input_ids"].tolist()), with_kwargs=True
    )
    return (asynchronous(trainer) if ours else trainer), seen


def run(folder: Any, *, ours: bool, resume: Any = None, **kwargs: Any) -> Any:
    trainer, seen = made(folder, ours=ours, **kwargs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of dropout's absence, of checkpoints, of the scheduler
        trainer.train(resume_from_checkpoint=resume)
        logits = trainer.predict(Tokens()).predictions
    untimed = [
        {key: one for key, one in row.items() if not key.endswith(("runtime", "per_second"))}
        for row in trainer.state.log_history
    ]
    weights = [parameter.tolist() for parameter in trainer.model.parameters()]
    return {
        "seen": seen,
        "log": untimed,
        "weights": weights,
        "logits": logits.tolist(),
        "steps": trainer.state.global_step,
    }


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

"""Small runs of transformers' Trainer, with and without the loader."""

from __future__ import annotations

import os
import warnings
from typing import Any

import torch
from torch.utils.data import Dataset

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing here is to be fetched
import transformers

from sidestream.integrations.transformers import asynchronous


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

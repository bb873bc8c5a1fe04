"""transformers: `trainer = asynchronous(Trainer(...))`, before `trainer.train()`.

The Trainer reads all its loaders through its accelerator, so that is what is made asynchronous,
also where a hyperparameter search makes it anew. The Trainer's own move finds each batch on the
device already.
"""

from __future__ import annotations

from typing import Any, TypeVar

from sidestream.integrations import accelerate, check_version, go_through, missing

try:
    import transformers
except ModuleNotFoundError as error:
    if error.name != "transformers":
        raise
    raise missing("transformers", "transformers") from None

TrainerT = TypeVar("TrainerT")


def asynchronous(trainer: TrainerT, *, buffer_size: int = 2) -> TrainerT:
    """Let a Trainer's loaders read and move in the background: training, evaluation, prediction.

    Args:
        trainer: The Trainer, or one of a class derived from it.
        buffer_size: How many batches may wait on the device [batches].

    Returns:
        The same trainer.
    """
    check_version("transformers", transformers.__version__)
    owner: Any = trainer
    accelerate.asynchronous(owner.accelerator, buffer_size=buffer_size)

    def create_accelerator(owner: Any, create: Any) -> None:
        create()
        accelerate.asynchronous(owner.accelerator, buffer_size=buffer_size)

    go_through(trainer, "create_accelerator_and_postprocess", create_accelerator)
    return trainer

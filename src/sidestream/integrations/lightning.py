"""Lightning: one callback, and every loop takes batches that are already on the device.

    import sidestream.integrations.lightning as integration
    trainer = Trainer(callbacks=[integration.AsynchronousTransfer()])

Lightning fetches a batch and moves it in its own loop, with no hook that would let a batch be
moved ahead of its turn. What all loops and versions have in common is the `CombinedLoader` that
they draw from. The callback changes the class of that one object to a subclass of its own class,
whose `__next__` takes from the passes of an `AsynchronousLoader`. All that Lightning does before
(samplers, limits, combining) and after (progress, logging, checkpoints) stays Lightning's.

    the loader's thread, on the side stream            the loop's thread
    ---------------------------------------            -----------------
    next(CombinedLoader)
    convert_input, on_before_batch_transfer
    transfer_batch_to_device, or the core's transfer
                                                       next(): the batch is on the device
                                                       on_after_batch_transfer, the step

All that is private in Lightning, or put onto its objects while a loop runs, is in this file and in
the one beside it. `tests/integrations/test_lightning_ground.py` fails where that ground moves.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import warnings
from typing import Any

from sidestream.integrations import check_version, missing
from sidestream.integrations._lightning_loop import (
    BEFORE,
    MOVE,
    Fetching,
    Patches,
    owner_of,
    passing,
    unpacking,
)
from sidestream.loader import AsynchronousLoader

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _installed() -> list[Any]:
    """Lightning under either name: what the program has imported, else what there is."""
    found = [sys.modules[name] for name in _PACKAGES if name in sys.modules]
    for name in () if found else _PACKAGES:
        try:
            return [importlib.import_module(name)]
        except ModuleNotFoundError as error:
            if error.name not in (name, name.partition(".")[0]):
                raise
    if not found:
        raise missing("Lightning (lightning or pytorch_lightning)", "lightning")
    return found


_Callback: Any = type("_Callback", tuple(one.Callback for one in _installed()), {})


class AsynchronousTransfer(_Callback):  # type: ignore[misc]
    """Reads and moves the batches of all loops in the background.

    Batches, hooks, logged values and checkpoints are those of a run without it. The hooks
    `on_before_batch_transfer` and `transfer_batch_to_device` run in the loader's thread, once for
    each batch that is read, and never while the trainer is in another stage;
    `on_after_batch_transfer` runs where it always does. A loop whose step takes `dataloader_iter`
    is left as it is, and so are XLA devices: both fetch by themselves.

    Args:
        buffer_size: How many batches of a loop may wait on the device [batches]; those of the
            training loop stay there during a validation within the epoch.
        log_wait: Also log `data_wait_ms`, for the progress bar and the loggers: how long a
            training step of this epoch waits for its batch, on average [ms].
    """

    def __init__(self, buffer_size: int = 2, *, log_wait: bool = False) -> None:
        super().__init__()
        AsynchronousLoader((), "cpu", buffer_size=buffer_size)  # says what is wrong with it
        self._buffer_size = buffer_size
        self._log_wait = log_wait
        self._running: dict[str, Fetching] = {}
        self._patches = Patches()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin with the batches of the first epoch."""
        self._take_over(trainer, pl_module, trainer.fit_loop, "training_step")
        self._catch_up("training_step")

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin with those of a loader that was made anew; mid-epoch restarts skip this hook."""
        self._take_over(trainer, pl_module, trainer.fit_loop, "training_step")

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any, **__: Any) -> None:
        """Hold the hooks back: a validation may follow."""
        running = self._running.get("training_step")
        if running is None:
            return
        running.gate.shut()
        epoch = running.statistics().epoch if self._log_wait else None
        if epoch is not None and epoch.num_steps:
            wait_ms = epoch.metrics()["wait_ms"]
            pl_module.log("data_wait_ms", wait_ms, prog_bar=True, on_step=True, on_epoch=False)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin with the batches of a validation, or of the check before training."""
        in_fit = trainer.state.fn == "fit"
        loop = trainer.fit_loop.epoch_loop.val_loop if in_fit else trainer.validate_loop
        self._take_over(trainer, pl_module, loop, "validation_step")
        self._catch_up("validation_step")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Let Lightning open the next one as it always does."""
        self._give_back("validation_step")

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin with the batches of a test."""
        self._take_over(trainer, pl_module, trainer.test_loop, "test_step")
        self._catch_up("test_step")

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        """Let Lightning open the next one as it always does."""
        self._give_back("test_step")

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin with the batches of a prediction."""
        self._take_over(trainer, pl_module, trainer.predict_loop, "predict_step")
        self._catch_up("predict_step")

    def on_predict_end(self, trainer: Any, pl_module: Any) -> None:
        """Let Lightning open the next one as it always does."""
        self._give_back("predict_step")

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End the threads, but go on answering for state: a checkpoint may be written yet.

        Lightning calls no `teardown` of callbacks after an error, but always the strategy's.
        """
        for fetching in self._running.values():
            fetching.end_pass()
        self._patches.undo()

        def then(teardown: Any) -> Any:
            def undo_first() -> None:
                self.teardown(trainer, pl_module, "")
                teardown()

            return undo_first

        self._patches.put(trainer.strategy, "teardown", then)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Leave everything as it was."""
        for step in list(self._running):
            self._running.pop(step).undo()
        self._patches.undo()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_running": {}, "_patches": Patches()}

    def _take_over(self, trainer: Any, module: Any, loop: Any, step: str) -> None:
        for package in {kind.__module__.partition(".")[0] for kind in type(trainer).__mro__}:
            if package in ("lightning", "pytorch_lightning"):
                check_version(package, sys.modules[package].__version__)
        combined = getattr(loop, "_combined_loader", None)
        running = self._running.get(step)
        if running is None or running.combined is not combined:
            if running is not None:
                self._running.pop(step).undo()
            reason = _why_not(trainer, combined)
            if reason:
                warnings.warn(f"AsynchronousTransfer does nothing: {reason}", stacklevel=2)
            by_itself = "dataloader_iter" in inspect.signature(getattr(module, step)).parameters
            if reason or by_itself or trainer.strategy.root_device.type == "xla":
                return
            is_training = step == "training_step"
            owners = {name: owner_of(trainer, module, name) for name in (BEFORE, MOVE)}
            running = Fetching(trainer, loop, owners, self._buffer_size, is_training)
            self._running[step] = running
        running.take()
        if running.has_hooks:
            self._patches.put(trainer.precision_plugin, "convert_input", passing)
            self._patches.put(running.owners[BEFORE], BEFORE, passing)
            self._patches.put(running.owners[MOVE], MOVE, unpacking)

    def _catch_up(self, step: str) -> None:
        if step in self._running:
            self._running[step].catch_up()

    def _give_back(self, step: str) -> None:
        if step in self._running:
            self._running[step].give_back()


def _why_not(trainer: Any, combined: Any) -> str:
    """What keeps a loop from being taken over, in words; empty if nothing does.

    Raises:
        ValueError: If all processes would read the same data.
    """
    if not hasattr(combined, "flattened"):
        return "the loop has no CombinedLoader where this version of sidestream looks for it"
    if hasattr(type(combined), "_sidestream"):
        return "another one is at work in this trainer already; one is enough"
    if not any(isinstance(loader, AsynchronousLoader) for loader in combined.flattened):
        return ""
    if trainer.world_size > 1:
        raise ValueError(
            f"an AsynchronousLoader was given to a trainer of {trainer.world_size} processes, "
            "where Lightning gives no sampler to it and each would read all of the data; give the "
            "DataLoader that is in it, AsynchronousTransfer does the rest"
        )
    return "an AsynchronousLoader was given as well; give the DataLoader that is in it"

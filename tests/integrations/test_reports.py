"""Public reports about Lightning; tests/reports/README.md lists all."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from support.integration import needs
from support.lightning import loader, make_module, make_trainer

needs("lightning.pytorch")

import lightning.pytorch as pl  # noqa: E402

from sidestream import AsynchronousLoader  # noqa: E402
from sidestream.integrations.lightning import AsynchronousTransfer  # noqa: E402

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated"),
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
]


def wrapped(data: Any) -> Any:
    return AsynchronousLoader(data, "cpu")


def as_it_is(data: Any) -> Any:
    return data


LIMITS = {
    "limit_train_batches": {"limit_train_batches": 3},
    "overfit_batches": {"overfit_batches": 2},
    "num_sanity_val_steps": {"num_sanity_val_steps": 2},
}


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize("kind", ["one", "a list", "a dict"])
def test_R43_a_wrapped_loader_is_left_alone_and_counts_as_a_plain_one(
    limits: Any, kind: str
) -> None:
    def run(wrap: Any) -> Any:
        def data() -> Any:
            several = [wrap(loader(16)), wrap(loader(24, 100))]
            return {
                "one": several[0],
                "a list": several,
                "a dict": dict(zip("ab", several, strict=True)),
            }[kind]

        module = make_module(pl)
        trainer = make_trainer(pl, max_epochs=1, **limits)
        trainer.fit(module, data(), wrap(loader(8, 200)))
        given = trainer.train_dataloader
        trainer.validate(module, wrap(loader(8, 300)), verbose=False)
        trainer.predict(module, wrap(loader(8, 400)), return_predictions=False)
        return module.seen, given

    expected, _ = run(as_it_is)
    seen, given = run(wrapped)
    assert seen == expected
    flat = given if kind == "a list" else given.values() if kind == "a dict" else [given]
    assert {type(one) for one in flat} == {AsynchronousLoader}


class Recording:
    """Notes hook, thread and memory of each batch on its way to the device."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, str, int]] = []

    def _note(self, name: str, batch: torch.Tensor) -> torch.Tensor:
        self.calls.append((name, threading.current_thread().name, batch.data_ptr()))
        return batch

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return self._note("before", batch)

    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
        return self._note("transfer", super().transfer_batch_to_device(batch, device, 0))

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return self._note("after", batch)


HOOKS = ["before", "transfer", "after"]


def test_R44_hooks_run_once_a_batch_and_the_transfer_moves_nothing_again() -> None:
    module = make_module(pl, Recording)
    make_trainer(pl, max_epochs=1).fit(module, wrapped(loader(20)))
    assert [name for name, _, _ in module.calls] == HOOKS * 5
    assert {thread for _, thread, _ in module.calls} == {"MainThread"}
    for at in range(0, 15, 3):
        assert len({memory for _, _, memory in module.calls[at : at + 3]}) == 1


def test_R44_hooks_run_once_a_batch_with_the_callback_as_well() -> None:
    module = make_module(pl, Recording)
    make_trainer(pl, AsynchronousTransfer(), max_epochs=1).fit(module, loader(20))
    for hook in HOOKS:
        memory = [memory for name, _, memory in module.calls if name == hook]
        assert len(memory) == 5, hook
    after = {thread for name, thread, _ in module.calls if name == "after"}
    assert after == {"MainThread"}

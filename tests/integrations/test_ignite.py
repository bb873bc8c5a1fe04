"""Ignite: the loader goes where the DataLoader would."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from support.integration import needs

engine = needs("ignite.engine")

from sidestream import AsynchronousLoader  # noqa: E402

pytestmark = pytest.mark.integration

ROWS = torch.arange(20.0).unsqueeze(1)


def data(**kwargs: Any) -> Any:
    return DataLoader(TensorDataset(ROWS, ROWS), batch_size=2, **kwargs)


class Counting(AsynchronousLoader):
    passes = 0

    def __iter__(self) -> Any:
        self.passes += 1
        return super().__iter__()


@pytest.mark.parametrize(
    "run",
    [
        {"max_epochs": 2},
        {"max_epochs": 3, "epoch_length": 4},
        {"max_epochs": 2, "epoch_length": 15},
        {"max_iters": 13},
    ],
    ids=str,
)
@pytest.mark.parametrize("kwargs", [{}, {"shuffle": True}, {"num_workers": 1}], ids=str)
def test_an_engine_sees_the_same(run: Any, kwargs: Any) -> None:
    def seen(wrap: Any) -> Any:
        torch.manual_seed(4)
        batches: list[Any] = []
        made = engine.Engine(lambda _, batch: batches.append([one.tolist() for one in batch]))
        loader = wrap(data(**kwargs))
        state = made.run(loader, **run)
        if isinstance(loader, AsynchronousLoader):
            loader.close()
        return batches, state.iteration, state.epoch, state.epoch_length

    assert seen(lambda loader: loader) == seen(lambda loader: AsynchronousLoader(loader, "cpu"))


def test_a_supervised_trainer_and_evaluator_come_to_the_same() -> None:
    metrics = needs_metrics()

    def weights(wrap: Any) -> Any:
        torch.manual_seed(4)
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        loss = torch.nn.functional.mse_loss
        trainer = engine.create_supervised_trainer(model, optimizer, loss, device="cpu")
        losses: list[float] = []
        trainer.add_event_handler(
            engine.Events.ITERATION_COMPLETED, lambda one: losses.append(one.state.output)
        )
        trainer.run(wrap(data(shuffle=True)), max_epochs=3)
        evaluator = engine.create_supervised_evaluator(
            model, {"mse": metrics.MeanSquaredError()}, device="cpu"
        )
        evaluator.run(wrap(data()))
        return losses, model.weight.item(), evaluator.state.metrics

    plain = weights(lambda loader: loader)
    assert len(plain[0]) == 30
    assert weights(lambda loader: AsynchronousLoader(loader, "cpu")) == plain


def needs_metrics() -> Any:
    return needs("ignite.metrics")


def test_a_run_may_be_ended_and_gone_on_with() -> None:
    def seen(wrap: Any) -> Any:
        batches: list[Any] = []
        made = engine.Engine(lambda _, batch: batches.append(batch[0].tolist()))

        @made.on(engine.Events.ITERATION_COMPLETED(once=5))
        def _end(one: Any) -> None:
            one.terminate()

        loader = wrap(data())
        made.run(loader, max_epochs=2)
        made.run(loader, max_epochs=2)
        if isinstance(loader, AsynchronousLoader):
            loader.close()
        return batches

    assert seen(lambda loader: loader) == seen(lambda loader: AsynchronousLoader(loader, "cpu"))


def test_the_engines_own_move_costs_nothing() -> None:
    loader = AsynchronousLoader(data(), "cpu")
    (x, y) = next(iter(loader))
    prepared = needs("ignite.engine")._prepare_batch((x, y), device=torch.device("cpu"))
    assert prepared[0] is x
    assert prepared[1] is y


def test_an_error_in_the_data_comes_through() -> None:
    def broken() -> Any:
        yield torch.zeros(1)
        raise ValueError("broken")

    made = engine.Engine(lambda *_: None)
    made.logger.disabled = True
    with pytest.raises(ValueError, match="broken"):
        made.run(AsynchronousLoader(broken(), "cpu"), max_epochs=1, epoch_length=3)

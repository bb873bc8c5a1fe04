"""Lightning's loops with the callback are those without it, under both names of the package."""

from __future__ import annotations

import contextlib
import copy
import gc
import importlib
import logging
import pickle
import threading
import warnings
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from support.integration import needs
from support.lightning import (
    Hooks,
    Items,
    Moves,
    loader,
    make_logger,
    make_module,
    make_trainer,
)
from support.waiting import is_blocked, wait_until

needs("lightning.pytorch")
PACKAGES = ["lightning.pytorch"]
with contextlib.suppress(pytest.skip.Exception):
    needs("pytorch_lightning")
    PACKAGES.append("pytorch_lightning")

import lightning.pytorch  # noqa: E402

from sidestream import AsynchronousLoader  # noqa: E402
from sidestream.integrations.lightning import AsynchronousTransfer  # noqa: E402

pytestmark = [
    pytest.mark.integration,
    # Lightning asks torch in a way that torch is giving up.
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated"),
    # Hints of Lightning's: few workers, no validation, a short epoch.
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
    *(
        [pytest.mark.filterwarnings(f"ignore::{warning}")]
        if (warning := "lightning_fabric.utilities.warnings.PossibleUserWarning")
        and "pytorch_lightning" in PACKAGES
        else []
    ),
]


@pytest.fixture(params=PACKAGES)
def pl(request: pytest.FixtureRequest) -> Any:
    package = importlib.import_module(request.param)
    for name in ("lightning.pytorch", "pytorch_lightning", "lightning.fabric", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return package


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter([torch.full((4,), i / 64) for i in range(20)])


def fit(pl: Any, *callbacks: Any, make: Any = make_module, **kwargs: Any) -> Any:
    """A run with training, validation and the check before it; all that can be seen of it."""
    torch.manual_seed(11)
    bases = kwargs.pop("bases", ())
    train = kwargs.pop("train", lambda pl: loader(32))
    val = kwargs.pop("val", lambda pl: [loader(12, 100), loader(8, 200)])
    module, logger = make(pl, *bases), make_logger(pl)
    kwargs.setdefault("num_sanity_val_steps", 2)
    trainer = make_trainer(pl, *callbacks, logger=logger, **kwargs)
    trainer.fit(module, train(pl), val(pl) if val else None)
    return {
        "seen": module.seen,
        "hooks": module.hooks,
        "logged": logger.rows,
        "weights": [p.detach().tolist() for p in module.parameters()],
        "steps": trainer.global_step,
        "epochs": trainer.current_epoch,
        "numbers": torch.rand(2).tolist(),  # where the random numbers stand after it
    }


def combined(mode: str) -> Any:
    def make(pl: Any) -> Any:
        kind = importlib.import_module(f"{pl.__name__}.utilities").CombinedLoader
        return kind({"a": loader(16), "b": loader(32, 100)}, mode)

    return make


def in_turn(pl: Any) -> Any:
    kind = importlib.import_module(f"{pl.__name__}.utilities").CombinedLoader
    return kind([loader(12), loader(8, 100)], "sequential")


FITS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "no validation": {"val": None},
    "max_size_cycle": {"train": combined("max_size_cycle")},
    "min_size": {"train": combined("min_size")},
    "max_size": {"train": combined("max_size")},
    "sequential validation": {"val": in_turn},
    "combined validation": {"val": combined("max_size")},
    "several loaders": {"train": lambda _: [loader(16), loader(8, 50)]},
    "limits in batches": {"limit_train_batches": 3, "limit_val_batches": 1},
    "limits in shares": {"limit_train_batches": 0.5, "limit_val_batches": 0.5},
    "overfit_batches": {"overfit_batches": 2},
    "overfit_batches, a share": {"overfit_batches": 0.5},
    "reload": {"max_epochs": 3, "reload_dataloaders_every_n_epochs": 1},
    "val_check_interval": {"val_check_interval": 3},
    "val_check_interval, a share": {"val_check_interval": 0.25},
    "validation by steps": {"check_val_every_n_epoch": None, "val_check_interval": 5},
    "max_steps": {"max_steps": 5, "max_epochs": -1},
    "accumulation": {"accumulate_grad_batches": 3},
    "clipping": {"gradient_clip_val": 0.1},
    "shuffled": {"train": lambda _: loader(32, shuffle=True)},
    "workers": {
        "train": lambda _: loader(32, num_workers=2, shuffle=True),
        "val": lambda _: [loader(8, 100, num_workers=1), loader(8, 200, num_workers=1)],
    },
    "persistent workers": {
        "train": lambda _: loader(32, num_workers=1, persistent_workers=True),
        "val": lambda _: loader(8, 100, num_workers=1, persistent_workers=True),
    },
    "no length": {"train": lambda _: DataLoader(Stream(), batch_size=4), "val": None},
    "no length, limited": {
        "train": lambda _: DataLoader(Stream(), batch_size=4),
        "val": lambda _: DataLoader(Stream(), batch_size=4),
        "limit_train_batches": 3,
    },
    "double precision": {"precision": "64-true"},
    "bfloat16": {"precision": "bf16-true"},
    "mixed precision": {"precision": "bf16-mixed"},
    "fast_dev_run": {"fast_dev_run": 2},
    "detect_anomaly": {"detect_anomaly": True},
    "simple profiler": {"profiler": "simple"},
}


ENDS_EARLY = {"max_steps"}


@pytest.mark.parametrize("case", FITS)
@pytest.mark.filterwarnings("ignore:.*bf16.*is not supported")
def test_a_fit_is_the_same(pl: Any, case: str) -> None:
    plain = fit(pl, **FITS[case])
    assert plain["seen"], "a run without batches shows nothing"
    assert plain == fit(pl, AsynchronousTransfer(), **FITS[case])


@pytest.mark.parametrize("buffer_size", [0, 1, 9])
def test_a_fit_is_the_same_with_any_buffer(buffer_size: int) -> None:
    assert fit(lightning.pytorch) == fit(lightning.pytorch, AsynchronousTransfer(buffer_size))


@pytest.mark.parametrize("case", FITS)
@pytest.mark.filterwarnings("ignore:.*bf16.*is not supported")
def test_hooks_run_once_for_each_batch_in_order_and_in_their_stage(case: str) -> None:
    plain = fit(lightning.pytorch, bases=(Hooks,), **FITS[case])
    ours = fit(lightning.pytorch, AsynchronousTransfer(), bases=(Hooks,), **FITS[case])
    expected, hooks = plain.pop("hooks"), ours.pop("hooks")
    assert plain == ours
    stages = {stage for *_, stage, _ in expected}
    for stage in stages:
        of_stage = [[one for one in all if one[3] == stage] for all in (expected, hooks)]
        numbers = []
        for name in ("before", "transfer", "after"):
            want, got = ([one for one in all if one[0] == name] for all in of_stage)
            # Where a run ends within an epoch, the batches read ahead have been through two hooks.
            ahead = len(got) - len(want)
            assert got[: len(want)] == want
            assert ahead <= (3 if case in ENDS_EARLY and name != "after" else 0)
            places = [number for number, one in enumerate(hooks) if one in got and one[0] == name]
            numbers.append([place for place in places if hooks[place][3] == stage])
        for before, transfer, after in zip(*numbers, strict=False):
            assert before < transfer < after
    assert {stage for *_, stage, _ in hooks} == stages


# ---- how often a batch is moved, and by whom


def moved(pl: Any, *callbacks: Any, run: Any = None, wrap: Any = lambda one: one, **kwargs: Any):
    """Counts of moves over a fit with validation, or what `run` does with a trainer."""
    moves = Moves()
    module = make_module(pl)
    trainer = make_trainer(pl, *callbacks, num_sanity_val_steps=1, **kwargs)
    train, val = wrap(loader(32, moves=moves)), wrap(loader(12, 100, moves=moves))
    if run is None:
        trainer.fit(module, train, val)
    else:
        run(trainer, module, val)
    return moves, module.seen


RUNS = {
    "fit": None,
    "validate": lambda trainer, module, data: trainer.validate(module, data, verbose=False),
    "test": lambda trainer, module, data: trainer.test(module, data, verbose=False),
    "predict": lambda trainer, module, data: trainer.predict(module, data),
}


@pytest.mark.parametrize("run", RUNS)
def test_each_batch_is_moved_once_and_in_the_background(pl: Any, run: str) -> None:
    plain, expected = moved(pl, run=RUNS[run])
    ours, seen = moved(pl, AsynchronousTransfer(), run=RUNS[run])
    assert seen == expected
    assert len(ours.real) == len(plain.real)
    assert {name.rpartition("-")[0] for name in ours.real} == {"sidestream-epoch"}
    assert ours.idle == len(ours.real), "Lightning's own move finds each batch there already"


def test_nothing_is_read_beyond_a_limit(pl: Any) -> None:
    moves, _ = moved(pl, AsynchronousTransfer(), limit_train_batches=3, limit_val_batches=2)
    assert len(moves.real) == 1 + 2 * (3 + 2)


def test_the_callback_reads_ahead_of_the_loop() -> None:
    class Look(lightning.pytorch.Callback):
        ahead = 0

        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            self.ahead = max(self.ahead, len(moves.real) - batch_idx - 1)

    moves, look = Moves(), Look()
    trainer = make_trainer(lightning.pytorch, AsynchronousTransfer(), look, max_epochs=1)
    trainer.fit(make_module(lightning.pytorch), loader(256, moves=moves))
    assert 1 <= look.ahead <= 2


# ---- the other loops


@pytest.mark.parametrize("several", [False, True])
def test_what_is_predicted_and_its_indices_are_the_same(pl: Any, several: bool) -> None:
    class Writer(pl.callbacks.BasePredictionWriter):
        def __init__(self) -> None:
            super().__init__("batch_and_epoch")
            self.rows: list[Any] = []

        def write_on_batch_end(self, trainer, module, prediction, indices, *rest):
            self.rows.append((prediction, indices, rest[1:]))

        def write_on_epoch_end(self, trainer, module, predictions, indices):
            self.rows.append((predictions, indices))

    results = []
    for callbacks in ([], [AsynchronousTransfer()]):
        writer = Writer()
        data = [loader(12), loader(10, 50)] if several else loader(12)
        trainer = make_trainer(pl, writer, *callbacks)
        results.append((trainer.predict(make_module(pl), data), writer.rows))
    assert results[0] == results[1]
    assert results[0][1], "the writer was given nothing"


def test_two_fits_validate_and_test_with_one_trainer_are_the_same(pl: Any) -> None:
    results = []
    for callbacks in ([], [AsynchronousTransfer()]):
        trainer, module = make_trainer(pl, *callbacks, max_epochs=1), make_module(pl)
        data = loader(8)
        trainer.fit(module, data, data)
        trainer.fit_loop.max_epochs = 2
        trainer.fit(module, data, data)
        measured = trainer.validate(module, data, verbose=False)
        measured += trainer.test(module, [data, loader(8, 30)], verbose=False)
        results.append((module.seen, measured))
    assert results[0] == results[1]


def test_progress_bars_count_the_same(pl: Any) -> None:
    class Bar(pl.callbacks.ProgressBar):
        def __init__(self) -> None:
            super().__init__()
            self.rows: list[Any] = []

        def disable(self) -> None:
            pass

        def on_train_batch_end(self, trainer, module, *rest):
            self.rows.append((self.total_train_batches, trainer.num_training_batches, rest[-1]))

        def on_validation_batch_end(self, trainer, module, *rest):
            self.rows.append((self.total_val_batches, trainer.num_val_batches, rest[-1]))

    rows = []
    for callbacks in ([], [AsynchronousTransfer()]):
        bar = Bar()
        fit(pl, bar, *callbacks, enable_progress_bar=True, val_check_interval=3)
        rows.append(bar.rows)
    assert rows[0] == rows[1]
    assert rows[0]


def test_automatic_optimization_can_be_off() -> None:
    def make(pl: Any, *bases: type) -> Any:
        module = make_module(pl)

        class Manual(type(module)):
            automatic_optimization = False

            def training_step(self, batch, batch_idx):
                optimizer = self.optimizers()
                optimizer.zero_grad()
                self.manual_backward(super().training_step(batch, batch_idx))
                optimizer.step()

        return Manual()

    package = lightning.pytorch
    assert fit(package, make=make) == fit(package, AsynchronousTransfer(), make=make)


def test_an_epoch_may_be_left_early(pl: Any) -> None:
    def make(pl: Any, *bases: type) -> Any:
        class Leaving(type(make_module(pl))):
            def on_train_batch_start(self, batch, batch_idx):
                return -1 if batch_idx == 2 else None

        return Leaving()

    kwargs = {"train": lambda _: loader(32, num_workers=1, persistent_workers=True)}
    assert fit(pl, make=make, **kwargs) == fit(pl, AsynchronousTransfer(), make=make, **kwargs)


@pytest.mark.filterwarnings("ignore:Found `dataloader_iter` argument")
def test_a_step_that_fetches_by_itself_is_left_alone() -> None:
    def run(*callbacks: Any) -> Any:
        class Fetching(lightning.pytorch.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.layer, self.seen = torch.nn.Linear(4, 1), []

            def training_step(self, dataloader_iter):
                batch, batch_idx, _ = next(dataloader_iter)
                self.seen.append((batch.tolist(), batch_idx))
                return self.layer(batch).mean()

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.1)

        module = Fetching()
        trainer = make_trainer(lightning.pytorch, *callbacks, max_epochs=1)
        trainer.fit(module, loader(16))
        assert type(trainer.fit_loop._combined_loader).__name__ == "CombinedLoader"
        return module.seen

    assert run() == run(AsynchronousTransfer()) != []


# ---- hooks


def test_hooks_of_training_wait_for_a_validation_to_end() -> None:
    validates = threading.Event()
    readers: list[threading.Thread] = []
    has_read = threading.Event()

    class Late(Items):
        def __getitem__(self, index: int) -> torch.Tensor:
            if index == 8:  # of the third batch, which is read while the second is in use
                readers.append(threading.current_thread())
                assert validates.wait(10)
                has_read.set()
            return super().__getitem__(index)

    class Module(type(make_module(lightning.pytorch, Hooks))):
        def validation_step(self, *args):
            validates.set()
            assert has_read.wait(10)
            wait_until(
                lambda: not readers[0].is_alive() or is_blocked(readers[0]),
                "the third batch was read, and waits or went through its hooks",
            )
            super().validation_step(*args)

    module = Module()
    trainer = make_trainer(
        lightning.pytorch,
        AsynchronousTransfer(),
        max_epochs=1,
        val_check_interval=2,
        num_sanity_val_steps=0,
    )
    trainer.fit(module, DataLoader(Late(16), batch_size=4), loader(4, 100))
    assert len(readers) == 1
    train = [one for one in module.hooks if one[1] < 1.5]  # by the values of their batches
    assert {(stage, training) for *_, stage, training in train} == {
        ("RunningStage.TRAINING", True)
    }


def test_a_data_modules_hooks_are_chosen_as_lightning_chooses(pl: Any) -> None:
    class Data(pl.LightningDataModule):
        def __init__(self) -> None:
            super().__init__()
            self.hooks: list[Any] = []

        def train_dataloader(self):
            return loader(16)

        def val_dataloader(self):
            return loader(8, 100)

        def on_before_batch_transfer(self, batch, dataloader_idx):
            self.hooks.append(("before", batch.tolist()))
            return batch + 1

    class InModule:
        def transfer_batch_to_device(self, batch, device, dataloader_idx):
            self.hooks.append(("transfer", batch.tolist()))
            return super().transfer_batch_to_device(batch, device, dataloader_idx)

    results = []
    for callbacks in ([], [AsynchronousTransfer()]):
        data, module = Data(), make_module(pl, InModule)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Lightning says which of the two it takes
            make_trainer(pl, *callbacks).fit(module, datamodule=data)
        results.append((data.hooks, module.hooks, module.seen))
        assert "on_before_batch_transfer" not in vars(data)
    assert results[0] == results[1]


def test_a_batch_that_a_hook_leaves_on_the_host_stays_there() -> None:
    class Partly:
        def transfer_batch_to_device(self, batch, device, dataloader_idx):
            return [batch[0].to("meta"), batch[1]]

    places: list[Any] = []

    class Module(lightning.pytorch.LightningModule):
        def test_step(self, batch, batch_idx):
            places.append([part.device.type for part in batch])

    class Both(Partly, Module):
        pass

    data = DataLoader(torch.utils.data.StackDataset(Items(8), Items(8, 50)), batch_size=4)
    make_trainer(lightning.pytorch, AsynchronousTransfer()).test(Both(), data, verbose=False)
    assert places == [["meta", "cpu"]] * 2


def test_all_is_left_as_it_was(pl: Any) -> None:
    module = make_module(pl, Hooks)
    trainer = make_trainer(pl, AsynchronousTransfer())
    trainer.fit(module, loader(8), loader(8))
    assert not [name for name in vars(module) if "transfer" in name]
    assert "convert_input" not in vars(trainer.precision_plugin)
    for loop in (trainer.fit_loop, trainer.fit_loop.epoch_loop.val_loop):
        assert type(loop._combined_loader).__name__ == "CombinedLoader"
        assert not [name for name in vars(loop._combined_loader) if "sidestream" in name]


def test_the_loader_goes_when_nobody_holds_it() -> None:
    gc.collect()
    module = make_module(lightning.pytorch, Hooks)
    trainer = make_trainer(lightning.pytorch, AsynchronousTransfer())
    gc.disable()
    try:
        trainer.fit(module, Counting(2), loader(8))
        assert not [one for one in gc.get_objects() if type(one).__name__ == "Fetching"]
    finally:
        gc.enable()


# ---- errors


class Broken(Items):
    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 9:
            raise ValueError("item 9 is broken")
        return super().__getitem__(index)


@pytest.mark.parametrize("bases", [(), (Hooks,)], ids=["", "hooks"])
def test_a_datasets_error_comes_after_the_good_batches(bases: Any) -> None:
    module = make_module(lightning.pytorch, *bases)
    trainer = make_trainer(lightning.pytorch, AsynchronousTransfer())
    with pytest.raises(ValueError, match="item 9 is broken"):
        trainer.fit(module, DataLoader(Broken(16), batch_size=4))
    assert [one[:2] for one in module.seen] == [("train", 0), ("train", 1)]
    assert not [name for name in vars(module) if "transfer" in name]


def trainer_reraises(error: BaseException) -> bool:
    version = tuple(map(int, lightning.pytorch.__version__.split(".")[:2]))
    return not isinstance(error, KeyboardInterrupt) or version >= (2, 5)


@pytest.mark.parametrize("bases", [(), (Hooks,)], ids=["", "hooks"])
@pytest.mark.parametrize("stage", ["train", "val"])
@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt(), SystemExit(3)])
@pytest.mark.filterwarnings("ignore:.*Detected KeyboardInterrupt")
def test_an_error_in_a_step_leaves_nothing_behind(bases: Any, stage: str, error: Any) -> None:
    class Failing(type(make_module(lightning.pytorch, *bases))):
        def loss(self, now, *rest):
            if now == stage and not self.trainer.sanity_checking and rest[1] == 1:
                raise error
            return super().loss(now, *rest)

    module = Failing()
    trainer = make_trainer(lightning.pytorch, AsynchronousTransfer(), val_check_interval=2)
    # Ctrl-C becomes an exit; before Lightning 2.5, fit returns after it, and takes nothing down.
    ended = type(error) if trainer_reraises(error) else None
    with pytest.raises((ended, SystemExit)) if ended else contextlib.nullcontext():
        trainer.fit(module, loader(64), loader(16, 100))
    if ended is None:
        return
    assert not [name for name in vars(module) if "transfer" in name]
    assert "teardown" not in vars(trainer.strategy)
    for loop in (trainer.fit_loop, trainer.fit_loop.epoch_loop.val_loop):
        assert type(loop._combined_loader).__name__ == "CombinedLoader"


@pytest.mark.parametrize("bases", [(), (Hooks,)], ids=["", "hooks"])
def test_after_an_error_the_trainer_can_be_used_again(bases: Any) -> None:
    class Failing(type(make_module(lightning.pytorch, *bases))):
        fails = True

        def training_step(self, batch, batch_idx):
            if self.fails and batch_idx == 1:
                raise RuntimeError("broken")
            return super().training_step(batch, batch_idx)

    seen = []
    for callbacks in ([], [AsynchronousTransfer()]):
        module = Failing()
        trainer = make_trainer(lightning.pytorch, *callbacks)
        data = loader(12)
        with pytest.raises(RuntimeError, match="broken"):
            trainer.fit(module, data)
        module.fails = False
        trainer.fit(module, data, data)
        seen.append(module.seen)
    assert seen[0] == seen[1]


# ---- state


class Counting:
    """A loader with a state of its own: a live object, of what was read last."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.state = {"position": 0, "has_ended": False}

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Any:
        if self.state["position"] == self.length:
            self.state["position"] = 0
        self.state["has_ended"] = False
        while self.state["position"] < self.length:
            self.state["position"] += 1
            yield torch.full((4, 4), self.state["position"] / 64)
        self.state["has_ended"] = True

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = dict(state)


class Unsized(Counting):
    __len__ = None


def stateful_loaders() -> Any:
    yield pytest.param(lambda: Counting(8), id="own")
    yield pytest.param(lambda: Unsized(8), id="own, without length")
    try:
        from torchdata.stateful_dataloader import StatefulDataLoader
    except ImportError:
        return
    for num_workers in (0, 2):
        yield pytest.param(
            lambda num_workers=num_workers: loader(
                32, cls=StatefulDataLoader, num_workers=num_workers
            ),
            id=f"torchdata, {num_workers} workers",
        )


def without(state: Any, *names: str) -> Any:
    if isinstance(state, dict):
        return {key: without(one, *names) for key, one in state.items() if key not in names}
    if isinstance(state, (list, tuple)):
        return [without(one, *names) for one in state]
    return state.tolist() if isinstance(state, torch.Tensor) else state


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata asks torch for it
@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`, callbacks")
@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch")
@pytest.mark.parametrize("make", list(stateful_loaders()))
@pytest.mark.parametrize("bases", [(), (Hooks,)], ids=["", "hooks"])
def test_checkpoints_hold_the_same_and_resume_the_same(make: Any, bases: Any, tmp_path) -> None:
    pl = lightning.pytorch
    results = []
    for name, callbacks in (("plain", []), ("ours", [AsynchronousTransfer()])):
        save = pl.callbacks.ModelCheckpoint(
            tmp_path / name, every_n_train_steps=1, save_top_k=-1, filename="{step}"
        )
        trainer = make_trainer(
            pl, *callbacks, save, max_steps=11, max_epochs=-1, enable_checkpointing=True
        )
        module = make_module(pl, *bases)
        trainer.fit(module, make())
        saved = {}
        for path in sorted((tmp_path / name).iterdir()):
            content = torch.load(path, weights_only=False)
            # Where files are, and with which options: not of the training's content.
            saved[path.name] = without(content, "callbacks")
        again = make_module(pl, *bases)
        make_trainer(pl, *callbacks, max_epochs=2).fit(
            again, make(), ckpt_path=tmp_path / name / "step=3.ckpt"
        )
        results.append((module.seen, saved, again.seen, [p.tolist() for p in again.parameters()]))
    plain, ours = results
    assert len(plain[1]) == 11
    assert ours[1] == plain[1]
    assert ours == plain


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.filterwarnings("ignore:.*but there is no last checkpoint available")
@pytest.mark.filterwarnings("ignore:`.fit.ckpt_path=None.` was called without a model")
def test_a_checkpoint_after_an_error_holds_the_same(first: bool, tmp_path) -> None:
    pl = lightning.pytorch

    class Failing(type(make_module(pl))):
        def training_step(self, batch, batch_idx):
            if batch_idx == 3:
                raise RuntimeError("broken")
            return super().training_step(batch, batch_idx)

    states = []
    for name, ours in (("plain", []), ("ours", [AsynchronousTransfer()])):
        save = pl.callbacks.OnExceptionCheckpoint(tmp_path / name)
        callbacks = [*ours, save] if first else [save, *ours]
        with pytest.raises(RuntimeError, match="broken"):
            make_trainer(pl, *callbacks, enable_checkpointing=True).fit(
                Failing(), data := Counting(8)
            )
        content = torch.load(tmp_path / name / "on_exception.ckpt", weights_only=False)
        states.append(without(content, "callbacks"))
        assert "state_dict" not in vars(data)
    assert states[0] == states[1]


@pytest.mark.parametrize("kind", [Counting, Unsized])
def test_the_state_after_an_epoch_is_the_same(kind: Any) -> None:
    pl = lightning.pytorch

    class Looking(type(make_module(pl))):
        def on_train_epoch_end(self):
            self.seen.append(dict(self.trainer.train_dataloader.state_dict()))

    seen = []
    for callbacks in ([], [AsynchronousTransfer()]):
        module = Looking()
        make_trainer(pl, *callbacks).fit(module, kind(5))
        seen.append(module.seen)
    assert seen[0] == seen[1]


def test_a_resumed_epoch_is_read_no_further_than_it_asks(tmp_path) -> None:
    pl = lightning.pytorch
    read: list[int] = []

    class Noting(Items):
        def __getitem__(self, index: int) -> torch.Tensor:
            read.append(index)
            return super().__getitem__(index)

    class Late(type(make_module(pl))):
        def on_train_batch_start(self, batch, batch_idx):
            if batch_idx == 7:  # the last; whoever reads too far has had the time to
                for thread in threading.enumerate():
                    if thread.name.startswith("sidestream"):
                        wait_until(
                            lambda thread=thread: not thread.is_alive() or is_blocked(thread),
                            "the loader's thread has done what it will do",
                        )

    save = pl.callbacks.ModelCheckpoint(tmp_path, every_n_train_steps=3, filename="three")
    trainer = make_trainer(pl, save, max_steps=3, max_epochs=-1, enable_checkpointing=True)
    trainer.fit(make_module(pl), loader(32))
    counts = []
    for callbacks in ([], [AsynchronousTransfer()]):
        read.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of resuming within an epoch
            make_trainer(pl, *callbacks, max_epochs=1).fit(
                Late(), DataLoader(Noting(32), batch_size=4), ckpt_path=tmp_path / "three.ckpt"
            )
        counts.append(list(read))
    assert counts[0] == counts[1]


def test_the_users_own_look_at_the_state_is_of_the_batch_in_hand() -> None:
    pl = lightning.pytorch
    states: list[Any] = []

    class Looking(type(make_module(pl))):
        def on_train_batch_end(self, *_):
            states.append(self.trainer.train_dataloader.state_dict()["position"])

    data = Counting(8)
    make_trainer(pl, AsynchronousTransfer(), max_epochs=1).fit(Looking(), data)
    assert states == list(range(1, 9))
    assert "state_dict" not in vars(data)


# ---- wrapping the loader instead, and doing both


def test_the_loader_may_be_wrapped_instead(pl: Any) -> None:
    def wrap(data: Any) -> Any:
        return AsynchronousLoader(data, "cpu")

    _, expected = moved(pl)
    ours, seen = moved(pl, wrap=wrap)
    assert seen == expected
    assert {name.rpartition("-")[0] for name in ours.real} == {"sidestream-epoch"}
    assert ours.idle >= len(expected), "Lightning's own move finds each batch there already"


@pytest.mark.parametrize("case", ["workers", "persistent workers"])
def test_a_wrapped_loader_may_have_workers(pl: Any, case: str) -> None:
    def wrap(data: Any) -> Any:
        return AsynchronousLoader(data, "cpu")

    def data(of: str) -> Any:
        made = FITS[case][of](None)
        return made[0] if isinstance(made, list) else made

    expected, ours = make_module(pl), make_module(pl)
    for module, around in ((expected, lambda one: one), (ours, wrap)):
        torch.manual_seed(4)
        trainer = make_trainer(pl, num_sanity_val_steps=0, max_epochs=1)
        trainer.fit(module, around(data("train")), around(data("val")))
    assert len(ours.seen) == len(expected.seen) > 2
    rows = [{value for one in module.seen for value in one[-1][0]} for module in (expected, ours)]
    assert rows[0] == rows[1], (
        "the same data; in another order, where Lightning opens it once more"
    )


def test_an_error_comes_out_of_a_wrapped_loader_after_the_good_batches() -> None:
    module = make_module(lightning.pytorch)
    trainer = make_trainer(lightning.pytorch)
    with pytest.raises(ValueError, match="item 9 is broken"):
        trainer.fit(module, AsynchronousLoader(DataLoader(Broken(16), batch_size=4), "cpu"))
    assert [one[:2] for one in module.seen] == [("train", 0), ("train", 1)]


def test_a_wrapped_loader_and_the_callback_are_noticed(pl: Any) -> None:
    data = AsynchronousLoader(loader(8), "cpu")
    module = make_module(pl)
    trainer = make_trainer(pl, AsynchronousTransfer(), max_epochs=1)
    with pytest.warns(UserWarning, match="AsynchronousLoader was given as well"):
        trainer.fit(module, data)
    assert len(module.seen) == 2


def test_two_callbacks_are_noticed(pl: Any) -> None:
    class Other(AsynchronousTransfer):  # Lightning itself refuses two of one class with state
        pass

    module = make_module(pl)
    trainer = make_trainer(pl, AsynchronousTransfer(), Other(), max_epochs=1)
    with pytest.warns(UserWarning, match="another one is at work"):
        trainer.fit(module, loader(8))
    assert len(module.seen) == 2


def test_a_wrong_buffer_size_is_said_at_once() -> None:
    with pytest.raises(ValueError, match="buffer_size must be 0 or more"):
        AsynchronousTransfer(-1)


# ---- tools around a fit


@pytest.mark.filterwarnings("ignore:`.fit.ckpt_path=None.` was called without a model")
def test_the_tuner_finds_the_same(pl: Any, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tqdm.tqdm.monitor_interval", 0)  # its thread would outlive the test
    tuner = importlib.import_module(f"{pl.__name__}.tuner").Tuner

    class Tuned(type(make_module(pl))):
        lr = 0.1
        batch_size = 2

        def train_dataloader(self):
            return loader(256, batch_size=self.batch_size)

        def val_dataloader(self):
            return loader(8, 100)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=self.lr)

    results = []
    for callbacks in ([], [AsynchronousTransfer()]):
        module = Tuned()
        tune = tuner(make_trainer(pl, *callbacks, max_epochs=1))
        tune.scale_batch_size(module, mode="power", max_trials=2, steps_per_trial=2)
        found = tune.lr_find(module, num_training=10)
        results.append((module.batch_size, found.results["lr"], found.results["loss"]))
    assert results[0] == results[1]


def test_weights_may_be_averaged_and_modules_copied() -> None:
    pl = lightning.pytorch

    def run(*callbacks: Any) -> Any:
        average = pl.callbacks.StochasticWeightAveraging(1e-2, swa_epoch_start=1)
        return fit(pl, average, *callbacks, bases=(Hooks,), max_epochs=3)["weights"]

    assert run() == run(AsynchronousTransfer())


def test_the_callback_can_be_pickled_and_copied() -> None:
    for again in (
        pickle.loads(pickle.dumps(AsynchronousTransfer(5))),
        copy.deepcopy(AsynchronousTransfer(5)),
    ):
        assert fit(lightning.pytorch, again) == fit(lightning.pytorch)


@pytest.mark.parametrize("logs", [False, True])
def test_the_wait_for_data_is_logged_where_it_is_asked_for(pl: Any, logs: bool) -> None:
    module, logger = make_module(pl), make_logger(pl)
    trainer = make_trainer(pl, AsynchronousTransfer(log_wait=logs), logger=logger)
    trainer.fit(module, loader(32))
    waits = [row["data_wait_ms"] for _, row in logger.rows if "data_wait_ms" in row]
    assert len(waits) == (14 if logs else 0)  # the first of each of two epochs has no step
    assert all(wait >= 0 for wait in waits)
    assert ("data_wait_ms" in trainer.progress_bar_metrics) is logs

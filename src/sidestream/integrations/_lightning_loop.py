"""Behind `sidestream.integrations.lightning`: one loop's batches, taken over and given back."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from sidestream.integrations._gate import Gate
from sidestream.loader import AsynchronousLoader
from sidestream.statistics import LoaderStatistics

BEFORE = "on_before_batch_transfer"
MOVE = "transfer_batch_to_device"


class Fetching:
    """Serves one of Lightning's combined loaders from an AsynchronousLoader, until undone."""

    def __init__(
        self,
        trainer: Any,
        loop: Any,
        owners: dict[str, Any],
        buffer_size: int,
        is_training: bool,
    ) -> None:
        self.combined = combined = loop._combined_loader
        self.owners = owners
        self._loop = loop
        self.gate = Gate()
        self._kind: Any = combined.__class__
        self._pass: Any = None
        self.states: list[Any] | None = None
        """The loaders' own states after the batch that the loop has; None outside a pass."""
        self._device = trainer.strategy.root_device
        self._convert = getattr(trainer.precision_plugin, "convert_input", lambda batch: batch)
        self._before = getattr(owners[BEFORE], BEFORE)
        self._move = getattr(owners[MOVE], MOVE)
        self._moves_itself = not is_default(self._move)
        self.has_hooks = self._moves_itself or not is_default(self._before)
        # Only in training can another stage come between two batches.
        self._hooks_allowed: Any = self.gate if is_training and self.has_hooks else _ALWAYS
        # Lightning asks for the state of training's loaders alone.
        stateful = [one for one in combined.flattened if is_training and _is_stateful(one)]
        self.views = [_View(self, number, loader) for number, loader in enumerate(stateful)]
        self._loader = AsynchronousLoader(
            _Batches(self),
            self._device,
            buffer_size=buffer_size,
            transform=self._transfer if self._moves_itself else None,
        )

    # ---- the loop's thread

    def next(self) -> tuple[Any, int, int]:
        """The next batch, on the device, with its indices."""
        self.gate.open()
        if self._pass is None:
            self._pass = iter(self._loader)
        try:
            batch, batch_idx, dataloader_idx, states = next(self._pass)
        except StopIteration:
            self.states = None  # what the loaders say is of now
            raise
        self.states = states.inside
        return _Ready(batch) if self.has_hooks else batch, batch_idx, dataloader_idx

    def end_pass(self, *, forget: bool = False) -> None:
        """End the thread of the pass under way.

        Args:
            forget: Whether its position is of no interest any more.
        """
        if self._pass is not None:
            self.gate.close()
            self._pass.close()
            self._pass = None
        if forget:
            self.states = None

    def take(self) -> None:
        """Let the combined loader's batches come from here."""
        vars(self.combined)["_sidestream_fetching"] = self
        self.combined.__class__ = _asynchronous(self._kind)

    def catch_up(self) -> None:
        """Run the hooks on what Lightning fetched before; of a loader without length that is one.

        Else the batch after it would go through them first.
        """
        batches = getattr(self._loop._data_fetcher, "batches", None)
        if self.has_hooks and batches:
            self.gate.open()
            for number, (batch, batch_idx, dataloader_idx) in enumerate(batches):
                batch = self._before(self._convert(batch), dataloader_idx)
                batch = self._move(batch, self._device, dataloader_idx)
                batches[number] = (_Ready(batch), batch_idx, dataloader_idx)

    def statistics(self) -> LoaderStatistics:
        """What the loader has done."""
        return self._loader.statistics()

    def give_back(self) -> None:
        """Let them come from the combined loader itself."""
        self.end_pass(forget=True)
        vars(self.combined).pop("_sidestream_fetching", None)
        self.combined.__class__ = self._kind

    def undo(self) -> None:
        """Give the combined loader back for good."""
        self.give_back()
        self._loader.close()
        for view in reversed(self.views):
            view.patches.undo()
        self.views.clear()
        del self._loader  # it knows this object: a cycle would keep the user's loaders alive

    # ---- the loader's thread; the first batch of a pass is read in the loop's

    def read(self) -> Iterator[tuple[Any, int, int, _Hidden]]:
        """What the combined loader gives, and no more than the loop will ask for."""
        length = _length(self.combined)
        if length is not None:  # resumed within an epoch, a loop counts from where it was
            length = max(1, length - self._loop._data_fetcher.fetched)
        for _ in itertools.count() if length is None else range(length):
            try:
                batch, batch_idx, dataloader_idx = self._kind.__next__(self.combined)
            except StopIteration:
                return
            # Copied: some give a live object, which goes on with the reading.
            states = _Hidden([copy.deepcopy(view.ahead()) for view in self.views])
            with self._hooks_allowed:
                batch = self._before(self._convert(batch), dataloader_idx)
            if self._moves_itself:
                batch = _Hidden(batch)
            yield batch, batch_idx, dataloader_idx, states

    def _transfer(self, item: tuple[Any, int, int, _Hidden]) -> tuple[Any, int, int, _Hidden]:
        """Call a transfer hook of the user's own, on the side stream."""
        hidden, batch_idx, dataloader_idx, states = item
        with self._hooks_allowed:
            batch = self._move(hidden.inside, self._device, dataloader_idx)
        return batch, batch_idx, dataloader_idx, states


class _Batches:
    """The batches of a combined loader, as a source for the core."""

    def __init__(self, fetching: Fetching) -> None:
        self._fetching = fetching
        loaders = fetching.combined.flattened
        # Says that batches come in memory of their own, where worker processes make them.
        self.num_workers = min((getattr(one, "num_workers", 0) for one in loaders), default=0)

    def __iter__(self) -> Iterator[tuple[Any, int, int, _Hidden]]:
        return self._fetching.read()


class _View:
    """Lets a loader's `state_dict` answer for the batch that the loop has, not the one read last.

    Args:
        fetching: Whose loop.
        number: Which of the loaders with a state this is.
        loader: The loader.
    """

    def __init__(self, fetching: Fetching, number: int, loader: Any) -> None:
        self.ahead: Callable[..., Any] = loader.state_dict
        self.patches = Patches()
        self._fetching, self._number = fetching, number
        self._load: Callable[..., Any] = loader.load_state_dict
        self.patches.put(loader, "state_dict", lambda _: self._state_dict)
        self.patches.put(loader, "load_state_dict", lambda _: self._load_state_dict)

    def _state_dict(self, *args: Any, **kwargs: Any) -> Any:
        states = self._fetching.states
        if states is None:
            return self.ahead(*args, **kwargs)
        return copy.deepcopy(states[self._number])

    def _load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        self._fetching.states = None  # what the loaders say is of the next pass now
        return self._load(*args, **kwargs)


_ALWAYS = contextlib.nullcontext()


# ---- what is put onto Lightning's objects


class _Hidden:
    """Hides what is inside from the core, which must not move it."""

    __slots__ = ("inside",)

    def __init__(self, inside: Any) -> None:
        self.inside = inside


class _Ready(_Hidden):
    """A batch that has been through the hooks, on its way past them."""

    __slots__ = ()


class Patches:
    """Attributes put onto instances for a while, each once."""

    def __init__(self) -> None:
        self._put: dict[tuple[int, str], tuple[Any, str, Any]] = {}

    def put(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace `owner.name`, if there is one, by what `make` makes of it."""
        if (id(owner), name) not in self._put and hasattr(owner, name):
            before = vars(owner).get(name, self)
            setattr(owner, name, make(getattr(owner, name)))
            self._put[id(owner), name] = owner, name, before

    def undo(self) -> None:
        """Leave the instances as they were."""
        for owner, name, before in self._put.values():
            if before is self:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        self._put.clear()


def passing(hook: Any) -> Any:
    """Leave a batch alone that has been through the hook already."""

    @functools.wraps(hook)  # Lightning looks through it to see whether a hook is the user's
    def passing(batch: Any, *args: Any, **kwargs: Any) -> Any:
        return batch if type(batch) is _Ready else hook(batch, *args, **kwargs)

    return passing


def unpacking(hook: Any) -> Any:
    """Give the batch out that has been through the hook already."""

    @functools.wraps(hook)
    def unpacking(batch: Any, *args: Any, **kwargs: Any) -> Any:
        return batch.inside if type(batch) is _Ready else hook(batch, *args, **kwargs)

    return unpacking


@functools.cache
def _asynchronous(kind: Any) -> Any:
    """A subclass of Lightning's own class whose batches come from a `Fetching`."""

    class Asynchronous(kind):  # type: ignore[misc]
        _sidestream = True

        def __iter__(self) -> Any:
            self._sidestream_fetching.end_pass(forget=True)
            return super().__iter__()

        def __next__(self) -> Any:
            return self._sidestream_fetching.next()

        def reset(self) -> None:
            self._sidestream_fetching.end_pass(forget=True)
            super().reset()

    Asynchronous.__name__ = f"Asynchronous{kind.__name__}"
    return Asynchronous


def owner_of(trainer: Any, module: Any, name: str) -> Any:
    """Whose hook Lightning calls: the data module's where it has its own, else the module's."""
    datamodule = trainer.datamodule
    if datamodule is None or is_default(getattr(datamodule, name)):
        return module
    return datamodule


def is_default(hook: Any) -> bool:
    """Whether a hook is Lightning's own."""
    return str(getattr(hook, "__module__", "")).endswith(".core.hooks")


def _is_stateful(loader: Any) -> bool:
    return hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")


def _length(combined: Any) -> int | None:
    try:
        return len(combined)
    except (TypeError, NotImplementedError):
        return None

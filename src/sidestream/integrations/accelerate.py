"""Accelerate: `accelerator = asynchronous(Accelerator())`, and `prepare` does the rest.

What `prepare` makes of a DataLoader tells the accelerator, as it hands out batches, where the
epoch ends and how many samples its last batch lacks; gradient accumulation and
`gather_for_metrics` rest on that. A loader around it would let it speak batches early and in
another thread. So the loader goes *under* it, in the place of the DataLoader that it reads:

    your loop <- what prepare gives (end of epoch, counts) <- AsynchronousLoader <- DataLoader

Accelerate has no hook there. The accelerator's public method `prepare_data_loader`, through which
`prepare` goes, is replaced on the one instance; `tests/integrations/test_accelerate.py` fails
where that ground moves.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any, TypeVar

from sidestream.integrations import check_version, go_through, missing
from sidestream.loader import AsynchronousLoader

try:
    import accelerate
except ModuleNotFoundError as error:
    if error.name != "accelerate":
        raise
    raise missing("Accelerate", "accelerate") from None

AcceleratorT = TypeVar("AcceleratorT")


def asynchronous(accelerator: AcceleratorT, *, buffer_size: int = 2) -> AcceleratorT:
    """Let the loaders that an accelerator prepares from now on read and move in the background.

    Values, order, sharding, the end of an epoch as gradient accumulation sees it, and states are
    those of an accelerator without this. Batches go to the accelerator's device unless it was
    told not to place them. With `dispatch_batches` the main process alone reads.

    Args:
        accelerator: What prepares the loaders.
        buffer_size: How many batches may wait on the device [batches]. Accelerate looks one batch
            ahead, so one more than elsewhere is there.

    Returns:
        The same accelerator.
    """
    AsynchronousLoader((), "cpu", buffer_size=buffer_size)  # says what is wrong with it
    check_version("accelerate", accelerate.__version__)

    def prepare_data_loader(target: Any, prepare: Any, *args: Any, **kwargs: Any) -> Any:
        prepared = prepare(*args, **kwargs)
        _put_under(prepared, target.device, buffer_size)
        return prepared

    go_through(accelerator, "prepare_data_loader", prepare_data_loader)
    return accelerator


def _put_under(prepared: Any, device: Any, buffer_size: int) -> None:
    """Put an asynchronous loader where a prepared loader reads."""
    base = getattr(prepared, "__dict__", {}).get("base_dataloader")
    if base is None:
        warnings.warn(
            f"Accelerate gave a {type(prepared).__name__}, which reads from nothing that can be "
            "made asynchronous; it is left as it is",
            stacklevel=3,
        )
    elif type(base) is not _Under:
        # A shard without a device leaves its batches on the host; the dispatcher's are for
        # its process's device always.
        placed = getattr(prepared, "device", device)
        prepared.base_dataloader = _Under(base, placed or "cpu", buffer_size=buffer_size)


class _Under(AsynchronousLoader[Any]):
    """Stands where a DataLoader stood, and passes for one.

    Accelerate takes the class of a prepared loader from what it reads, and looks there for state
    methods, which must speak as those of the DataLoader do.
    """

    def __init__(self, base: Any, device: Any, *, buffer_size: int) -> None:
        self._is_stateful = hasattr(base, "state_dict")
        data = _Stating(base) if self._is_stateful else base
        super().__init__(data, device, buffer_size=buffer_size)
        self._base = base
        self._state: Any = None

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(vars(self)["_base"]) if "_base" in vars(self) else _Under

    def __iter__(self) -> Iterator[Any]:
        passed = super().__iter__()
        return self._batches(passed) if self._is_stateful else passed

    def _batches(self, passed: Iterator[Any]) -> Iterator[Any]:
        for batch, state in passed:
            self._state = state.inside
            yield batch
        self._state = None  # what the DataLoader says is of now

    @property
    def state_dict(self) -> Any:
        """The DataLoader's own method, answering for the batch given last; absent without one."""
        inner = self._base.state_dict
        return lambda: inner() if self._state is None else copy.deepcopy(self._state)

    @property
    def load_state_dict(self) -> Any:
        """The DataLoader's own method; absent without one."""
        load = self._base.load_state_dict

        def load_state_dict(state: Any) -> None:
            self.close()
            self._state = None
            load(state)

        return load_state_dict

    def __reduce__(self) -> Any:
        return _under_again, (self.__getstate__(),)


def _under_again(state: dict[str, Any]) -> _Under:
    loader = _Under.__new__(_Under)
    loader.__setstate__(state)
    return loader


class _Stating:
    """The batches of a DataLoader with a state, each with the state after it."""

    def __init__(self, base: Any) -> None:
        self._base = base

    def __iter__(self) -> Iterator[Any]:
        return _stating(iter(self._base), self._base.state_dict)

    def __len__(self) -> int:
        return len(self._base)

    def __getattr__(self, name: str) -> Any:
        if name == "_base":  # in the making of a copy
            raise AttributeError(name)
        return getattr(self._base, name)


def _stating(batches: Iterator[Any], state_dict: Any) -> Iterator[Any]:
    for batch in batches:
        # Copied: it may be a live object, which goes on with the reading.
        yield batch, _Hidden(copy.deepcopy(state_dict()))


class _Hidden:
    """Hides a state from the core, which would look for tensors in it to move."""

    __slots__ = ("inside",)

    def __init__(self, inside: Any) -> None:
        self.inside = inside

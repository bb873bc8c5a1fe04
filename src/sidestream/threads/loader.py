"""ThreadDataLoader: DataLoader's arguments, with threads for workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset, IterDataPipe, MapDataPipe, Sampler

from sidestream.threads.draws import Draws
from sidestream.threads.iterator import ThreadIterator
from sidestream.threads.memory import Blocks

SampleT = TypeVar("SampleT", covariant=True)


class ThreadDataLoader(DataLoader[SampleT]):
    """A DataLoader whose workers are threads, which collate straight into memory used again.

    Takes what `torch.utils.data.DataLoader` takes and gives the same batches in the same order.
    `num_workers` is the number of threads; with 0 it is a DataLoader. Samples are not pickled and
    not sent: with the default `collate_fn`, tensors and arrays in them are written into the
    batch's memory as each sample is made. That memory is used again once nobody holds any of it,
    so a batch that is kept, or a view of it, never changes. It is page-locked if an
    AsynchronousLoader with an accelerator reads the batches, or with `pin_memory`.

    Threads share the interpreter's lock. Decoding, resizing, reading files and numpy or torch work
    on large arrays let go of it; a `__getitem__` in plain Python does not, and needs processes.

    What differs from worker processes:
        Threads share the dataset, which must stand being read by several at once. An
        IterableDataset is copied (`copy.copy`) for each, so that attributes can be set apart.
        Threads share the global random numbers, so what a dataset draws from these differs from
        run to run; a RuntimeWarning says so. `get_worker_info().rng` has generators of the
        worker's own, seeded as the worker process would be.
        Errors come as themselves, with their traceback and a note, not as copies.

    Args:
        dataset: As for DataLoader, as are all arguments not named here. DataPipes are refused.
        num_workers: How many threads.
        timeout: How long to wait for one batch [s]; 0 for any time.
        multiprocessing_context: Must be None.
        prefetch_factor: How many batches each worker makes ahead [batches]; None for 2. Memory:
            at most `prefetch_factor * num_workers + 2` batches beside those that are kept.
        copy_dataset: Give each thread a deep copy of the dataset, for one that is not
            thread-safe. It takes as much memory each time, where the dataset is in memory.

    Raises:
        ValueError: As DataLoader; also for an argument that makes no sense for threads.

    Threads:
        Samplers are asked in the thread that calls `iter` and `next`. The workers' threads end
        with the iterator, or with the loader if `persistent_workers`.

    Example:
        >>> import torch
        >>> from sidestream import ThreadDataLoader
        >>> loader = ThreadDataLoader(torch.arange(6), batch_size=3, num_workers=2)
        >>> [batch.tolist() for batch in loader]
        [[0, 1, 2], [3, 4, 5]]
    """

    def __init__(  # noqa: PLR0913 - the arguments of DataLoader
        self,
        dataset: Dataset[SampleT],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: None = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        copy_dataset: bool = False,
    ) -> None:
        if multiprocessing_context is not None:
            raise ValueError(
                f"multiprocessing_context is {multiprocessing_context!r}: a ThreadDataLoader "
                "starts no process; leave it out, or use a DataLoader"
            )
        if isinstance(dataset, (IterDataPipe, MapDataPipe)):
            raise ValueError(
                f"dataset is a {type(dataset).__name__}: DataPipes are split among processes, "
                "not threads; use a DataLoader"
            )
        self.copy_dataset = copy_dataset
        self._draws = Draws()
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            None,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )

    def check_worker_number_rationality(self) -> None:
        """Say nothing: threads that wait for files may well be more than the processors."""

    def _get_iterator(self) -> Any:
        return ThreadIterator(self) if self.num_workers else super()._get_iterator()

    @property
    def _memory(self) -> Blocks:
        """What the passes of this loader have in common; not copied and not pickled."""
        if "_blocks" not in vars(self):
            # Those made ahead, the one handed out, and the one before, which a loop still names.
            self._blocks = Blocks((self.prefetch_factor or 0) * self.num_workers + 2)
        return self._blocks

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in vars(self).items() if name != "_blocks"}
        return {**state, "_iterator": None}

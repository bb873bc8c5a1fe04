"""The contract holds for every source: `pytest tests/contract --source threads` shows it for one.

There each source of a test is read by a ThreadDataLoader, which the AsynchronousLoader gets.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import DataLoader, IterableDataset

import sidestream.loader
from sidestream import ThreadDataLoader


class Passing(IterableDataset):
    """Any iterable of batches as a dataset."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        return iter(self.source)


class Sized(Passing):
    def __len__(self) -> int:
        return len(self.source)


def as_it_is(batch: Any) -> Any:
    return batch


def in_threads(source: Any) -> Any:
    """The same batches, made by threads."""
    if isinstance(source, DataLoader):
        if type(source) is not DataLoader or source.num_workers:
            return source
        names = ("collate_fn", "drop_last", "generator", "pin_memory", "worker_init_fn")
        options = {name: getattr(source, name) for name in names}
        if isinstance(source.dataset, IterableDataset):
            options["batch_size"] = source.batch_size
            return ThreadDataLoader(source.dataset, num_workers=1, **options)
        if source.batch_size is None and source.batch_sampler is not None:
            options["batch_sampler"] = source.batch_sampler
        else:
            options |= {"batch_size": source.batch_size, "sampler": source.sampler}
        return ThreadDataLoader(source.dataset, num_workers=2, **options)
    kind = Sized if hasattr(type(source), "__len__") else Passing
    if isinstance(source, list):
        return ThreadDataLoader(source, batch_size=None, num_workers=2, collate_fn=as_it_is)
    return ThreadDataLoader(kind(source), batch_size=None, num_workers=1, collate_fn=as_it_is)


# What cannot hold when threads read ahead of the loader, as a DataLoader with workers also would:
# these tests are left out, by name, with the reason.
AHEAD = "counts what is read, or when, or by which thread: threads read ahead of the loader"
ONE_SHOT = "a one-shot iterator is no dataset: what its reader has taken is gone with the reader"
BUFFER = "the source fills one buffer again while the threads read ahead of the loader"
SHARED = (
    "the dataset is for one thread at a time, or draws from a generator that all threads share"
)
ITSELF = "is about the source's own class, attributes or methods, and there is another in between"
AFTER = "an error does not end a DataLoader's pass, nor the reading of the next batches"
DEFAULT = "a DataLoader cannot draw its seed under a default device that has no values"
OPENED = "a worker calls iter() of an iterable dataset, so its error comes with the first batch"
LEFT_OUT = {
    "test_attributes.py": ITSELF,
    "test_one_shot.py": ONE_SHOT,
    "test_read_ahead.py": AHEAD,
    "test_reused_buffers.py": BUFFER,
    "test_mended.py": BUFFER,
    "test_leak_check.py": ITSELF,
    "test_length.py": ITSELF,
    "test_resume.py": "a position in the source's own iterator: the source is another one here",
    "test_randomness.py": SHARED,
    "test_randomness_sources.py": SHARED,
    "test_thread_collation.py": ITSELF,
    "test_thread_dataloader.py": ITSELF,
    "test_an_array_that_is_filled_again_shows_each_value_in_time": BUFFER,
    "test_a_source_that_reuses_its_buffer_shows_each_value_in_time": BUFFER,
    "test_thread_resume.py": ITSELF,
    "test_close_frees_the_batches_that_wait": AHEAD,
    "test_close_while_the_thread_waits_for_room": AHEAD,
    "test_the_source_may_close_the_loader_that_reads_it": AHEAD,
    "test_no_two_threads_are_in_the_dataset_of_four_passes_at_once": SHARED,
    "test_no_two_threads_are_in_the_dataset_over_200_early_breaks": SHARED,
    "test_a_pass_does_not_touch_the_random_state_of_a_source_that_draws_nothing": SHARED,
    "test_nothing_is_read_between_iter_and_the_first_next": AHEAD,
    "test_time_in_the_loop_is_waited_for_room": AHEAD,
    "test_all_reads_but_the_first_come_from_one_thread": AHEAD,
    "test_without_a_buffer_all_reads_come_from_the_caller": AHEAD,
    "test_what_is_no_iterable_once_iterated_raises_type_error_in_iter": AHEAD,
    "test_an_error_in_iter_of_the_source_is_raised_by_iter": OPENED,
    "test_stop_iteration_out_of_iter_of_the_source_is_raised_as_in_a_plain_loop": OPENED,
    "test_an_error_in_every_pass_is_raised_in_every_pass": AFTER,
    "test_an_error_read_ahead_is_not_raised_before_its_place_nor_after_a_break": AFTER,
    "test_errors_in_two_passes_at_once_go_to_their_own_consumer": AFTER,
    "test_nothing_is_read_after_an_error": AFTER,
    "test_the_source_sees_the_caller_s_state_in_every_batch": DEFAULT,
    "test_the_caller_s_state_is_untouched_by_a_pass": DEFAULT,
    "test_a_transform_sees_the_caller_s_state_in_every_batch": DEFAULT,
    "test_the_state_of_the_thread_that_called_iter_counts": DEFAULT,
    "test_moved_tensors_have_the_flags_of_a_plain_move": DEFAULT,
    "test_a_default_device_does_not_decide_where_batches_go": DEFAULT,
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--source") == "threads":
        out = [
            item
            for item in items
            if {item.path.name, getattr(item, "originalname", "")} & LEFT_OUT.keys()
            or "self-resetting" in item.name  # AHEAD, too: all its passes are the same object
        ]
        items[:] = [item for item in items if item not in set(out)]
        config.hook.pytest_deselected(items=out)


@pytest.fixture(autouse=True)
def _source(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.config.getoption("--source") == "threads":
        given = sidestream.loader._as_iterable
        monkeypatch.setattr(
            sidestream.loader, "_as_iterable", lambda *arguments: in_threads(given(*arguments))
        )

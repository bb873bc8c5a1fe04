"""Public reports about counts, ends and read-ahead; README.md lists all."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

from sidestream import AsynchronousLoader
from support.process import run
from support.sources import Counting, NonReentrant, SelfResetting, numbers, plain
from support.waiting import loader_threads, wait_until, wait_until_blocked

LENGTH = 5


@pytest.mark.parametrize("ending", ["pass over", "break", "close"])
@pytest.mark.parametrize("buffer_size", [1, 2, 10])
def test_R04_a_new_pass_touches_nothing_handed_out_in_the_one_before(
    ending: str, buffer_size: int
) -> None:
    ring = [torch.zeros(2) for _ in range(3)]

    class Source:
        def __iter__(self) -> Any:
            for number in range(20):
                tensor = torch.full((4,), float(number)) if number % 2 else ring[number % 3]
                yield tensor.fill_(number), number

    loader = AsynchronousLoader(Source(), "cpu", buffer_size=buffer_size)
    kept = []
    for batch in loader:
        kept.append((batch[0], batch[0].clone(), batch[1]))
        kept = [one for one in kept if one[2] % 2][-(buffer_size + 2) :]
        if ending == "break" and batch[1] == 15:
            break
    assert len(list(loader)) == 20
    if ending == "close":
        loader.close()
    assert all(tensor.tolist() == copy.tolist() == [n] * 4 for tensor, copy, n in kept)


@pytest.mark.parametrize("taken", [0, 1, LENGTH - 1, LENGTH, LENGTH + 1])
def test_R18_every_epoch_is_full_however_many_batches_were_taken(
    taken: int, buffer_size: int, device: str
) -> None:
    data = DataLoader(TensorDataset(torch.arange(10)), batch_size=2)
    loader = AsynchronousLoader(data, device, buffer_size=buffer_size)
    for _ in range(5):
        iterator = iter(loader)
        counts = [
            len(list(itertools.islice(iterator, taken))),
            len(list(zip(loader, range(len(loader)), strict=False))),
        ]
        for index, _batch in enumerate(loader):
            if index == len(loader) - 1:
                break
        assert counts == [min(taken, LENGTH), LENGTH]
        assert index == LENGTH - 1


def test_R20_no_value_is_a_signal(buffer_size: int, device: str) -> None:
    source = [None, 0, False, (), {}, torch.empty(0, 3, device=device), "", None]
    loader = AsynchronousLoader(source, device, buffer_size=buffer_size)
    got = list(loader)
    assert len(got) == len(source)
    for one, other in zip(got, source, strict=True):
        assert one is other or one == other


class NoItems(IterableDataset):
    def __iter__(self) -> Any:
        return iter(())


@pytest.mark.parametrize("kind", ["list", "DataLoader", "stream"])
def test_R20_an_empty_source_gives_nothing(kind: str, buffer_size: int, device: str) -> None:
    source = {
        "list": list,
        "DataLoader": lambda: DataLoader(range(3), batch_size=4, drop_last=True),
        "stream": lambda: DataLoader(NoItems(), batch_size=2),
    }[kind]()
    loader = AsynchronousLoader(source, device, buffer_size=buffer_size)
    assert [list(loader) for _ in range(3)] == [[], [], []]
    assert loader_threads() == []


def test_R22_one_iterator_object_for_ever_serves_every_epoch(
    buffer_size: int, device: str
) -> None:
    loader = AsynchronousLoader(SelfResetting(4), device, buffer_size=buffer_size)
    assert [numbers(loader) for _ in range(3)] == [[0, 1, 2, 3]] * 3
    stream = AsynchronousLoader((batch for batch in plain(4)), device, buffer_size=buffer_size)
    assert [numbers(stream) for _ in range(3)] == [[0, 1, 2, 3], [], []]


def test_R22_persistent_workers_serve_every_epoch() -> None:
    data = DataLoader(range(8), batch_size=2, num_workers=1, persistent_workers=True)
    loader = AsynchronousLoader(data, "cpu")
    for taken in (4, 2, 4):
        got = [batch.tolist() for batch in itertools.islice(iter(loader), taken)]
        assert got == [[0, 1], [2, 3], [4, 5], [6, 7]][:taken]
    del data, loader


@pytest.mark.parametrize("buffer_size", [1, 2, 9])
def test_R23_read_ahead_is_bounded_by_a_stated_number(buffer_size: int, device: str) -> None:
    source = Counting(None)
    iterator = iter(AsynchronousLoader(source, device, buffer_size=buffer_size))
    assert source.reads == 0
    for delivered in (1, 2, 3):
        next(iterator)
        ahead = delivered + buffer_size + 1
        wait_until(lambda: source.reads == ahead, "it has read ahead")  # noqa: B023
        wait_until_blocked(loader_threads()[0])
        assert source.reads == ahead


def test_R23_a_limit_of_one_batch_reads_one(device: str) -> None:
    source = Counting(None)
    loader = AsynchronousLoader(source, device, buffer_size=10, num_batches=1)
    assert numbers(loader) == [0]
    assert source.reads == 1


@pytest.mark.parametrize("rank", [0, 1])
def test_R40_set_epoch_reaches_the_sampler_through_the_loader(rank: int) -> None:
    def make() -> Any:
        data = TensorDataset(torch.arange(20))
        return DataLoader(
            data, batch_size=5, sampler=DistributedSampler(data, num_replicas=2, rank=rank)
        )

    reference, loader = make(), AsynchronousLoader(make(), "cpu")
    orders = []
    for epoch in range(3):
        reference.sampler.set_epoch(epoch)
        loader.sampler.set_epoch(epoch)
        orders.append([batch.tolist() for (batch,) in loader])
        assert orders[-1] == [batch.tolist() for (batch,) in reference]
    assert orders[0] != orders[1] != orders[2]
    assert not hasattr(loader, "no_such")


def test_R42_which_thread_reads_is_constant_and_uneven_ranks_end_on_their_own(
    tmp_path: Path,
) -> None:
    """Two processes with a collective in the loop, and five batches against six."""
    run(
        f"""
        file = {str(tmp_path / "store")!r}
        import torch.distributed as dist
        source = Counting(6)
        list(AsynchronousLoader(source, "cpu"))
        main = threading.get_ident()
        say(source.next_threads[0] == main, len(set(source.next_threads[1:])))

        child = os.fork()
        rank = int(child == 0)
        dist.init_process_group("gloo", init_method="file://" + file, rank=rank, world_size=2)
        count = 0
        for _ in AsynchronousLoader(plain(5 + rank), "cpu"):
            count += 1
            if count <= 5:
                dist.all_reduce(torch.ones(1))
        assert count == 5 + rank
        dist.barrier()
        dist.destroy_process_group()
        if rank == 1:
            os._exit(0)
        say(os.waitpid(child, 0)[1], count)
        """,
        limit_s=25,
    ).assert_clean("True 1", "0 5")


@pytest.mark.parametrize("buffer_size", [0, 1, 2])
def test_R60_one_thread_at_a_time_is_in_the_dataset(buffer_size: int) -> None:
    dataset = NonReentrant(12)
    loader = AsynchronousLoader(
        DataLoader(dataset, batch_size=None), "cpu", buffer_size=buffer_size
    )
    for turn in range(200):
        for _, number in loader:
            if number == turn % 5:
                break
    assert dataset.overlaps == 0
    one, other = iter(loader), iter(loader)
    assert [next(one)[1], next(other)[1]] == [0, 0]
    assert numbers(one) == numbers(other) == list(range(1, 12))
    assert dataset.overlaps == 0

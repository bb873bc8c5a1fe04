"""What an attack on the loader once broke, each in a few lines."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

import sidestream.channel
from sidestream import AsynchronousLoader
from sidestream.channel import Channel
from support.waiting import Worker


def test_a_lost_wake_up_is_made_good_by_the_next_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Ctrl-C may fall between giving room back and waking who waits for it."""
    channel: Channel[int] = Channel(1)
    assert channel.reserve()
    channel.put(0)
    producer = Worker(channel.reserve)
    assert channel.take() == 0
    with monkeypatch.context() as patch:
        patch.setattr(sidestream.channel, "_wake", lambda side: None)
        channel.release()
    consumer = Worker(channel.take)
    assert producer.result() is True
    channel.put(1)
    assert consumer.result() == 1


class Fails:
    def __iter__(self) -> Any:
        yield 0
        raise OSError("gone")


def test_an_exception_from_outside_does_not_take_the_place_of_the_sources(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    iterator = iter(AsynchronousLoader(Fails(), "cpu"))
    assert next(iterator) == 0
    epoch = iterator._epoch
    close = epoch.close

    def interrupted(*arguments: Any, **options: Any) -> None:
        monkeypatch.setattr(epoch, "close", close)
        raise KeyboardInterrupt

    monkeypatch.setattr(epoch, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    with pytest.raises(OSError, match="gone"):
        next(iterator)
    assert list(iterator) == []


def test_a_source_may_ask_for_the_state_of_its_loader() -> None:
    class Asks:
        loader: AsynchronousLoader[Any]

        def __iter__(self) -> Any:
            return iter([self.ask(number) for number in range(3)])

        def __len__(self) -> int:
            return 3

        def ask(self, number: int) -> int:
            assert self.loader.state_dict()["num_batches"] >= 0
            return number

    source = Asks()
    source.loader = AsynchronousLoader(source, "cpu")
    passes = [Worker(list, source.loader) for _ in range(3)]
    assert [one.result() for one in passes] == [[0, 1, 2]] * 3


def test_statistics_may_be_asked_for_while_they_are_added_to() -> None:
    loader = AsynchronousLoader([1], "cpu")
    with loader._run_here().recorder._lock:
        assert loader.statistics().num_batches == 0


@pytest.mark.parametrize("container", [dict, list])
def test_a_source_that_fills_one_container_again(container: type) -> None:
    def source() -> Any:
        one = container([("x", 0)]) if container is dict else [0]
        for number in range(12):
            one["x" if container is dict else 0] = number
            yield one

    gate = threading.Event()
    seen = []
    for batch in AsynchronousLoader(source(), "cpu", buffer_size=2):
        gate.wait(0.002)  # let the thread read ahead; nothing depends on how far it gets
        seen.append(batch["x" if container is dict else 0])
    assert seen == list(range(12))


def test_numpys_other_generators_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    numpy = pytest.importorskip("numpy")
    before = numpy.random.get_bit_generator()
    numpy.random.set_bit_generator(numpy.random.PCG64(1))
    try:
        data = torch.utils.data.DataLoader(range(4), batch_size=2)
        assert [batch.tolist() for batch in AsynchronousLoader(data, "cpu")] == [[0, 1], [2, 3]]
    finally:
        numpy.random.set_bit_generator(before)

"""Hazard H3 where no next hand-over looks after a batch: it is kept over the loader's close."""

import torch

from sidestream import AsynchronousLoader, release
from support.steps import Checks, batches


def keep_over_close(simulator):
    """A batch used on a stream of its own, kept over the close, and dropped before its work ran.

    The next pass is begun on another stream, so that nothing but the allocator knows of that work.
    """
    checks = Checks()
    loader = AsynchronousLoader(batches(3), "sim", buffer_size=1)
    default = torch.accelerator.current_stream()
    iterator = iter(loader)
    torch.accelerator.set_stream(torch.Stream(device="sim"))
    try:
        batch = next(iterator)
        simulator.delay(2e-2)
        checks.add(batch, 0)
    finally:
        torch.accelerator.set_stream(default)
    loader.close()
    del batch
    for number, batch in enumerate(loader):
        checks.add(batch, number)
    wrong = checks.wrong()
    assert len(checks) == 4
    return wrong, simulator.races()


def test_h3_the_streams_of_a_kept_batch_are_known_to_the_allocator(simulator):
    assert keep_over_close(simulator) == (0, [])


def test_h3_without_telling_the_allocator_it_is_reported(simulator, monkeypatch):
    monkeypatch.setattr(release, "_record_use", lambda storages, streams: None)
    _, races = keep_over_close(simulator)
    assert races

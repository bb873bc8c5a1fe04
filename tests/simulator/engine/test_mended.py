"""What an attack on the loader once broke on a device with streams, each in a few lines."""

import pytest
import torch

from sidestream import AsynchronousLoader
from support.steps import batches


def test_autocast_does_not_change_what_is_packed(simulator):
    source = [[torch.ones(3, dtype=torch.float16), torch.ones(5, dtype=torch.float16)]] * 3
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for batch in AsynchronousLoader(source, "sim"):
            assert [tensor.dtype for tensor in batch] == [torch.float16] * 2
            assert batch[1].tolist() == [1.0] * 5


def test_packed_tensors_of_two_types_share_no_storage(simulator):
    ((x, y),) = AsynchronousLoader([(torch.ones(4), torch.ones(4, dtype=torch.int64))], "sim")
    assert x.untyped_storage().data_ptr() != y.untyped_storage().data_ptr()


def test_a_refused_allocation_leaves_the_loader_usable(simulator, monkeypatch):
    real = torch.empty

    def refuse(*arguments, pin_memory=False, **options):
        if pin_memory:
            raise RuntimeError("refused")
        return real(*arguments, **options)

    loader = AsynchronousLoader(batches(4, 100_000), "sim")
    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", refuse)
        with pytest.raises(RuntimeWarning, match="refused"):  # warnings are errors here
            list(loader)
    assert [batch[0].item() for batch in loader] == [0, 1, 2, 3]


def test_memory_of_dropped_batches_is_found_again_after_running_out(simulator):
    torch.accelerator.synchronize()
    torch.accelerator.empty_cache()
    size = 4 << 20
    loader = AsynchronousLoader(batches(12, size), "sim")
    room = torch.accelerator.memory_reserved() + 6 * size
    with simulator.settings(memory_bytes=room):
        kept = []
        with pytest.raises(torch.OutOfMemoryError):
            kept.extend(loader)
        kept.clear()
        assert sum(1 for _ in loader) == 12


class Hides:
    def __init__(self, tensor):
        self.tensor = tensor


def test_what_a_transform_hides_in_an_object_is_as_safe(simulator):
    totals = []
    with simulator.settings(kernel_s=1e-3):
        for hidden in AsynchronousLoader(batches(12), "sim", transform=lambda b: Hides(b + 1)):
            totals.append(hidden.tensor.max())
            del hidden
    assert [total.item() for total in totals] == [number + 1 for number in range(12)]
    assert simulator.races() == []


def test_a_transform_may_iterate_its_own_loader(simulator):
    class Once:
        inner = True

    def transform(batch):
        if Once.inner:
            Once.inner = False
            assert len(list(loader)) == 4
        return batch

    loader = AsynchronousLoader(batches(4, 100_000), "sim", transform=transform)
    assert len(list(loader)) == 4

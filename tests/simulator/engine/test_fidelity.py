"""What comes out is what `tensor.to(device)` gives: value, type, shape, strides, flags."""

import random

import pytest
import torch

from sidestream import AsynchronousLoader

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128,
    torch.float8_e4m3fn, torch.uint16,
]  # fmt: skip


def tensor(draw):
    """A tensor of any type, shape and layout; some above the limit for packing."""
    dtype = draw.choice(DTYPES)
    if draw.random() < 0.1:
        shape = [draw.choice([20_000, 70_000, 300_001])]
    else:
        shape = [draw.choice([0, 1, 2, 3, 5, 8, 33]) for _ in range(draw.randint(0, 4))]
    made = torch.randn(shape, dtype=dtype if dtype.is_complex else torch.float32) * 50
    made = made.to(dtype)
    way = draw.random()
    if way < 0.2 and made.dim() > 1:
        return made.transpose(0, -1)
    if way < 0.3 and made.dim() > 0:
        return made[::2]
    if way < 0.4:
        return made.expand(3, *made.shape)
    if way < 0.5 and made.dim() == 4 and made.numel():
        return made.contiguous(memory_format=torch.channels_last)
    if way < 0.6 and dtype.is_complex:
        return made.conj()
    if way < 0.7 and made.dim() > 1 and made.numel() > 4:
        return made.flatten()[1:]
    if way < 0.75:
        return made.pin_memory()
    return made


def raw_bytes(tensor):
    """The values on the host, as bytes, so that NaN equals NaN."""
    host = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.cpu().resolve_conj())
    return host.flatten().view(torch.uint8).tolist() if host.numel() else []


@pytest.mark.parametrize("seed", range(8))
def test_tensors_come_out_as_to_gives_them(simulator, seed):
    draw = random.Random(seed)
    torch.manual_seed(seed)
    source = [[tensor(draw) for _ in range(draw.randint(0, 14))] for _ in range(30)]
    compared = 0
    for given, got in zip(source, AsynchronousLoader(source, "sim"), strict=True):
        for one, other in zip(given, got, strict=True):
            want = one.to("sim")
            assert (other.dtype, other.shape, other.stride()) == (
                want.dtype, want.shape, want.stride()
            )  # fmt: skip
            assert (other.device, other.is_conj(), other.requires_grad, other.is_leaf) == (
                want.device, want.is_conj(), want.requires_grad, want.is_leaf
            )  # fmt: skip
            assert other.data_ptr() % 16 == 0
            assert raw_bytes(other) == raw_bytes(want)
            compared += 1
    assert compared > 100
    assert simulator.races() == []


@pytest.mark.parametrize("size", [1, 1000, 8 << 20, (8 << 20) + 1, 20_000_003])
def test_large_tensors_survive_their_chunks(simulator, size):
    given = torch.arange(size, dtype=torch.int64).to(torch.uint8)
    (got,) = AsynchronousLoader([given], "sim")
    assert torch.equal(got.cpu(), given)


def test_slots_grow_to_the_largest_batch_and_are_used_again(simulator):
    sizes = [10, 3_000_000, 100_000, 1_000_001, 20, 3_000_000, 2_500_000, 1]
    source = [torch.full((size,), float(size)) for size in sizes]
    loader = AsynchronousLoader(source, "sim", buffer_size=1)
    for _ in range(2):
        for given, got in zip(source, loader, strict=True):
            assert torch.equal(got.cpu(), given)


def test_many_small_tensors_across_the_blocks_of_a_slot(simulator):
    source = [[torch.full((200 + i,), float(i)) for i in range(n)] for n in (1, 37, 150, 333)]
    loader = AsynchronousLoader(source, "sim", buffer_size=1)
    for given, got in zip(source, loader, strict=True):
        for one, other in zip(given, got, strict=True):
            assert torch.equal(other.cpu(), one)


def test_modes_of_the_caller_decide_what_kind_of_tensor_comes_out(simulator):
    source = [[torch.ones(4), torch.ones(100_000)]]
    with torch.inference_mode():
        (inside,) = AsynchronousLoader(source, "sim")
    (outside,) = AsynchronousLoader(source, "sim")
    assert [tensor.is_inference() for tensor in inside] == [True, True]
    assert [tensor.is_inference() for tensor in outside] == [False, False]
    loader = AsynchronousLoader(source * 8, "sim", buffer_size=1)
    with torch.inference_mode():
        list(loader)
    assert not any(tensor.is_inference() for batch in loader for tensor in batch)


def test_tensors_in_a_graph_stay_linked_to_it(simulator):
    leaf = torch.ones(4, requires_grad=True)
    (moved,) = AsynchronousLoader([leaf * 2], "sim")
    moved.sum().backward()
    assert leaf.grad.tolist() == [2.0] * 4
    with torch.no_grad():
        (moved,) = AsynchronousLoader([leaf], "sim")
    assert not moved.requires_grad


def test_a_transform_runs_after_the_transfer_and_is_as_safe(simulator):
    source = [torch.full((300_000,), i, dtype=torch.uint8) for i in range(12)]

    def normalise(batch):
        assert batch.device.type == "sim"
        return batch.to(torch.float32).div_(2)

    results = []
    with simulator.settings(kernel_s=1e-3):
        for batch in AsynchronousLoader(source, "sim", transform=normalise):
            results.append((batch.max(), batch.min()))
            del batch
    assert [(high.item(), low.item()) for high, low in results] == [
        (i / 2, i / 2) for i in range(12)
    ]
    assert simulator.races() == []


class Boxed:
    """Keeps its tensor to itself and moves it."""

    def __init__(self, tensor):
        self._inner = [tensor]

    def to(self, device):
        return Boxed(self._inner[0].to(device))

    def total(self):
        return self._inner[0].sum()


@pytest.mark.parametrize("transform", [None, lambda box: Boxed(box._inner[0] * 1.0)])
def test_objects_that_move_themselves_are_as_safe(simulator, transform):
    source = [Boxed(torch.full((100_000,), float(i))) for i in range(12)]
    totals = []
    with simulator.settings(kernel_s=1e-3):
        for box in AsynchronousLoader(source, "sim", transform=transform):
            totals.append(box.total())
            del box
    assert [total.item() for total in totals] == [100_000.0 * i for i in range(12)]
    assert simulator.races() == []


def test_a_transform_that_makes_objects_out_of_tensors_is_as_safe(simulator):
    source = [torch.full((100_000,), float(i)) for i in range(12)]
    totals = []
    with simulator.settings(kernel_s=1e-3):
        for box in AsynchronousLoader(source, "sim", transform=lambda batch: Boxed(batch + 1)):
            totals.append(box.total())
            del box
    assert [total.item() for total in totals] == [100_000.0 * (i + 1) for i in range(12)]
    assert simulator.races() == []


def test_an_error_on_the_way_names_the_place_in_the_batch(simulator):
    class Refuses:
        def to(self, device):
            raise RuntimeError(f"will not go to {device}")

    iterator = iter(AsynchronousLoader([torch.ones(2), {"a": [torch.ones(2), Refuses()]}], "sim"))
    next(iterator)
    with pytest.raises(RuntimeError, match="will not go to sim:0") as caught:
        next(iterator)
    assert any('batch["a"][1]' in note for note in caught.value.__notes__)


def test_out_of_memory_is_an_error_and_not_the_end(simulator):
    loader = AsynchronousLoader([torch.ones(4), torch.ones(1 << 20), torch.ones(4)], "sim")
    torch.accelerator.empty_cache()
    with simulator.settings(memory_bytes=1 << 20):
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(torch.OutOfMemoryError):
            next(iterator)
    assert len(list(loader)) == 3

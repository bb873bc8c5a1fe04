"""Tensors on the device give what tensors on the CPU give."""

import copy
import io
import pickle

import pytest
import torch

pytestmark = pytest.mark.simulated_accelerator

ACC = torch.accelerator
F = torch.nn.functional


def same(on_device, on_cpu):
    torch.testing.assert_close(on_device.cpu(), on_cpu, atol=1e-5, rtol=1e-5, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
@pytest.mark.parametrize("layout", ["plain", "transposed", "expanded", "strided"])
def test_copies_of_every_layout_and_dtype(layout, dtype):
    source = {
        "plain": torch.randn(8, 6),
        "transposed": torch.randn(6, 8).t(),
        "expanded": torch.randn(8, 1).expand(8, 6),
        "strided": torch.randn(8, 12)[:, ::2],
    }[layout]
    there = torch.empty(8, 6, dtype=dtype, device="sim")
    there.copy_(source, non_blocking=True)
    same(there, source.to(dtype))
    turned = torch.empty(6, 8, dtype=dtype, device="sim").t()
    turned.copy_(source)
    same(turned, source.to(dtype))
    back = torch.empty(8, 12)[:, ::2]
    back.copy_(turned)
    assert torch.equal(back, source.to(dtype).float())


def test_broadcast_conjugate_and_empty_copies():
    there = torch.empty(4, 3, device="sim")
    there.copy_(torch.ones(3))
    same(there, torch.ones(4, 3))
    z = torch.randn(3, dtype=torch.complex64)
    same(z.conj().to("sim"), z.conj().resolve_conj())
    assert torch.empty(0, 3).to("sim").cpu().shape == (0, 3)


def test_copies_between_devices_are_ordered_with_both(simulator):
    x = torch.arange(5.0, device="sim:0")
    y = x.to("sim:1", non_blocking=True)
    assert y.device.index == 1
    same(y + 1, torch.arange(5.0) + 1)
    assert simulator.races() == []


def test_blocking_rules_are_those_of_cuda(simulator):
    """Pageable copies block, page-locked ones with non_blocking=True do not."""
    events = {}
    with simulator.settings(copy_s=0.05):
        for name, host in (("pageable", torch.ones(9)), ("pinned", torch.ones(9).pin_memory())):
            x = host.to("sim", non_blocking=True)
            event = ACC.current_stream().record_event()
            stream_was_idle = ACC.current_stream().query()
            events[name] = stream_was_idle
            event.synchronize()
            assert x.sum().item() == 9
    assert not events["pinned"]
    back = x.to("cpu", non_blocking=True)
    assert back.is_pinned()
    ACC.synchronize()
    assert back.sum().item() == 9


def test_foreach_and_storage_copies_from_pinned_memory_are_asynchronous(simulator):
    hosts = [torch.full((1000,), i + 1.0).pin_memory() for i in range(3)]
    there = [torch.empty(1000, device="sim") for _ in hosts]
    storage = torch.UntypedStorage(4000, device="sim")
    ACC.synchronize()
    with simulator.settings(copy_s=0.05):
        torch._foreach_copy_(there, hosts, non_blocking=True)
        storage.copy_(hosts[2].untyped_storage(), non_blocking=True)
        assert not ACC.current_stream().query()
    assert [t.sum().item() for t in there] == [1000, 2000, 3000]
    same(torch.empty(0, device="sim").set_(storage), hosts[2].clone())


VIEWS = {
    "unfold": lambda t: t.unfold(1, 3, 2),
    "dtype": lambda t: t.view(torch.int32),
    "narrower dtype": lambda t: t.view(torch.float16),
    "complex": lambda t: torch.view_as_complex(t.view(4, 3, 2)).real,
    "select": lambda t: t[1:, 2],
    "split": lambda t: t.split(2)[1],
    "unbind": lambda t: t.unbind(1)[3],
    "diagonal": lambda t: t.diagonal(),
    "movedim": lambda t: t.movedim(0, 1),
    "step": lambda t: t.view(-1)[::5],
    "expand": lambda t: t.expand(2, 4, 6),
    "reshape": lambda t: t.t().reshape(4, 6),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views(name):
    c = torch.randn(4, 6)
    same(VIEWS[name](c.to("sim")), VIEWS[name](c))


OPERATORS = {
    "boolean mask": lambda t: t[t > 0],
    "nonzero": lambda t: (t > 0).nonzero(),
    "unique": torch.unique,
    "masked_fill": lambda t: t.masked_fill(t > 0, 0.0),
    "index": lambda t: t[torch.tensor([2, 0])],
    "where": lambda t: torch.where(t > 0, t, -t),
    "sort": lambda t: t.sort(1)[0],
    "topk": lambda t: t.topk(2)[1],
    "cat": lambda t: torch.cat([t, t]),
    "stack": lambda t: torch.stack([t, t]),
    "gather": lambda t: t.gather(1, (t > 0).long()),
    "scatter": lambda t: torch.zeros_like(t).scatter_(1, (t > 0).long(), t),
    "cumsum": lambda t: t.cumsum(0),
    "max": lambda t: t.max(1)[1],
    "std": lambda t: t.std(),
    "einsum": lambda t: torch.einsum("ij,kj->ik", t, t),
    "one_hot": lambda t: F.one_hot((t > 0).long()),
    "flip": lambda t: t.flip(0),
    "qr": lambda t: torch.linalg.qr(t)[1].abs(),
    "bincount": lambda t: torch.bincount((t > 0).long().view(-1)),
    "foreach": lambda t: torch._foreach_mul(torch._foreach_add([t, t], 1.0), 2.0)[1],
    "cpu scalar": lambda t: t * torch.tensor(2.0),
    "vmap": lambda t: torch.func.vmap(lambda row: row.sum())(t),
    "func.grad": lambda t: torch.func.grad(lambda x: (x**2).sum())(t),
    "compile": lambda t: torch.compile(lambda x: x * 2 + 1, backend="eager")(t),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name):
    c = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    same(OPERATORS[name](c.to("sim")), OPERATORS[name](c))


def test_indexed_assignment():
    c = torch.randn(5, 4)
    x = c.to("sim")
    for t in (c, x):
        t[torch.tensor([2, 0]).to(t.device)] = 1.0
        t[t > 0.5] = 3.0
    same(x, c)


def test_factories_on_the_default_device():
    with torch.device("sim"):
        made = [
            torch.empty(2),
            torch.arange(3),
            torch.eye(2),
            torch.tensor([1, 2]),
            torch.randn(2),
        ]
    assert {t.device.type for t in made} == {"sim"}


def test_scalars_and_text():
    x = torch.arange(3, device="sim")
    assert (x[1].item(), bool(x[1]), x.tolist(), list(map(int, x))) == (
        1,
        True,
        [0, 1, 2],
        [0, 1, 2],
    )
    assert repr(x) == "tensor([0, 1, 2], device='sim:0')"


def test_copying_pickling_saving():
    x = torch.arange(3.0, device="sim:1")
    for y in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert y.device == x.device
        assert y.data_ptr() != x.data_ptr()
        same(y, torch.arange(3.0))
    file = io.BytesIO()
    torch.save({"x": x}, file)
    for target in (None, "cpu", "sim:0"):
        file.seek(0)
        loaded = torch.load(file, map_location=target)["x"]
        assert loaded.device == torch.device(target or "sim:1")
        same(loaded, torch.arange(3.0))


def test_random_numbers_are_reproducible_and_independent_of_timing(simulator):
    def draw():
        torch.manual_seed(3)
        return (
            torch.randn(5, device="sim"),
            torch.rand(5, device="sim:1"),
            F.dropout(torch.ones(1000, device="sim"), 0.5),
        )

    first = draw()
    with simulator.settings(kernel_s=0.001):
        second = draw()
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a.cpu(), b.cpu())
    generator = torch.Generator("sim").manual_seed(1)
    a = torch.randn(3, device="sim", generator=generator)
    assert not torch.equal(a.cpu(), torch.randn(3, device="sim", generator=generator).cpu())
    generator.manual_seed(1)
    assert torch.equal(a.cpu(), torch.randn(3, device="sim", generator=generator).cpu())
    with torch.random.fork_rng(devices=[0, 1], device_type="sim"):
        inside = torch.randn(2, device="sim")
    assert torch.equal(inside.cpu(), torch.randn(2, device="sim").cpu())


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_loader_pins_its_batches(workers):
    data = torch.utils.data.TensorDataset(torch.arange(64.0).view(16, 4))
    context = "fork" if workers else None
    loader = torch.utils.data.DataLoader(
        data, 4, pin_memory=True, num_workers=workers, multiprocessing_context=context
    )
    total = 0
    for (batch,) in loader:
        assert batch.is_pinned()
        total += batch.to("sim", non_blocking=True).sum().item()
    assert total == sum(range(64))


def test_host_access_to_device_memory_is_refused():
    with pytest.raises(TypeError, match="sim"):
        torch.ones(2, device="sim").numpy()
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(3, device="sim") + torch.ones(3)

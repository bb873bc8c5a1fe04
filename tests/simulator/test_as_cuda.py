"""Code that names CUDA alone runs on the simulated device, and all is put back."""

import threading

import pytest
import torch

from sidestream import simulator as package
from sidestream.simulator import _as_cuda

pytestmark = pytest.mark.simulated_accelerator


@pytest.fixture
def cuda(simulated_accelerator):
    with simulated_accelerator.as_cuda():
        yield torch.cuda


def state():
    """Everything that as_cuda replaces, as it is now."""
    owners = {(owner, name) for owner, name, _ in _as_cuda._replacements()}
    return {(repr(owner), name): getattr(owner, name) for owner, name in owners}


def written_for_cuda(batches):
    """A correct prefetcher that knows of nothing but CUDA."""
    device = torch.device("cuda", torch.cuda.current_device())
    side = torch.cuda.Stream(device=device)
    for host in batches:
        with torch.cuda.stream(side):
            x = host.to(device=device, non_blocking=True)
            ready = torch.cuda.Event()
            ready.record(side)
        torch.cuda.current_stream(device).wait_event(ready)
        x.record_stream(torch.cuda.current_stream())
        yield x


def test_a_prefetcher_for_cuda_runs_unchanged(cuda):
    batches = [torch.full((100,), float(i)).pin_memory() for i in range(5)]
    sums = [x.sum() for x in written_for_cuda(batches)]
    torch.cuda.synchronize()
    assert [s.item() for s in sums] == [0, 100, 200, 300, 400]


def test_its_races_are_found(simulator):
    with simulator.as_cuda():
        side, host = torch.cuda.Stream(), torch.ones(100).pin_memory()
        with torch.cuda.stream(side):
            x = host.cuda(non_blocking=True)
        x + 1
        side.synchronize()
    assert [race.kind for race in simulator.races()] == [simulator.RaceKind.READ_BEFORE_COPY]


def test_devices(cuda):
    assert cuda.is_available()
    assert cuda.device_count() == 2
    assert cuda.current_device() == 0
    with cuda.device(1):
        assert cuda.current_device() == 1
        assert torch.ones(2, device="cuda").device.index == 1
    with cuda.device(torch.device("cuda:1")):
        cuda.set_device("cuda:0")
        assert cuda.current_device() == 0


@pytest.mark.parametrize(
    "device", ["cuda", "cuda:1", torch.device("cuda"), torch.device("cuda", 1)]
)
def test_tensors_go_to_cuda_in_every_way(cuda, device):
    index = torch.device(device).index or 0
    linear = torch.nn.Linear(2, 2)
    made = [
        torch.ones(2).to(device),
        torch.ones(2).to(device=device, dtype=torch.float16, non_blocking=True),
        torch.ones(2).cuda(device),
        torch.zeros(2, device=device),
        torch.tensor([1.0], device=device),
        torch.randn(2, device=device),
        torch.ones_like(torch.ones(2), device=device),
        linear.to(device).weight,
        torch.nn.Linear(2, 2).cuda(device).weight,
    ]
    for tensor in made:
        assert tensor.device == torch.device("sim", index)
        assert tensor.is_cuda
    assert not torch.ones(2).is_cuda
    with pytest.warns(DeprecationWarning, match="device"):
        assert torch.ones(2).pin_memory(device).is_pinned(device)


def test_streams_and_events_have_cudas_types_and_methods(cuda, simulator):
    stream = cuda.Stream(priority=-1)
    assert isinstance(stream, cuda.Stream)
    assert isinstance(cuda.current_stream(), cuda.Stream)
    assert isinstance(stream.record_event(), cuda.Event)
    assert cuda.default_stream() == cuda.current_stream()
    assert cuda.default_stream(1).device.index == 1
    assert stream.cuda_stream != cuda.current_stream().cuda_stream
    with cuda.stream(None):
        assert cuda.current_stream() == cuda.default_stream()
    with cuda.stream(stream):
        assert cuda.current_stream() == stream
    cuda.set_stream(stream)
    assert cuda.current_stream() == stream
    cuda.set_stream(cuda.default_stream())
    start, end = (cuda.Event(enable_timing=True) for _ in range(2))
    simulator.delay(0.05)
    start.record()
    simulator.delay(0.01)
    end.record(cuda.current_stream())
    end.synchronize()
    assert start.query()
    assert start.elapsed_time(end) == pytest.approx(10, abs=0.01)
    other = cuda.Stream(1)
    event = cuda.Event()
    event.record(other)
    event.wait(stream)
    with pytest.raises(RuntimeError, match="interprocess"):
        cuda.Event(interprocess=True)


def test_memory_and_seeds(cuda):
    cuda.reset_peak_memory_stats()
    before = cuda.memory_allocated()
    x = torch.empty(1024, device="cuda")
    assert cuda.memory_allocated() - before == 4096
    assert cuda.max_memory_allocated("cuda:0") >= before + 4096
    assert cuda.mem_get_info(1)[1] == 2 << 30
    del x
    cuda.empty_cache()
    cuda.manual_seed_all(3)
    a = torch.randn(3, device="cuda").tolist()
    cuda.manual_seed(3)
    assert torch.randn(3, device="cuda").tolist() == a


def test_autocast_and_grad_scaler(cuda):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y = torch.ones(2, 2, device="cuda") @ torch.ones(2, 2, device="cuda")
    assert y.dtype == torch.bfloat16
    assert torch.amp.GradScaler("cuda").scale(torch.ones(1, device="cuda")).item() > 1


def test_other_threads_see_it(cuda):
    seen = []
    thread = threading.Thread(
        target=lambda: seen.append(torch.ones(1, device="cuda").to("cuda:1").device)
    )
    thread.start()
    thread.join()
    assert seen == [torch.device("sim:1")]


def test_everything_is_put_back_after_nesting_and_errors():
    before = state()
    with package.as_cuda():
        with pytest.raises(KeyError), package.as_cuda():
            raise KeyError
        assert torch.cuda.is_available()
        assert torch.cuda.Stream is _as_cuda.Stream
    with pytest.raises(KeyError), package.as_cuda():
        raise KeyError
    after = state()
    assert before.keys() == after.keys()
    assert [key for key in before if before[key] is not after[key]] == []
    assert "to" not in vars(torch.Tensor)
    assert not torch.cuda.is_available()
    # Of a torch without CUDA, and of one with it where there is no GPU.
    with pytest.raises((AssertionError, RuntimeError), match=r"enabled|NVIDIA driver"):
        torch.ones(1).cuda()


def test_contexts_that_overlap_in_two_threads_leave_nothing_behind():
    before = state()
    entered, leave = threading.Event(), threading.Event()

    def hold():
        with package.as_cuda():
            entered.set()
            leave.wait()

    thread = threading.Thread(target=hold)
    with package.as_cuda():
        thread.start()
        entered.wait()
    assert torch.cuda.is_available()  # the thread still holds it
    leave.set()
    thread.join()
    after = state()
    assert [key for key in before if before[key] is not after[key]] == []

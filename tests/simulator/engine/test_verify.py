"""SIDESTREAM_VERIFY=1: a guard taken out is named, and what a user may do is not reported."""

import gc
import warnings

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import sidestream.simulator
from sidestream import AsynchronousLoader
from sidestream import device as seam
from sidestream.release import Leases
from sidestream.staging import Slot, State
from sidestream.transfer import StreamTransfer
from sidestream.verify import VerifyingTransfer, _Watched
from support.steps import MEBIBYTE, batches, on_stream


@pytest.fixture(autouse=True)
def _on(monkeypatch):
    monkeypatch.setenv("SIDESTREAM_VERIFY", "1")


@pytest.fixture
def racy(simulator):
    """What is read or written in no order is broken for certain, not only with bad luck."""
    with simulator.settings(
        nan_on_race=True, h2d_bytes_per_s=MEBIBYTE / 1e-3, kernel_s=1e-4, guard_host=False
    ):
        yield simulator
    simulator.races()


def dictionaries(count):
    """Small tensors that are packed, and a large one, in a tree."""
    return [
        {"x": torch.full((100_000,), float(n)), "labels": [torch.full((4,), n), torch.ones(3)]}
        for n in range(count)
    ]


def run(loader, iterator=None):
    """A loop that uses each batch and drops it."""
    total = torch.zeros((), device="sim")
    for batch in iterator or loader:
        for tensor in (batch["x"], *batch["labels"]):
            total += tensor.sum()
        del batch, tensor
    loader.close()
    return total


# ---- clean runs


@pytest.mark.parametrize("buffer_size", [1, 2, 9])
def test_a_clean_run_reports_nothing_and_compares_every_tensor(
    simulator, buffer_size, monkeypatch
):
    verdicts = []

    def note(self, *wrong, real=_Watched.finding):
        assert self.is_compared_at_last
        verdicts.append((self.number, self.place))
        return real(self, *wrong)

    monkeypatch.setattr(_Watched, "finding", note)
    with simulator.settings(h2d_bytes_per_s=1e9, kernel_s=1e-4):
        run(AsynchronousLoader(dictionaries(8), "sim", buffer_size=buffer_size))
    places = ['batch["x"]', 'batch["labels"][0]', 'batch["labels"][1]']
    assert sorted(verdicts) == sorted((n, place) for n in range(8) for place in places)


def test_it_is_off_without_the_variable(simulator, monkeypatch):
    for value in ("", "0"):
        monkeypatch.setenv("SIDESTREAM_VERIFY", value)
        loader = AsynchronousLoader(batches(2), "sim")
        list(loader)
        (transfer,) = loader._running._transfers.values()
        assert type(transfer) is StreamTransfer
    monkeypatch.setenv("SIDESTREAM_VERIFY", "1")
    loader = AsynchronousLoader(batches(2), "sim")
    list(loader)
    (transfer,) = loader._running._transfers.values()
    assert type(transfer) is VerifyingTransfer


def test_the_values_are_those_without_it(simulator):
    got = list(AsynchronousLoader(dictionaries(5), "sim", buffer_size=2))
    for number, batch in enumerate(got):
        assert (batch["x"] == number).all().item()
        assert batch["labels"][0].tolist() == [number] * 4


def test_memory_is_given_back(simulator):
    device, pinned = torch.accelerator.memory_allocated(), simulator.pinned_memory().bytes
    loader = AsynchronousLoader(dictionaries(6), "sim")
    run(loader)
    del loader
    gc.collect()
    assert torch.accelerator.memory_allocated() == device
    assert simulator.pinned_memory().bytes == pinned


SPECIAL = [float("nan"), float("inf"), -0.0]


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bool, torch.uint8, torch.int16, torch.int64, torch.float16, torch.bfloat16,
        torch.float32, torch.float64, torch.complex64, torch.complex128,
    ],
)  # fmt: skip
def test_every_type_is_compared_bit_by_bit(simulator, dtype):
    values = torch.tensor([*SPECIAL, 1.0] if dtype.is_floating_point else [0, 1, 1, 0])
    source = [(values.to(dtype), values.to(dtype).expand(20_000, 4)) for _ in range(4)]
    loader = AsynchronousLoader(source, "sim")
    for _ in loader:
        pass
    loader.close()


# ---- what a user may do


def test_in_place_changes_of_the_users_are_not_reported(simulator):
    for keep in (0, 3):
        kept = []
        loader = AsynchronousLoader(dictionaries(8), "sim")
        for batch in loader:
            batch["x"].mul_(2)
            batch["labels"][0][1:].zero_()  # through a view
            batch["labels"][1].detach().add_(1)
            kept = [batch["x"][5:], *kept][:keep]
            del batch
        kept.clear()
        loader.close()


def test_changes_on_another_stream_kept_batches_and_autograd_are_not_reported(simulator):
    weight = torch.ones((), device="sim", requires_grad=True)
    streams = [torch.Stream(device="sim") for _ in range(2)]
    kept = []
    with simulator.settings(h2d_bytes_per_s=1e9, kernel_s=1e-4):
        loader = AsynchronousLoader(batches(12), "sim")
        for number, batch in enumerate(loader):
            with on_stream(streams[number % 2]):
                if number % 3 == 0:
                    batch.neg_()
            kept.append((batch * weight).sum())
            del batch
            if number % 5 == 4:
                torch.stack(kept).sum().backward()
                kept.clear()
        loader.close()


def test_inference_mode_is_survived(simulator):
    with torch.inference_mode():
        loader = AsynchronousLoader(dictionaries(5), "sim")
        for batch in loader:
            batch["x"].mul_(2)
            del batch
        loader.close()


def test_other_kinds_of_source_report_nothing(simulator):
    rows = torch.arange(3000, dtype=torch.float32).reshape(12, 250)
    for options in ({}, {"pin_memory": True}, {"num_workers": 1}):
        loader = AsynchronousLoader(DataLoader(TensorDataset(rows), 2, **options), "sim")
        for _ in range(2):
            for (batch,) in loader:
                batch.sum()
                break
            assert sum(1 for _ in loader) == 6
        loader.close()
    buffer = torch.zeros(1000).pin_memory()
    loader = AsynchronousLoader((buffer.fill_(float(n)) for n in range(6)), "sim")
    assert [int(batch[0]) for batch in loader] == list(range(6))
    loader.close()
    constant = torch.ones(10, device="sim")
    loader = AsynchronousLoader(dictionaries(9), "sim", transform=lambda b: (b["x"] + 1, constant))
    for number, (x, same) in enumerate(loader):
        assert (x[0].item(), same is constant) == (number + 1, True)
        x.zero_()
    loader.close()


# ---- guards taken out: each is named


def expect(message, loader, *steps):
    with pytest.raises(RuntimeError, match=message) as caught:
        (steps or (run,))[0](loader)
    text = str(caught.value)
    assert text.startswith("batch ")
    assert "\n" not in text
    assert 'batch["' in text or "batch: " in text
    loader.close()
    sidestream.simulator.races()


def test_a_batch_handed_over_before_its_copy_is_named_h1(racy, monkeypatch):
    real = Leases.hand_over
    monkeypatch.setattr(
        Leases,
        "hand_over",
        lambda self, ready, storages, **how: real(self, None, storages, **how),
    )
    expect(r"\(H1\)", AsynchronousLoader(dictionaries(8), "sim", buffer_size=1))


def test_staging_memory_filled_too_early_is_named_h2(racy, monkeypatch):
    def forget(slot):
        slot._copy = None
        slot.state = State.FREE
        return True

    monkeypatch.setattr(Slot, "is_free", forget)
    with racy.settings(h2d_bytes_per_s=MEBIBYTE / 0.1):  # the host is far ahead
        expect(r"\(H2\)", AsynchronousLoader(dictionaries(12), "sim", buffer_size=1))


def test_a_source_that_writes_into_its_page_locked_buffer_is_named_h9(racy, monkeypatch):
    monkeypatch.setattr(StreamTransfer, "wait_for_sources", lambda self: None)

    def source():
        buffer = torch.zeros(MEBIBYTE).pin_memory()
        for number in range(12):
            yield {"x": buffer.fill_(float(number)), "labels": []}

    expect(r'batch\["x"\].*\(H9\)', AsynchronousLoader(source(), "sim"))


def test_memory_given_back_without_the_fence_is_named_h3(racy, monkeypatch):
    monkeypatch.setattr(Leases, "_streams_since", lambda self, number: [])

    def lag(loader):
        torch.accelerator.synchronize()
        torch.accelerator.empty_cache()  # so that what was released is what is used again
        for number, batch in enumerate(loader):
            if number == 0:  # not before: the side stream follows what comes before the first
                racy.delay(2.0)  # the memory is written long before the stream comes to it
            batch["x"].sum()
            del batch
        loader.close()

    with racy.settings(nan_on_race=False):
        expect(r"\(H3\)", AsynchronousLoader(dictionaries(12), "sim"), lag)


def test_memory_given_back_while_it_is_held_is_named_h3(racy, monkeypatch):
    monkeypatch.setattr(seam, "is_held", lambda holder: False)

    def keep(loader):
        kept = []
        for batch in loader:
            kept.append(batch["x"][8:])
            del batch

    expect(
        r"released while somebody held it \(H3\)", AsynchronousLoader(dictionaries(9), "sim"), keep
    )


def test_a_change_that_torch_is_not_told_of_is_reported(simulator):
    def change(loader):
        for batch in loader:
            batch["labels"][0].data.add_(1)
            del batch

    loader = AsynchronousLoader(dictionaries(9), "sim")
    expect(r'batch 0, batch\["labels"\]\[0\].*\(H3\).*\.data', loader, change)


def test_what_goes_into_a_transform_is_compared(simulator, monkeypatch):
    def corrupt(self, batch, leaves, real=StreamTransfer._move):
        moved = real(self, batch, leaves)
        next(iter(moved.leaves.values()))[3:4].fill_(77)
        moved.copied = None  # the ready event comes after this
        return moved

    monkeypatch.setattr(StreamTransfer, "_move", corrupt)
    loader = AsynchronousLoader(dictionaries(3), "sim", transform=lambda batch: batch)
    with pytest.raises(RuntimeError, match=r"H2"):
        run(loader)
    loader.close()


def test_the_last_batches_are_judged_at_close_and_when_the_loader_goes(racy, monkeypatch):
    def corrupt(self, batch, leaves, real=StreamTransfer._move):
        moved = real(self, batch, leaves)
        next(iter(moved.leaves.values()))[3:4].fill_(77)
        moved.copied = None  # the ready event comes after this
        return moved

    monkeypatch.setattr(StreamTransfer, "_move", corrupt)
    loader = AsynchronousLoader(dictionaries(1), "sim")
    assert len(list(loader)) == 1
    with pytest.raises(RuntimeError, match="batch 0"):
        loader.close()
    loader.close()  # said once
    loader = AsynchronousLoader(dictionaries(1), "sim")
    assert len(list(loader)) == 1
    loaders = [loader]
    del loader
    with pytest.warns(RuntimeWarning, match="batch 0"):
        loaders.clear()


def test_running_out_of_memory_for_the_check_is_no_finding(simulator):
    torch.accelerator.synchronize()
    torch.accelerator.empty_cache()
    size = 4 << 20
    loader = AsynchronousLoader(batches(6, size), "sim")
    with simulator.settings(memory_bytes=torch.accelerator.memory_reserved() + 8 * size):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                for batch in loader:
                    batch.sum()
            except torch.OutOfMemoryError:
                pass
        loader.close()

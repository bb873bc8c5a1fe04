"""Objects that pin themselves: copied behind the loop, out of memory that lives long enough."""

import pytest
import torch

from sidestream import AsynchronousLoader


class Copied:
    """Pins and moves into new objects."""

    def __init__(self, x):
        self.x = x

    def pin_memory(self):
        return type(self)(self.x.pin_memory())

    def to(self, device, non_blocking=False):
        return type(self)(self.x.to(device, non_blocking=non_blocking))


class InPlace(Copied):
    """Pins and moves itself, as graphs do: nothing but the copy knows its page-locked memory."""

    def pin_memory(self):
        self.x = self.x.pin_memory()
        return self

    def to(self, device, non_blocking=False):
        self.x = self.x.to(device, non_blocking=non_blocking)
        return self


class Unpinned(Copied):
    """Says it pinned itself, and did not."""

    def pin_memory(self):
        return type(self)(self.x)


class Refusing(Copied):
    """Cannot be pinned, as where page-locked memory has run out."""

    def pin_memory(self):
        raise RuntimeError("out of page-locked memory")


class Reusing:
    """Fills one buffer for every batch (H9)."""

    def __init__(self, kind, pinned):
        self.kind = kind
        self.buffer = torch.zeros(1 << 16, pin_memory=pinned)

    def __iter__(self):
        for number in range(8):
            self.buffer.fill_(number)
            yield {"graph": self.kind(self.buffer)}


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("kind", [Copied, InPlace, Unpinned, Refusing])
def test_a_source_that_fills_its_buffer_again_changes_no_batch(simulator, kind, pinned):
    with simulator.settings(h2d_bytes_per_s=2e8):
        seen = [
            (batch["graph"].x.min(), batch["graph"].x.max())
            for batch in AsynchronousLoader(Reusing(kind, pinned), "sim")
        ]
    assert [(low.item(), high.item()) for low, high in seen] == [(n, n) for n in range(8)]
    assert simulator.races() == []


def test_it_is_pinned_and_asked_once_and_not_waited_for(simulator):
    asked = []

    class Noting(Copied):
        def to(self, device, non_blocking=False):
            asked.append((self.x.is_pinned(), non_blocking))
            return super().to(device, non_blocking=non_blocking)

    (batch,) = AsynchronousLoader([Noting(torch.ones(3))], "sim")
    assert asked == [(True, True)]
    assert batch.x.sum().item() == 3


def test_an_object_whose_to_takes_no_non_blocking_is_not_pinned(simulator):
    class Plain(Copied):
        def pin_memory(self):
            raise AssertionError("there is no use in this")

        def to(self, device):
            return type(self)(self.x.to(device))

    (batch,) = AsynchronousLoader([Plain(torch.ones(3))], "sim")
    assert batch.x.sum().item() == 3


@pytest.mark.parametrize("kind", [Copied, InPlace])
def test_a_leaf_that_fails_after_it_leaves_its_memory_alone(simulator, kind):
    class Failing:
        def to(self, device):
            raise RuntimeError("this leaf fails")

    with simulator.settings(h2d_bytes_per_s=2e8):
        given = torch.ones(1 << 16).pin_memory()
        loader = AsynchronousLoader([[kind(given), Failing()]], "sim")
        with pytest.raises(RuntimeError, match="this leaf fails"):
            list(loader)
        del given
        loader.close()
        torch.empty(1 << 16).pin_memory().fill_(2)
    assert simulator.races() == []

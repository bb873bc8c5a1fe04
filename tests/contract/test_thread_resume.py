"""G10 over a ThreadDataLoader: the rest of a pass is what the unbroken pass would have given."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, get_worker_info

from sidestream import AsynchronousLoader, ThreadDataLoader
from support.fidelity import Comparison


class Numbers(Dataset):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return torch.full((200, 200), float(index)), index


class Drawing(Numbers):
    """Draws from the worker's own numbers."""

    def __getitem__(self, index: int) -> Any:
        rng = get_worker_info().rng
        return (
            index,
            torch.rand(2, generator=rng.torch_generator),
            rng.random_generator.random(),
            rng.numpy_generator.random(),
        )


def make(dataset: Any, **options: Any) -> AsynchronousLoader[Any]:
    torch.manual_seed(6)
    source = ThreadDataLoader(dataset(), batch_size=3, num_workers=2, **options)
    return AsynchronousLoader(source, "cpu")


@pytest.mark.parametrize("taken", [0, 1, 3, 8])
@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"persistent_workers": True}])
@pytest.mark.parametrize("dataset", [Numbers, Drawing])
def test_the_rest_of_a_pass(dataset: Any, options: dict[str, Any], taken: int) -> None:
    want = list(make(dataset, **options))
    first = make(dataset, **options)
    iterator = iter(first)
    got = [next(iterator) for _ in range(taken)]
    state = first.state_dict()
    first.close()
    second = make(dataset, **options)
    torch.manual_seed(99)
    second.load_state_dict(state)
    Comparison().same(got + list(second), want)
    second.close()

"""The reader's entry keeps what it promises: order, errors, and no thread left."""

import importlib.util
import threading
from pathlib import Path

import pytest
import torch

PATH = Path(__file__).parents[2] / "examples" / "minimal_prefetch.py"


@pytest.fixture
def prefetch():
    spec = importlib.util.spec_from_file_location("minimal_prefetch", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    before = set(threading.enumerate())
    yield module.prefetch
    assert set(threading.enumerate()) == before


@pytest.mark.parametrize("buffer_size", [1, 2, 9])
@pytest.mark.parametrize("num_batches", [0, 1, 5])
def test_the_batches_are_the_same(prefetch, num_batches, buffer_size):
    source = [torch.full((3,), number) for number in range(num_batches)]
    batches = list(prefetch(source, "cpu", buffer_size))
    assert [batch.tolist() for batch in batches] == [batch.tolist() for batch in source]


def test_tensors_are_found_in_tuples_lists_and_dicts(prefetch):
    x = torch.arange(2)
    ((batch, name),) = prefetch([({"x": x, "more": [x, (x, None)]}, "name")], "cpu")
    assert name == "name"
    assert batch["x"].tolist() == batch["more"][0].tolist() == [0, 1]
    assert batch["more"][1][1] is None


@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt("stop")])
def test_the_sources_own_error_comes_after_the_good_batches(prefetch, error):
    def source():
        yield torch.zeros(1)
        raise error

    batches = prefetch(source(), "cpu")
    assert next(batches).tolist() == [0]
    with pytest.raises(type(error)) as caught:
        next(batches)
    assert caught.value is error


def test_a_break_ends_the_thread_though_the_buffer_is_full(prefetch):
    seen = threading.active_count()
    for _ in prefetch((torch.zeros(1) for _ in range(100)), "cpu", 1):
        assert threading.active_count() == seen + 1
        break
    assert threading.active_count() == seen

"""Direct collation gives what `default_collate` gives, in memory that is used again when free."""

from __future__ import annotations

import collections
import gc
import itertools
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch.utils.data import DataLoader, default_collate, default_convert
from torch.utils.data._utils.collate import default_collate_fn_map

from sidestream import AsynchronousLoader, ThreadDataLoader
from sidestream.threads import collate, memory
from support.fidelity import Comparison
from support.waiting import Worker

# Torch says it once in a process, so to whichever of the two is asked first.
pytestmark = pytest.mark.filterwarnings("ignore:Creating a tensor from a list of numpy.ndarrays")

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128,
]  # fmt: skip
ARRAYS = ["f4", "f8", "f2", "i8", "i4", "i2", "i1", "u1", "?", "c8", "u2", "u4"]
Pair = collections.namedtuple("Pair", "one other")


class Bag(collections.UserDict):
    pass


# What one sample has in a place. Sizes stand for themselves and, by `everything_is_large`, for
# large ones: below, everything is written row by row into memory that is used again.
shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
tensors = st.tuples(st.just("tensor"), shapes, st.sampled_from(DTYPES), st.booleans())
arrays = st.tuples(st.just("array"), shapes, st.sampled_from(ARRAYS), st.booleans())
plain = st.sampled_from(["int", "float", "bool", "str", "bytes", "np.float32", "np.int64"])
odd = st.sampled_from(["requires_grad", "sparse", "None", "object array", "memmap-like"])


def containers(parts: Any) -> Any:
    lists = st.lists(parts, max_size=3)
    dicts = st.dictionaries(st.sampled_from("abcd"), parts, max_size=3)
    return st.one_of(
        lists.map(lambda x: ("list", x)),
        lists.map(lambda x: ("tuple", x)),
        st.tuples(parts, parts).map(lambda x: ("pair", x)),
        dicts.map(lambda x: ("dict", x)),
        dicts.map(lambda x: ("ordered", x)),
        dicts.map(lambda x: ("bag", x)),
    )


structures = st.recursive(st.one_of(tensors, arrays, plain), containers, max_leaves=6)
any_structures = st.recursive(st.one_of(tensors, arrays, plain, odd), containers, max_leaves=6)


def make(structure: Any, number: int) -> Any:
    """Sample `number` of a structure."""
    if isinstance(structure, str):
        return _make_plain(structure, number)
    kind, *rest = structure
    if kind == "tensor":
        shape, dtype, is_turned = rest
        values = torch.arange(number, number + int(np.prod(shape, dtype=int))) % 7
        tensor = values.to(dtype).view(shape)
        return tensor.mT.contiguous().mT if is_turned and len(shape) > 1 else tensor
    if kind == "array":
        shape, dtype, is_turned = rest
        array = (np.arange(number, number + int(np.prod(shape, dtype=int))) % 7).astype(dtype)
        array = array.reshape(shape)
        return array.T.copy().T if is_turned else array
    (parts,) = rest
    if kind in ("list", "tuple", "pair"):
        made = [make(part, number) for part in parts]
        return made if kind == "list" else tuple(made) if kind == "tuple" else Pair(*made)
    kinds = {"dict": dict, "ordered": collections.OrderedDict, "bag": Bag}
    return kinds[kind]({key: make(part, number) for key, part in parts.items()})


def _make_plain(name: str, number: int) -> Any:
    values = {
        "int": number,
        "float": number / 3,
        "bool": bool(number % 2),
        "str": f"s{number}",
        "bytes": b"b" * number,
        "np.float32": np.float32(number / 3),
        "np.int64": np.int64(number),
        "None": None,
        "object array": np.array([None, 1]),
        "memmap-like": np.arange(4).view(_Subclass),
        "requires_grad": torch.ones(3, requires_grad=True),
        "sparse": torch.ones(3).to_sparse(),
    }
    return values[name]


class _Subclass(np.ndarray):
    pass


class Made:
    def __init__(self, structures: list[Any]) -> None:
        self.structures = structures

    def __len__(self) -> int:
        return len(self.structures)

    def __getitem__(self, index: int) -> Any:
        return make(self.structures[index], index)


@pytest.fixture
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collate, "ROW_BYTES", 1)
    monkeypatch.setattr(memory, "LEAST_BYTES", 1)


def outcome(function: Any) -> Any:
    """What a function returns, or the kind and words of what it raises."""
    try:
        return function()
    except Exception as error:
        return type(error), str(error)


def collated(samples: Any, size: int) -> Any:
    return outcome(lambda: list(ThreadDataLoader(samples, batch_size=size, num_workers=2)))


def by_torch(samples: Any, size: int) -> Any:
    return outcome(lambda: list(DataLoader(samples, batch_size=size)))


SETTINGS = hypothesis.settings(
    max_examples=50,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)


@pytest.mark.usefixtures("everything_is_large")
@SETTINGS
@hypothesis.given(any_structures, st.integers(1, 7), st.integers(1, 4))
def test_equal_samples_give_what_default_collate_gives(
    structure: Any, count: int, size: int
) -> None:
    samples = Made([structure] * count)
    Comparison().same(collated(samples, size), by_torch(samples, size))


@SETTINGS
@hypothesis.given(structures, st.integers(1, 7), st.integers(1, 4))
def test_the_same_with_small_ones(structure: Any, count: int, size: int) -> None:
    samples = Made([structure] * count)
    Comparison().same(collated(samples, size), by_torch(samples, size))


@pytest.mark.usefixtures("everything_is_large")
@SETTINGS
@hypothesis.given(st.lists(any_structures, min_size=2, max_size=2), st.integers(0, 3), st.data())
def test_unequal_samples_give_its_result_or_its_error(pair: list[Any], at: int, data: Any) -> None:
    first, other = pair
    if data.draw(st.booleans()):  # nearly the same: another leaf somewhere
        other = _with_another_leaf(first, data)
    parts = [first] * 4
    parts[at] = other
    samples = Made(parts)
    got, want = collated(samples, 4), by_torch(samples, 4)
    Comparison().same(got, want)


def _with_another_leaf(structure: Any, data: Any) -> Any:
    if isinstance(structure, str) or structure[0] in ("tensor", "array"):
        return data.draw(st.one_of(tensors, arrays, plain, odd))
    kind, parts = structure
    if not parts:
        return structure
    keys = list(parts) if isinstance(parts, dict) else range(len(parts))
    key = data.draw(st.sampled_from(list(keys)))
    parts = dict(parts) if isinstance(parts, dict) else list(parts)
    parts[key] = _with_another_leaf(parts[key], data)
    return kind, parts


# ---- that it is direct, and what is not


class Large:
    """Samples of 64 KiB and a number."""

    def __init__(self, length: int = 12) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return torch.full((128, 128), float(index)), index


def addresses(batches: Any) -> set[int]:
    return {batch[0].untyped_storage().data_ptr() for batch in batches}


def test_memory_is_used_again_and_never_more_than_stated() -> None:
    loader = ThreadDataLoader(Large(40), batch_size=2, num_workers=2, prefetch_factor=1)
    seen = set()
    for _ in range(3):
        seen |= addresses(loader)
    assert len(seen) <= 2 * 1 + 2
    assert loader._memory.size_bytes <= 4 * 2 * 64 * 1024


def test_a_batch_that_is_kept_does_not_change() -> None:
    loader = ThreadDataLoader(Large(40), batch_size=2, num_workers=2)
    kept, views, arrays_, graphs = [], [], [], []
    for number, (x, _) in enumerate(loader):
        where = number % 4
        if where == 0:
            kept.append((number, x))
        elif where == 1:
            views.append((number, x[1, 3:5]))
        elif where == 2:
            arrays_.append((number, x.numpy()[1, 0]))
        else:
            weight = torch.ones((), requires_grad=True)
            graphs.append((number, (x * weight).sum(), weight))
    for x, _ in loader:  # whatever is free is written again
        del x
    assert all((x[0] == 2 * number).all() for number, x in kept)
    assert all((x == 2 * number + 1).all() for number, x in views)
    assert all((x == 2 * number + 1).all() for number, x in arrays_)
    for number, total, weight in graphs:
        total.backward()
        assert weight.grad == 128 * 128 * (4 * number + 1)


def test_what_was_kept_long_is_not_kept_by_the_loader() -> None:
    loader = ThreadDataLoader(Large(60), batch_size=2, num_workers=1, prefetch_factor=2)
    everything = list(loader)
    assert len(addresses(everything)) == 30
    del everything
    gc.collect()
    assert loader._memory.size_bytes == (2 + 2) * 2 * 64 * 1024


def test_labels_that_are_kept_do_not_keep_the_images() -> None:
    class Both(Large):
        def __getitem__(self, index: int) -> Any:
            return torch.full((9000,), index), torch.full((128, 128), index)

    loader = ThreadDataLoader(Both(40), batch_size=2, num_workers=1, prefetch_factor=1)
    images, labels = set(), []
    for y, x in loader:
        images.add(x.data_ptr())
        labels.append(y)
        del x
    assert len(images) <= 3
    assert [y[1, 0].item() for y in labels] == list(range(1, 40, 2))


def test_a_samples_memory_is_free_before_the_next_one_is_made() -> None:
    alive: list[Any] = []

    class Watching(Large):
        def __getitem__(self, index: int) -> Any:
            import weakref

            assert [ref for ref in alive if ref() is not None] == []
            x = torch.full((128, 128), float(index))
            alive.append(weakref.ref(x))
            return {"x": [x, index]}

    batches = list(ThreadDataLoader(Watching(), batch_size=6, num_workers=1))
    assert [batch["x"][0][:, 0, 0].tolist() for batch in batches] == [
        list(range(6)),
        list(range(6, 12)),
    ]


def test_a_short_last_batch_keeps_no_memory_for_samples_that_never_came() -> None:
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self) -> Any:
            return iter([torch.ones(30000)] * 5)

    *_, last = ThreadDataLoader(Stream(), batch_size=4, num_workers=1)
    assert last.untyped_storage().nbytes() == 30000 * 4


def test_storages_are_as_large_as_their_tensors() -> None:
    """What `torch.save` writes of a batch is the batch, whatever memory it lies in."""
    loader = ThreadDataLoader(Large(5), batch_size=2, num_workers=1)
    for _ in range(2):
        assert [x.untyped_storage().nbytes() for x, _ in loader] == [2 << 16, 2 << 16, 1 << 16]


def test_batches_of_changing_sizes() -> None:
    class Growing(Large):
        def __getitem__(self, index: int) -> Any:
            return torch.full(((index // 2 % 5 + 1) * 10000,), float(index))

    loader = ThreadDataLoader(Growing(40), batch_size=2, num_workers=2)
    for _ in range(2):
        for number, x in enumerate(loader):
            assert x.shape == (2, (number % 5 + 1) * 10000)
            assert x[:, 0].tolist() == x[:, -1].tolist() == [2 * number, 2 * number + 1]


def test_passes_at_once_share_memory_and_no_batch() -> None:
    loader = ThreadDataLoader(Large(40), batch_size=2, num_workers=2)

    def use() -> None:
        for _ in range(3):
            for number, (x, _) in enumerate(loader):
                assert (x[0] == 2 * number).all()
                assert (x[1] == 2 * number + 1).all()

    for one in [Worker(use) for _ in range(3)]:
        one.result()


def test_rules_that_a_user_has_added_hold() -> None:
    class Celsius(float):
        pass

    default_collate_fn_map[Celsius] = lambda batch, *, collate_fn_map: sum(batch)
    try:
        got = list(ThreadDataLoader([Celsius(1), Celsius(2)], batch_size=2, num_workers=1))
    finally:
        del default_collate_fn_map[Celsius]
    assert got == [3.0]


def test_rules_that_a_user_has_replaced_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    def largest(batch: Any, *, collate_fn_map: Any) -> Any:
        return torch.stack(list(batch)).amax(0)

    monkeypatch.setitem(default_collate_fn_map, torch.Tensor, largest)
    (got,) = ThreadDataLoader([torch.ones(30000), torch.ones(30000)], 2, num_workers=1)
    assert got.shape == (30000,)


@pytest.mark.parametrize(
    ("kind", "direct"),
    [(Bag, True), (Pair, False), (collections.OrderedDict, False), (object, False)],
)
def test_rules_for_types_of_others_leave_the_rest_as_it_is(
    kind: type, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Libraries add rules when they are imported: tensordict, PyG and others."""

    def rule(batch: Any, *, collate_fn_map: Any = None) -> Any:
        return [type(sample).__name__ for sample in batch]

    data = [(torch.full((200, 200), float(n)), Bag(a=n), Pair(n, n)) for n in range(4)]
    before = list(ThreadDataLoader(data, batch_size=2, num_workers=1))
    monkeypatch.setitem(default_collate_fn_map, kind, rule)
    assert collate.is_default(default_collate) is direct
    got = list(ThreadDataLoader(data, batch_size=2, num_workers=1))
    for one, other in zip(got, DataLoader(data, batch_size=2), strict=True):
        Comparison().same(one, other, "batch")
    assert type(before[0][1]) is Bag


def test_default_convert_and_functions_like_the_default_run_as_given() -> None:
    seen = []

    def like(samples: Any) -> Any:
        seen.append(samples)
        return default_collate(samples)

    got = list(ThreadDataLoader(Large(4), batch_size=2, num_workers=1, collate_fn=like))
    Comparison().same(got, list(DataLoader(Large(4), batch_size=2)))
    assert [type(sample[0]) for sample in itertools.chain(*seen)] == [torch.Tensor] * 4
    loader = ThreadDataLoader(Large(2), batch_size=2, num_workers=1, collate_fn=default_convert)
    assert type(next(iter(loader))) is list


# ---- errors


@pytest.mark.parametrize("odd", [1, 2, 3])
@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([torch.ones(200, 200), torch.ones(201, 200)], "stack expects each tensor to be equal"),
        ([torch.ones(2), torch.ones(3)], "stack expects each tensor to be equal"),
        ([np.ones((200, 200)), np.ones((201, 200))], "stack expects each tensor to be equal"),
        ([(torch.ones(30000), 1), (torch.ones(30000),)], "should be of equal size"),
        ([{"a": torch.ones(30000)}, {"b": torch.ones(30000)}], "'a'"),
        ([torch.ones(30000), 3], "expected Tensor as element"),
    ],
)
def test_ragged_samples_are_named(samples: list[Any], message: str, odd: int) -> None:
    parts = [samples[0]] * 4
    parts[odd] = samples[1]
    indices = [[7, 5, 6, 4]]
    dataset = dict(zip(indices[0], parts, strict=True))
    kind, words = by_torch_in_order(dataset, indices)
    with pytest.raises(kind) as caught:
        list(ThreadDataLoader(dataset, batch_sampler=indices, num_workers=1))
    assert str(caught.value) == words
    assert message in words
    note = f"raised collating sample {odd} of the batch, index {indices[0][odd]} of the dataset"
    assert note in caught.value.__notes__


def by_torch_in_order(dataset: Any, indices: Any) -> Any:
    return outcome(lambda: list(DataLoader(dataset, batch_sampler=indices)))


def test_a_sample_that_no_rule_fits_is_named() -> None:
    with pytest.raises(TypeError, match="found <class 'object'>") as caught:
        list(ThreadDataLoader([object(), 1], batch_size=2, num_workers=1))
    assert "raised collating sample 0 of the batch, index 0 of the dataset" in (
        caught.value.__notes__
    )


# ---- inside the loader


def test_inside_an_asynchronous_loader(device: str, buffer_size: int) -> None:
    source = ThreadDataLoader(Large(10), batch_size=3, num_workers=2)
    loader = AsynchronousLoader(source, device, buffer_size=buffer_size)
    for _ in range(2):
        got = list(loader)
        assert [x.device.type for x, _ in got] == [device] * 4
        if device == "cpu":
            Comparison().same(got, list(DataLoader(Large(10), batch_size=3)))

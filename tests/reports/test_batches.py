"""Public reports about what a batch looks like when it comes out; README.md lists all."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from collections.abc import Callable, MutableMapping
from typing import Any, NamedTuple

import pytest
import torch

from sidestream import AsynchronousLoader
from support.compare import assert_same
from support.fidelity import Comparison
from support.sources import SelfMoving


def through(batch: Any, device: str = "meta", **options: Any) -> Any:
    (got,) = AsynchronousLoader([batch], device, **options)
    return got


class Point(NamedTuple):
    x: Any
    y: Any = None

    def doubled(self) -> Any:
        return self.x * 2


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: Any


@dataclasses.dataclass(slots=True, kw_only=True)
class Slots:
    x: Any
    derived: Any = dataclasses.field(init=False, default=None)


STRUCTURES: dict[str, Callable[[Any], Any]] = {
    "list": lambda x: [x, 1],
    "tuple": lambda x: (x, 1),
    "namedtuple": lambda x: Point(x),
    "dict": lambda x: {"x": x},
    "nested": lambda x: {"a": [(x, Point(x, [x]))]},
    "frozen": lambda x: Frozen(x),
    "slots": lambda x: Slots(x=x),
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_R24_structure_in_is_structure_out(name: str, device: str, buffer_size: int) -> None:
    batch = STRUCTURES[name](torch.arange(3.0))
    got = through(batch, device, buffer_size=buffer_size)
    assert_same(got, batch, device)
    if name == "namedtuple":
        assert got.doubled().device.type == device


class Encoding(dict):
    """As a tokenizer gives it: a mapping with methods and a constructor of its own."""

    def __init__(self, data: dict[str, Any], encodings: Any) -> None:
        super().__init__(data)
        self.encodings = encodings

    def words(self) -> Any:
        return self.encodings


class MovingMapping(MutableMapping):
    """Moves itself, and must not be taken apart."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data
        self.moves = 0

    def to(self, device: Any) -> Any:
        moved = MovingMapping({key: value.to(device) for key, value in self.data.items()})
        self.moves += 1
        return moved

    def __getitem__(self, key: str) -> Any:
        return self.data[key]

    def __setitem__(self, key: str, value: Any) -> None:
        raise AssertionError("items are its own affair")

    __delitem__ = __setitem__

    def __iter__(self) -> Any:
        return iter(self.data)

    def __len__(self) -> int:
        return len(self.data)


def test_R25_a_dict_of_its_own_class_keeps_class_attributes_and_methods(device: str) -> None:
    batch = Encoding({"ids": torch.arange(3)}, ["word"])
    got = through(batch, device)
    assert type(got) is Encoding
    assert got.words() == ["word"]
    assert got["ids"].device.type == device


def test_R25_its_own_to_goes_before_the_rule_for_mappings(device: str) -> None:
    batch = MovingMapping({"x": torch.arange(3)})
    got = through({"inside": batch}, device)["inside"]
    assert (type(got), batch.moves) == (MovingMapping, 1)
    assert got["x"].device.type == device


class Boxes(torch.Tensor):
    """Carries a canvas size over `to` and `clone`, and over nothing else."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        if func in (torch.Tensor.to, torch.Tensor.clone):
            result = result.as_subclass(cls)
            result.canvas = args[0].canvas
        return result


def test_R28_a_tensor_of_its_own_class_keeps_class_and_metadata(device: str) -> None:
    boxes = torch.zeros(2, 4).as_subclass(Boxes)
    boxes.canvas = (480, 640)
    parameter = torch.nn.Parameter(torch.ones(2))
    got = through([boxes, parameter], device)
    assert (type(got[0]), got[0].canvas) == (Boxes, (480, 640))
    assert got[0].device.type == device
    assert type(got[1]) is type(parameter.to(device))


def test_R29_an_object_with_to_is_moved_as_one_unit(device: str) -> None:
    class Graph(SelfMoving):
        pass

    graph = Graph(torch.zeros(2, 3), 7)
    got = through([graph], device)[0]
    assert (type(got), got.number, got.tensor.device.type) == (Graph, 7, device)
    assert graph.asked == [torch.device(device)]


LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "transposed": lambda: torch.arange(6.0).reshape(2, 3).T,
    "permuted": lambda: torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1),
    "step": lambda: torch.arange(10)[::3],
    "flipped": lambda: torch.arange(6).flip(0),
    "expanded": lambda: torch.arange(3.0).expand(1000, 3),
    "channels last": lambda: torch.rand(2, 3, 4, 4).contiguous(memory_format=torch.channels_last),
    "0-dim": lambda: torch.tensor(3),
    "zero-size": lambda: torch.empty(0, 3),
    "conjugate": lambda: torch.rand(3, dtype=torch.complex64).conj(),
    "negative": lambda: torch.rand(3, dtype=torch.complex64).conj().imag,
    "bool": lambda: torch.tensor([True, False]),
    "bfloat16": lambda: torch.rand(3).bfloat16(),
    "float8": lambda: torch.rand(3).to(torch.float8_e4m3fn),
    "uint16": lambda: torch.arange(3).to(torch.uint16),
    "overlapping": lambda: torch.arange(5.0).as_strided((3, 3), (1, 1)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_R30_values_and_layout_are_those_of_to(name: str, device: str) -> None:
    tensor = LAYOUTS[name]()
    got, wanted = through(tensor, device), tensor.to(device)
    if name == "float8":  # has no comparison of its own
        assert got.dtype == wanted.dtype
        got, wanted = got.view(torch.uint8), wanted.view(torch.uint8)
    Comparison().same(got, wanted)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta state")
def test_R31_special_layouts_take_the_plain_route_or_name_their_place(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    jagged = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged)
    lengths = torch.nested.narrow(
        torch.arange(12.0).reshape(2, 6), 1, torch.tensor([0, 1]), torch.tensor([2, 3]),
        layout=torch.jagged,
    )  # fmt: skip
    sparse = torch.eye(3)
    batch = {"coo": sparse.to_sparse(), "csr": sparse.to_sparse_csr(), "jagged": jagged}

    def refuse(self: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        raise AssertionError("asking a special layout whether it is pinned may start a device")

    monkeypatch.setattr(torch.Tensor, "is_pinned", refuse)
    monkeypatch.setattr(torch.Tensor, "pin_memory", refuse)
    got = through(batch, device)
    for name, tensor in batch.items():
        assert got[name].layout is tensor.layout
        assert got[name].device.type == device
    try:
        wanted = lengths.to(device)
    except Exception as error:
        with pytest.raises(type(error)) as caught:
            through({"edges": [0, lengths]}, device)
        assert 'batch["edges"][1]' in "\n".join(getattr(caught.value, "__notes__", []))
    else:
        assert through([lengths], device)[0].shape[:1] == wanted.shape[:1]


def test_R32_what_is_on_the_target_already_is_the_same_object(device: str) -> None:
    here = torch.zeros(2, device=device)
    elsewhere = torch.zeros(2, device="meta" if device == "cpu" else "cpu")
    if device == "cpu":
        elsewhere = torch.zeros(2)  # values cannot come back from where there are none
    got = through([here, elsewhere], device)
    assert got[0] is here
    assert got[1].device.type == device


def test_R32_fields_that_are_no_tensors_stay_on_the_host(device: str) -> None:
    numpy = pytest.importorskip("numpy")
    indices = numpy.arange(3)
    got = through({"x": torch.zeros(2), "indices": indices}, device)
    assert got["indices"] is indices


def test_R34_a_tensor_named_several_times_is_moved_once(device: str) -> None:
    tensor = torch.zeros(3)
    got = through({"a": tensor, "b": tensor, "n": [tensor]}, device)
    assert got["a"] is got["b"] is got["n"][0]


def test_R34_two_views_of_one_storage_have_the_right_values() -> None:
    whole = torch.arange(6.0)
    got = through([whole[:4], whole[2:]], "cpu")
    assert [part.tolist() for part in got] == [[0, 1, 2, 3], [2, 3, 4, 5]]


def test_R34_a_batch_that_contains_itself_is_a_clear_error(device: str) -> None:
    batch: dict[str, Any] = {"x": torch.zeros(1)}
    batch["self"] = batch
    with pytest.raises(ValueError, match=r'batch\["self"\] contains itself'):
        through(batch, device)


def test_R35_requires_grad_is_as_to_would_have_it(device: str) -> None:
    leaf = torch.ones(2, requires_grad=True)
    for tensor in (leaf, leaf * 2, torch.nn.Parameter(torch.ones(2))):
        for grad in (True, False):
            with torch.set_grad_enabled(grad):
                got, wanted = through([tensor], device)[0], tensor.to(device)
            assert got.requires_grad == wanted.requires_grad
            assert got.is_leaf == wanted.is_leaf
            assert (got.grad_fn is None) == (wanted.grad_fn is None)


def test_R35_no_graph_is_kept_by_the_loader_after_the_hand_over(
    device: str, buffer_size: int
) -> None:
    references: list[Any] = []

    def source() -> Any:
        for _ in range(3):
            tensor = torch.ones(2, requires_grad=True) * 2
            references.append(weakref.ref(tensor))
            yield [tensor]
            del tensor

    loader = AsynchronousLoader(source(), device, buffer_size=buffer_size)
    for batch in loader:
        del batch
    gc.collect()
    assert [reference() for reference in references] == [None] * 3


@pytest.mark.parametrize("mode", ["grad", "no_grad", "inference"])
def test_R54_all_batches_look_alike_to_a_compiler(mode: str, buffer_size: int) -> None:
    """What a compiler guards on: class, type, strides, flags and device, first batch to last."""
    context = {
        "grad": torch.enable_grad,
        "no_grad": torch.no_grad,
        "inference": torch.inference_mode,
    }[mode]
    source = [torch.full((3, 4), float(number)) for number in range(8)]
    with context():
        loader = AsynchronousLoader(source, "cpu", buffer_size=buffer_size)
        seen = {
            (type(b), b.dtype, b.stride(), b.device, b.requires_grad, b.is_inference(), b.is_leaf)
            for b in loader
        }
        plain = source[0].to("cpu")
    assert seen == {(type(plain), plain.dtype, plain.stride(), plain.device, False, False, True)}

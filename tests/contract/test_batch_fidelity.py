"""G1 and H13: what goes in comes out, moved: types, flags, values and aliases of every batch.

The oracle walks nothing: each case is a function that builds a batch, and is called once with
what stands for "as it is" and once with `.to(device)` for every leaf. So the expected batch is
made by the classes' own constructors, as a plain loop over known batches would.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidestream import AsynchronousLoader
from support.fidelity import Comparison

Leaf = Any
Move = Callable[[Leaf], Leaf]

BUFFERS = [0, 2]


def check(
    make: Callable[[Move], Any],
    device: str,
    buffer_size: int,
    loaded: Callable[[Any], list[Any]] | None = None,
) -> None:
    """Hold what the loader gives of a batch against what a plain loop makes of it."""
    cache: dict[int, tuple[Any, Any]] = {}

    def to_device(leaf: Any) -> Any:
        if id(leaf) not in cache:  # a plain loop that keeps aliases moves each leaf once
            cache[id(leaf)] = (leaf, leaf.to(device))
            if getattr(leaf, "layout", None) is torch.sparse_csr:
                skip_where_unreadable(cache[id(leaf)][1])
        return cache[id(leaf)][1]

    source = [make(lambda leaf: leaf)]
    loader = AsynchronousLoader(source, device, buffer_size=buffer_size)
    try:
        want = make(to_device)
    except Exception as error:
        with pytest.raises(type(error)):
            list(loader)
        return
    (got,) = list(loader) if loaded is None else loaded(loader)
    Comparison().same(got, want)


def skip_where_unreadable(moved: torch.Tensor) -> None:
    try:
        moved.crow_indices()
    except RuntimeError as error:
        pytest.skip(f"this backend cannot look into a CSR tensor: {error}")


# ---- the cases


class Point(NamedTuple):
    x: Any
    label: str
    y: Any


class Named(Point):
    """A subclass of a namedtuple with attributes of its own."""


@dataclasses.dataclass
class Plain:
    x: Any
    y: Any = None


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: Any
    name: str = "frozen"


@dataclasses.dataclass(slots=True)
class Slots:
    x: Any
    y: Any = dataclasses.field(default=None, kw_only=True)


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlots:
    x: Any


@dataclasses.dataclass
class Derived:
    """A field that the constructor does not take, and a constructor that must not run twice."""

    x: Any
    scale: dataclasses.InitVar[float]
    total: Any = dataclasses.field(init=False)
    unset: Any = dataclasses.field(init=False)

    def __post_init__(self, scale: float) -> None:
        self.total = self.x
        self.scale = scale * 2


class Child(Plain):
    def __init__(self, x: Any) -> None:
        super().__init__(x, x)
        self.extra = {"not": "a field"}


class NoCopyConstructor(dict):
    def __init__(self, first: Any, *, second: Any) -> None:
        super().__init__(first=first, second=second)
        self.kept = "attribute"


class AttributeDict(dict):
    """The idiom: items are attributes."""

    def __init__(self, **items: Any) -> None:
        super().__init__(**items)
        self.__dict__ = self


class Mirrored(collections.OrderedDict):
    """Keeps every item as an attribute too, as the outputs of language models do."""

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        super().__setattr__(key, value)


class ReadOnly(Mapping):
    def __init__(self, items: Any, note: str) -> None:
        self._items = dict(items)
        self.note = note

    def __getitem__(self, key: Any) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


class SlotStore(MutableMapping):
    """Keeps its items in a slot, which a shallow copy shares."""

    __slots__ = ("__store",)

    def __init__(self, items: Any) -> None:
        self.__store = collections.OrderedDict(items)

    def __getitem__(self, key: Any) -> Any:
        return self.__store[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.__store[key] = value

    def __delitem__(self, key: Any) -> None:
        del self.__store[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.__store)

    def __len__(self) -> int:
        return len(self.__store)


class Row(Sequence):
    def __init__(self, *items: Any) -> None:
        self._items = items

    def __getitem__(self, index: Any) -> Any:
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)


class TaggedList(list):
    tag = None


class Upper(collections.UserDict):
    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key.upper(), value)


class Image(torch.Tensor):
    """A subclass that survives `to`, as those of torchvision do."""

    @classmethod
    def make(cls, tensor: torch.Tensor, tag: str) -> Image:
        image = tensor.as_subclass(cls)
        image.tag = tag
        return image

    @classmethod
    def __torch_function__(cls, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = super().__torch_function__(func, kinds, args, kwargs or {})
        if func is torch.Tensor.to and isinstance(out, cls):
            out.tag = args[0].tag
        return out


class Copying:
    """Moves into a new object."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def to(self, device: Any) -> Any:
        return type(self)(self.x.to(device))


class CopyingNonBlocking(Copying):
    def to(self, device: Any, non_blocking: bool = False) -> Any:
        return type(self)(self.x.to(device, non_blocking=non_blocking))


class CopyingPinnable(CopyingNonBlocking):
    def pin_memory(self) -> Any:
        return type(self)(self.x.pin_memory())


class InPlace(Copying):
    def to(self, device: Any, *args: Any, non_blocking: bool = False) -> Any:
        self.x = self.x.to(device, non_blocking=non_blocking)
        return self


class InPlacePinnable(InPlace):
    def pin_memory(self) -> Any:
        self.x = self.x.pin_memory()
        return self


class PinnableOnly(Copying):
    def pin_memory(self) -> Any:
        raise AssertionError("its `to` takes no non_blocking, so there is no use in this")


class AnyArguments(Copying):
    def to(self, *args: Any, **kwargs: Any) -> Any:
        return type(self)(self.x.to(*args, **kwargs))


class MappingThatMoves(collections.UserDict):
    """A container with `to`, as language models' encodings are: asked, and not looked into."""

    def to(self, device: Any) -> Any:
        self.data = {name: value.to(device) for name, value in self.data.items()}
        return self


class Color(enum.Enum):
    RED = 1


class Opaque:
    def __init__(self, x: Any) -> None:
        self.x = x


def t(*shape: int, **options: Any) -> torch.Tensor:
    count = int(np.prod(shape, dtype=int))
    return torch.arange(count, **options).reshape(shape)


def f(*shape: int, **options: Any) -> torch.Tensor:
    return t(*shape, dtype=torch.float32, **options)


def with_extra(named: Any, **extra: Any) -> Any:
    vars(named).update(extra)
    return named


def quietly(make: Callable[[], Any]) -> Callable[[], Any]:
    """Without torch's notes that a kind of tensor is in beta, or on its way out."""

    def made() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return make()

    return made


def aliases(move: Move) -> Any:
    one, row = move(f(3)), [move(t(2)), "x"]
    return {"a": one, "b": [one, row], "c": row, "d": Plain(one, row), "e": (row, one)}


def in_graph() -> torch.Tensor:
    return f(2, 3).requires_grad_() * 2


CONTAINERS: dict[str, Callable[[Move], Any]] = {
    "tensor": lambda m: m(f(2, 3)),
    "list": lambda m: [m(f(2)), [m(t(3))], []],
    "tuple": lambda m: (m(f(2)), (m(t(3)),), ()),
    "dict": lambda m: {"x": m(f(2)), 3: {"y": m(t(1))}, (1, 2): {}},
    "namedtuple": lambda m: Point(m(f(2)), "label", [m(t(2))]),
    "namedtuple subclass": lambda m: with_extra(Named(m(f(2)), "l", None), note="kept"),
    "struct sequence": lambda m: torch.return_types.max((m(f(2)), m(t(2)))),
    "torch.Size": lambda m: {"x": m(f(2)), "size": torch.Size([2])},
    "OrderedDict": lambda m: collections.OrderedDict(z=m(f(2)), a=[m(t(2))]),
    "defaultdict": lambda m: collections.defaultdict(list, x=m(f(2)), y=[m(t(2))]),
    "Counter": lambda m: collections.Counter({"x": 3, "y": m(t(1))}),
    "ChainMap": lambda m: collections.ChainMap({"x": m(f(2))}, {"y": m(t(2))}),
    "mappingproxy": lambda m: types.MappingProxyType({"x": m(f(2))}),
    "UserDict": lambda m: collections.UserDict(x=m(f(2)), y={"z": m(t(2))}),
    "UserDict subclass": lambda m: Upper(x=m(f(2)), y=1),
    "UserList": lambda m: collections.UserList([m(f(2)), 1]),
    "UserString": lambda m: [collections.UserString("text"), m(f(1))],
    "deque": lambda m: collections.deque([m(f(2)), 1, [m(t(2))]], maxlen=5),
    "dict subclass": lambda m: NoCopyConstructor(m(f(2)), second=[m(t(1))]),
    "dict of attributes": lambda m: AttributeDict(x=m(f(2)), y=[m(t(1))]),
    "mirrored attributes": lambda m: Mirrored(x=m(f(2)), y=[m(t(1))]),
    "read-only mapping": lambda m: ReadOnly({"x": m(f(2)), "y": (m(t(1)),)}, "note"),
    "store in a slot": lambda m: SlotStore({"x": m(f(2)), "y": [m(t(1))]}),
    "sequence": lambda m: Row(m(f(2)), "x", [m(t(1))]),
    "list subclass": lambda m: with_extra(TaggedList([m(f(2)), 1]), tag="kept"),
    "dataclass": lambda m: Plain(m(f(2)), [m(t(2))]),
    "dataclass, frozen": lambda m: Frozen(m(f(2))),
    "dataclass, slots": lambda m: Slots(m(f(2)), y={"z": m(t(2))}),
    "dataclass, frozen and slots": lambda m: FrozenSlots([m(f(2))]),
    "dataclass, init=False": lambda m: Derived(m(f(2)), 1.5),
    "dataclass, subclass": lambda m: Child(m(f(2))),
    "dataclass of dataclasses": lambda m: Plain(Frozen(m(f(2))), {"s": [Slots(m(t(1)))]}),
    "aliases": aliases,
    "the same tensor under two types": lambda m: (lambda x: [x, (x,), {"x": x}])(m(f(2))),
    "no tensor in it": lambda m: {"x": [1, "a", None], "y": Plain(1, ())},
}

LEAVES: dict[str, Callable[[], Any]] = {
    "empty": lambda: f(0, 3),
    "scalar": lambda: torch.tensor(1.5),
    "large": lambda: f(300, 300),
    "transposed": lambda: f(3, 4).T,
    "sliced": lambda: f(8, 8)[::2, 1::3],
    "expanded": lambda: f(3, 1).expand(3, 4),
    "channels last": lambda: f(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "float64": lambda: f(3).double(),
    "bfloat16": lambda: f(3).bfloat16(),
    "bool": lambda: torch.tensor([True, False]),
    "uint16": lambda: torch.tensor([1, 2], dtype=torch.uint16),
    "float8": lambda: f(4).to(torch.float8_e4m3fn),
    "complex": lambda: torch.tensor([1 + 2j, 3 - 1j]),
    "conjugate": lambda: torch.tensor([1 + 2j, 3 - 1j]).conj(),
    "negative view": lambda: torch.tensor([1 + 2j]).conj().imag,
    "requires grad": lambda: f(3).requires_grad_(),
    "in a graph": in_graph,
    "parameter": lambda: torch.nn.Parameter(f(3)),
    "buffer": lambda: torch.nn.Buffer(f(3)),
    "sparse COO": lambda: f(3, 3).to_sparse(),
    "sparse COO, not coalesced": lambda: torch.sparse_coo_tensor(
        torch.tensor([[0, 0]]), torch.tensor([1.0, 2.0]), (3,), check_invariants=True
    ),
    "sparse CSR": quietly(lambda: f(3, 3).to_sparse_csr()),
    "quantised": quietly(lambda: torch.quantize_per_tensor(f(3, 2), 0.5, 2, torch.quint8)),
    "nested": quietly(lambda: torch.nested.nested_tensor([f(2, 3), f(1, 3)])),
    "jagged": quietly(lambda: torch.nested.nested_tensor([f(2, 3), f(1, 3)], layout=torch.jagged)),
    "meta": lambda: torch.empty(2, 3, device="meta"),
    "subclass": lambda: Image.make(f(2, 3), "tag"),
    "made in inference mode": lambda: torch.inference_mode()(f)(3),
    "packed sequence": lambda: torch.nn.utils.rnn.pack_sequence([f(3), f(2)]),
    "moves itself": lambda: Copying(f(2)),
    "moves itself, non_blocking": lambda: CopyingNonBlocking(f(2)),
    "moves itself, pinnable": lambda: CopyingPinnable(f(2)),
    "moves itself, in place": lambda: InPlace(f(2)),
    "moves itself, in place, pinnable": lambda: InPlacePinnable(f(2)),
    "moves itself, pinnable only": lambda: PinnableOnly(f(2)),
    "moves itself, any arguments": lambda: AnyArguments(f(2)),
    "moves itself, a mapping": lambda: MappingThatMoves(x=f(2)),
}

UNTOUCHED: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "str": lambda: "text",
    "bytes": lambda: b"bytes",
    "bytearray": lambda: bytearray(b"abc"),
    "numbers": lambda: [1, 2.5, True, 1j],
    "range": lambda: range(5),
    "numpy array": lambda: np.arange(6.0).reshape(2, 3),
    "numpy strings": lambda: np.array(["a", "bc"]),
    "numpy objects": lambda: np.array([None, "x", torch.zeros(1)], dtype=object),
    "numpy scalar": lambda: np.float32(1.5),
    "numpy string scalar": lambda: np.str_("text"),
    "enum": lambda: Color.RED,
    "class": lambda: [torch.Tensor, Plain, Copying],
    "function": lambda: check,
    "module": lambda: torch,
    "dtype and device": lambda: [torch.float32, torch.device("cpu")],
    "set of tensors": lambda: {torch.zeros(1)},
    "slice": lambda: slice(1, 2),
    "unknown object": lambda: Opaque(torch.zeros(1)),
    "namespace": lambda: types.SimpleNamespace(x=torch.zeros(1)),
    "generator": lambda: (x for x in [torch.zeros(1)]),
}


@pytest.mark.parametrize("buffer_size", BUFFERS)
@pytest.mark.parametrize("name", CONTAINERS)
def test_a_container_comes_out_as_it_went_in(name: str, device: str, buffer_size: int) -> None:
    check(CONTAINERS[name], device, buffer_size)


@pytest.mark.parametrize("buffer_size", BUFFERS)
@pytest.mark.parametrize("name", LEAVES)
def test_a_leaf_comes_out_as_to_makes_it(name: str, device: str, buffer_size: int) -> None:
    make = LEAVES[name]
    check(lambda move: {"x": [move(make()), 1]}, device, buffer_size)


@pytest.mark.parametrize("buffer_size", BUFFERS)
@pytest.mark.parametrize("name", UNTOUCHED)
def test_what_cannot_be_moved_is_the_same_object(name: str, device: str, buffer_size: int) -> None:
    thing = UNTOUCHED[name]()
    source = [{"thing": thing, "x": f(2)}]
    (got,) = AsynchronousLoader(source, device, buffer_size=buffer_size)
    assert got["thing"] is thing
    assert got["x"].device.type == torch.device(device).type


def test_a_tensor_that_is_there_already_is_passed_through(device: str) -> None:
    there = f(2).to(device)
    elsewhere = f(2)
    source = [(there, elsewhere)]
    (got,) = AsynchronousLoader(source, device, buffer_size=0)
    assert got[0] is there
    assert got[1].device == there.device


class Refilling:
    """Fills one numpy array for every batch (H9)."""

    def __iter__(self) -> Iterator[Any]:
        array = np.zeros((2, 3))
        for number in range(8):
            array.fill(number)
            yield {"array": array, "number": number, "same": [array]}


@pytest.mark.parametrize("buffer_size", [0, 1, 2, 9])
def test_an_array_that_is_filled_again_shows_each_value_in_time(
    device: str, buffer_size: int
) -> None:
    for batch in AsynchronousLoader(Refilling(), device, buffer_size=buffer_size):
        assert (batch["array"] == batch["number"]).all()
        assert batch["same"][0] is batch["array"]


# ---- what is no container, and what cannot be rebuilt


class Made(Sequence):
    """Makes its items when asked, as a view into a file does. It holds none to be replaced."""

    def __getitem__(self, index: int) -> Any:
        if index >= 3:
            raise IndexError(index)
        return torch.full((2,), float(index))

    def __len__(self) -> int:
        return 3


def test_a_sequence_that_makes_its_items_passes_through(device: str) -> None:
    made = Made()
    (got,) = AsynchronousLoader([[made, f(1)]], device)
    assert got[0] is made


class Stubborn(Sequence):
    """Can be rebuilt by no means: its copy is itself, and its constructor takes no items."""

    def __init__(self) -> None:
        self._items = (f(2),)

    def __copy__(self) -> Any:
        return self

    def __getitem__(self, index: Any) -> Any:
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)


def test_a_container_that_cannot_be_rebuilt_is_named_with_its_place() -> None:
    with pytest.raises(TypeError, match=r'batch\["x"\]\[1\] is a Stubborn, .*`to\(device\)`'):
        list(AsynchronousLoader([{"x": [0, Stubborn()]}], "meta"))


class Shared(MutableMapping):
    """Its copies share their items with it, through an object no walk looks into."""

    def __init__(self, x: Any = None) -> None:
        self._store = types.SimpleNamespace(x=x)

    def __getitem__(self, key: str) -> Any:
        return getattr(self._store, key)

    def __setitem__(self, key: str, value: Any) -> None:
        setattr(self._store, key, value)

    def __delitem__(self, key: str) -> None:
        raise NotImplementedError

    def __iter__(self) -> Iterator[str]:
        return iter(["x"])

    def __len__(self) -> int:
        return 1


def test_the_source_s_container_is_left_as_it_was_whatever_its_copies_share() -> None:
    tensor = f(2)
    shared = Shared(tensor)
    with pytest.raises(TypeError, match="batch is a Shared"):
        list(AsynchronousLoader([shared], "meta"))
    assert shared["x"] is tensor


# ---- errors name their place


class Failing(Copying):
    def to(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("this leaf fails")


BAD_PLACES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "alone": (lambda x: x, "batch"),
    "list in dict": (lambda x: {"labels": [f(1), 1, None, x]}, 'batch["labels"][3]'),
    "dataclass": (lambda x: [Plain(1, {"a": x})], 'batch[0].y["a"]'),
    "namedtuple": (lambda x: Point(f(1), "a", x), "batch[2]"),
    "key that is no string": (lambda x: {(1, "a"): {7: x}}, "batch[(1, 'a')][7]"),
    "first of two places": (lambda x: {"a": [x], "b": x}, 'batch["a"][0]'),
}


@pytest.mark.parametrize("buffer_size", BUFFERS)
@pytest.mark.parametrize("name", BAD_PLACES)
def test_a_failing_leaf_names_its_place_in_the_batch(
    name: str, device: str, buffer_size: int
) -> None:
    make, place = BAD_PLACES[name]
    good = {"x": f(1)}
    iterator = iter(
        AsynchronousLoader([good, make(Failing(f(1)))], device, buffer_size=buffer_size)
    )
    next(iterator)
    with pytest.raises(RuntimeError, match="this leaf fails") as caught:
        next(iterator)
    assert f"moving {place}, a Failing" in caught.value.__notes__


def test_a_batch_that_contains_itself_is_named(device: str) -> None:
    knot: list[Any] = [f(1)]
    knot.append({"again": knot})
    with pytest.raises(ValueError, match=r'batch\[1\]\["again"\] contains itself'):
        list(AsynchronousLoader([knot], device))


# ---- any nesting


class Spec(NamedTuple):
    """One object of a batch; `children` are indices of objects before it, so aliases arise."""

    kind: str
    children: list[int]
    number: int


BUILD: dict[str, Callable[[list[Any], int], Any]] = {
    "list": lambda c, n: list(c),
    "tuple": lambda c, n: tuple(c),
    "dict": lambda c, n: {f"k{i}": x for i, x in enumerate(c)},
    "int keys": lambda c, n: dict(enumerate(c, n)),
    "OrderedDict": lambda c, n: collections.OrderedDict(enumerate(reversed(c))),
    "defaultdict": lambda c, n: collections.defaultdict(int, enumerate(c)),
    "UserDict": lambda c, n: collections.UserDict(enumerate(c)),
    "UserList": lambda c, n: collections.UserList(c),
    "deque": lambda c, n: collections.deque(c),
    "namedtuple": lambda c, n: Point(list(c), "label", n),
    "dataclass": lambda c, n: Plain(list(c), n),
    "frozen": lambda c, n: FrozenSlots(tuple(c)),
    "attributes": lambda c, n: AttributeDict(x=list(c), n=n),
    "read-only": lambda c, n: ReadOnly(enumerate(c), "note"),
    "slot store": lambda c, n: SlotStore(enumerate(c)),
    "row": lambda c, n: Row(*c),
    "in place": lambda c, n: InPlace(f(n)),
}

ATOMS: list[Any] = [None, "text", b"b", 1.5, True, Color.RED]

TENSORS: list[Callable[[int], torch.Tensor]] = [
    lambda n: f(n),
    lambda n: t(n, 2),
    lambda n: t(n, 2).T,
    lambda n: f(n).half(),
    lambda n: f(1).expand(n),
    lambda n: f(2 * n)[::2],
    lambda n: f(n).requires_grad_(),
    lambda n: torch.tensor(n),
    lambda n: torch.complex(f(n), f(n)).conj(),
]

specs = st.lists(
    st.builds(
        Spec,
        st.sampled_from(["tensor", "tensor", "tensor", "atom", "array", *BUILD]),
        st.lists(st.integers(0, 30), max_size=4),
        st.integers(0, 5),
    ),
    min_size=1,
    max_size=12,
)


def build(batch: list[Spec], move: Move) -> Any:
    made: list[Any] = []
    for index, (kind, children, number) in enumerate(batch):
        if kind == "tensor":
            new = move(TENSORS[(index + number) % len(TENSORS)](number))
        elif kind == "atom":
            new = ATOMS[number]
        elif kind == "array":
            new = np.arange(number)
        else:
            below = [made[child % index] for child in children] if index else []
            new = BUILD[kind](below, number)
            new = move(new) if isinstance(new, InPlace) else new
        made.append(new)
    return made[-1]


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batch=specs, buffer_size=st.sampled_from(BUFFERS))
def test_any_nesting_comes_out_as_it_went_in(
    device: str, batch: list[Spec], buffer_size: int
) -> None:
    check(lambda move: build(batch, move), device, buffer_size)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batch=specs)
def test_a_batch_that_is_there_already_is_the_same_object(device: str, batch: list[Spec]) -> None:
    there = build(batch, lambda leaf: leaf.to(device))
    (got,) = AsynchronousLoader([there], device)
    assert got is there


class AsksItsLoader:
    """State methods that want arguments only the library's own loader has, as litdata's do."""

    def __iter__(self) -> Iterator[Any]:
        return iter([f(1), f(2)])

    def state_dict(self, num_yielded: int, batch_size: int) -> dict[str, int]:
        raise AssertionError("not for the loader to call")

    def load_state_dict(self, state: dict[str, int]) -> None:
        raise AssertionError("not for the loader to call")


def test_a_source_whose_state_wants_arguments_is_read_like_any_other(device: str) -> None:
    loader = AsynchronousLoader(AsksItsLoader(), device)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    assert [tuple(x.shape) for x in iterator] == [(2,)]
    loader.load_state_dict(state)
    assert [tuple(x.shape) for x in loader] == [(2,)]

"""Batches of other libraries' classes: each comes out as its own `to`, or a plain loop, has it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from sidestream import AsynchronousLoader
from support.fidelity import Comparison
from support.integration import needs

pytestmark = pytest.mark.integration


def library(name: str) -> Any:
    try:
        return needs(name)
    except pytest.skip.Exception as error:
        pytest.skip(str(error))


def f(*shape: int) -> torch.Tensor:
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape)


def hold(make: Callable[[Any], Any], device: str) -> None:
    """Compare with the batch that the class itself makes of moved tensors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some of these classes warn when they are made
        given, want = make(lambda x: x), make(lambda x: x.to(device))
        (got,) = AsynchronousLoader([given], device)
    Comparison().same(got, want)


def attrs_classes() -> list[type]:
    attrs = library("attrs")

    @attrs.define
    class Slots:
        x: Any
        y: Any = attrs.field(init=False)

        def __attrs_post_init__(self) -> None:
            self.y = [self.x]

    @attrs.frozen
    class Frozen:
        x: Any
        _private: Any = None

    @attrs.define(slots=False)
    class Plain:
        x: Any
        count: int = 3

    @attrs.frozen
    class Child(Frozen):
        y: Any = None

    return [Slots, Frozen, Plain, Child]


@pytest.mark.parametrize("index", range(4))
def test_attrs(index: int, device: str) -> None:
    kind = attrs_classes()[index]
    hold(lambda move: {"batch": [kind(move(f(2)))]}, device)


def test_tensordict(device: str) -> None:
    tensordict = library("tensordict")
    given = tensordict.TensorDict({"a": f(3, 2), "b": {"c": f(3)}}, batch_size=[3])
    (got,) = AsynchronousLoader([{"td": given}], device)
    assert type(got["td"]) is tensordict.TensorDict
    assert got["td"].device == torch.device(device)
    assert got["td"].batch_size == torch.Size([3])
    assert got["td"]["b", "c"].device.type == device
    if device == "cpu":
        assert torch.equal(got["td"]["b", "c"], f(3))


def test_tensorclass(device: str) -> None:
    tensordict = library("tensordict")

    @tensordict.tensorclass
    class Pair:
        x: torch.Tensor
        y: torch.Tensor

    (got,) = AsynchronousLoader([Pair(f(3), f(3, 2), batch_size=[3])], device)
    assert type(got) is Pair
    assert got.y.device.type == device


def graph_of(data: Any, move: Any) -> Any:
    return data.Data(x=move(f(3, 2)), edge_index=move(torch.tensor([[0, 1], [1, 2]])), name="a")


def test_a_graph(device: str) -> None:
    data = library("torch_geometric.data")
    given = graph_of(data, lambda x: x)
    (got,) = AsynchronousLoader([[given, 1]], device)
    want = graph_of(data, lambda x: x.to(device))
    assert type(got[0]) is data.Data
    assert got[0].keys() == want.keys()
    Comparison().same(got[0].to_dict(), want.to_dict())
    assert got[0] is given, "its `to` works in place, as in a plain loop"


def test_a_graph_of_many_types(device: str) -> None:
    data = library("torch_geometric.data")
    given = data.HeteroData()
    given["author"].x = f(4, 2)
    given["author", "writes", "paper"].edge_index = torch.tensor([[0, 1], [0, 2]])
    (got,) = AsynchronousLoader([given], device)
    assert type(got) is data.HeteroData
    assert got["author"].x.device.type == device
    assert got["author", "writes", "paper"].edge_index.device.type == device


def test_a_batch_of_graphs(device: str) -> None:
    data = library("torch_geometric.data")
    given = data.Batch.from_data_list([graph_of(data, lambda x: x) for _ in range(3)])
    kind = type(given)
    (got,) = AsynchronousLoader([given], device)
    assert type(got) is kind
    assert isinstance(got, data.Batch)
    assert got.batch.device.type == device
    assert got.num_graphs == 3


def test_an_encoding_of_a_tokenizer(device: str) -> None:
    transformers = library("transformers")
    given = transformers.BatchEncoding(
        {"input_ids": torch.ones(2, 3, dtype=torch.int64), "text": ["a", "b"]}
    )
    (got,) = AsynchronousLoader([given], device)
    assert type(got) is transformers.BatchEncoding
    assert got["input_ids"].device.type == device
    assert got["text"] == ["a", "b"]


def test_an_output_of_a_model(device: str) -> None:
    outputs = library("transformers.modeling_outputs")
    hold(
        lambda move: outputs.BaseModelOutput(
            last_hidden_state=move(f(2, 3)), hidden_states=(move(f(2)), move(f(3)))
        ),
        device,
    )

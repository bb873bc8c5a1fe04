"""Compare object graphs strictly: types, flags, values, and which objects are one and the same."""

from __future__ import annotations

import collections
import enum
import types
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch


class Comparison:
    """Compares two object graphs; one for each pair of batches."""

    def __init__(self) -> None:
        self._pairs: dict[int, Any] = {}
        self._back: dict[int, Any] = {}
        self._kept: list[Any] = []  # so that no identity is given out again

    def same(self, got: Any, want: Any, place: str = "batch") -> None:
        assert type(got) is type(want), f"{place}: {type(got)} instead of {type(want)}"
        if isinstance(want, (type(None), bool, int, float, complex, str, bytes, enum.Enum, type)):
            assert got == want or got != got, place
            return
        self._kept += [got, want]
        if id(want) in self._pairs:
            assert self._pairs[id(want)] is got, f"{place}: what was one object is two"
            return
        assert id(got) not in self._back, f"{place}: what were two objects is one"
        self._pairs[id(want)] = got
        self._back[id(got)] = want
        self._same_object(got, want, place)

    def _same_object(self, got: Any, want: Any, place: str) -> None:
        if isinstance(want, torch.Tensor):
            same_tensor(got, want, place)
        elif isinstance(want, (np.ndarray, np.generic)):
            np.testing.assert_array_equal(got, want, place)
            assert got.dtype == want.dtype, place
        elif isinstance(want, Mapping):
            assert list(got) == list(want), place
            for key in want:
                self.same(got[key], want[key], f"{place}[{key!r}]")
        elif isinstance(want, (Sequence, collections.deque)) and not isinstance(
            want, collections.UserString
        ):
            assert len(got) == len(want), place
            for index in range(len(want)):
                self.same(got[index], want[index], f"{place}[{index}]")
        for name, value in attributes(want).items():
            self.same(attributes(got)[name], value, f"{place}.{name}")


def attributes(obj: Any) -> dict[str, Any]:
    if isinstance(obj, (torch.Tensor, np.ndarray, np.generic, types.FunctionType)):
        return {}
    found = dict(getattr(obj, "__dict__", None) or {})
    for base in type(obj).__mro__:
        for name, member in vars(base).items():
            if isinstance(member, types.MemberDescriptorType) and hasattr(obj, name):
                found[name] = getattr(obj, name)
    return {name: value for name, value in found.items() if value is not obj}


def same_tensor(got: torch.Tensor, want: torch.Tensor, place: str) -> None:
    for what in ("device", "dtype", "layout", "shape", "requires_grad", "is_nested"):
        if not (what == "shape" and want.is_nested):
            assert getattr(got, what) == getattr(want, what), f"{place}.{what}"
    assert got.is_quantized == want.is_quantized, place
    assert (got.grad_fn is None) == (want.grad_fn is None), place
    assert got.is_conj() == want.is_conj(), place
    assert got.is_neg() == want.is_neg(), place
    assert getattr(got, "tag", None) == getattr(want, "tag", None), place
    assert got.is_inference() == want.is_inference(), place
    if want.is_meta and want.is_nested:
        return
    if want.is_nested:
        for index, (one, other) in enumerate(zip(got.unbind(), want.unbind(), strict=True)):
            same_tensor(one, other, f"{place}.unbind()[{index}]")
    elif want.layout is torch.sparse_coo:
        assert got.is_coalesced() == want.is_coalesced(), place
        same_tensor(got._indices(), want._indices(), f"{place}.indices")
        same_tensor(got._values(), want._values(), f"{place}.values")
    elif want.layout is torch.sparse_csr:
        same_tensor(got.crow_indices(), want.crow_indices(), f"{place}.crow_indices")
        same_tensor(got.col_indices(), want.col_indices(), f"{place}.col_indices")
        same_tensor(got.values(), want.values(), f"{place}.values")
    else:
        assert got.stride() == want.stride(), f"{place}.stride()"
        if not want.is_meta:
            one, other = (plain(tensor) for tensor in (got, want))
            assert torch.equal(one, other), place


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Its values as a plain host tensor, to be compared bit by bit."""
    tensor = tensor.detach().cpu()
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    return tensor.as_subclass(torch.Tensor).resolve_conj().resolve_neg()

"""Compare what the loader gave with what a plain loop would have: types, flags, values."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch


def assert_same(got: Any, source: Any, device: str | torch.device, place: str = "batch") -> None:
    """`got` is `source` with each tensor `t` in it replaced by `t.to(device)`."""
    assert type(got) is type(source), f"{place}: {type(got)} instead of {type(source)}"
    if isinstance(source, torch.Tensor):
        _assert_same_tensor(got, source.to(device), place)
    elif isinstance(source, Mapping):
        assert list(got) == list(source), place
        for key in source:
            assert_same(got[key], source[key], device, f"{place}[{key!r}]")
    elif isinstance(source, Sequence) and not isinstance(source, str | bytes | range):
        assert len(got) == len(source), place
        for index, (one, other) in enumerate(zip(got, source, strict=True)):
            assert_same(one, other, device, f"{place}[{index}]")
    elif dataclasses.is_dataclass(source) and not isinstance(source, type):
        for field in dataclasses.fields(source):
            one, other = getattr(got, field.name), getattr(source, field.name)
            assert_same(one, other, device, f"{place}.{field.name}")
    else:
        assert got == source, place


def _assert_same_tensor(got: torch.Tensor, wanted: torch.Tensor, place: str) -> None:
    assert got.device == wanted.device, place
    assert got.dtype == wanted.dtype, place
    assert got.layout == wanted.layout, place
    assert got.shape == wanted.shape, place
    assert got.requires_grad == wanted.requires_grad, place
    assert got.is_inference() == wanted.is_inference(), place
    if wanted.layout == torch.strided:
        assert got.stride() == wanted.stride(), place
    if wanted.device.type != "meta":
        assert torch.equal(got, wanted), place

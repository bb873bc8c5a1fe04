"""Sources that fill one buffer for every batch, where batches pass through without a copy (H9).

A plain loop is done with a batch before it asks for the next. Here the next ones are read while a
batch waits or is in use, and a source that writes them into the same memory would change it.
Copies to a device take care of themselves; this is for tensors that already are where they should
be, and for numpy arrays. Knows no streams and no threads.
"""

from __future__ import annotations

import copy
import sys
from typing import Any

import torch

from sidestream.batch import movable_leaves, parts_of, replace_leaves


class ReuseGuard:
    """Copies the first batches, and further ones only if one came back in the same memory.

    At most `buffer_size + 2` batches are read and not yet done with, so memory that comes back
    later than that harms nobody, and memory that comes back earlier is seen in the first
    `buffer_size + 2` batches.

    Args:
        device: Whose tensors pass through uncopied.
        window: How many batches may be read and not yet done with [batches].
    """

    def __init__(self, device: torch.device, window: int) -> None:
        self._device = device
        self._window = window
        self._left = window
        self._reuses = False
        self._seen: dict[Any, Any] = {}  # kept, so that no address is given out again

    def protect(self, batch: Any) -> Any:
        """The batch, or one with tensors of its own if the source may write them again."""
        if not self._left and not self._reuses:
            return batch
        leaves = [leaf for leaf in movable_leaves(batch) if self._passes(leaf)]
        arrays = parts_of(batch, _is_array)
        if self._left:
            self._left -= 1
            addresses: dict[Any, Any] = {x.untyped_storage().data_ptr(): x for x in leaves}
            addresses.update((array.__array_interface__["data"][0], array) for array in arrays)
            if type(batch) in (dict, list):
                addresses["container", id(batch)] = batch
            self._reuses = self._reuses or not self._seen.keys().isdisjoint(addresses)
            self._seen.update(addresses)
            if not self._left:
                self._seen.clear()
        copies = {id(leaf): _copy(leaf) for leaf in leaves}
        copies.update((id(array), array.copy(order="K")) for array in arrays)
        own = replace_leaves(batch, copies)
        return copy.copy(batch) if own is batch and type(batch) in (dict, list) else own

    def end_pass(self) -> None:
        """Keep nothing of a pass that is over. What was not seen to its end begins anew."""
        self._seen.clear()
        if self._left:
            self._left = self._window

    def _passes(self, leaf: Any) -> bool:
        """Whether this is a tensor here of which a copy would be the same in every respect."""
        return (
            type(leaf) is torch.Tensor
            and leaf.device == self._device
            and not leaf.is_meta
            and leaf.layout is torch.strided
            and leaf.numel() > 0
            and not (leaf.requires_grad or leaf.is_nested or leaf.is_quantized or leaf.is_conj())
            and not vars(leaf)
        )


def _copy(leaf: torch.Tensor) -> torch.Tensor:
    """A copy in memory of its own, with the same strides wherever that can be."""
    shape = [n if step else min(n, 1) for n, step in zip(leaf.shape, leaf.stride(), strict=True)]
    once = leaf.as_strided(shape, leaf.stride())  # what was expanded, before that
    new = torch.empty_strided(shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device)
    try:
        return new.copy_(once).as_strided(leaf.shape, leaf.stride())
    except RuntimeError:  # elements that overlap in other ways
        return leaf.clone()


def _is_array(part: Any) -> bool:
    """Whether this is a numpy array of plain values. They pass through on every device."""
    numpy = sys.modules.get("numpy")  # where nobody has imported it there are no arrays
    return numpy is not None and type(part) is numpy.ndarray and not part.dtype.hasobject

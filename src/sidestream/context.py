"""The state of the calling thread that user code in the loader's thread must find again.

A new thread starts with device 0, grad mode on, inference mode and autocast off, no default device
and an empty context, whatever its creator had set. Knows nothing of batches.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable
from typing import Any

import torch

from sidestream import device as seam


class ThreadState:
    """A snapshot of the calling thread's state, to be applied in another thread."""

    def __init__(self) -> None:
        accelerator = seam.accelerator_type()
        self._device_index: int | None = None
        if accelerator is not None:
            self._device_index = torch.accelerator.current_device_index()
        self._grad = torch.is_grad_enabled()
        self._inference = torch.is_inference_mode_enabled()
        self._default_device = seam.default_device()
        kinds = ["cpu"] if accelerator is None else ["cpu", accelerator]
        self._autocast = [
            (kind, torch.get_autocast_dtype(kind))
            for kind in kinds
            if torch.is_autocast_enabled(kind)
        ]
        self._autocast_cache = torch.is_autocast_cache_enabled()
        self._variables = contextvars.copy_context()

    def run(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function in this state."""
        self._variables.copy().run(self._run, function, arguments)

    def _run(self, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        with contextlib.ExitStack() as stack:
            index = self._device_index
            # The device first: an unqualified call from a thread that still stands on device 0
            # would make a context there, in every process (H12).
            if index is not None and torch.accelerator.current_device_index() != index:
                torch.accelerator.set_device_index(index)
            stack.enter_context(torch.inference_mode(self._inference))
            stack.enter_context(torch.set_grad_enabled(self._grad))
            for kind, dtype in self._autocast:
                stack.enter_context(
                    torch.autocast(kind, dtype=dtype, cache_enabled=self._autocast_cache)
                )
            if self._default_device != seam.default_device():
                stack.enter_context(self._default_device)
            function(*arguments)

"""The module `torch.sim`: what torch looks up by the device's name. Knows the extension only."""

from __future__ import annotations

import types
from typing import Any

import torch


def make(extension: Any) -> types.ModuleType:
    """Build the module that `torch._register_device_module` is given."""
    module = types.ModuleType("torch.sim", "The simulated accelerator, as torch looks it up.")

    def index_of(device: Any) -> int:
        if isinstance(device, int):
            return device
        index: Any = torch.device(device).index  # None for a device without index
        return int(extension.current_device()) if index is None else index

    class device(torch.accelerator.device_index):  # torch.load looks this name up  # noqa: N801
        """Context manager that selects a simulated device."""

        def __init__(self, device: Any) -> None:
            super().__init__(index_of(device))

    def get_rng_state(device: Any = "sim") -> torch.Tensor:
        return torch.frombuffer(
            bytearray(extension.rng_state(index_of(device))), dtype=torch.uint8
        )

    def set_rng_state(state: torch.Tensor, device: Any = "sim") -> None:
        extension.set_rng_state(index_of(device), bytes(state.cpu().tolist()))

    def manual_seed(seed: int) -> None:
        extension.seed(extension.current_device(), seed % 2**64)

    def manual_seed_all(seed: int) -> None:
        for index in range(extension.device_count()):
            extension.seed(index, seed % 2**64)

    module.__dict__.update(
        device=device,
        device_count=extension.device_count,
        is_available=lambda: extension.device_count() > 0,
        is_initialized=lambda: True,
        current_device=extension.current_device,
        set_device=lambda device: extension.set_device(index_of(device)),
        synchronize=torch.accelerator.synchronize,
        get_rng_state=get_rng_state,
        set_rng_state=set_rng_state,
        manual_seed=manual_seed,
        manual_seed_all=manual_seed_all,
        get_amp_supported_dtype=lambda: [torch.float16, torch.bfloat16],
        _is_in_bad_fork=extension.in_forked_child,
        _lazy_init=lambda: None,
    )
    return module

"""An accelerator made of host threads, with a race detector: test stream code without a GPU.

Importing this package changes nothing. `enable` compiles it on first use and makes device "sim"
the accelerator of the process; `races` tells what the program did in no order.
"""

from sidestream.simulator._as_cuda import as_cuda
from sidestream.simulator._build import BuildError
from sidestream.simulator._controls import (
    PinnedMemory,
    Settings,
    configure,
    current_settings,
    delay,
    operation_counts,
    pinned_memory,
    races,
    settings,
    virtual_time,
)
from sidestream.simulator._enable import SUPPORTED_TORCH, enable, is_enabled
from sidestream.simulator._races import Access, Race, RaceError, RaceKind, Severity

__all__ = [
    "SUPPORTED_TORCH",
    "Access",
    "BuildError",
    "PinnedMemory",
    "Race",
    "RaceError",
    "RaceKind",
    "Settings",
    "Severity",
    "as_cuda",
    "configure",
    "current_settings",
    "delay",
    "enable",
    "is_enabled",
    "operation_counts",
    "pinned_memory",
    "races",
    "settings",
    "virtual_time",
]

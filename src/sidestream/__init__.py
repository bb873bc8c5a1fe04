"""Batches that are already on the accelerator when the training loop asks for them."""

from typing import TYPE_CHECKING, Any

from sidestream.loader import AsynchronousLoader
from sidestream.statistics import LoaderStatistics

if TYPE_CHECKING:
    from sidestream.threads import ThreadDataLoader

__all__ = ["AsynchronousLoader", "LoaderStatistics", "ThreadDataLoader"]


def __getattr__(name: str) -> Any:
    """Import what only its users need when they ask for it."""
    if name == "ThreadDataLoader":
        from sidestream.threads import ThreadDataLoader

        return ThreadDataLoader
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Batches that are already on the accelerator when the training loop asks for them."""

from sidestream.loader import AsynchronousLoader
from sidestream.statistics import LoaderStatistics

__all__ = ["AsynchronousLoader", "LoaderStatistics"]

"""A DataLoader whose workers are threads. Nothing in the core imports it."""

from __future__ import annotations

from sidestream.threads.loader import ThreadDataLoader

__all__ = ["ThreadDataLoader"]

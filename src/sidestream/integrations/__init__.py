"""One file a framework; nothing in the core imports them.

Most frameworks need nothing from here: `AsynchronousLoader` goes around what they prepared. Where
that would be too late or too early, there is a module with the one call that puts it right. See
docs/integrations.md.
"""

from __future__ import annotations

import functools
import re
import warnings

MADE_FOR = {
    "accelerate": ("1.6", "1.15"),
    "lightning": ("2.1", "2.6"),
    "pytorch_lightning": ("2.1", "2.6"),
    "transformers": ("5.24", "5.24"),
}
"""The oldest and the newest version of each framework that its integration was run with."""


def missing(framework: str, extra: str) -> ImportError:
    """What to raise where a framework is not installed."""
    return ImportError(
        f"sidestream.integrations.{extra} needs {framework}, which is not installed: "
        f"pip install 'sidestream[{extra}]'"
    )


@functools.cache
def check_version(framework: str, version: str) -> None:
    """Warn, once for a version, where it is outside what was tested."""
    oldest, newest = MADE_FOR[framework]
    if not _release(oldest) <= _release(version) <= _release(newest):
        warnings.warn(
            f"{framework} {version} is outside the versions that sidestream was tested with, "
            f"{oldest} to {newest}; it may work: compare a short run with one without sidestream",
            RuntimeWarning,
            stacklevel=3,
        )


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])

"""One file a framework; nothing in the core imports them.

Most frameworks need nothing from here: `AsynchronousLoader` goes around what they prepared. Where
that would be too late or too early, there is a module with the one call that puts it right. See
docs/integrations.md.
"""

from __future__ import annotations

import functools
import re
import warnings
import weakref
from collections.abc import Callable
from typing import Any

MADE_FOR = {
    "accelerate": ("0.34", "1.15"),
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


def go_through(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Let calls of one instance's method go through `around(owner, method, ...)`; once only.

    The instance does not become part of a reference cycle: worker processes that end in the
    collection of one take 5 s each.
    """
    method = getattr(owner, name)
    if hasattr(method, "_sidestream"):
        return
    function = method.__func__ if getattr(method, "__self__", None) is owner else method
    is_bound = function is not method
    reference = weakref.ref(owner)

    @functools.wraps(function)
    def through(*args: Any, **kwargs: Any) -> Any:
        target = reference()
        call = functools.partial(function, target) if is_bound else function
        return around(target, call, *args, **kwargs)

    vars(through)["_sidestream"] = True
    setattr(owner, name, through)


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])

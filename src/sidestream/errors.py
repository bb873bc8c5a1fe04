"""What is said about an error on its way to the consumer. Knows no torch."""

from __future__ import annotations

import contextlib


def annotate(error: BaseException, note: str) -> None:
    """Add a note to an exception, once. One that will have none stays as it is.

    `BaseException.add_note` came with Python 3.11; the attribute it sets can be set before.
    """
    with contextlib.suppress(Exception):
        notes = getattr(error, "__notes__", [])
        if note not in notes:
            error.__notes__ = [*notes, note]  # type: ignore[attr-defined]


def as_raisable(error: BaseException) -> BaseException:
    """What to raise in `__next__` for an error: the same object wherever that is possible.

    A `StopIteration` that a transform or a `to` method let out would end the loop as if the data
    had ended. It becomes a `RuntimeError`, as it does inside a generator (PEP 479).
    """
    if not isinstance(error, StopIteration):
        return error
    raisable = RuntimeError("StopIteration was raised while a batch was moved or transformed")
    raisable.__cause__ = error
    return raisable

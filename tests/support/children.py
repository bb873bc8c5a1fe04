"""What spawned children run: they import it by name, which a test module may not have there."""

from __future__ import annotations

import itertools
from typing import Any

from support.sources import numbers


def send_numbers(loader: Any, connection: Any) -> None:
    connection.send([numbers(loader), numbers(itertools.islice(loader, 1)), len(loader)])

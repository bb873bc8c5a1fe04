"""Runs a script, or `-m MODULE`, and leaves the process without taking the interpreter down.

For processes that have worked with gloo. Its thread may hold the last reference to the last
collective, with Python objects in it. When it lets go while the interpreter goes, the process is
aborted: `ProcessGroupGloo::runLoop`, `~AsyncWork`, `take_gil`, `pthread_exit`. 6 of 22 runs on a
busy machine, without sidestream; a barrier before the end makes it rarer, 3 of 60.
"""

from __future__ import annotations

import os
import runpy
import sys


def main() -> None:
    del sys.argv[0]
    code = 0
    try:
        if sys.argv[0] == "-m":
            del sys.argv[0]
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        code = end.code or 0
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()

"""One process of several with transformers' Trainer: with and without the loader."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile

import torch

from support.transformers_runs import run


def main() -> None:
    # The trainer prints its log: not where the result goes.
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        plain, ours = (run(folder, ours=one, ddp_backend="gloo") for one in (False, True))
    batches = -(-28 // 4 // 2)  # of one epoch, of one of two processes
    sys.stdout.write(json.dumps({"same": plain == ours, "first": ours["seen"][:batches]}) + "\n")
    sys.stdout.flush()
    torch.distributed.barrier()  # gloo may abort a process whose peer left first
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()

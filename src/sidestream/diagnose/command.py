"""The command line: `sidestream run script.py`, also as `python -m sidestream run script.py`."""

from __future__ import annotations

import argparse


def main(arguments: list[str] | None = None) -> int:
    """Run a command.

    Returns:
        The exit status: 0 fine, 2 for what cannot be done, else the script's own.
    """
    parser = argparse.ArgumentParser(
        prog="sidestream", description="Batches on the device when the loop asks for them."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser(
        "run",
        help="run a training script with its DataLoaders asynchronous",
        description="Runs a script as python does, but for one thing: the batches of its "
        "DataLoaders are read in the background and are on the device already, so that the "
        "script's own .to(device) costs nothing. Says at the end what it did.",
    )
    run.add_argument("--device", help="where batches go; left out: the current accelerator")
    run.add_argument(
        "--buffer-size", type=int, default=2, help="how many may wait there [batches]"
    )
    run.add_argument("script", help="the script")
    run.add_argument("arguments", nargs=argparse.REMAINDER, help="its own arguments")
    options = parser.parse_args(arguments)

    from sidestream.diagnose.run import run_script  # here, so that --help need not wait for torch

    return run_script(
        options.script,
        options.arguments,
        device=options.device,
        buffer_size=options.buffer_size,
    )

"""The command line: `sidestream run`, `diagnose` and `bench`, also as `python -m sidestream`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any


def main(arguments: list[str] | None = None) -> int:
    """Run a command.

    Returns:
        The exit status: 0 fine, 2 for what cannot be done, else the script's own.
    """
    parser = argparse.ArgumentParser(
        prog="sidestream", description="Batches on the device when the loop asks for them."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for add in (_add_run, _add_diagnose, _add_bench):
        add(commands)
    options = parser.parse_args(arguments)
    act: Callable[[argparse.Namespace], int] = options.act
    return act(options)


def _add_run(commands: Any) -> None:
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
    _add_script(run)
    run.set_defaults(act=_run)


def _add_diagnose(commands: Any) -> None:
    diagnose = commands.add_parser(
        "diagnose",
        help="say where a training script's steps go, and what could be gained",
        description="Runs a script as python does and measures its DataLoaders, without a change "
        "in what it does. Says at the end how long a step takes, how much of it is reading, "
        "transfer and computing, and what AsynchronousLoader would make of it.",
    )
    diagnose.add_argument(
        "--steps",
        type=int,
        default=100,
        help="end the script after so many steps of one loader, %(default)s if left out; 0: let "
        "it end by itself",
    )
    diagnose.add_argument(
        "--try",
        dest="tries",
        action="store_true",
        help="run the script once more, with AsynchronousLoader, and show both",
    )
    diagnose.add_argument(
        "--json",
        action="store_true",
        help="print the findings as JSON to stdout; what the script prints goes to stderr",
    )
    diagnose.add_argument("--second-run", help=argparse.SUPPRESS)
    _add_script(diagnose)
    diagnose.set_defaults(act=_diagnose)


def _add_bench(commands: Any) -> None:
    bench = commands.add_parser(
        "bench",
        help="measure what this machine can do: the link, the hand-over, the overlap",
        description="Measures this machine, as ratios of two things measured in the same run: "
        "page-locked against pageable copies, the hand-over of a batch against a plain loop's, "
        "and how near a loop with equal stages comes to the slowest of them.",
    )
    bench.add_argument("--device", help="what to measure; left out: the current accelerator")
    bench.add_argument("--json", action="store_true", help="print it as JSON")
    bench.set_defaults(act=_bench)


def _add_script(command: argparse.ArgumentParser) -> None:
    command.add_argument("script", help="the script")
    command.add_argument("arguments", nargs=argparse.REMAINDER, help="its own arguments")


# What follows imports torch: --help need not wait for it.


def _run(options: argparse.Namespace) -> int:
    from sidestream.diagnose.run import run_script

    return run_script(
        options.script,
        options.arguments,
        device=options.device,
        buffer_size=options.buffer_size,
    )


def _diagnose(options: argparse.Namespace) -> int:
    from sidestream.diagnose.report import diagnose, second_run

    num_steps = options.steps or None
    if options.second_run:
        return second_run(
            options.script, options.arguments, num_steps=num_steps, path=options.second_run
        )
    return diagnose(
        options.script,
        options.arguments,
        num_steps=num_steps,
        tries=options.tries,
        as_json=options.json,
    )


def _bench(options: argparse.Namespace) -> int:
    from sidestream.diagnose.bench import bench

    return bench(options.device, as_json=options.json)

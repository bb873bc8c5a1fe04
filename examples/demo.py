"""Train a small network on images from files, with a plain loop and with the loader in turn.

The images are scikit-learn's 1,797 handwritten digits, written once as PNG files. Each is decoded,
enlarged, turned and shifted a little when it is read. Both ways see the same batches; whether they
end with the same loss is compared bit for bit. Takes one to two minutes on two cores.

Usage: scripts/demo [--device DEVICE] [--rounds N] [--epochs N] [--width N] [--output FOLDER]

  --device   where to train, as torch names it; default: the accelerator, or else the CPU
  --rounds   how often each way runs in each part; default: 6, of which no more are begun after
             80 s, though at least two
  --epochs   passes over the images in each run; default: 3
  --width    channels of the network's first layer: what a step costs grows with its square;
             default: 16 on a CPU, 256 elsewhere
  --output   where the images and the picture go; default: build/demo

Exit status: 0 if all losses were the same, 1 if not, 2 if an option is wrong.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from sidestream import AsynchronousLoader

SEED = 2026
BATCH_SIZE = 64

SIZE = 64
"""Width and height an image is enlarged to [pixels]."""

CPU_WIDTH = 16
"""The default width on a CPU. Chosen so that on one core reading a batch and training on it cost
about the same: there overlapping them can gain the most, nearly a factor of two."""

ACCELERATOR_WIDTH = 256
"""The default width elsewhere. A guess at the same, not measured."""

LIMIT_S = 80.0
"""No further round begins later than this [s]: a busy machine ends the demo in time, too."""

LEAST_ROUNDS = 2
"""How many rounds there are whatever the time: each way goes first once."""

SHOWN_STEPS = 5
"""How many steps of the plain loop the picture shows."""

PLAIN, LOADER = WAYS = ("plain loop", "loader")
FILES, WORKER, MEMORY = "PNG files", "PNG files, 1 worker", "in memory, nothing to read"


# ---- the images


def write_images(folder: Path) -> None:
    """Write the digits as `<number>_<label>.png`, once."""
    digits = load_digits()
    if len(list(folder.glob("*.png"))) == len(digits.target):
        return
    folder.mkdir(parents=True, exist_ok=True)
    pixels = (digits.images * (255 / 16)).astype(np.uint8)
    for number, (image, label) in enumerate(zip(pixels, digits.target, strict=True)):
        Image.fromarray(image).save(folder / f"{number:04d}_{label}.png")


class DigitFiles(Dataset[tuple[torch.Tensor, int]]):
    """Images read from PNG files, each turned and shifted by its own random numbers."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.glob("*.png"))
        self.epoch = 0

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        # From seed, epoch and index alone: who reads it, and when, changes nothing.
        draw = random.Random(f"{SEED} {self.epoch} {index}").uniform
        path = self.paths[index]
        with Image.open(path) as file:
            image = file.resize((SIZE, SIZE), Image.Resampling.BICUBIC)
        shift = (draw(-SIZE / 16, SIZE / 16), draw(-SIZE / 16, SIZE / 16))
        image = image.rotate(draw(-15, 15), Image.Resampling.BICUBIC, translate=shift)
        values = torch.from_numpy(np.array(image, dtype=np.float32))
        return values[None] / 255, int(path.stem.rpartition("_")[2])


Batch = list[Any]
EpochSource = Callable[[int], Iterable[Batch]]
"""Gives the batches of the epoch with a number."""


def from_files(dataset: DigitFiles, num_workers: int = 0) -> EpochSource:
    """Batches that a DataLoader reads from the files, in an order of each epoch's own."""

    def epoch(number: int) -> Iterable[Batch]:
        dataset.epoch = number
        return DataLoader(
            dataset,
            batch_size=BATCH_SIZE,
            shuffle=True,
            drop_last=True,
            generator=torch.Generator().manual_seed(SEED + number),
            num_workers=num_workers,
        )

    return epoch


def from_memory(dataset: DigitFiles, num_epochs: int) -> EpochSource:
    """The same batches, made beforehand: nothing is left to read."""
    epochs = [list(from_files(dataset)(number)) for number in range(num_epochs)]
    return epochs.__getitem__


# ---- when things happened


class Clock:
    """Marks points in time: by the host's clock on a CPU, by events on an accelerator.

    An accelerator works through its queue later than the host fills it, so only an event on the
    stream that did the work tells when it was done.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
            self.start_event = self._record()
            self.start_event.synchronize()
        self.start_s = time.perf_counter()

    def mark(self) -> Any:
        """A point in time: now, or when the current stream comes to it."""
        return time.perf_counter() if self.device.type == "cpu" else self._record()

    def since_start_s(self, mark: Any) -> float:
        """When a mark was passed [s]."""
        if isinstance(mark, float):
            return mark - self.start_s
        return float(self.start_event.elapsed_time(mark)) / 1000

    def _record(self) -> torch.Event:
        event = torch.Event(device=self.device, enable_timing=True)
        event.record(torch.accelerator.current_stream(self.device))
        return event


class Stamps:
    """When a batch was read, copied and computed with. Travels as the batch's first item.

    Whoever moves a batch asks each item in it to move, and this one notes that it was asked.
    """

    def __init__(self, clock: Clock, read_start: float, read_end: float) -> None:
        self.clock = clock
        self.marks: dict[str, list[Any]] = {
            "read": [read_start, read_end],
            "copy": [],
            "compute": [],
        }

    def to(self, device: torch.device) -> Stamps:
        """Note that copying begins."""
        self.stamp("copy")
        return self

    def stamp(self, row: str) -> None:
        """Note that something begins or ends now."""
        self.marks[row].append(self.clock.mark())

    def spans(self) -> dict[str, tuple[float, float]]:
        """Begin and end of each [s]."""
        return {
            row: (self.clock.since_start_s(start), self.clock.since_start_s(end))
            for row, (start, end) in self.marks.items()
        }


class Stamped:
    """A source of batches that stamps each with how long reading it took."""

    def __init__(self, batches: Iterable[Batch], clock: Clock) -> None:
        self.batches = batches
        self.clock = clock

    def __iter__(self) -> Iterator[Batch]:
        iterator = iter(self.batches)
        while True:
            start = time.perf_counter()
            batch = next(iterator, None)
            if batch is None:
                return
            yield [Stamps(self.clock, start, time.perf_counter()), *batch]


def copied(batch: Batch) -> Batch:
    """Note that the copy of a batch ends here."""
    batch[0].stamp("copy")
    return batch


# ---- training


@dataclass
class Run:
    """What one run gave."""

    step_s: float
    wait_s: float
    result: bytes
    """All losses and the weights at the end, for comparison."""
    loss: float
    spans: list[dict[str, tuple[float, float]]]


def make_network(width: int) -> nn.Module:
    """A small convolutional network, the same each time."""
    torch.manual_seed(SEED)
    return nn.Sequential(
        nn.Conv2d(1, width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(2 * width, 4 * width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4 * width * (SIZE // 8) ** 2, 10),
    )


class Trainer:
    """Trains from scratch, again and again, one way or the other."""

    def __init__(self, device: torch.device, width: int, num_epochs: int, bar: tqdm[Any]) -> None:
        self.device = device
        self.width = width
        self.num_epochs = num_epochs
        self.bar = bar

    def run(self, way: str, source: EpochSource) -> Run:
        """Train one network. The ways differ in what is iterated, and in who copies."""
        network = make_network(self.width).to(self.device)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.02, momentum=0.9)
        clock = Clock(self.device)
        stamps: list[Stamps] = []
        losses: list[torch.Tensor] = []
        wait_s = 0.0
        for number in range(self.num_epochs):
            batches: Iterable[Batch] = Stamped(source(number), clock)
            if way == LOADER:
                batches = AsynchronousLoader(batches, self.device, transform=copied)
            asked_s = time.perf_counter()
            iterator = iter(batches)
            while (batch := next(iterator, None)) is not None:
                wait_s += time.perf_counter() - asked_s
                if way == PLAIN:
                    batch = copied([item.to(self.device) for item in batch])
                losses.append(self.step(network, optimizer, batch))
                stamps.append(batch[0])
                asked_s = time.perf_counter()
            wait_s += time.perf_counter() - asked_s
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)
        total_s = time.perf_counter() - clock.start_s
        values = torch.stack(losses).cpu()
        weights = torch.cat([weight.detach().flatten() for weight in network.parameters()]).cpu()
        return Run(
            step_s=total_s / len(losses),
            wait_s=wait_s / len(losses),
            result=values.numpy().tobytes() + weights.numpy().tobytes(),
            loss=values[-1].item(),
            spans=[one.spans() for one in stamps],
        )

    def step(
        self, network: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch
    ) -> torch.Tensor:
        """Train on one batch."""
        stamps, x, y = batch
        stamps.stamp("compute")
        loss = nn.functional.cross_entropy(network(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        stamps.stamp("compute")
        self.bar.update()
        return loss.detach()


Runs = dict[str, list[Run]]


def compare(trainer: Trainer, source: EpochSource, number: int) -> Iterator[tuple[str, Run]]:
    """Run both ways, one after the other; which goes first alternates from round to round."""
    for way in WAYS if number % 2 == 0 else reversed(WAYS):
        yield way, trainer.run(way, source)


def measure(
    trainer: Trainer, sources: dict[str, EpochSource], num_rounds: int, bar: tqdm[Any]
) -> dict[str, Runs]:
    """Run every part in every round, so that what disturbs for a while disturbs them all."""
    parts: dict[str, Runs] = {part: {way: [] for way in WAYS} for part in sources}
    deadline_s = time.perf_counter() + LIMIT_S
    for number in range(num_rounds):
        if number >= LEAST_ROUNDS and time.perf_counter() > deadline_s:
            bar.total = bar.n
            break
        for part, source in sources.items():
            bar.set_description(f"round {number + 1}, {part}")
            for way, run in compare(trainer, source, number):
                parts[part][way].append(run)
    return parts


# ---- what was seen


def show_times(times_s: list[float]) -> str:
    """Median and range, in milliseconds."""
    low, middle, high = (1000 * f(times_s) for f in (min, statistics.median, max))
    return f"{middle:6.2f} ({low:.2f} - {high:.2f})"


def median_ratio(runs: Runs) -> float:
    """How many times longer a step of the plain loop took, round by round."""
    pairs = zip(runs[PLAIN], runs[LOADER], strict=True)
    return statistics.median(plain.step_s / loader.step_s for plain, loader in pairs)


def print_table(parts: dict[str, Runs]) -> bool:
    """Print what was measured; tell whether all results were the same."""
    first = next(iter(parts.values()))[PLAIN][0]
    num_rounds = len(parts[FILES][PLAIN])
    form = "{:<28}{:<12}{:<25}{:<25}{:<7}{}"
    print(
        form.format("images", "way", "time per step [ms]", "waited for data [ms]", "ratio", "same")
    )
    all_same = True
    for part, runs in parts.items():
        for way in WAYS:
            same = all(run.result == first.result for run in runs[way])
            all_same = all_same and same
            print(
                form.format(
                    part if way == PLAIN else "",
                    way,
                    show_times([run.step_s for run in runs[way]]),
                    show_times([run.wait_s for run in runs[way]]),
                    f"{median_ratio(runs):.2f}" if way == LOADER else "",
                    "yes" if same else "NO",
                )
            )
    print(
        f"\nTimes: median over {num_rounds} rounds (least - most). Waited: time inside next().\n"
        "Ratio: plain loop by loader, median over the rounds. Same: every loss and the weights\n"
        f"at the end, bit for bit. Final loss: {first.loss!r}"
    )
    return all_same


def print_seen(parts: dict[str, Runs], device: torch.device) -> None:
    """Say in words what the table shows."""
    ratios = {part: f"{median_ratio(runs):.2f}" for part, runs in parts.items()}
    print(
        f"Seen: a step of the plain loop took {ratios[FILES]} times as long as one of the loader\n"
        f"where the loop itself reads files, {ratios[WORKER]} times where a worker process reads\n"
        f"them, and {ratios[MEMORY]} times where there is nothing to read."
    )
    if device.type == "cpu":
        print("A worker process overlaps reading already; only a copy would be left to hide.")


def draw(runs: Runs, device: torch.device, path: Path) -> None:
    """Draw some steps of the last run of each way, as they were recorded."""
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    rows = ("read", "copy", "compute")
    colors = mpl.colormaps["tab10"]
    middle = len(runs[PLAIN][-1].spans) // 2
    window_s = 0.0
    for axes, way in zip(figure.subplots(len(WAYS), sharex=True), WAYS, strict=True):
        spans = runs[way][-1].spans
        if way == PLAIN:
            start_s = spans[middle]["read"][0]
            window_s = spans[middle + SHOWN_STEPS]["read"][0] - start_s
        else:
            start_s = spans[middle]["compute"][0]
        for number, batch in enumerate(spans):
            for height, row in enumerate(rows):
                begin, end = (1000 * (time_s - start_s) for time_s in batch[row])
                begin, end = max(begin, 0), min(end, 1000 * window_s)
                if begin >= end or (row == "copy" and device.type == "cpu"):
                    continue
                axes.barh(height, end - begin, left=begin, color=colors(number % 10), height=0.8)
                if end - begin > 30 * window_s:  # wide enough for its number
                    axes.text((begin + end) / 2, height, str(number), ha="center", va="center")
        done = sum(start_s < batch["compute"][1] <= start_s + window_s for batch in spans)
        axes.set_title(f"{way}: {done} steps in {1000 * window_s:.0f} ms", loc="left")
        axes.set_yticks(range(len(rows)), rows)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlim(0, 1000 * window_s)
        if device.type == "cpu":
            axes.text(0, 1, " on a CPU nothing is copied", va="center", color="gray")
    axes.set_xlabel("time [ms]; a colour and a number are one batch")
    figure.savefig(path, dpi=130)


def busy_s() -> float | None:
    """Time that all cores together have worked so far [s], for this process and all others.

    Source:
        proc(5), /proc/stat: user, nice, system, (idle, iowait,) irq, softirq, steal. Linux only.
    """
    try:
        ticks = [int(word) for word in Path("/proc/stat").read_text().split()[1:9]]
    except FileNotFoundError:
        return None
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


class OtherPrograms:
    """How busy everything else keeps this machine."""

    def __init__(self) -> None:
        self.start = self._now()

    def show(self) -> str:
        """What others did since the start, in words."""
        if self.start is None or (now := self._now()) is None:
            return "What other programs did meanwhile is not known here."
        cores = (now[0] - self.start[0]) / (now[1] - self.start[1])
        return f"Meanwhile other programs kept {max(cores, 0):.2f} of {os.cpu_count()} cores busy."

    def _now(self) -> tuple[float, float] | None:
        busy = busy_s()
        return None if busy is None else (busy - sum(os.times()[:4]), time.perf_counter())


def print_machine(device: torch.device) -> None:
    """Say where this is measured, and what it can show."""
    print(
        f"torch {torch.__version__}, Python {sys.version.split()[0]}, {os.cpu_count()} cores, "
        f"training on {device} in one thread"
    )
    if device.type == "cpu":
        print(
            "On a CPU nothing is copied: what a side stream gains cannot be seen here. Reading\n"
            "can run beside training as far as there are cores for both; for that, both ways\n"
            "train with one thread. The work is sized so that reading and training take about\n"
            "as long, where there is the most to gain. What else runs here takes from it."
        )


def parse_arguments() -> argparse.Namespace:
    """Read and check the command line."""
    parser = argparse.ArgumentParser(
        "scripts/demo",
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )
    parser.add_argument("-h", "--help", action="help", help=argparse.SUPPRESS)
    parser.add_argument("--device", help=argparse.SUPPRESS)
    for name, default in (("--rounds", 6), ("--epochs", 3), ("--width", None)):
        parser.add_argument(name, type=int, default=default, help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, default="build/demo", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    for name in ("rounds", "epochs", "width"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            parser.error(f"--{name} must be 1 or more, got {value}")
    if arguments.device is None:
        there = torch.accelerator.is_available()
        arguments.device = torch.accelerator.current_accelerator().type if there else "cpu"
    try:
        AsynchronousLoader([], arguments.device)
    except ValueError as error:
        parser.error(str(error))
    return arguments


def main() -> int:
    """Measure, print and draw."""
    arguments = parse_arguments()
    device = torch.device(arguments.device)
    torch.set_num_threads(1)
    if device.type != "cpu":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before CUDA starts
        torch.use_deterministic_algorithms(True)
    width = arguments.width or (CPU_WIDTH if device.type == "cpu" else ACCELERATOR_WIDTH)
    print_machine(device)

    write_images(arguments.output / "images")
    dataset = DigitFiles(arguments.output / "images")
    sources = {
        FILES: from_files(dataset),
        WORKER: from_files(dataset, num_workers=1),
        MEMORY: from_memory(dataset, arguments.epochs),
    }
    num_steps = len(dataset) // BATCH_SIZE * arguments.epochs * len(WAYS)
    tqdm.monitor_interval = 0  # no thread beside those that are measured
    others = OtherPrograms()
    with tqdm(total=num_steps * (1 + len(sources) * arguments.rounds), unit="step") as bar:
        trainer = Trainer(device, width, arguments.epochs, bar)
        bar.set_description("warming up")
        list(compare(trainer, sources[FILES], 0))
        parts = measure(trainer, sources, arguments.rounds, bar)

    print()
    all_same = print_table(parts)
    print_seen(parts, device)
    print(others.show())
    picture = arguments.output / "timelines.png"
    draw(parts[FILES], device, picture)
    print(f"Picture of the two timelines: {picture}")
    if not all_same:
        print(
            "scripts/demo: the results differ, and must not: see the column 'same'",
            file=sys.stderr,
        )
    return 0 if all_same else 1


if __name__ == "__main__":
    sys.exit(main())

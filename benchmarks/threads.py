"""ThreadDataLoader against a bare copy of the same bytes, DataLoader, and who else uses threads.

    scripts/bench threads

Three kinds of samples: 1 MiB each, 256 in a batch, which only have to be moved; 28x28 bytes, which
cost nothing but calls; and JPEG files, decoded and resized by PIL. The loop does nothing with a
batch. Everybody gives the same batches and is asked for one pass after another.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import io
import itertools
import logging
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import harness
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from sidestream import ThreadDataLoader

Pass = Callable[[], Iterable[Any]]


def steady(passes: Pass, skip: int) -> float:
    """Batches a second of one pass, from the arrival of batch `skip` to that of the last.

    With 0 it is the whole pass, start included: some read far ahead of the loop, and would have
    most of the work behind them when their first batch arrives.
    """
    start, count = time.perf_counter(), 0
    for number, batch in enumerate(passes()):
        count += 1
        if number == skip > 0:
            start, count = time.perf_counter(), 0
        del batch
    return count / (time.perf_counter() - start)


def compare(
    contenders: dict[str, Pass], reference: str, *, rounds: int, skip: int, unit: float
) -> dict[str, Any]:
    """All contenders by turns; rates in `unit` per batch, and ratios to the reference."""
    runs, missing = {}, {}
    for name, passes in contenders.items():
        run = functools.partial(steady, passes, skip)
        why = harness.trial(run, required="ThreadDataLoader" in name or name == reference)
        if why is None:
            runs[name] = run
        else:
            missing[name] = why
    rates = harness.by_turns(runs, rounds=rounds)
    return {
        "missing": missing,
        "reference": reference,
        "rates": {
            name: {
                "rate": harness.spread([unit * each for each in rates[name]]),
                "over_reference": harness.ratios(rates[name], rates[reference]),
            }
            for name in runs
        },
    }


# ---- samples that only have to be moved

SAMPLE_BYTES = 1 << 20
BATCH = 256


class Large(Dataset[torch.Tensor]):
    """Samples of 1 MiB, float32, different ones for a whole batch."""

    def __init__(self, batches: int) -> None:
        self.data = torch.rand(BATCH, SAMPLE_BYTES // 4)
        self.length = batches * BATCH

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.data[index % BATCH]


def bare_copies(dataset: Large, batches: int) -> Iterator[None]:
    """One call of memcpy for a batch, into memory that was used before."""
    address = COPY_TO.data_ptr()
    for _ in range(batches):
        yield ctypes.memmove(address, dataset.data.data_ptr(), dataset.data.nbytes)


def collations(dataset: Large, batches: int) -> Iterator[Any]:
    """What `default_collate` takes for itself."""
    samples = [dataset[index] for index in range(BATCH)]
    for _ in range(batches):
        yield default_collate(samples)


COPY_TO = torch.ones(BATCH, SAMPLE_BYTES // 4)


def large(rounds: int) -> dict[str, Any]:
    """256 MiB a batch."""
    batches = 14
    dataset = Large(batches)
    kept = {n: ThreadDataLoader(dataset, BATCH, num_workers=n) for n in (1, 2)}
    contenders: dict[str, Pass] = {
        "memcpy": lambda: bare_copies(dataset, batches),
        "default_collate": lambda: collations(dataset, 6),
        "DataLoader(0)": lambda: itertools.islice(DataLoader(dataset, BATCH), 6),
        "DataLoader(2)": lambda: DataLoader(dataset, BATCH, num_workers=2),
        "ThreadDataLoader(1)": lambda: kept[1],
        "ThreadDataLoader(2)": lambda: kept[2],
    }
    unit = BATCH * SAMPLE_BYTES / 1e9
    found = compare(contenders, "memcpy", rounds=rounds, skip=3, unit=unit)
    rates = found["rates"]
    found["over DataLoader(2)"] = {
        name: rates[name]["rate"]["median"] / rates["DataLoader(2)"]["rate"]["median"]
        for name in ("ThreadDataLoader(1)", "ThreadDataLoader(2)")
    }
    return found


# ---- samples that cost nothing but calls


def small(rounds: int) -> dict[str, Any]:
    """28x28 bytes and a label, 64 in a batch."""
    count = 64 * 200
    images = torch.randint(0, 256, (count, 28, 28), dtype=torch.uint8)
    dataset = TensorDataset(images, torch.arange(count) % 10)
    contenders: dict[str, Pass] = {
        "DataLoader(0)": lambda: DataLoader(dataset, 64),
        "DataLoader(2)": lambda: DataLoader(dataset, 64, num_workers=2),
        "ThreadDataLoader(1)": lambda: ThreadDataLoader(dataset, 64, num_workers=1),
        "ThreadDataLoader(2)": lambda: ThreadDataLoader(dataset, 64, num_workers=2),
    }
    return compare(contenders, "DataLoader(0)", rounds=rounds, skip=10, unit=64)


# ---- JPEG files

SIDE = 224


def pictures(folder: Path, count: int) -> list[Path]:
    """JPEG files of 500x375 with something in them, about 50 KB each."""
    from PIL import Image

    random = np.random.default_rng(harness.SEED)
    paths = []
    for number in range(count):
        coarse = random.integers(0, 256, (47, 63, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC)
        fine = random.integers(-20, 20, (375, 500, 3))
        image = Image.fromarray(np.clip(np.asarray(image) + fine, 0, 255).astype(np.uint8))
        paths.append(folder / f"{number:04}.jpg")
        image.save(paths[-1], quality=80)
    return paths


def decoded(data: bytes) -> torch.Tensor:
    """One picture, by PIL: shape `(224, 224, 3)`, uint8."""
    from PIL import Image

    image = Image.open(io.BytesIO(data)).convert("RGB")
    image = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(image))


class Files(Dataset[torch.Tensor]):
    """Decodes its files."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        return decoded(self.paths[index].read_bytes())


def nodes(files: Files) -> Iterable[Any]:
    """torchdata.nodes: two threads."""
    from torchdata.nodes import Batcher, IterableWrapper, Loader, Mapper, ParallelMapper

    indices = IterableWrapper(range(len(files)))
    samples = ParallelMapper(indices, files.__getitem__, num_workers=2, method="thread")
    return Loader(Mapper(Batcher(samples, 64, drop_last=False), default_collate))


def spdl(files: Files) -> Iterator[Any]:
    """SPDL: two threads, with PIL."""
    from spdl.pipeline import PipelineBuilder

    builder = PipelineBuilder().add_source(range(len(files)))
    builder = builder.pipe(files.__getitem__, concurrency=2, output_order="input").aggregate(64)
    pipeline = builder.pipe(default_collate).add_sink(3).build(num_threads=2, max_failures=0)
    with pipeline.auto_stop():
        yield from pipeline


def spdl_own(files: Files) -> Iterator[Any]:
    """SPDL with its own decoder, which joins the pictures of a batch itself."""
    import spdl.io

    logging.getLogger("spdl").setLevel(logging.CRITICAL)  # a line for each file, else
    for start in range(0, len(files), 64):
        paths = [str(path) for path in files.paths[start : start + 64]]
        frames = spdl.io.load_image_batch(
            paths, width=SIDE, height=SIDE, pix_fmt="rgb24", strict=True
        )
        yield spdl.io.to_torch(frames)


def grain(files: Files) -> Iterable[Any]:
    """Grain: two threads."""
    import grain as library

    data = library.MapDataset.source(range(len(files))).map(files.__getitem__)
    data = data.batch(64, batch_fn=default_collate)
    options = library.ReadOptions(num_threads=2, prefetch_buffer_size=4)
    return data.to_iter_dataset(options)


def webdataset(shards: list[str]) -> Iterable[Any]:
    """WebDataset: two processes, each with a shard."""
    import webdataset as library

    data = library.WebDataset(shards, shardshuffle=False).map(lambda x: decoded(x["jpg"]))
    data = data.batched(64, collation_fn=default_collate)
    return library.WebLoader(data, batch_size=None, num_workers=2)


def dali(files: Files) -> Iterator[Any]:
    """DALI on the CPU: two threads."""
    from nvidia.dali import fn, pipeline_def, types

    names = [str(path) for path in files.paths]

    @pipeline_def(batch_size=64, num_threads=2, device_id=None)
    def pipeline() -> Any:
        data, _ = fn.readers.file(files=names)
        images = fn.decoders.image(data, device="cpu")
        return fn.resize(images, size=(SIDE, SIDE), interp_type=types.INTERP_TRIANGULAR)

    built = pipeline()
    built.build()
    for _ in range(len(files) // 64):
        yield torch.from_numpy(built.run()[0].as_array())


def jpeg(rounds: int, count: int) -> dict[str, Any]:
    """JPEG files in batches of 64."""
    with tempfile.TemporaryDirectory() as folder:
        files = Files(pictures(Path(folder), count))
        shards = []
        for part in (0, 1):
            shards.append(f"{folder}/{part}.tar")
            with tarfile.open(shards[-1], "w") as shard:
                for path in files.paths[part::2]:
                    shard.add(path, arcname=path.name)
        contenders: dict[str, Pass] = {
            "DataLoader(0)": lambda: DataLoader(files, 64),
            "DataLoader(2)": lambda: DataLoader(files, 64, num_workers=2),
            "ThreadDataLoader(2)": lambda: ThreadDataLoader(files, 64, num_workers=2),
            "torchdata.nodes, 2 threads": lambda: nodes(files),
            "SPDL, 2 threads": lambda: spdl(files),
            "Grain, 2 threads": lambda: grain(files),
            "WebDataset, 2 processes": lambda: webdataset(shards),
            "DALI on the CPU, 2 threads": lambda: dali(files),
            "SPDL's own decoder": lambda: spdl_own(files),
        }
        return compare(contenders, "DataLoader(2)", rounds=rounds, skip=0, unit=64)


# ---- all of it


def measure(options: argparse.Namespace) -> Any:
    """All three kinds."""
    torch.set_num_threads(1)
    rounds = 3 if options.quick else 7
    result = {
        "rounds": rounds,
        "1 MiB samples, GB/s": large(rounds),
        "28x28 samples, samples/s": small(rounds),
        "JPEG files, pictures/s": jpeg(rounds, 64 * (6 if options.quick else 16)),
    }
    for name, found in result.items():
        if isinstance(found, dict):
            show(name, found)
    return result


def show(name: str, found: dict[str, Any]) -> None:
    """Print a table."""
    rows = [
        (
            contender,
            *(f"{one['rate'][key]:.4g}" for key in ("low", "median", "high")),
            f"{one['over_reference']['median']:.2f}",
        )
        for contender, one in found["rates"].items()
    ]
    head = (name, "low", "median", "high", f"over {found['reference']}")
    print("\n".join(harness.table(head, rows)), flush=True)
    for missing, why in found["missing"].items():
        print(f"not here: {missing}: {why}")
    print()


if __name__ == "__main__":
    sys.exit(harness.run("threads", measure, __doc__))

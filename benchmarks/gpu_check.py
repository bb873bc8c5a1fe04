"""All that needs a GPU, in one command of under nine minutes: tests, sanitizers, benchmarks.

    scripts/gpu-check [--list] [--only PART,PART] [--publish]

Each part is a process of its own with a limit; one that fails or does not end leaves the others
alone. Nothing is installed: a part that lacks something says so. Results go to
build/gpu/results.json as they come, with a summary beside them. `--publish` keeps them in
benchmarks/results/ and makes the page again. `--device sim` tries all but CUDA's own parts out
on the simulated accelerator.

Exit codes: 0 all is well; 1 something failed; 2 wrong arguments; 3 there is no GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness

ALL_S = 530  # of nine minutes, with room for starting and ending
HERE = Path(__file__).parent
OUT = harness.ROOT / "build" / "gpu"


@dataclass(frozen=True)
class Part:
    """One thing that is run."""

    name: str
    command: tuple[str, ...]
    limit_s: int
    needs: tuple[str, ...] = ()
    """Modules that must be there."""
    program: str | None = None
    """A program that must be there."""
    cuda_only: bool = False
    writes: bool = False
    """Whether it writes a result file, as a benchmark does."""

    def lacks(self) -> str | None:
        """What is missing here."""
        missing = [name for name in self.needs if importlib.util.find_spec(name) is None]
        if self.program and not shutil.which(self.program):
            missing.append(self.program)
        return f"{', '.join(missing)} not installed" if missing else None


def parts(device: str) -> list[Part]:
    """What is run, the most telling first."""
    python = sys.executable
    pytest = (python, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    contract = ("--maxfail", "40", "--session-timeout", "135", "tests/contract")
    needed = ("pytest", "pytest_timeout", "hypothesis", "psutil")
    checked = str(HERE / "stream_check.py")
    found = [
        Part("sanitizer", (python, checked, "--sanitize"), 60, cuda_only=True),
        Part("overlap", (*_benchmark("overlap", device), "--seconds", "110"), 170, writes=True),
        Part("contract", (*pytest, *contract), 150, needs=needed),
        Part("matrices", _benchmark("matrices", device), 60, writes=True),
    ]
    for name, limit_s in (("memory", 45), ("tensors", 40), ("bandwidth", 40), ("mnist", 45)):
        found.append(Part(name, _benchmark(name, device), limit_s, writes=True))
    for name, limit_s in (("processors", 60), ("scaling", 60)):
        found.append(Part(name, _benchmark(name, device), limit_s, writes=True))
    for tool in ("memcheck", "racecheck"):
        command = ("compute-sanitizer", "--tool", tool, "--error-exitcode", "1", python, checked)
        found.append(Part(tool, command, 40, program="compute-sanitizer", cuda_only=True))
    return found


def _benchmark(name: str, device: str) -> tuple[str, ...]:
    file = str(OUT / f"{name}.json")
    return (
        sys.executable, str(HERE / f"{name}.py"), "--device", device, "--quick", "--json", file
    )  # fmt: skip


def run(part: Part, device: str, limit_s: float) -> dict[str, Any]:
    """Run one part, and end it and its children where it does not end by itself."""
    lacks = part.lacks()
    if lacks:
        return {"state": "not run", "why": lacks}
    if limit_s < 10:
        return {"state": "not run", "why": "no time was left"}
    start = time.perf_counter()
    file = OUT / f"{part.name}.json"
    file.unlink(missing_ok=True)
    with open(OUT / f"{part.name}.log", "w", encoding="utf-8") as log:
        running = subprocess.Popen(
            part.command,
            cwd=harness.ROOT,
            env={**os.environ, "SIDESTREAM_TEST_DEVICES": device},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | None = running.wait(min(part.limit_s, limit_s))
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()
    text = (OUT / f"{part.name}.log").read_text(encoding="utf-8", errors="replace")
    found: dict[str, Any] = {
        "state": {0: "well", None: "did not end"}.get(code, "failed"),
        "code": code,
        "seconds": round(time.perf_counter() - start, 1),
        "last": [line for line in text.splitlines() if line.strip()][-3:],
    }
    if part.writes and file.exists():
        found["result"] = json.loads(file.read_text(encoding="utf-8"))
    return found


def available(device: str) -> str | None:
    """Why the device cannot be used, or None."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no CUDA GPU here; nothing was checked"
    return None


def write(found: dict[str, Any]) -> None:
    """Write what there is so far, and its summary."""
    (OUT / "results.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (OUT / "summary.txt").write_text("\n".join(summary(found)) + "\n", encoding="utf-8")


def summary(found: dict[str, Any]) -> list[str]:
    """A line for each part, and what was to be shown."""
    import goals

    machine = found["machine"]
    lines = [f"{machine['accelerator']}, torch {machine['versions']['torch']}, {found['date']}"]
    for name, one in found["parts"].items():
        said = one.get("why") or (one.get("last") or [""])[-1]
        lines.append(f"{name:12} {one['state']:12} {one.get('seconds', 0):6.1f} s  {said}")
    results = {n: one["result"] for n, one in found["parts"].items() if "result" in one}
    for what, figure, met in goals.checks(results):
        lines.append(f"{'met    ' if met else 'NOT MET'} {what}: {figure}")
    return lines


def arguments() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="say what would be run, and end")
    parser.add_argument("--only", help="these parts alone, separated by commas")
    parser.add_argument("--device", choices=("cuda", "sim"), default="cuda")
    parser.add_argument("--publish", action="store_true", help="keep the results")
    options = parser.parse_args()
    names = [part.name for part in parts(options.device)]
    unknown = sorted(set((options.only or names[0]).split(",")) - set(names))
    if unknown:
        parser.error(f"there is no part {', '.join(unknown)}; there is {', '.join(names)}")
    return options


def main() -> int:
    """Run all parts."""
    options = arguments()
    chosen = [
        part
        for part in parts(options.device)
        if not options.only or part.name in options.only.split(",")
    ]
    if options.list:
        for part in chosen:
            print(f"{part.name:12} {part.limit_s:4} s  {part.lacks() or ' '.join(part.command)}")
        return 0
    why = available(options.device)
    if why:
        print(f"scripts/gpu-check: {why}", file=sys.stderr)
        return 3
    OUT.mkdir(parents=True, exist_ok=True)
    end = time.perf_counter() + ALL_S
    accelerator = harness.accelerator(options.device)
    found: dict[str, Any] = {
        "machine": harness.machine() | {"accelerator": accelerator},
        "date": time.strftime("%Y-%m-%d"),
        "commit": harness.commit(),
        "parts": {},
    }
    for part in chosen:
        if part.cuda_only and options.device != "cuda":
            found["parts"][part.name] = {"state": "not run", "why": "needs CUDA itself"}
        else:
            print(f"{part.name} ...", flush=True)
            found["parts"][part.name] = run(part, options.device, end - time.perf_counter())
        write(found)
    print("\n".join(summary(found)))
    if options.publish:
        shutil.copy(OUT / "results.json", HERE / "results" / "gpu.json")
        subprocess.run([sys.executable, str(HERE / "page.py")], check=True)
    bad = [one for one in found["parts"].values() if one["state"] in ("failed", "did not end")]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

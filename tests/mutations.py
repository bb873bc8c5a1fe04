"""Take each guard of the loader out in turn, and run the tests that must notice.

A mutation is a piece of the source and what to put in its place. It is made in a copy of the
package, and survives when its tests pass all the same. Exit codes: 0 all are noticed, 1 one
survives, 2 the table no longer fits the source, or its tests fail without any mutation.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMIT_S = 90.0  # for the tests of one mutation; a hang is noticed, too
AT_ONCE = 2


@dataclasses.dataclass(frozen=True)
class Mutation:
    """A guard, and what is left without it."""

    name: str
    file: str
    original: str
    replacement: str
    tests: str
    """Arguments of pytest, relative to `tests`."""


CHANNEL = "unit/test_channel.py"
STAGING = "unit/test_staging.py"
HAZARDS = "simulator/engine/test_hazards.py"
ERRORS = "contract/test_errors.py"
VERIFY = "simulator/engine/test_verify.py"
COLLATION = "contract/test_thread_collation.py"
THREADS = "contract/test_thread_dataloader.py"
RESUME = "contract/test_resume.py"

MUTATIONS = [
    Mutation(
        "channel: bound", "channel.py",
        "if self._closed or not self._full():", "if True:", f"{CHANNEL} -k producer_woken",
    ),
    Mutation(
        "channel: room while held", "channel.py",
        "self._holders.add(me)", "pass", f"{CHANNEL} -k producer_woken",
    ),
    Mutation(
        "channel: room after an interrupt", "channel.py",
        "if me in self._holders:", "if False:", f"{CHANNEL} -k thrown_out",
    ),
    Mutation(
        "channel: re-entrant lock", "channel.py",
        "lock = threading.RLock()", "lock = threading.Lock()", f"{CHANNEL} -k own_lock",
    ),
    Mutation(
        "channel: close wakes the producer", "channel.py",
        "            _wake(self._producers)\n            _wake(self._consumers)",
        "            pass", f"{CHANNEL} -k wakes_everybody",
    ),
    Mutation(
        "epoch: an error once", "epoch.py",
        "self._error, None, True", "self._error, None, False",
        f"{ERRORS} -k met_at_once",
    ),
    Mutation(
        "channel: a wait in a loop", "channel.py",
        "            _sleep(sleeper)\n\n    def release",
        "            _sleep(sleeper)\n            return self._items.popleft()\n\n    def release",
        f"{CHANNEL} -k without_a_reason",
    ),
    Mutation(
        "source: limit", "source.py",
        "if self._num_batches is not None and self.num_read >= self._num_batches:", "if False:",
        "contract/test_one_shot.py -k beyond",
    ),
    Mutation(
        "source: one thread at a time", "source.py",
        "inside_source(), self._lock, named", "inside_source(), threading.RLock(), named",
        "contract/test_concurrency.py -k four_passes",
    ),
    Mutation(
        "source: what was read ahead of a one-shot iterator", "source.py",
        "self._unused.extendleft(", "list(", "contract/test_one_shot.py -k broken_off",
    ),
    Mutation(
        "epoch: stop closes the channel", "epoch.py",
        "            self._channel.close()", "            pass",
        "lifetime/test_collection.py -k waits_for_room",
    ),
    Mutation(
        "epoch: a finalizer ends the pass", "epoch.py",
        "            self._epoch.stop()\n", "            return\n",
        "lifetime/test_collection.py -k first_batches",
    ),
    Mutation(
        "epoch: an iterator of another process", "epoch.py",
        "        if self._process != os.getpid():\n            raise RuntimeError(",
        "        if False:\n            raise RuntimeError(", "lifetime/test_fork.py -k told",
    ),
    Mutation(
        "epoch: the caller's thread state", "epoch.py",
        "                    target=self._state.run,\n",
        "                    target=lambda function, *args: function(*args),\n",
        "contract/test_thread_state.py -k test_the_source_sees",
    ),
    Mutation(
        "epoch: any exception", "epoch.py",
        "except BaseException as raised:", "except Exception as raised:",
        f"{ERRORS} -k after_the_good",
    ),
    Mutation(
        "epoch: the error is passed on", "epoch.py",
        "channel.finish(error)", "channel.finish()", f"{ERRORS} -k after_the_good",
    ),
    Mutation(
        "epoch: StopIteration out of a transform", "epoch.py",
        "            raise as_raisable(error)\n        finally:",
        "            raise error\n        finally:",
        f"{ERRORS} -k stop_iteration_out_of_a_transform",
    ),
    Mutation(
        "epoch: room is given back", "epoch.py",
        "                channel.release()\n", "                pass\n",
        "contract/test_read_ahead.py -k one_more",
    ),
    Mutation(
        "context: grad mode", "context.py",
        "stack.enter_context(torch.set_grad_enabled(self._grad))", "pass",
        "contract/test_thread_state.py -k test_the_source_sees",
    ),
    Mutation(
        "context: context variables", "context.py",
        "self._variables.copy().run(self._run, function, arguments)",
        "self._run(function, arguments)",
        "contract/test_thread_state.py -k test_the_source_sees",
    ),
    Mutation(
        "context: device (H12)", "context.py",
        "torch.accelerator.set_device_index(index)", "pass", f"{HAZARDS} -k h12",
    ),
    Mutation(
        "batch: a batch that contains itself", "batch.py",
        "if inside[key]:", "if False:", "unit/test_batch.py -k contains_itself",
    ),
    Mutation(
        "batch: one object in two places (H13)", "batch.py",
        "        known[key] = result\n", "", "unit/test_batch.py -k stays_one",
    ),
    Mutation(
        "reuse: seen again (H9)", "reuse.py",
        "self._reuses = self._reuses or not", "self._reuses = False and not",
        "contract/test_reused_buffers.py -k ring_of_buffers",
    ),
    Mutation(
        "reuse: the window (H9)", "loader.py",
        "ReuseGuard(device, buffer_size + 2)", "ReuseGuard(device, buffer_size + 1)",
        "contract/test_reused_buffers.py -k ring_of_buffers",
    ),
    Mutation(
        "loader: a copy is fresh", "loader.py",
        ' if name != "_running"}', "}", "contract/test_copies.py -k in_mid_pass_is_fresh",
    ),
    Mutation(
        "loader: one reader of a one-shot iterator", "loader.py",
        "            self._make_room(data)\n", "", "contract/test_one_shot.py -k at_once",
    ),
    Mutation(
        "loader: a forked child starts afresh", "loader.py",
        "if self._running.process != os.getpid():", "if False:",
        "lifetime/test_fork.py -k every_lock",
    ),
    Mutation(
        "resume: the program's numbers go on", "resume.py",
        "randomness.set_random_state(mine, None, self._watch.drawn)", "pass",
        f"{RESUME} -k unbroken_one",
    ),
    Mutation(
        "resume: what the source drew as it went on", "randomness.py",
        "drawn |= kinds_drawn(begun, random_state())", "pass", f"{RESUME} -k drawn_again",
    ),
    Mutation(
        "resume: batches since the state", "resume.py",
        "num_batches - taken_at)", "0)", f"{RESUME} -k bounded_passes",
    ),
    Mutation(
        "rest: a dataset that draws is read again", "rest.py",
        "            self.flag.fill_(1)\n", "            pass\n", f"{RESUME} -k drawn_again",
    ),
    Mutation(
        "rest: the seed of workers of an earlier pass", "rest.py",
        "if self._start is not None:", "if False:", f"{RESUME} -k persistent",
    ),
    Mutation(
        "staging: a slot in flight is waited for", "staging.py",
        "                slot.wait()\n", "                slot._land()\n",
        f"{STAGING} -k not_used_again",
    ),
    Mutation(
        "staging: a slot in flight (H2)", "staging.py",
        "and self._copy.query():", "and True:", f"{HAZARDS} -k h2_a_slot",
    ),
    Mutation(
        "staging: nothing to be rounded up", "staging.py",
        "pages = 1 << (missing.bit_length() - 1)", "pages = missing", f"{STAGING} -k R07",
    ),
    Mutation(
        "staging: close waits for the copies (G4)", "staging.py",
        "self._slots.popleft().wait()", "self._slots.popleft()", f"{STAGING} -k close_waits",
    ),
    Mutation(
        "errors: a note once", "errors.py",
        "if note not in notes:", "if True:", "unit/test_errors.py -k once",
    ),
    Mutation(
        "release: wait for the copy (H1)", "release.py",
        "stream.wait_event(ready)", "pass", f"{HAZARDS} -k h1_the",
    ),
    Mutation(
        "release: fence (H3)", "release.py",
        "self._side.wait_event(stream.record_event())", "pass", f"{HAZARDS} -k h3_dropped",
    ),
    Mutation(
        "release: what is held (H3)", "release.py",
        "if not seam.is_held(holder):", "if True:", f"{HAZARDS} -k kept_view",
    ),
    Mutation(
        "release: streams of before (H3)", "release.py",
        "                oldest = min(oldest, since)\n", "", f"{HAZARDS} -k change_streams",
    ),
    Mutation(
        "release: kept over a close (H3)", "release.py",
        "_record_use(holder, self._streams_since(since))", "pass",
        "simulator/engine/test_kept_over_close.py",
    ),
    Mutation(
        "transfer: page-locked sources (H9)", "transfer.py",
        "if number < 0 or not seam.CAN_TELL_HOLDERS or any(map(seam.is_held, holders)):",
        "if False:",
        f"{HAZARDS} -k reused_buffer",
    ),
    Mutation(
        "packing: version counters (H7)", "packing.py",
        "out = out.data  #", "pass  #", f"{HAZARDS} -k h7",
    ),
    Mutation(
        "packing: large tensors alone (H8)", "packing.py",
        "PACK_LIMIT_BYTES = 64 * 1024", "PACK_LIMIT_BYTES = 1 << 30", f"{HAZARDS} -k h8",
    ),
    # ---- one for each guarantee that had none, and for what is newer
    Mutation(
        "epoch: no further draw at the length (G8)", "epoch.py",
        "                if source.is_at_length:\n                    break\n", "",
        "contract/test_randomness.py -k exactly_len",
    ),
    Mutation(
        "epoch: the state is of what was delivered (G10)", "epoch.py",
        "self.position = parcel.position", "self.position = self.source.position",
        "fuzz/test_face.py -k TestFace",
    ),
    Mutation(
        "resume: a place that can be (G10)", "resume.py",
        "        _check_place(state)\n", "", "fuzz/test_face.py -k damaged",
    ),
    Mutation(
        "resume: a state of its own (G10)", "resume.py",
        "state = copy.deepcopy(_stateful(self._data).state_dict())",
        "state = _stateful(self._data).state_dict()",
        f"{RESUME} -k unbroken_one",
    ),
    Mutation(
        "loader: construction opens nothing (G11)", "loader.py",
        "    return data\n\n\ndef _is_spent", "    iter(data)\n    return data\n\n\ndef _is_spent",
        "contract/test_inert.py",
    ),
    Mutation(
        "transfer: asked once to move (G12)", "transfer.py",
        "            new = leaf.to(device)\n",
        "            new = leaf.to(device)\n            new = leaf.to(device)\n",
        "contract/test_lazy_objects.py",
    ),
    Mutation(
        "epoch: close does not wait for ever (G7)", "epoch.py",
        "thread.join(timeout_s)", "thread.join()",
        "lifetime/test_blocked_source.py -k names_the_thread",
    ),
    Mutation(
        "epoch: all threads end at exit (G7)", "epoch.py",
        "        _close_all_at_exit()\n", "", "lifetime/test_exit.py -k busy",
    ),
    Mutation(
        "transfer: nothing is closed when all is gone (G7)", "transfer.py",
        "        if is_finalizing():", "        if False:",
        "simulator/test_process_faults.py -k shutdown",
    ),
    Mutation(
        "source: a note that names the batch (G6)", "source.py",
        "                annotate(error, f", "                str(f",
        "contract/test_errors.py -k tells_the_line",
    ),
    Mutation(
        "release: not through record_stream (H5)", "release.py",
        "            if not seam.CAN_TELL_HOLDERS:", "            if True:", f"{HAZARDS} -k h5",
    ),
    Mutation(
        "release: the consumer's stream (H4)", "release.py",
        "        stream = seam.current_stream(self._device)\n", "        stream = self._side\n",
        f"{HAZARDS} -k h4_the",
    ),
    Mutation(
        "loader: one stream for all epochs (H6)", "loader.py",
        "        if device not in self._transfers:", "        if True:", f"{HAZARDS} -k h6",
    ),
    Mutation(
        "device: refused page-locked memory is survived (H11)", "device.py",
        "        except RuntimeError as error:\n            warnings.warn(",
        "        except ZeroDivisionError as error:\n            warnings.warn(",
        f"{HAZARDS} -k h11",
    ),
    Mutation(
        "verify: comparing behind the last use", "verify.py",
        "one.is_compared_at_last = one.is_as_made()", "one.is_compared_at_last = False",
        f"{VERIFY} -k not_told_of",
    ),
    Mutation(
        "verify: what the user changed", "verify.py",
        "return self.counter is not None and self.counter._version == self.version", "return True",
        f"{VERIFY} -k in_place",
    ),
    Mutation(
        "verify: released while held", "verify.py",
        "if not ref.expired():", "if False:", f"{VERIFY} -k while_it_is_held",
    ),
    Mutation(
        "verify: comparing behind the copy", "verify.py",
        "elif copied:", "elif False:", f"{VERIFY} -k staging_memory",
    ),
    Mutation(
        "verify: comparing at the hand-over", "verify.py",
        "elif first and not last:", "elif False:", f"{VERIFY} -k h1",
    ),
    Mutation(
        "verify: memory of its own", "verify.py",
        "        stream.wait_event(self.allocated)\n", "", f"{VERIFY} -k clean_run",
    ),
    Mutation(
        "transfer: page-locked batches of the source are bounded", "transfer.py",
        "if number < 0 or ", "if ", "simulator/engine/test_threads.py -k bounded",
    ),
    Mutation(
        "threads: a block is borrowed, not given", "threads/memory.py",
        "return torch.frombuffer(loan, dtype=dtype).view(shape)",
        "free.append(block); return block[:size_bytes].view(dtype).view(shape)",
        f"{COLLATION} -k is_kept_does_not_change",
    ),
    Mutation(
        "threads: what comes back is bounded", "threads/memory.py",
        "deque(maxlen=self._max_free)", "deque()", f"{COLLATION} -k kept_long",
    ),
    Mutation(
        "threads: memory for each tensor by itself", "threads/memory.py",
        "self._count += 1", "pass", f"{COLLATION} -k kept_do_not_keep",
    ),
    Mutation(
        "threads: a sample of another type", "threads/collate.py",
        "or tensor.dtype is not self._dtype", "", f"{COLLATION} -k unequal",
    ),
    Mutation(
        "threads: a sample of another shape", "threads/collate.py",
        "or tensor.shape != self._shape", "", f"{COLLATION} -k ragged",
    ),
    Mutation(
        "threads: a sample that is not contiguous", "threads/collate.py",
        "if tensor.is_contiguous():  #", "if True:  #", f"{COLLATION} -k equal_samples",
    ),
    Mutation(
        "threads: a short batch", "threads/collate.py",
        "self.out if count == self._count else self.out[:count].clone()", "self.out[:count]",
        f"{COLLATION} -k short_last",
    ),
    Mutation(
        "threads: rules of the user's", "threads/collate.py",
        "if any(default_collate_fn_map.get(kind) is not rule for kind, rule in _MAP.items()):",
        "if False:", f"{COLLATION} -k rules_that",
    ),
    Mutation(
        "threads: order", "threads/iterator.py",
        "if not self._in_order:", "if True:", f"{THREADS} -k sooner",
    ),
    Mutation(
        "threads: an iterable dataset for each", "threads/iterator.py",
        "[copy.copy(dataset) for _ in numbers]", "[dataset for _ in numbers]",
        f"{THREADS} -k attributes_of_a_stream",
    ),
    Mutation(
        "threads: a deep copy for each", "threads/iterator.py",
        "if loader.copy_dataset:", "if False:", f"{THREADS} -k a_copy_for_each",
    ),
    Mutation(
        "threads: another process is told", "threads/iterator.py",
        "        if self._process != os.getpid():", "        if False:",
        "lifetime/test_thread_workers.py -k forked",
    ),
    Mutation(
        "threads: page-locked memory is torch's", "threads/iterator.py",
        "blocks=None if pins or copies_from_pinned() else", "blocks=",
        "simulator/engine/test_threads.py -k staged_again",
    ),
    Mutation(
        "statistics: the first batch is apart", "statistics.py",
        "                if number:\n", "                if True:\n", "unit/test_statistics.py",
    ),
    Mutation(
        "statistics: memory of the last two", "statistics.py",
        "if number >= 2:", "if number >= 1:", "unit/test_statistics.py -k memory",
    ),
    Mutation(
        "timing: nothing is waited for", "timing.py",
        "while self._steps and self._steps[0][-1].query():",
        "while self._steps and not self._steps[0][-1].synchronize():",
        "simulator/test_statistics.py -k nothing_waits",
    ),
    Mutation(
        "timing: one chunk alone", "timing.py",
        "copies.began[-1].elapsed_time", "copies.began[0].elapsed_time",
        "simulator/test_statistics.py -k large_batch",
    ),
    Mutation(
        "verdict: few steps", "diagnose/verdict.py",
        "if seen.num_steps < fewest:", "if False:", "unit/test_verdict.py -k few_steps",
    ),
    Mutation(
        "verdict: reading and staging share a thread", "diagnose/verdict.py",
        'thread = stages["reading"] + stages["staging"]',
        'thread = max(stages["reading"], stages["staging"])', "unit/test_verdict.py -k slow_stage",
    ),
    Mutation(
        "predict: workers that never pause", "diagnose/predict.py",
        "if plain.num_workers and starved:", "if False:", "unit/test_predict.py",
    ),
    Mutation(
        "diagnose: a forked child reports nothing", "diagnose/report.py",
        "if os.getpid() == process:", "if True:", "run/test_diagnose.py -k forks",
    ),
    Mutation(
        "diagnose: copies while reading", "diagnose/measure.py",
        "self._current = None\n        batch = original", "batch = original",
        "simulator/test_statistics.py -k dataset_copies",
    ),
    Mutation(
        "diagnose: the end is raised once", "diagnose/measure.py",
        "or self.was_reached or", "or", "run/test_diagnose.py -k catches",
    ),
]  # fmt: skip


def arguments_of(tests: str) -> list[str]:
    path, _, expression = tests.partition(" -k ")
    return [f"tests/{path}", *(["-k", expression] if expression else [])]


def run_tests(tests: str, package: Path) -> subprocess.CompletedProcess[str] | None:
    """Run the tests against the package in a folder; None where they took too long."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header"]
    try:
        return subprocess.run(
            [*command, *arguments_of(tests)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return None


def outcome_of(mutation: Mutation) -> tuple[str, float]:
    """Make the mutation in a copy, and say what became of it."""
    began = time.monotonic()
    text = (ROOT / "src" / "sidestream" / mutation.file).read_text(encoding="utf-8")
    count = text.count(mutation.original)
    if count != 1:
        return f"its text stands {count} times in the source", 0.0
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder)
        shutil.copytree(
            ROOT / "src" / "sidestream",
            package / "sidestream",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        changed = text.replace(mutation.original, mutation.replacement)
        (package / "sidestream" / mutation.file).write_text(changed, encoding="utf-8")
        result = run_tests(mutation.tests, package)
    if result is None:
        outcome = "noticed (it hangs)"
    elif result.returncode == 1:
        outcome = "noticed"
    elif result.returncode == 0:
        outcome = "SURVIVES"
    else:
        outcome = f"pytest ended with {result.returncode}: {result.stdout[-300:]}"
    return outcome, time.monotonic() - began


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="part of the name of a mutation; all without")
    names = parser.parse_args().names
    chosen = [m for m in MUTATIONS if not names or any(name in m.name for name in names)]
    if not chosen:
        parser.error(f"no mutation is called {' or '.join(names)}")
    say(f"{len(chosen)} mutations; their tests without any:")
    bad = survivors = 0
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        selections = sorted({mutation.tests for mutation in chosen})
        for tests, plain in zip(
            selections, pool.map(lambda t: run_tests(t, ROOT / "src"), selections), strict=True
        ):
            if plain is None or plain.returncode != 0:
                bad += 1
                say(f"  FAIL {tests}\n{plain.stdout[-2000:] if plain else 'it hangs'}")
        if bad:
            return 2
        say("  all pass\n")
        for mutation, (outcome, took_s) in zip(chosen, pool.map(outcome_of, chosen), strict=True):
            say(f"{mutation.name:<52} {took_s:5.1f} s  {outcome}")
            survivors += outcome == "SURVIVES"
            bad += not (outcome == "SURVIVES" or outcome.startswith("noticed"))
    say(f"\n{len(chosen) - survivors - bad} of {len(chosen)} noticed")
    return 2 if bad else int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main())

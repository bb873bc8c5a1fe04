"""scripts/gpu-check, as far as it can be tried without a GPU."""

import fcntl
import json
import subprocess
import sys
import threading
from pathlib import Path

import gpu_check
import pytest
import stream_check
import torch

ROOT = Path(__file__).parents[2]

without_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


def script(*arguments):
    return subprocess.run(
        [ROOT / "scripts/gpu-check", *arguments],
        env={"PATH": "/usr/bin:/bin", "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )


@without_cuda
def test_without_a_gpu_it_says_so_in_one_line_and_ends_with_3():
    ran = script()
    assert ran.returncode == 3
    assert ran.stdout == ""
    (line,) = ran.stderr.splitlines()
    assert line.startswith("scripts/gpu-check: torch ")
    assert line.endswith("finds no CUDA GPU here; nothing was checked")


def test_the_list_has_every_part_and_runs_none():
    ran = script("--list")
    assert (ran.returncode, ran.stderr) == (0, "")
    names = [line.split()[0] for line in ran.stdout.splitlines()]
    assert names == [part.name for part in gpu_check.parts("cuda")]
    assert {"sanitizer", "contract", "overlap", "racecheck", "scaling"} <= set(names)


def test_a_part_that_is_none_is_refused():
    ran = script("--only", "overlap,speed")
    assert ran.returncode == 2
    assert "there is no part speed; there is sanitizer, overlap" in ran.stderr


def test_every_file_that_is_run_is_there():
    for part in gpu_check.parts("cuda"):
        for word in part.command[1:]:
            if word.endswith(".py") or word.startswith("tests"):
                assert (ROOT / word).exists()


@pytest.fixture
def out(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_check, "OUT", tmp_path)
    return tmp_path


def python(name, code, **more):
    return gpu_check.Part(name, (sys.executable, "-c", code), 20, **more)


def test_a_part_that_fails_is_told_with_its_last_lines(out):
    found = gpu_check.run(python("one", "print('before'); raise OSError('no')"), "cpu", 20)
    assert (found["state"], found["code"]) == ("failed", 1)
    assert found["last"][-1] == "OSError: no"


def test_a_part_that_does_not_end_is_ended_with_its_children(out):
    lock = out / "lock"
    holder = (
        "import fcntl, time\n"
        f"file = open({str(lock)!r}, 'w')\n"
        "fcntl.flock(file, fcntl.LOCK_EX)\n"
        "print('held', flush=True)\n"
        "time.sleep(600)"
    )
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {holder!r}])"
    part = gpu_check.Part("one", (sys.executable, "-c", code), 6)
    found = gpu_check.run(part, "cpu", 20)
    assert (found["state"], found["code"]) == ("did not end", None)
    assert found["last"] == ["held"]
    with open(lock, "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # comes back when the child is gone


def test_a_part_gets_no_more_time_than_is_left(out):
    found = gpu_check.run(python("one", "print(1)"), "cpu", 5)
    assert found == {"state": "not run", "why": "no time was left"}


def test_what_is_missing_is_named(out):
    part = python("one", "", needs=("no_such_module",), program="no-such-program")
    found = gpu_check.run(part, "cpu", 20)
    assert found["why"] == "no_such_module, no-such-program not installed"


def test_a_result_is_taken_from_this_run_alone(out):
    (out / "one.json").write_text('"old"')
    assert "result" not in gpu_check.run(python("one", "", writes=True), "cpu", 20)
    code = f"open({str(out / 'one.json')!r}, 'w').write('[1]')"
    assert gpu_check.run(python("one", code, writes=True), "cpu", 20)["result"] == [1]


def test_the_tests_are_told_which_device_they_are_for(out):
    code = "import os; print(os.environ['SIDESTREAM_TEST_DEVICES'])"
    assert gpu_check.run(python("one", code), "cuda", 20)["last"] == ["cuda"]


def test_all_of_it_writes_results_and_a_summary(out, monkeypatch, capsys):
    some = [python("good", "print('fine')"), python("bad", "raise SystemExit(4)")]
    monkeypatch.setattr(gpu_check, "parts", lambda device: some)
    monkeypatch.setattr(gpu_check, "available", lambda device: None)
    monkeypatch.setattr(sys, "argv", ["gpu-check"])
    assert gpu_check.main() == 1
    written = json.loads((out / "results.json").read_text())
    assert {name: one["state"] for name, one in written["parts"].items()} == {
        "good": "well",
        "bad": "failed",
    }
    summary = (out / "summary.txt").read_text()
    assert "fine" in summary
    assert summary in capsys.readouterr().out + "\n"


# ---- PyTorch's sanitizer, which sees one thread only


def test_a_mode_is_entered_in_every_thread_that_starts_within():
    seen = []

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(threading.current_thread().name)
            return function(*args, **(kwargs or {}))

    def work():
        torch.ones(1)

    with stream_check.in_every_thread(Mode):
        torch.ones(1)
        thread = threading.Thread(target=work, name="within")
        thread.start()
        thread.join()
    count = len(seen)
    after = threading.Thread(target=work, name="after")
    after.start()
    after.join()
    assert {"MainThread", "within"} == set(seen)
    assert len(seen) == count


def test_the_loader_s_thread_is_one_of_them():
    seen = set()

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.add(threading.current_thread().name)
            return function(*args, **(kwargs or {}))

    source = [torch.ones(2) for _ in range(6)]
    with stream_check.in_every_thread(Mode):
        for _ in stream_check.AsynchronousLoader(source, "meta"):
            pass
    assert any(name.startswith("sidestream") for name in seen), seen


def test_reports_of_several_threads_are_counted_and_not_raised(capsys):
    class Handler:
        def _handle_kernel_launch(self, *arguments):
            return ["a report"] * len(arguments)

    record = stream_check.OneRecord(Handler())
    assert record._handle_kernel_launch(1, 2) == []
    assert record._handle_kernel_launch() == []
    assert record.found == 2
    assert "a report" in capsys.readouterr().err

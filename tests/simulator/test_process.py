"""The simulator in processes of its own: import, enabling, building, fork and exit."""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import textwrap

import pytest

from sidestream.simulator import SUPPORTED_TORCH, BuildError, _build

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def run(code, *, timeout=60, **environment):
    """Run a program in a fresh interpreter; it is killed after `timeout` seconds."""
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **environment},
        check=False,
    )


def run_enabled(code, **options):
    preamble = "import sys, torch\nfrom sidestream import simulator\nsimulator.enable()\n"
    return run(preamble + textwrap.dedent(code), **options)


def check(result, returncode=0, stdout="", stderr=""):
    assert (result.returncode, result.stderr, result.stdout) == (returncode, stderr, stdout)


# ---- enabling


def test_importing_changes_nothing():
    result = run("""
        import sys, torch
        before = set(vars(torch))
        import sidestream.simulator as simulator
        assert not torch.accelerator.is_available()
        assert torch._C._get_privateuse1_backend_name() == "privateuseone"
        assert set(vars(torch)) == before
        assert not simulator.is_enabled()
        assert not [name for name in sys.modules if "simulator_extension" in name]
        try:
            simulator.races()
        except RuntimeError as error:
            print(error)
    """)
    check(
        result,
        stdout="the simulated accelerator is not enabled in this process; call "
        "sidestream.simulator.enable() first\n",
    )


def test_enabling_twice_is_fine_and_other_sizes_are_an_error():
    result = run("""
        import torch
        from sidestream import simulator
        simulator.enable(devices=3, memory_bytes=1 << 22, pinned_bytes=1 << 23)
        simulator.enable()
        simulator.enable(devices=3)
        assert torch.accelerator.device_count() == 3
        assert torch.accelerator.get_memory_info()[1] == 1 << 22
        for wrong in ({"devices": 2}, {"memory_bytes": 1 << 30}, {"devices": 0}):
            try:
                simulator.enable(**wrong)
            except (RuntimeError, ValueError) as error:
                print(type(error).__name__, error)
    """)
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert lines[0].startswith("RuntimeError the simulator is enabled with devices=3 and cannot")
    assert lines[1].startswith("RuntimeError the simulator is enabled with memory_bytes=4194304")
    assert lines[2] == "ValueError devices must be 1 to 16, got 0"


@pytest.mark.parametrize(
    ("before", "message"),
    [
        ("torch.__version__ = '2.99.1'", f"torch {', '.join(SUPPORTED_TORCH)}, not 2.99.1"),
        ("torch.utils.rename_privateuse1_backend('npu')", "the backend 'npu' has taken it"),
        (
            "torch.accelerator.current_accelerator = lambda check_available: torch.device('cuda')",
            "this process has an accelerator, 'cuda', and torch allows one; hide it",
        ),
        ("sys.platform = 'win32'", "runs on Linux only, not on win32"),
    ],
)
def test_enabling_is_refused_where_it_cannot_work(before, message):
    result = run(
        f"import sys, torch\nfrom sidestream import simulator\n{before}\nsimulator.enable()"
    )
    assert result.returncode == 1
    error = result.stderr.splitlines()[-1]
    assert error.startswith("RuntimeError: ")
    assert message in error


# ---- building


def test_what_is_missing_for_a_build_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr("torch.utils.cpp_extension.is_ninja_available", lambda: False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(BuildError) as caught:
        _build._check_tools()
    for part in (
        "ninja (pip install 'sidestream[simulator]')",
        "setuptools (pip install 'sidestream[simulator]')",
        "apt install g++",
        f"Python's headers in {tmp_path} (from the system, such as: apt install python3-dev)",
    ):
        assert part in str(caught.value)


def test_a_compiler_error_is_shown(monkeypatch, tmp_path):
    source = tmp_path / "broken.cpp"
    source.write_text("this is no C++\n")
    monkeypatch.setattr(_build, "_files", lambda pattern: [source])
    with pytest.raises(BuildError, match=r"broken\.cpp"):
        _build._compile(tmp_path / "build", tmp_path / "library.so")
    assert not (tmp_path / "library.so").exists()


def test_the_cache_depends_on_torch_and_on_the_sources(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    first = _build.cache_folder()
    assert first.is_relative_to(tmp_path)
    assert _build.cache_folder() == first
    monkeypatch.setattr(_build, "_FLAGS", ["-O0"])
    second = _build.cache_folder()
    monkeypatch.setattr(_build.torch, "__version__", "2.13.9")
    third = _build.cache_folder()
    assert len({first, second, third}) == 3
    assert "2.13.9" in third.name


FAKE_BUILD = """
    import shutil, sys, time
    from sidestream.simulator import _build
    finished = {finished!r}

    def compile_(folder, library):
        with open({log!r}, "a") as log:
            log.write("built\\n")
        library.with_suffix(".new").write_bytes(b"half a library")
        if {die}:
            print("compiling", flush=True)
            time.sleep(60)
        shutil.copy2(finished, library.with_suffix(".new"))
        library.with_suffix(".new").replace(library)
        return _build._import(library)

    _build._compile = compile_
    print(_build.load().device_count())
"""


def test_concurrent_builds_wait_for_one_another_and_a_killed_one_leaves_nothing(tmp_path):
    """The compiler is replaced by a copy of the finished library; lock and cache are real."""
    finished = str(_build.cache_folder() / f"{_build._NAME}.so")
    log = tmp_path / "log"
    environment = {**os.environ, "TORCH_EXTENSIONS_DIR": str(tmp_path)}

    def start(die):
        code = textwrap.dedent(FAKE_BUILD).format(finished=finished, log=str(log), die=die)
        return subprocess.Popen(
            [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True
        )

    killed = start(die=True)
    assert killed.stdout.readline() == "compiling\n"
    others = [start(die=False) for _ in range(2)]
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=60)
    assert [process.communicate(timeout=60)[0] for process in others] == ["0\n", "0\n"]
    assert [process.returncode for process in others] == [0, 0]
    assert log.read_text() == "built\nbuilt\n"  # the killed one, and one of the two


# ---- memory, fork and exit


def test_a_host_dereference_of_device_memory_faults():
    result = run_enabled("""
        import ctypes
        x = torch.ones(4, device="sim")
        print(ctypes.c_float.from_address(x.data_ptr()).value)
    """)
    assert result.returncode == -signal.SIGSEGV
    assert result.stdout == ""


def test_the_host_guard_survives_a_restored_signal_handler():
    """What saves all handlers and restores them, as Lightning does, takes it for the default."""
    result = run_enabled("""
        import signal
        for number in range(2):
            pinned = torch.ones(1000).pin_memory()
            with simulator.settings(copy_s=0.02):
                pinned.to("sim", non_blocking=True)
            pinned[5] = 7.0
            print([race.kind.name for race in simulator.races()], flush=True)
            signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    """)
    check(result, stdout="['PINNED_OVERWRITTEN']\n" * 2)


@pytest.mark.parametrize("fault", ["ctypes.string_at(0)", "os.kill(os.getpid(), signal.SIGSEGV)"])
@pytest.mark.parametrize("order", ["before", "after", "between"])
def test_a_fault_elsewhere_is_left_to_the_handler_that_was_there(fault, order):
    """Whichever of the two was installed over the other: it is told once, and the process ends."""
    result = run_enabled(f"""
        import ctypes, faulthandler, os, signal
        def copy():
            torch.ones(1000).pin_memory().to("sim", non_blocking=True)
            torch.accelerator.synchronize()
        if {order!r} != "before":
            faulthandler.disable()
            copy()
            faulthandler.enable()
        if {order!r} != "after":
            copy()
        print("so far", flush=True)
        {fault}
    """)
    assert (result.returncode, result.stdout) == (-signal.SIGSEGV, "so far\n")
    assert result.stderr.count("Fatal Python error: Segmentation fault") == 1


def test_a_forked_child_is_told_and_ends_quietly():
    result = run_enabled("""
        import os
        x, pinned = torch.ones(3, device="sim"), torch.ones(3).pin_memory()
        child = os.fork()
        if child == 0:
            try:
                torch.ones(3, device="sim")
            except RuntimeError as error:
                print(error, flush=True)
            del x, pinned
            sys.exit(5)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), (x + 1).tolist())
    """)
    check(
        result,
        stdout="sidestream.simulator: device sim cannot be used in a forked subprocess: its "
        "streams are threads of the parent; use the 'spawn' start method\n5 [2.0, 2.0, 2.0]\n",
    )


EXITS = {
    "an hour of work in flight": (0, """
        side = torch.Stream("sim")
        simulator.delay(3600.0)
        x = torch.ones(1000, device="sim") * 2
        side.wait_stream(torch.accelerator.current_stream())
        with side, simulator.settings(copy_s=100.0):
            y = torch.ones(1000).pin_memory().to("sim", non_blocking=True)
    """),
    "an exception under a stream": (3, """
        with torch.Stream("sim"):
            simulator.delay(0.1)
            y = torch.ones(1000, device="sim") + 1
            raise SystemExit(3)
    """),
    "modules, events and gradients alive": (0, """
        model = torch.nn.Linear(1000, 10).to("sim")
        loss = model(torch.ones(1000, device="sim")).sum()
        loss.backward()
        event = torch.Event("sim", enable_timing=True)
        event.record()
        pinned = torch.ones(100).pin_memory()
    """),
    "a thread that still waits": (0, """
        import threading
        simulator.delay(3600.0)
        stream = torch.accelerator.current_stream()
        threading.Thread(target=stream.synchronize, daemon=True).start()
    """),
    "a hard exit": (5, """
        import os
        simulator.delay(3600.0)
        os._exit(5)
    """),
    "an interrupt while it waits": (7, """
        import os, signal, threading, time
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            simulator.delay(0.6)
            torch.accelerator.synchronize()
            time.sleep(30)
        except KeyboardInterrupt:
            sys.exit(7)
    """),
    "an asynchronous error nobody asked for": (0, """
        index = torch.tensor([9999], device="sim")
        y = torch.nn.functional.embedding(index, torch.ones(3, 3, device="sim"))
    """),
    "a loader that the script keeps": (0, """
        from sidestream import AsynchronousLoader
        loader = AsynchronousLoader([torch.ones(1000)] * 4, "sim")
        last = [batch.sum() for batch in loader][-1]
    """),
    "as_cuda entered and never left": (0, """
        context = simulator.as_cuda()
        context.__enter__()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            x = torch.ones(3, device="cuda")
    """),
}  # fmt: skip


@pytest.mark.parametrize("name", EXITS)
def test_the_interpreter_exits_at_once_and_quietly_with(name):
    returncode, code = EXITS[name]
    check(run_enabled(code, timeout=40), returncode)

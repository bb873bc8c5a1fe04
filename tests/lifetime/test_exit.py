"""G7: however the interpreter ends in mid-epoch, it ends, soon, and with a clean stderr."""

from __future__ import annotations

import signal

import pytest

from support.process import run, running

MID_EPOCH = """
loader = AsynchronousLoader({source}, {device!r}, buffer_size={buffer_size})
iterator = iter(loader)
next(iterator)
say("in mid-epoch")
"""
SOURCES = {
    "endless": "Counting(None)",
    "workers": "DataLoader(TensorDataset(torch.arange(100)), batch_size=2, num_workers=1)",
    "persistent workers": (
        "DataLoader(TensorDataset(torch.arange(100)), num_workers=1, persistent_workers=True)"
    ),
}


@pytest.mark.parametrize("source", SOURCES)
def test_falling_off_the_end_in_mid_epoch(source: str) -> None:
    text = MID_EPOCH.format(source=SOURCES[source], device="meta", buffer_size=2)
    run(text).assert_clean("in mid-epoch")


@pytest.mark.parametrize("fresh", [False, True], ids=["fork", "fresh interpreter"])
def test_falling_off_the_end_after_a_break(fresh: bool) -> None:
    run(
        """
        for _ in AsynchronousLoader(Counting(None), "cpu"):
            break
        say("after the break")
        """,
        fresh=fresh,
    ).assert_clean("after the break")


def test_sys_exit_in_the_body() -> None:
    run(
        """
        data = DataLoader(TensorDataset(torch.arange(100)), num_workers=1)
        for _ in AsynchronousLoader(data, "cpu"):
            sys.exit(3)
        """
    ).assert_clean(returncode=3)


def test_an_error_in_the_body_is_all_that_stderr_shows() -> None:
    script = run(
        """
        for _ in AsynchronousLoader(Counting(None), "cpu"):
            raise ValueError("in the body")
        """
    )
    assert script.returncode == 1
    assert script.stderr.rstrip().endswith("ValueError: in the body")
    assert script.stderr.count("Traceback") == 1


def test_os_exit_in_mid_epoch() -> None:
    text = MID_EPOCH.format(source="Counting(None)", device="cpu", buffer_size=2)
    run(text + "os._exit(4)").assert_clean("in mid-epoch", returncode=4)


def test_sigterm_in_mid_epoch() -> None:
    text = MID_EPOCH.format(source="Counting(None)", device="cpu", buffer_size=2)
    with running(text + "signal.pause()") as script:
        script.wait_for("in mid-epoch")
        script.terminate()
        script.finish(5)
        assert script.returncode == -signal.SIGTERM
        assert script.stderr == ""


def test_exit_from_a_thread_that_consumes() -> None:
    run(
        """
        def consume():
            for _ in AsynchronousLoader(plain(20), "cpu"):
                pass
            say("all of it")

        threading.Thread(target=consume).start()
        """
    ).assert_clean("all of it")


def test_exit_while_a_daemon_thread_consumes() -> None:
    run(
        """
        begun = threading.Event()

        def consume():
            for _ in AsynchronousLoader(Counting(None), "cpu"):
                begun.set()

        threading.Thread(target=consume, daemon=True).start()
        assert begun.wait(10)
        say("begun")
        """
    ).assert_clean("begun")


def test_exit_with_iterators_in_a_cycle_never_asked_and_failed_unseen() -> None:
    run(
        """
        import types
        module = sys.modules["kept"] = types.ModuleType("kept")
        module.itself = module
        module.loader = AsynchronousLoader(Counting(None), "cpu")
        module.iterator = iter(module.loader)
        next(module.iterator)

        never_asked = iter(AsynchronousLoader(Counting(None), "cpu"))

        before = set(loader_threads())
        failed = iter(AsynchronousLoader(Raising(ValueError("unseen"), 1), "cpu"))
        next(failed)
        wait_until(lambda: set(loader_threads()) <= before, "the thread has ended")
        say("kept")
        """
    ).assert_clean("kept")


def test_a_loader_used_in_an_exit_handler() -> None:
    run(
        """
        import atexit
        loader = AsynchronousLoader(plain(3), "cpu", buffer_size=0)
        atexit.register(lambda: say(numbers(loader)))
        """
    ).assert_clean("[0, 1, 2]")


def test_exit_with_torch_busy_in_the_thread() -> None:
    """A thread inside torch when the interpreter goes aborts the process."""
    run(
        """
        class Busy(Counting):
            def make(self, number):
                return torch.randn(300, 300) @ torch.randn(300, 300)

        iterator = iter(AsynchronousLoader(Busy(None), "cpu", buffer_size=1000))
        next(iterator)
        say("busy")
        """
    ).assert_clean("busy")

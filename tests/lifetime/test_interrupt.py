"""G7, report R12: Ctrl-C is answered at once, and the loader can be used again."""

from __future__ import annotations

import signal

import pytest

from support.process import running

WAITING = """
class Slow(Counting):
    def make(self, number):
        if number == 2 and self.iters == 1:
            say("waiting")
            threading.Event().wait(60)
        return batch_of(number)

loader = AsynchronousLoader({source}, "cpu", buffer_size={buffer_size})
"""

SLOW_ITEMS = """
entered = torch.zeros(1).share_memory_()

class Items(Dataset):
    def __len__(self):
        return 5
    def __getitem__(self, index):
        if index == 2:
            entered.fill_(1)
            threading.Event().wait(60)
        return index

def watch():
    wait_until(entered.item, "the worker is inside the item")
    wait_until_blocked(threading.main_thread())
    say("waiting")

watcher = Worker(watch)
"""


@pytest.mark.parametrize("buffer_size", [0, 2])
def test_ctrl_c_in_next_ends_the_process_within_5_s(buffer_size: int) -> None:
    text = WAITING.format(source="Slow(5)", buffer_size=buffer_size)
    with running(text + "for _ in loader: pass") as script:
        script.wait_for("waiting")
        script.interrupt()
        script.finish(5)
        assert script.returncode in (-signal.SIGINT, 130)
        assert "Fatal" not in script.stderr
        assert "Exception ignored" not in script.stderr
        assert script.stderr.count("Traceback") == 1
        assert "KeyboardInterrupt" in script.stderr


def test_ctrl_c_in_next_with_a_worker_ends_the_process_soon() -> None:
    """A DataLoader alone gives a worker that does not end 5 s."""
    text = SLOW_ITEMS + WAITING.format(
        source="DataLoader(Items(), batch_size=None, num_workers=1)", buffer_size=2
    )
    with running(text + "for _ in loader: pass") as script:
        script.wait_for("waiting")
        script.interrupt()
        script.finish(10)
        assert script.returncode in (-signal.SIGINT, 130)
        assert "Fatal" not in script.stderr
        assert "Exception ignored" not in script.stderr


@pytest.mark.parametrize("buffer_size", [0, 2])
def test_after_a_ctrl_c_that_was_caught_a_pass_is_full(buffer_size: int) -> None:
    text = WAITING.format(source="Slow(5)", buffer_size=buffer_size)
    text = text.replace("threading.Event().wait(60)", "released.wait(60)")
    text = "released = threading.Event()\n" + text
    text += """
try:
    for _ in loader:
        pass
except KeyboardInterrupt:
    say("interrupted")
released.set()
say(numbers(loader))
"""
    with running(text) as script:
        script.wait_for("waiting")
        script.interrupt()
        script.finish(8)
        script.assert_clean("waiting", "interrupted", "[0, 1, 2, 3, 4]")


def test_after_a_ctrl_c_in_next_the_same_iterator_goes_on() -> None:
    """As waiting alone was interrupted, no batch is lost."""
    text = """
released = threading.Event()
seen = []

class Slow(Counting):
    def make(self, number):
        if number == 2:
            wait_until(lambda: seen == [0, 1], "the consumer has had what there is")
            wait_until_blocked(threading.main_thread())
            say("waiting")
            assert released.wait(10)
        return batch_of(number)

iterator = iter(AsynchronousLoader(Slow(5), "cpu", buffer_size=2))
try:
    for _, number in iterator:
        seen.append(number)
except KeyboardInterrupt:
    released.set()
    say(seen, numbers(iterator))
"""
    with running(text) as script:
        script.wait_for("waiting")
        script.interrupt()
        script.finish(8)
        script.assert_clean("waiting", "[0, 1] [2, 3, 4]")


def test_ctrl_c_in_the_body_ends_the_process_within_5_s() -> None:
    text = """
for _ in AsynchronousLoader(Counting(None), "cpu"):
    say("in the body")
    signal.pause()
"""
    with running(text) as script:
        script.wait_for("in the body")
        script.interrupt()
        script.finish(5)
        assert script.returncode in (-signal.SIGINT, 130)
        assert script.stderr.count("Traceback") == 1
        assert "Exception ignored" not in script.stderr


def test_ctrl_c_while_a_broken_off_pass_is_being_ended_is_not_lost() -> None:
    """A finalizer swallows what is raised in it, and after a `break` one is running."""
    text = """
source = Blocking(at=1)
iterator = iter(AsynchronousLoader(source, "cpu"))
next(iterator)
assert source.entered.wait(10)

def watch():
    wait_until_blocked(threading.main_thread())
    say("ending the pass")

ready = threading.Event()
watcher = Worker(lambda: (ready.wait(10), watch()))
try:
    ready.set()
    del iterator
    say("lost", threading.Event().wait(10))
except KeyboardInterrupt:
    source.gate.set()
    say("answered")
"""
    with running(text) as script:
        script.wait_for("ending the pass")
        script.interrupt()
        script.finish(15)
        script.assert_clean("ending the pass", "answered")

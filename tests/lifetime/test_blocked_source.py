"""G7: a source that blocks for ever makes `close` say so after a stated time, and exit go on."""

from __future__ import annotations

import pytest

from support.process import run

BLOCKED = """
source = Blocking(at=1)
source.gate.wait = lambda timeout: threading.Event().wait()  # for ever
loader = AsynchronousLoader(source, "cpu", buffer_size=2)
iterator = iter(loader)
next(iterator)
assert source.entered.wait(10)
(thread,) = loader_threads()
"""


@pytest.mark.slow
def test_close_raises_a_timeout_error_that_names_the_thread() -> None:
    """Of the loader and of the iterator, at once: either waits for the stated 10 s."""
    run(
        BLOCKED
        + """
begun = time.monotonic()
for worker in [Worker(loader.close), Worker(iterator.close)]:
    try:
        worker.result()
    except TimeoutError as error:
        say(thread.name in str(error), str(error).count(chr(10)), time.monotonic() - begun < 15)
"""
    ).assert_clean("True 0 True", "True 0 True")


@pytest.mark.parametrize("ending", ["", "del iterator, loader; gc.collect(); sys.exit(0)"])
def test_exit_does_not_hang(ending: str) -> None:
    run(BLOCKED + ending, limit_s=15).assert_clean()


def test_a_break_does_not_hang() -> None:
    run(
        """
source = Blocking(at=1)
source.gate.wait = lambda timeout: threading.Event().wait()
for _ in AsynchronousLoader(source, "cpu", buffer_size=2):
    assert source.entered.wait(10)
    break
say("after the break")
""",
        limit_s=15,
    ).assert_clean("after the break")

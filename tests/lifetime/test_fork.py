"""G7, hazard H10: a process forked in mid-epoch has no part in its parent's passes."""

from __future__ import annotations

import sys

import pytest

from support.process import run

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")

FORK = """
loader = AsynchronousLoader(Counting(4), "cpu", buffer_size={buffer_size})
iterator = iter(loader)
assert next(iterator)[1] == 0
say("forking")
child = os.fork()
if child == 0:
    signal.alarm(15)
{in_child}
else:
    _, status = os.waitpid(child, 0)
    say("child", os.waitstatus_to_exitcode(status), "parent", numbers(iterator))
"""


def fork(in_child: str, buffer_size: int) -> str:
    lines = "\n".join("    " + line for line in in_child.strip().splitlines())
    # The warning of newer Pythons about forks beside threads is what this is about.
    return "import warnings; warnings.simplefilter('ignore', DeprecationWarning)\n" + FORK.format(
        in_child=lines, buffer_size=buffer_size
    )


@pytest.mark.parametrize("buffer_size", [0, 2])
def test_the_child_is_told_whose_the_iterator_is_and_has_full_passes_of_its_own(
    buffer_size: int,
) -> None:
    in_child = """
try:
    next(iterator)
except RuntimeError as error:
    say("process" in str(error), str(error).count(chr(10)))
say(numbers(loader), len(list(loader)))
"""
    run(fork(in_child, buffer_size)).assert_clean(
        "forking", "True 0", "[0, 1, 2, 3] 4", "child 0 parent [1, 2, 3]"
    )


@pytest.mark.parametrize("ending", ["pass", "os._exit(0)", "loader.close(); del loader, iterator"])
def test_the_child_ends_cleanly(ending: str) -> None:
    run(fork(ending, 2)).assert_clean("forking", "child 0 parent [1, 2, 3]")


def test_a_child_forked_while_the_thread_holds_every_lock_in_turn() -> None:
    """Fork at many moments of a running pass; no child hangs in its own new pass."""
    text = """
import warnings; warnings.simplefilter('ignore', DeprecationWarning)
loader = AsynchronousLoader(Counting(None), "cpu", buffer_size=2)
for index, _ in enumerate(loader):
    if index == 20:
        break
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        for position, (_, number) in enumerate(loader):
            assert position == number
            if position == 3:
                os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
say("none hangs")
"""
    run(text).assert_clean("none hangs")

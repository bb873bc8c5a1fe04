"""G7, report R14: worker processes that die are noticed, and none is left behind."""

from __future__ import annotations

import pytest

from support.process import run

KILLED = """
import psutil

class Items(Dataset):
    def __len__(self):
        return 6
    def __getitem__(self, index):
        if index == 4 and not released.item():
            threading.Event().wait(60)
        return index

released = torch.zeros(1).share_memory_()
loader = AsynchronousLoader(
    DataLoader(Items(), batch_size=None, num_workers=1), "cpu", buffer_size={buffer_size}
)
iterator = iter(loader)
assert [next(iterator) for _ in range(2)] == [0, 1]
(worker,) = psutil.Process().children()
begun = time.monotonic()
try:
    worker.kill()  # torch's handler of the signal raises in the main thread, wherever it is
    for _ in iterator:
        pass
except RuntimeError as error:
    say("worker" in str(error), time.monotonic() - begun < 8)
begun = time.monotonic()
loader.close()
say(time.monotonic() - begun < 6, [t for t in loader_threads() if "sidestream" in t.name])
wait_until(lambda: not psutil.Process().children(), "the workers have ended", 2)
wait_until(lambda: not loader_threads(), "the threads of the workers' queues have ended", 2)
released.fill_(1)
say(list(loader))
"""


@pytest.mark.slow
def test_a_killed_worker_reaches_the_consumer_and_a_new_pass_works_without_a_thread() -> None:
    """With one it is report R14's test, in tests/reports."""
    run(KILLED.format(buffer_size=0)).assert_clean("True True", "True []", "[0, 1, 2, 3, 4, 5]")


@pytest.mark.parametrize("how", ["break", "close", "error", "end"])
def test_no_worker_is_left_behind(how: str) -> None:
    run(
        f"""
import psutil
data = DataLoader(TensorDataset(torch.arange(40)), batch_size=2, num_workers=2)
loader = AsynchronousLoader(data, "cpu")
try:
    for index, _ in enumerate(loader):
        assert len(psutil.Process().children()) == 2 or index > 10
        if index == 1 and {how!r} == "break":
            break
        if index == 1 and {how!r} == "error":
            1 / 0
        if index == 1 and {how!r} == "close":
            loader.close()
            break
except ZeroDivisionError as error:
    del error
gc.collect()
wait_until(lambda: not psutil.Process().children(), "the workers have ended", 10)
wait_until(lambda: not loader_threads(), "the thread has ended", 10)
say("all gone")
"""
    ).assert_clean("all gone")

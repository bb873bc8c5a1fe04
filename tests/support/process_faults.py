"""Faults that end a process, or come from another: each is a script under a hard limit."""

from __future__ import annotations

import dataclasses
import itertools
import re
import signal
from typing import Any

import pytest

from support.faults import LENGTH, MOMENTS, Case
from support.process import running

SHARED = f"""
LENGTH, DEVICE, BUFFER_SIZE, AT = {LENGTH}, {{device!r}}, {{buffer_size}}, {{at}}
if DEVICE == "sim":
    from sidestream import simulator
    torch.set_num_threads(1)
    simulator.enable()

def checked(batches, first=0):
    "How many batches came; each is the one that it must be."
    count = first
    for tensor, number in batches:
        assert number == count and (tensor == number).all().item(), (number, count)
        count += 1
    return count
"""

MID_EPOCH = """
loader = AsynchronousLoader(plain(LENGTH), DEVICE, buffer_size=BUFFER_SIZE)
iterator = iter(loader)
for number in range(min(AT + 1, LENGTH)):
    assert next(iterator)[1] == number
if AT == LENGTH:
    assert next(iterator, "end") == "end"
say("at", AT)
"""

# The item in question waits until the loop has had all before it: what a worker process has not
# sent when it dies is lost in a plain loop, too.
WORKERS = """
import psutil, torch.utils.data.dataloader as dataloader
progress = torch.zeros(1).share_memory_()
hurt = torch.zeros(1).share_memory_()

# How often a DataLoader looks whether its workers live: 5 s is long for a test.
torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL = 0.3
dataloader._MultiProcessingDataLoaderIter._try_get_data.__defaults__ = (0.3,)

class Items(Dataset):
    def __len__(self):
        return LENGTH
    def __getitem__(self, index):
        if index == AT and not hurt.item():
            while progress.item() < AT:
                time.sleep(0.005)
            hurt.fill_(1)
            {fault}
        return batch_of(index)

data = DataLoader(Items(), batch_size=None, num_workers=1, timeout={timeout})
loader = AsynchronousLoader(data, DEVICE, buffer_size=BUFFER_SIZE)
count, said = 0, ""
try:
    for tensor, number in loader:
        assert number == count
        count += 1
        progress.fill_(count)
except RuntimeError as error:  # torch's handler of the signal may raise it in the main thread
    said = str(error)
assert {message!r} in said, said
say(count)
loader.close()
wait_until(lambda: not psutil.Process().children(), "the workers have ended")
wait_until(lambda: not loader_threads(), "the threads have ended")
say(checked(loader))
wait_until(lambda: not psutil.Process().children(), "the workers have ended")
"""

INTERRUPTED = """
released = threading.Event()

class Slow(Counting):
    def make(self, number):
        if number == AT and self.iters == 1:
            say("waiting")
            released.wait(30)
        return batch_of(number)

loader = AsynchronousLoader(Slow(LENGTH), DEVICE, buffer_size=BUFFER_SIZE)
try:
    checked(loader)
    if AT == LENGTH:
        say("waiting")
        released.wait(30)
except KeyboardInterrupt:
    released.set()
    say("interrupted")
say(checked(loader))
"""

FORK = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)
child = os.fork()
if child == 0:
    signal.alarm(15)
    try:
        next(iterator)
    except RuntimeError as error:
        assert "process" in str(error)
    else:
        os._exit(9)
    if DEVICE != "sim":  # a device is of no use in a forked child
        assert checked(loader) == LENGTH
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
say(checked(iterator, min(AT + 1, LENGTH)))
"""


@dataclasses.dataclass(frozen=True)
class ProcessFault:
    """Something that happens to a process.

    Args:
        name: For people.
        text: The script.
        outcome: What comes of it, in words.
        says: The script's own lines, by moment; `{at}` stands for the batch.
        returncode: How it ends.
        stderr: A pattern for all that it may say there; nothing if empty.
        signal_at: Send SIGINT or SIGTERM when it has said this.
        moments, devices, buffer_sizes: Where it is tried.
        limit_s: Within this time the process must be gone [s].
    """

    name: str
    text: str
    outcome: str
    says: str = "at {at}"
    returncode: int = 0
    stderr: str = ""
    signal_at: tuple[str, signal.Signals] | None = None
    moments: tuple[str, ...] = tuple(MOMENTS)
    devices: tuple[str, ...] = ("cpu", "sim")
    buffer_sizes: tuple[int, ...] = (0, 2)
    limit_s: float = 10.0
    is_slow: bool = False

    def is_long(self, case: Case) -> bool:
        """Whether it is left for the long run: a process takes a second, and there are many."""
        if case.buffer_size == 0:
            return True
        return case.moment not in (["middle"] if self.is_slow or case.device == "sim" else MOMENTS)

    def check(self, case: Case) -> None:
        """Run it, and compare."""
        settings = vars(case) | {"at": case.at}
        with running(SHARED.format(**settings) + self.text) as script:
            if self.signal_at is not None:
                line, number = self.signal_at
                script.wait_for(line.format(**settings))
                {signal.SIGINT: script.interrupt, signal.SIGTERM: script.terminate}[number]()
            script.finish(self.limit_s)
        assert re.fullmatch(self.stderr, script.stderr, re.DOTALL), script.stderr
        assert script.returncode == self.returncode
        assert script.stdout.split() == self.says.format(**settings).split()


def of_workers(name: str, fault: str, message: str, timeout: float = 0) -> ProcessFault:
    text = WORKERS.replace("{fault}", fault).replace("{message!r}", repr(message))
    return ProcessFault(
        name,
        text.replace("{timeout}", str(timeout)),
        outcome="a RuntimeError of the DataLoader's after the good batches; no worker stays",
        says=f"{{at}} {LENGTH}",
        moments=("first", "middle", "last"),
        limit_s=20.0,
        is_slow=True,
    )


def mid_epoch(name: str, end: str, outcome: str, **options: Any) -> ProcessFault:
    return ProcessFault(name, MID_EPOCH + end, outcome, **options)


PROCESS_FAULTS = [
    of_workers(
        "a worker process is killed", "os.kill(os.getpid(), signal.SIGKILL)", "DataLoader worker"
    ),
    of_workers("a worker process exits", "os._exit(1)", "DataLoader worker"),
    of_workers("a worker process hangs, `timeout` given", "time.sleep(60)", "timed out", 1),
    ProcessFault(
        "Ctrl-C while the loop waits for a batch",
        INTERRUPTED,
        "`KeyboardInterrupt` at once; where it is caught, the next pass is full",
        says=f"waiting interrupted {LENGTH}",
        signal_at=("waiting", signal.SIGINT),
    ),
    mid_epoch(
        "Ctrl-C in the loop's body, not caught",
        "signal.pause()",
        "ends with one traceback",
        returncode=-signal.SIGINT,
        stderr=r"Traceback(?!.*Traceback).*\nKeyboardInterrupt\n",
        signal_at=("at {at}", signal.SIGINT),
    ),
    mid_epoch(
        "SIGTERM",
        "signal.pause()",
        "ends by the signal",
        returncode=-signal.SIGTERM,
        signal_at=("at {at}", signal.SIGTERM),
    ),
    mid_epoch("`sys.exit(3)`", "sys.exit(3)", "exit code 3", returncode=3),
    mid_epoch("`os._exit(4)`", "os._exit(4)", "exit code 4", returncode=4),
    mid_epoch("the script ends: interpreter shutdown", "", "exit code 0"),
    mid_epoch(
        "the script ends, all kept in a cycle of a module's",
        "sys.kept = [iterator, loader]; sys.kept.append(sys.kept)",
        "exit code 0",
    ),
    mid_epoch(
        "an error that nobody catches",
        "raise ValueError('in the body')",
        "exit code 1, its traceback alone",
        returncode=1,
        stderr=r"Traceback(?!.*Traceback).*\nValueError: in the body\n",
    ),
    mid_epoch(
        "fork",
        FORK,
        "the parent's pass goes on; the child is told whose the iterator is, and has passes of "
        "its own",
        says=f"at {{at}} {LENGTH}",
    ),
    mid_epoch(
        "exec",
        "os.execv(sys.executable, [sys.executable, '-c', 'print(\"another program\")'])",
        "the other program runs",
        says="at {at} another program",
    ),
]


def process_cases(*devices: str) -> list[Any]:
    """Parameters for a test: a fault and a case on one of these devices."""
    found = []
    for fault in PROCESS_FAULTS:
        for moment, device, size in itertools.product(fault.moments, devices, fault.buffer_sizes):
            if device in fault.devices:
                case = Case(moment, size, device)
                marks = [pytest.mark.timeout(fault.limit_s + 20)]
                marks += [pytest.mark.long] * fault.is_long(case)
                name = f"{fault.name.replace('`', '')}-{moment}-buffer{size}-{device}"
                found.append(pytest.param(fault, case, id=name, marks=marks))
    return found

"""Tests of Ctrl-C at any place of the driver: no lock stays taken."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

#: A program that interrupts the same call a thousand times, by a timer of the kernel. Then another
#: thread must get the lock.
PROGRAM = """
import random, signal, sys, threading
from ddp_rnic.sw_driver import Context, Transport
from ddp_rnic.sw_driver.base.closing import ProcessLock
from ddp_rnic.sw_driver.transports.recorded import Recorder

class Quiet(Transport):
    def read(self, address): return 0
    def write(self, address, value): pass
    def wait(self, timeout): pass
    def pin(self, view): raise NotImplementedError
    allocate = close = pin

class Idle(Context):
    def __init__(self):
        self.transport, self._closed = Quiet(), False
        self._begin()
    def service(self): self.check()

{call}
signal.signal(signal.SIGALRM, signal.default_int_handler)
interrupts = []  # with their frames, as a debugger keeps them
while len(interrupts) < 1000:
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 3e-4))
        while True:
            call()
    except KeyboardInterrupt as interrupt:
        interrupts.append(interrupt)

taken = []
thread = threading.Thread(target=lambda: taken.append(lock.acquire(timeout=5)))
thread.start()
thread.join()
assert taken == [True], "the lock stays taken"
{also}
"""

#: Programs that define ``call`` and ``lock``, each with a check that follows the interrupts.
CALLS = {
    "a lock": ("lock = ProcessLock('it')\ndef call():\n    with lock:\n        pass", ""),
    "a recording": (
        "r = Recorder(Quiet(), sys.argv[1])\nlock, call = r.lock, lambda: r.read(0)",
        "",
    ),
    "a wait": (
        "context = Idle()\nlock, call = context.lock, lambda: context.wait_for(lambda: False, 9)",
        "assert not context._watching, 'nobody waits for the device any more'",
    ),
}


@pytest.mark.skipif(
    sys.version_info[:2] == (3, 14),
    reason="Python 3.14 may interrupt between __enter__ and its block (CPython issue 148874)",
)
@pytest.mark.parametrize("call", CALLS, ids=lambda name: name.replace(" ", "-"))
def test_no_interrupt_leaves_a_lock_taken(tmp_path: Path, call: str) -> None:
    program, also = CALLS[call]
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(call=program, also=also), str(tmp_path / "said")],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr


def test_a_lock_is_reentrant_and_a_forked_child_gets_an_error() -> None:
    program = """
        import os, sys, threading
        from ddp_rnic.sw_driver import StateError
        from ddp_rnic.sw_driver.base.closing import ProcessLock
        lock = ProcessLock("the board")
        with lock, lock:
            pid = os.fork()
            if pid == 0:
                for take in (lock.__enter__, lock.acquire, lock.check):
                    try:
                        take()
                    except StateError as error:
                        text = "the board belongs to the parent process: open it after the fork"
                        assert str(error) == text, error
                    else:
                        sys.exit("a forked child has the lock")
                with ProcessLock("its own"):
                    sys.exit(0)  # through the parent's block
        assert os.waitpid(pid, 0)[1] == 0
        condition = threading.Condition(lock)
        def notify():
            with lock:
                condition.notify()
        with lock:
            thread = threading.Thread(target=notify)
            thread.start()
            assert condition.wait(10)
        thread.join()
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr

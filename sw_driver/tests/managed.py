"""Fixtures of the manager's tests: the real gateware, owned by a manager in a thread."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.hdl.spec.regs import PAGES
from ddp_rnic.sim.devices.live import SimTransport
from ddp_rnic.sw_driver import Context, Device
from ddp_rnic.sw_driver.prm import Manager, Policy
from ddp_rnic.sw_driver.prm.audit import Audit


def until(holds: Callable[[], object], what: str, seconds: float = 20) -> None:
    """Waits until ``holds`` returns something true; fails with ``what`` after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.01)


class Managed:
    """A manager that serves in a thread."""

    sim: SimTransport  #: set where the device is the simulated gateware
    thread: threading.Thread  #: the thread in which the manager serves

    def __init__(self, context: Context, path: Path, policy: Policy) -> None:
        self.context, self.path = context, path
        self.log = io.StringIO()
        self.manager = Manager(context, path, policy, Audit(self.log))

    def lines(self, event: str) -> list[dict]:
        """Returns the audit log's lines of an event."""
        lines = [json.loads(line) for line in self.log.getvalue().splitlines()]
        return [line for line in lines if line["event"] == event]

    def awaited(self, event: str) -> list[dict]:
        """Returns the audit log's lines of an event, once there is one."""
        until(lambda: self.lines(event), f"a line of {event}")
        return self.lines(event)

    def all_gone(self) -> bool:
        """Waits until all clients have gone; returns whether the device is free again."""
        manager = self.manager
        # A seat is freed last: a client that leaves is in neither list for a moment.
        until(lambda: len(manager._seats) == manager.policy.clients, "all clients gone")
        there = self.context.capabilities
        context = self.context
        return (
            (len(context.numbers), len(context.buffers)) == (there.streams, there.buffers)
            and not (context.streams or context.regions or context.cqs or context.pds)
            and all(
                len(slots._free) == 1 and len(numbers) == (there.cqs - 1) // len(manager._places)
                for slots, numbers in manager._places
            )
            and (manager.pages.free, manager.pages.allotted) == (PAGES, [])
        )


@contextmanager
def managed(
    folder: Path,
    policy: Policy | None = None,
    *,
    page: int | None = None,
    config: RnicConfig | None = None,
) -> Iterator[Managed]:
    """Runs a manager of the gateware, at a socket in a folder."""
    with SimTransport(config, page=page) as sim, Device(sim).open() as context:
        with served(context, folder / "rnic.sock", policy or Policy(per_user=8)) as prm:
            prm.sim = sim
            yield prm


@contextmanager
def served(context: Context, path: Path, policy: Policy) -> Iterator[Managed]:
    """Runs a manager of a device, in a thread."""
    prm = Managed(context, path, policy)
    failures: list[BaseException] = []

    def serve() -> None:
        try:
            prm.manager.serve()
        except BaseException as error:
            failures.append(error)
            prm.manager.close()

    with prm.manager:
        prm.thread = thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield prm
        finally:
            prm.manager.stop()
            thread.join()
    assert not failures, failures

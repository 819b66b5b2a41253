"""Tests of how long clients of the manager wait for each other, on a device that does nothing.

The steps of a turn are counted here, not timed, because other programs run on this machine too; one
test that takes long measures seconds.
"""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ddp_rnic.hdl.lib.tests.long import first
from ddp_rnic.hdl.spec import regs
from ddp_rnic.hdl.spec.ddp import ErrorNumber, ErrorType
from ddp_rnic.sw_driver import Device, ErrorEvent, StreamError
from ddp_rnic.sw_driver.prm import Limits, Manager, Policy, connect, protocol, server
from ddp_rnic.sw_driver.prm import memory as passed
from ddp_rnic.sw_driver.prm.audit import Audit
from ddp_rnic.sw_driver.prm.client import ClientContext
from ddp_rnic.sw_driver.prm.owned import Posted
from ddp_rnic.sw_driver.prm.protocol import HANDLE, NAMED, Decoder, Kind, Object
from ddp_rnic.sw_driver.tests.managed import Managed, served, until
from ddp_rnic.sw_driver.tests.test_open import Constants
from ddp_rnic.sw_driver.tests.test_prm import memfd
from ddp_rnic.sw_driver.transports.memory import COPIED, Arena, Bounce, Copy, Memory, Steps, finish
from ddp_rnic.sw_driver.verbs.context import PATIENCE, SETTLE

HOSTILE, LARGE = 16, 1 << 20
POLICY = Policy(clients=32, per_user=32, limits=Limits(stags=16))


class Idle(Constants):
    """A device with its own memory that does nothing, and counts the accesses to it."""

    def __init__(self) -> None:
        super().__init__({"STATUS": regs.pack("STATUS", idle=1)})
        self.done: Counter[str] = Counter()
        self._arena = Arena(0, 1 << 30, "octets of a device")

    def read(self, address: int) -> int:
        self.done["registers"] += 1
        return super().read(address)

    def write(self, address: int, value: int) -> None:
        self.done["registers"] += 1
        super().write(address, value)

    def set_status(self, **fields: int) -> None:
        self.values[regs.address("STATUS")] = regs.pack("STATUS", **fields)

    def pinning(self, view: memoryview) -> Steps[Memory]:
        return Bounce.making(view, self._arena, self._get, self._put)

    def allocate(self, octets: int) -> Memory:
        return finish(self.pinning(memoryview(bytearray(octets))))

    def _get(self, address: int, length: int) -> bytes:
        self.done["octets"] += length
        self.done["copies"] += 1
        return bytes(length)

    def _put(self, address: int, octets: bytes) -> None:
        self.done["octets"] += len(octets)
        self.done["copies"] += 1


class Client:
    """A client that never waits: it sends requests, and reads the answers that have come."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(str(path))
        self.socket.setblocking(False)
        self._decoder, self.asked = Decoder(protocol.LONGEST_ANSWER), 0
        self.ask(protocol.Hello())

    def ask(self, request: protocol.Request, descriptor: int | None = None) -> None:
        self.asked += 1
        octets = protocol.encode(self.asked, request)
        if descriptor is None:
            self.socket.send(octets)
        else:
            socket.send_fds(self.socket, [octets], [descriptor])
            os.close(descriptor)

    def answer(self) -> tuple[int, int, bytes] | None:
        try:
            self._decoder.feed(self.socket.recv(1 << 16))
        except BlockingIOError:
            pass
        return self._decoder.take()

    def close(self) -> None:
        self.socket.close()


class Crowd:
    """A manager with one good client and 16 hostile ones; a test runs its turns one by one."""

    def __init__(self, manager: Manager, device: Idle) -> None:
        self.manager, self.device = manager, device
        self.good = self.enter()
        self.hostile = [self.enter() for _ in range(HOSTILE)]

    def enter(self) -> Client:
        client = Client(self.manager.path)
        self.until(client.answer)
        return client

    def until(self, holds: Callable[[], object], turns: int = 1_000_000) -> int:
        """Runs turns until ``holds`` returns something true; returns their number."""
        for turn in range(turns):
            if holds():
                return turn
            self.manager.turn()
        raise AssertionError(f"not after {turns} turns")

    def done(self, client: Client, request: protocol.Request, descriptor: int | None = None) -> int:
        """Makes a request; returns the handle in the answer."""
        client.ask(request, descriptor)
        answers: list[tuple[int, int, bytes]] = []

        def answered() -> bool:
            if (taken := client.answer()) is not None:
                answers.append(taken)
            return bool(answers)

        self.until(answered)
        kind, _, body = answers[0]
        assert kind == Kind.ANSWER, protocol.decode_error(body)
        return int.from_bytes(body[: HANDLE.size], "little")

    def furnish(self, client: Client, octets: int = LARGE) -> dict[str, int]:
        """Gives a client one object of each kind."""
        done = {"memory": self.done(client, protocol.Memory(), memfd(2 * octets))}
        done["domain"] = self.done(client, protocol.Domain())
        done["queue"] = self.done(client, protocol.Queue(64))
        done["stream"] = self.done(
            client, protocol.Stream(done["domain"], done["queue"], True, False, 15)
        )
        done["region"] = self.done(
            client, protocol.Region(done["domain"], done["memory"], 0, octets, 3, 0, 0)
        )
        return done


@pytest.fixture
def crowd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Crowd]:
    device = Idle()
    allocate = os.posix_fallocate

    def counted(descriptor: int, offset: int, length: int) -> None:
        device.done["allocated"] += length
        allocate(descriptor, offset, length)

    monkeypatch.setattr(passed.os, "posix_fallocate", counted)
    drop = Posted.drop

    def dropped(posted: Posted) -> None:
        device.done["dropped"] += 1
        drop(posted)

    monkeypatch.setattr(Posted, "drop", dropped)
    # One step is a slice.
    monkeypatch.setattr(server, "SLICE", 0)
    with Device(device).open() as context, open(os.devnull, "w") as log:
        with Manager(context, tmp_path / "rnic.sock", POLICY, Audit(log)) as manager:
            crowd = Crowd(manager, device)
            yield crowd
            for client in (crowd.good, *crowd.hostile):
                client.close()


def large_memory(crowd: Crowd, client: Client, has: dict[str, int]) -> None:
    client.ask(protocol.Memory(), memfd(16 << 20))


def large_region(crowd: Crowd, client: Client, has: dict[str, int]) -> None:
    client.ask(protocol.Region(has["domain"], has["memory"], 0, LARGE, 3, 0, 0))


def copies(crowd: Crowd, client: Client, has: dict[str, int]) -> None:
    client.ask(protocol.Sync(has["region"], False, 0, LARGE))
    client.ask(protocol.Sync(has["region"], True, 0, LARGE))


def large_buffer(crowd: Crowd, client: Client, has: dict[str, int]) -> None:
    client.ask(protocol.Post(has["stream"], 0, Object.MEMORY, has["memory"], 0, LARGE, 1))


def revocation(crowd: Crowd, client: Client, has: dict[str, int]) -> None:
    client.ask(protocol.Close(Object.REGION, has["region"]))


def closing_while_the_device_is_busy(crowd: Crowd, client: Client, has: dict[str, int]) -> None:
    crowd.device.set_status(idle=0)
    client.ask(protocol.Close(Object.STREAM, has["stream"]))


def revocation_that_the_device_does_not_finish(
    crowd: Crowd, client: Client, has: dict[str, int]
) -> None:
    crowd.device.set_status(revoking=1)
    client.ask(protocol.Close(Object.REGION, has["region"]))


def many_requests(crowd: Crowd, client: Client, has: dict[str, int]) -> None:
    for _ in range(100):
        client.ask(protocol.Poll(has["queue"], 1024, False))


def many_that_are_refused(crowd: Crowd, client: Client, has: dict[str, int]) -> None:
    for _ in range(100):
        client.ask(protocol.Close(Object.REGION, 1 << 31))


def many_flushed_buffers(crowd: Crowd, client: Client, has: dict[str, int]) -> None:
    for wr_id in range(30):
        post = protocol.Post(has["stream"], 0, Object.MEMORY, has["memory"], 0, 100, wr_id)
        crowd.done(client, post)
    crowd.done(client, protocol.Close(Object.STREAM, has["stream"]))
    client.ask(protocol.Poll(has["queue"], 1024, False))


def polling_for_an_error_while_the_device_is_busy(
    crowd: Crowd, client: Client, has: dict[str, int]
) -> None:
    event = ErrorEvent(0, ErrorNumber(ErrorType.LOCAL, 1), 0, 0, b"")
    for connection in crowd.manager.connections.values():
        for queue in connection.session._all(Object.QUEUE):
            queue._errors.append(StreamError(event))
    crowd.device.set_status(idle=0)
    client.ask(protocol.Poll(has["queue"], 1024, True))


def ringing_for_others(crowd: Crowd, client: Client, has: dict[str, int]) -> None:
    client.ask(protocol.Page())
    for number in range(100):
        client.ask(protocol.Bell(number % 2, number << 16))


def leaving(crowd: Crowd, client: Client, has: dict[str, int]) -> None:
    client.close()


def leaving_while_the_device_revokes_nothing(
    crowd: Crowd, client: Client, has: dict[str, int]
) -> None:
    crowd.device.set_status(revoking=1)
    client.close()


@pytest.mark.parametrize(
    "attack",
    first([
        large_memory, large_region, copies, large_buffer, revocation,
        closing_while_the_device_is_busy, revocation_that_the_device_does_not_finish,
        many_requests, many_that_are_refused, many_flushed_buffers,
        polling_for_an_error_while_the_device_is_busy, ringing_for_others, leaving,
        leaving_while_the_device_revokes_nothing,
    ], 7),
)  # fmt: skip
def test_what_sixteen_clients_ask_for_delays_another_by_one_turn_of_bounded_work(
    crowd: Crowd, attack: Callable[[Crowd, Client, dict[str, int]], None]
) -> None:
    queue = crowd.done(crowd.good, protocol.Queue(1))
    held = [crowd.furnish(client, LARGE) for client in crowd.hostile]
    for client, has in zip(crowd.hostile, held, strict=True):
        attack(crowd, client, has)
    for _ in range(20):
        crowd.good.ask(protocol.Poll(queue, 1, False))
        before = Counter(crowd.device.done)
        assert crowd.until(crowd.good.answer, 3) == 1, "answered in the turn that it came in"
        work = crowd.device.done - before
        # A look at each of the device's queues copies an octet.
        looks = crowd.manager.context.capabilities.cqs
        assert work["octets"] <= HOSTILE * COPIED + 32
        assert work["copies"] <= HOSTILE + 2 + looks
        assert work["dropped"] <= HOSTILE
        assert work["allocated"] <= HOSTILE * passed._ALLOCATED
        assert work["registers"] <= HOSTILE * 16 + 32
    crowd.device.set_status(idle=1)


def test_a_request_in_slices_does_all_that_was_asked_for(crowd: Crowd) -> None:
    (client, *_) = crowd.hostile
    has = crowd.furnish(client)
    crowd.device.done.clear()
    assert crowd.done(client, protocol.Sync(has["region"], True, 5, LARGE - 5)) == 0
    assert crowd.device.done["octets"] >= LARGE - 5
    crowd.done(client, protocol.Post(has["stream"], 0, Object.MEMORY, has["memory"], 7, LARGE, 1))
    crowd.done(client, protocol.Close(Object.STREAM, has["stream"]))
    client.ask(protocol.Close(Object.MEMORY, has["memory"]))
    refusals: list[tuple[int, int, bytes]] = []

    def refused() -> bool:
        if (taken := client.answer()) is not None:
            refusals.append(taken)
        return bool(refusals)

    crowd.until(refused)
    assert refusals[0][0] == Kind.ERROR
    # The region, and the buffer until its completion is taken.
    assert b"2 regions and receive buffers are in the memory" in refusals[0][2]
    crowd.done(client, protocol.Poll(has["queue"], 10, False))
    crowd.done(client, protocol.Close(Object.REGION, has["region"]))
    crowd.done(client, protocol.Close(Object.MEMORY, has["memory"]))
    (session,) = [
        each.session
        for each in crowd.manager.connections.values()
        if each.session.share.used["queues"]
    ]
    assert +session.share.used == Counter(domains=1, queues=1, completions=64)


@pytest.mark.parametrize("attack", [large_memory, large_region, large_buffer, copies, revocation])
def test_a_client_that_leaves_amid_a_request_leaves_nothing(
    crowd: Crowd, attack: Callable[[Crowd, Client, dict[str, int]], None]
) -> None:
    (client, *_) = crowd.hostile
    descriptors = len(os.listdir("/proc/self/fd"))
    has = crowd.furnish(client)
    free = list(crowd.device._arena._free)
    (connection,) = [each for each in crowd.manager.connections.values() if each.session.receiving]
    attack(crowd, client, has)
    crowd.until(lambda: connection.work is not None)
    for _ in range(3):
        crowd.manager.turn()
    assert connection.work is not None
    crowd.manager._leave(connection, "as its socket was closed")
    crowd.until(lambda: len(crowd.manager._seats) == POLICY.clients - HOSTILE)
    assert not +connection.session.share.used
    context = crowd.manager.context
    assert not (context.streams or context.regions or context.pds or context.cqs)
    assert sum(length for _, length in crowd.device._arena._free) > sum(n for _, n in free)
    client.close()
    assert len(os.listdir("/proc/self/fd")) < descriptors


def test_the_copy_of_a_large_region_is_freed_in_parts() -> None:
    device = Idle()
    copied = finish(device.pinning(memoryview(bytearray(LARGE + 1))))
    assert len(list(copied.closing())) == LARGE // Copy._PART + 1
    copied.close()
    assert device._arena._free == [(0, 1 << 30)]


def test_a_stream_of_a_busy_device_is_closed_after_the_same_time_as_before(crowd: Crowd) -> None:
    (client, *_) = crowd.hostile
    has = crowd.furnish(client)
    crowd.device.set_status(idle=0)
    begun = time.monotonic()
    crowd.done(client, protocol.Close(Object.STREAM, has["stream"]))
    assert SETTLE <= time.monotonic() - begun < PATIENCE
    crowd.device.set_status(idle=1)


@pytest.mark.long
def test_the_longest_wait_with_sixteen_hostile_clients_is_20_ms(tmp_path: Path) -> None:
    worst: list[float] = []
    # As the command does.
    gc.collect()
    gc.freeze()
    try:
        # Other programs that keep all processors busy also delay the thread that frees memory, for
        # which the manager may wait. So the best of several rounds counts.
        while len(worst) < 4 and min(worst, default=1) >= 0.02:
            with Device(Idle()).open() as context:
                with served(context, tmp_path / "rnic.sock", POLICY) as prm:
                    worst.append(longest_wait(prm))
    finally:
        gc.unfreeze()
    assert min(worst) < 0.02


CHILD = "import sys; from ddp_rnic.sw_driver.tests import test_prm_turns as t; t.{}(*sys.argv[1:])"
SECONDS = 10


def longest_wait(prm: Managed) -> float:
    """Returns the longest wait, in seconds, of a good client while 16 others send requests without
    end.

    Other programs delay manager and client: the time for which the kernel made either wait for a
    processor is not counted. The client sleeps while the manager works, so no time counts twice.
    """
    command = [sys.executable, "-c"]
    with subprocess.Popen([*command, CHILD.format("be_hostile"), str(prm.path)]) as hostile:
        try:
            until(lambda: len(prm.manager.connections) == HOSTILE, "all hostile clients there")
            manager = f"/proc/{os.getpid()}/task/{prm.thread.native_id}/schedstat"
            asked = subprocess.run(
                [*command, CHILD.format("be_good"), str(prm.path), manager],
                stdout=subprocess.PIPE, text=True, check=True,
            )  # fmt: skip
            assert hostile.poll() is None and len(prm.manager.connections) >= HOSTILE
        finally:
            hostile.kill()
    print("seconds of the longest wait, with and without that for a processor:", asked.stdout)
    return float(asked.stdout.split()[1])


def be_good(path: str, manager: str) -> None:
    client = Client(Path(path))
    client.socket.setblocking(True)

    def answered() -> bytes:
        while (taken := client.answer()) is None:
            pass
        assert taken[0] == Kind.ANSWER
        return taken[2]

    answered()  # to HELLO
    client.ask(protocol.Queue(10))
    (queue,) = HANDLE.unpack(answered())
    with open(manager) as of_manager, open("/proc/thread-self/schedstat") as own:
        files = of_manager.fileno(), own.fileno()

        def delayed() -> int:
            """Returns for how many nanoseconds both have waited for a processor since they
            began.
            """
            return sum(int(os.pread(file, 100, 0).split()[1]) for file in files)

        with_it = without = 0.0
        end = time.perf_counter() + SECONDS
        while (begun := time.perf_counter()) < end:
            before = delayed()
            client.ask(protocol.Poll(queue, 10, False))
            answered()
            waited = time.perf_counter() - begun
            with_it = max(with_it, waited)
            without = max(without, waited - (delayed() - before) / 1e9)
            time.sleep(0.001)
    print(with_it, without)


def be_hostile(path: str) -> None:
    def run() -> None:
        while True:
            context = connect(path)
            assert isinstance(context, ClientContext)
            domain, queue = context.make(protocol.Domain()), context.make(protocol.Queue(100))
            for _ in range(5):
                memory = HANDLE.unpack(pass_memory(context, 32 << 20))[0]
                stream, _ = NAMED.unpack(
                    context.ask(protocol.Stream(domain, queue, True, False, 15))
                )
                region, _ = NAMED.unpack(
                    context.ask(protocol.Region(domain, memory, 0, 1 << 23, 3, 0, stream))
                )
                for push in (True, False):
                    context.link.ask(protocol.Sync(region, push, 0, 1 << 23))
                for _ in range(50):
                    context.link.ask(protocol.Poll(queue, 1024, False))
                context.ask(protocol.Post(stream, 0, Object.MEMORY, memory, 0, 1 << 23, 1))
                context.remove(Object.STREAM, stream)
                context.ask(protocol.Poll(queue, 1024, False))
                context.remove(Object.MEMORY, memory)
            context.link.close()

    for thread in [threading.Thread(target=run) for _ in range(HOSTILE)]:
        thread.start()


def pass_memory(context: ClientContext, octets: int) -> bytes:
    descriptor = memfd(octets)
    try:
        return context.link.ask(protocol.Memory(), descriptor).result()
    finally:
        os.close(descriptor)

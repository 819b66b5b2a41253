"""Tests of opening and closing a device."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from ddp_rnic.hdl.spec import regs
from ddp_rnic.hdl.spec.commands import open_queue
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.sim.devices.live import Peer, SimTransport
from ddp_rnic.sw_driver import (
    CQ,
    PD,
    Device,
    InvalidRequest,
    RnicTimeout,
    StateError,
    Stream,
    Transport,
    TransportError,
    UnsupportedDevice,
)
from ddp_rnic.sw_driver.tests.conftest import Bench, begin
from ddp_rnic.sw_driver.transports.memory import Memory
from ddp_rnic.sw_driver.verbs import context


class Constants(Transport):
    """A transport whose registers read as they were set; SCRATCH keeps a write, through
    ``link``.
    """

    def __init__(
        self, values: dict[str, int] | None = None, link: Callable[[int], int] = int
    ) -> None:
        good = {
            "ID": regs.ID, "VERSION": regs.VERSION, "CAP_WIDTH": 64, "CAP_STAGS": 1024,
            "CAP_STREAMS": 64, "CAP_BUFFER": 32768, "CAP_PAGES": 2048, "CAP_QUEUE": 64,
            "CAP_BUFFERS": 2048, "CAP_CQS": 16, "CAP_ADDRESS": 64,
        }  # fmt: skip
        self.values = {regs.address(name): value for name, value in (good | (values or {})).items()}
        self.link = link

    def read(self, address: int) -> int:
        return self.values.get(address, 0)

    def write(self, address: int, value: int) -> None:
        self.values[address] = self.link(value)

    def pin(self, view: memoryview) -> Memory:
        raise NotImplementedError

    def allocate(self, octets: int) -> Memory:
        raise NotImplementedError

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("registers", "message"),
    [
        ({"ID": 0xFFFFFFFF}, "no device answers; check power, link and base address"),
        ({"ID": 0}, "no device answers"),
        ({"ID": 0x43494E52}, "swaps octets; check its byte order"),
        ({"ID": 0x12345678}, "ID reads 0x12345678, not 0x524e4943: this is another device"),
        ({"VERSION": regs.VERSION + (1 << 16)}, r"map is 6\.1, the driver's is 5\.1: update the d"),
        (
            {"VERSION": regs.VERSION - (1 << 16)},
            r"map is 4\.1, the driver's is 5\.1: update the gateware",
        ),
        ({"CAP_WIDTH": 96}, "CAP_WIDTH reads 96, which no RNIC has: check the link"),
        ({"CAP_STAGS": 1000}, "CAP_STAGS reads 1000, which no RNIC has"),
        ({"CAP_QUEUE": 0}, "CAP_QUEUE reads 0, which no RNIC has"),
        ({"CAP_PAGES": 1 << 20}, "CAP_PAGES reads 1048576, which no RNIC has"),
    ],
)
def test_another_device_is_refused_with_what_to_do(registers: dict[str, int], message: str) -> None:
    with pytest.raises(UnsupportedDevice, match=message):
        Device(Constants(registers)).query()


def test_a_newer_minor_version_is_taken() -> None:
    assert Device(Constants({"VERSION": regs.VERSION + 1})).query().stags == 1024


def test_a_link_with_a_stuck_bit_is_noticed() -> None:
    transport = Constants(link=lambda value: value & ~0x100)
    with pytest.raises(UnsupportedDevice, match="written with 0xaaaa5555 and reads 0xaaaa5455"):
        Device(transport).query()


def test_the_capabilities_are_those_of_the_gateware() -> None:
    with SimTransport() as sim:
        found, config = Device(sim).query(), RnicConfig()
    assert found.width == config.width and found.stags == config.stags
    assert found.streams == config.streams and found.buffer == config.buffer_octets
    assert found.pages == config.pages and found.queue == config.queue_depth
    assert found.buffers == config.buffers


def narrow(sim: SimTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a device report that it uses 32 bits of an address."""
    read, address = sim.read, regs.address("CAP_ADDRESS")
    monkeypatch.setattr(sim, "read", lambda at: 32 if at == address else read(at))


def test_a_ring_that_the_device_does_not_reach_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with SimTransport(base=1 << 36) as sim:
        narrow(sim, monkeypatch)
        with pytest.raises(UnsupportedDevice, match="uses 32 bits .* memory at 0x1000000000: let"):
            Device(sim).open()


def test_a_region_that_the_device_does_not_reach_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with SimTransport(base=1 << 20) as sim:
        narrow(sim, monkeypatch)
        with Device(sim).open() as opened, PD(opened) as pd:
            array = bytearray(100)
            for base, reached in ((1 << 20, True), ((1 << 32) - 4096, False), (1 << 32, False)):
                monkeypatch.setattr(sim, "_next", base)
                # Its last 50 octets are in another page.
                monkeypatch.setattr(sim._random, "randrange", lambda most: most - 50)
                if reached:
                    pd.register(array).close()
                else:
                    with pytest.raises(UnsupportedDevice, match="uses 32 bits of a bus address"):
                        pd.register(array)
                array.append(0)  # nothing holds the octets


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"completions": 100}, "completions must be a power of two from 2 to 32768, not 100"),
        ({"completions": 1}, "not 1$"),
        ({"completions": 65536}, "not 65536"),
        ({"coalesce": 0}, "coalesce must be from 1 to the 1024 completions, not 0"),
        ({"coalesce": 1025}, "not 1025"),
        ({"timeout": -1}, "timeout must be from 0 to 2"),
    ],
)
def test_settings_that_cannot_be_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        Device(Constants()).open(**arguments)


def test_what_was_set_up_before_is_gone_when_a_device_is_opened() -> None:
    with SimTransport() as sim:
        before = begin(sim)
        array = bytearray(100)
        region = before.pd.register(array)
        buffer = bytearray(100)
        before.stream.post_recv(buffer)
        # The first owner vanishes, and leaves an error event and a completion that nobody took.
        before.peer.write(region.stag, 0, b"first")
        before.peer.write(region.stag ^ 1, 0, b"wrong key")
        sim.run(2000)
        before.context._closed = True
        after = begin(sim)
        with after.context:
            assert after.stream.number == before.stream.number
            assert after.context.events() == [] and after.cq.poll() == []
            # Nothing is placed by the old STag, nor in the old buffer.
            octets = bytes(array)
            after.peer.write(region.stag, 10, b"second")
            after.peer.send(b"third")
            sim.run(2000)
            (event,) = after.context.events()
            assert str(event.number) == "0x1/0x00 Invalid STag"
            assert bytes(array) == octets and not any(buffer)


def test_a_device_that_is_open_is_not_opened_again(bench: Bench) -> None:
    array = bytearray(5)
    region = bench.pd.register(array)
    with pytest.raises(StateError, match="use its context, or close that first"):
        Device(bench.sim).open()
    bench.peer.write(region.stag, 0, b"still")
    bench.sim.run(2000)
    assert array == b"still"
    bench.context.close()
    with Device(bench.sim).open() as again:
        assert again.events() == []


def test_closing_a_context_closes_all_that_was_made_of_it(bench: Bench) -> None:
    array, buffer = bytearray(100), bytearray(100)
    region = bench.pd.register(array)
    bound = bench.pd.register(bytearray(10), stream=bench.stream)
    bench.stream.post_recv(buffer)
    bench.stream.post_recv(region, 1)
    bench.context.close()
    bench.context.close()
    array.extend(b"free again")
    buffer.clear()
    bench.peer.write(region.stag, 0, b"late")
    bench.sim.run(2000)
    assert not any(array[:100])
    for call in (
        bench.cq.poll,
        bench.cq.wait,
        region.revoke,
        bound.revoke,
        bench.context.events,
        bench.context.counters,
        lambda: bench.pd.register(bytearray(1)),
        lambda: bench.stream.post_recv(None),
        lambda: PD(bench.context),
        lambda: CQ(bench.context),
        lambda: Stream(bench.pd, bench.cq),
    ):
        with pytest.raises(StateError, match="closed"):
            call()
    region.close()
    bench.stream.close()
    bench.cq.close()
    bench.pd.close()


def test_a_second_close_closes_what_an_interrupted_one_has_left(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.context.open_ring()  # beside that of the bench's queue, and queue 0
    close, calls = context.Ring.close, list[int]()

    def interrupted(ring: context.Ring) -> None:
        calls.append(ring.number)
        if len(calls) == 3:
            raise KeyboardInterrupt
        close(ring)

    monkeypatch.setattr(context.Ring, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench.context.close()
    bench.context.close()
    assert len(set(calls)) == 3 and calls[2:] == 2 * [calls[2]]


def test_only_one_of_two_threads_closes_a_context(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    close, closed, ended = context.Ring.close, list[context.Ring](), list[bool]()

    def counted(ring: context.Ring) -> None:
        closed.append(ring)
        close(ring)

    def end() -> None:
        bench.context.close()
        ended.append(True)

    monkeypatch.setattr(context.Ring, "close", counted)
    rings = [*bench.context.rings]
    with bench.context.lock:
        threads = [threading.Thread(target=end) for _ in range(2)]
        for thread in threads:
            thread.start()
        # Both are in their call.
        time.sleep(0.2)
    for thread in threads:
        thread.join(30)
    assert ended == [True, True] and set(closed) == set(rings) and len(closed) == len(rings)


def test_a_closed_context_leaves_a_device_that_can_be_opened_again(bench: Bench) -> None:
    for _ in range(3):
        bench.context.close()
        again = begin(bench.sim)
        with again.context, again.pd.register(bytearray(8)) as region:
            again.peer.write(region.stag, 0, b"octets..")
            (completion,) = again.cq.wait(5)
            assert bytes(region.view) == b"octets.." and completion.mr is region


def test_a_device_that_does_not_answer_keeps_its_memory(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = bytearray(100)
    region = bench.pd.register(array)
    monkeypatch.setattr(context, "PATIENCE", 0.05)
    read = bench.sim.read
    revoking = regs.pack("STATUS", revoking=1)
    monkeypatch.setattr(
        bench.sim,
        "read",
        lambda address: read(address) | (revoking if address == regs.address("STATUS") else 0),
    )
    with pytest.raises(RnicTimeout, match="call revoke.. again"):
        region.revoke()
    with pytest.raises(BufferError):
        array.extend(b"the device may still write here")
    assert not region.revoked
    monkeypatch.setattr(bench.sim, "read", read)
    region.revoke()
    array.extend(b"now it does not")


def test_a_context_that_cannot_close_says_so_and_keeps_memory(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = bytearray(100)
    bench.pd.register(array)

    def broken(address: int) -> int:
        raise TransportError("the cable is out")

    monkeypatch.setattr(bench.sim, "read", broken)
    with pytest.raises(TransportError, match="the cable is out"):
        bench.context.close()
    with pytest.raises(BufferError):
        array.clear()
    bench.context.close()


def test_a_forked_child_cannot_use_the_parents_device(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    region = bench.pd.register(bytearray(10))
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: 1)
        with pytest.raises(StateError, match="open it after the fork"):
            region.revoke()
        bench.context.close()  # as at the end of the child; does nothing
    Peer(bench.sim, bench.stream.number).write(region.stag, 0, b"x")
    assert bench.cq.wait(5)[0].mr is region


def test_arguments_are_written_again_after_a_failure_that_came_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A transport may post writes, and report the failure of one at the next read."""
    with SimTransport() as sim:
        registers, writes = context.Registers(sim), list[tuple[int, int]]()
        monkeypatch.setattr(sim, "write_all", writes.extend)
        region = open_queue(stream=3, qn=1)
        registers.start(region)
        arguments = [(regs.address(each.register), each.value) for each in region]
        assert writes == arguments
        registers.start(region)
        assert writes == [*arguments, arguments[-1]]  # the command alone

        def fail(address: int) -> int:
            raise TransportError("a write was refused")

        with monkeypatch.context() as patch:
            patch.setattr(sim, "read", fail)
            with pytest.raises(TransportError):
                registers.read("STATUS")
        writes.clear()
        registers.start(region)
        assert writes == arguments


@pytest.mark.parametrize(
    "failing", ["PAGE_COMMIT", "STAG_OWNER", "STAG_COMMIT", "BUFFER_POST", "STREAM_COMMIT"]
)
def test_a_link_that_fails_in_the_midst_of_a_call_leaves_nothing_behind(
    failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SimTransport(page=4096) as sim:
        bench = begin(sim)
        array, write_all = bytearray(9000), sim.write_all
        with bench.context, monkeypatch.context() as patch:

            def fail(writes: Sequence[tuple[int, int]]) -> None:
                for address, value in writes:
                    write_all([(address, value)])
                    if address == regs.address(failing):
                        raise TransportError("the cable is out")

            patch.setattr(sim, "write_all", fail)
            with pytest.raises(TransportError, match="the cable is out"):
                bench.stream.post_recv(bench.pd.register(array))
                Stream(bench.pd, bench.cq)
            patch.setattr(sim, "write_all", write_all)
            bench.pd.close()
            # All of the device's tables are free again, and the buffer is, too.
            assert bench.context.slots.allocate(2048) == 0
            assert len(bench.context.buffers) == 2048 and not bench.context.tags
            assert len(bench.context.numbers) == 64
            array.clear()

"""Tests the driver in a host's program, at a board's UART pins; a peer sends frames by RGMII."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import cocotb
from cocotb.task import bridge, resume
from ddp_rnic.boards.ecpix5 import ECPIX5_85
from ddp_rnic.boards.sizes import MEDIUM
from ddp_rnic.sim.engines.board_bench import BoardBench
from ddp_rnic.sim.engines.engine import Ring
from ddp_rnic.sw_driver import CQ, PD, Device
from ddp_rnic.sw_driver.tests.test_association import SctpPeer, associate
from ddp_rnic.sw_driver.transports.uart import UartTransport

#: Number of tests in this module.
COUNT = 1
#: The board with the fewest cycles per bit that the bridge accepts, because simulation is slow.
BOARD = replace(ECPIX5_85, baud=ECPIX5_85.clock // 8, **MEDIUM)  # type: ignore[arg-type]
SHORTEST = 60
#: Nanoseconds after which an answer is too late.
_LATE = 1_000_000


class Port:
    """Replaces pyserial's port for a program in a thread: each call runs the simulation."""

    def __init__(self, bench: BoardBench) -> None:
        self._link, self._sink = bench.link, bench.link._sink
        self.baudrate, self.timeout, self.is_open = bench.baud, 0.0, True

    def write(self, octets: bytes) -> None:
        resume(self._link.send)(octets)

    def read(self, count: int) -> bytes:
        return bytes(resume(self._read)(count))

    async def _read(self, count: int) -> bytearray:
        octets = bytearray()
        while len(octets) < count:
            await self._sink.wait(_LATE)
            if self._sink.empty():
                break
            octets += self._sink.read_nowait(1)
        return octets

    @property
    def in_waiting(self) -> int:
        return int(self._sink.count())

    def reset_input_buffer(self) -> None:
        self._sink.clear()

    def close(self) -> None:
        self.is_open = False


class Frames:
    """Carries a peer's frames to the board."""

    def __init__(self, bench: BoardBench) -> None:
        self._bench = bench

    def send_frame(self, octets: bytes) -> None:
        resume(self._bench.send)(octets.ljust(SHORTEST, b"\0"))


def session(bench: BoardBench) -> None:
    """Registers memory, receives a Write and a message, and revokes the memory."""
    with mock.patch("serial.serial_for_url", return_value=Port(bench)):
        transport = UartTransport("the board's pins", BOARD.baud)
    array, buffer = bytearray(b"\xee" * 103), bytearray(20)
    with transport, Device(transport).open(completions=16) as context:
        assert context.capabilities.stags == BOARD.config.stags
        pd, cq = PD(context), CQ(context)
        with associate(context, streams=1) as association, pd.register(array) as region:
            stream = association.stream(0, pd, cq)
            stream.post_recv(buffer, 1, wr_id="posted")
            peer = SctpPeer(Frames(bench), ("10.7.0.1", "10.7.0.2"))  # type: ignore[arg-type]
            peer.establish(association, 0)
            peer.write(0, region.stag, 51, b"written at the pins")
            peer.packet(peer.chunks(0, peer.source.untagged(1, b"and received")))
            done = cq.wait(600)
            while len(done) < 2:
                done += cq.wait(600)
            tagged, untagged = done
            assert tagged.mr is region
            assert (untagged.wr_id, untagged.byte_len) == ("posted", 12)
        assert region.revoked and context.counters()["PLACED_OCTETS"] == 31
    assert array == b"\xee" * 51 + b"written at the pins" + b"\xee" * 33
    assert buffer[:12] == b"and received"


@cocotb.test()
async def the_driver_receives_through_the_uart(dut: Any) -> None:
    """Opens, registers, posts, waits, revokes and closes, with only the UART's two pins."""
    bench = BoardBench(dut, BOARD.clock, BOARD.baud, Ring(0, 4))
    await bench.start()
    await bridge(session)(bench)

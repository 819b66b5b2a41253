"""Tests a board that sends, at its pins: the driver at the UART, and a peer at RGMII.

The peer is that of the driver's own tests: Scapy and the golden model read its frames.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any
from unittest import mock

import cocotb
from cocotb.task import bridge, resume
from cocotb.triggers import ClockCycles
from ddp_rnic.boards.ecpix5 import ECPIX5_SENDS
from ddp_rnic.cocotb_tests.driver_tests import SHORTEST, Port
from ddp_rnic.hdl.spec import board
from ddp_rnic.hdl.spec.send import Kind
from ddp_rnic.sim.engines.board_bench import BoardBench
from ddp_rnic.sim.engines.engine import Ring
from ddp_rnic.sw_driver import Device, WcStatus
from ddp_rnic.sw_driver.tests.test_chunks import Bench
from ddp_rnic.sw_driver.transports.ethernet import BoardEthernet, Received
from ddp_rnic.sw_driver.transports.uart import UartTransport
from ddp_rnic.sw_driver.verbs.sending import Part

#: Number of tests in this module.
COUNT = 1
#: The board with the fewest cycles per bit that the bridge accepts, because simulation is slow.
BOARD = replace(ECPIX5_SENDS, baud=ECPIX5_SENDS.clock // 8)


class Network:
    """Carries frames between the peer and the pins, and packets of the exception stream."""

    sending = 0

    def __init__(self, bench: BoardBench, link: UartTransport) -> None:
        self._bench, self._ethernet = bench, BoardEthernet(link)
        self._packets: list[Received] = []
        self.arrive: Any = None  # takes the frames of the board

    def send_frame(self, octets: bytes) -> None:
        resume(self._bench.send)(octets.ljust(SHORTEST, b"\0"))

    def run(self, cycles: int) -> None:
        resume(self._wait)(cycles)
        while not self._bench.sink.empty():
            frame = self._bench.sink.recv_nowait()
            assert frame.check_fcs()
            self.arrive(bytes(frame.get_payload()))

    async def _wait(self, cycles: int) -> None:
        await ClockCycles(self._bench.dut.clk, cycles)

    def exceptions(self) -> list[Received]:
        while (packet := self._ethernet.receive()) is not None:
            self._packets.append(packet)
        return self._packets


def session(bench: BoardBench) -> None:
    """Sends a long message from a region and a short one, while the link loses frames."""
    octets = random.Random(1).randbytes(3000)
    with mock.patch("serial.serial_for_url", return_value=Port(bench)):
        transport = UartTransport("the board's pins", BOARD.baud)
    with transport, Device(transport).open(completions=16) as context:
        network: Any = Network(bench, transport)
        sent = Bench(network, context)
        network.arrive = sent.peer.frame
        lost = iter((False, True, False, True))
        sent.peer.loses = lambda tsn: next(lost, False)
        stream, region = sent.open(0), sent.region(octets)
        stream.sending.post(Kind.TAGGED, Part(region, 1, 2999), stag=1, to=5, wr_id="from a region")
        stream.sending.post(Kind.UNTAGGED, b"inline", qn=0, wr_id="inline")
        sent.until(lambda: len([each for each in sent.ended() if each[0]]) == 2)
        assert {status for _, status in sent.ended()} == {WcStatus.SUCCESS}
        assert sent.peer.memory == {1: bytes(5) + octets[1:], 0: b"inline"}
        # The host has sent nothing; the board has, with the two chunks that were lost.
        frames = transport.read_words(board.address("LINK_SENT"), 1)
        assert frames == [len(sent.peer.frames)] and not sent.by_host
        assert sent.sender.repeats == 2


@cocotb.test()
async def a_board_sends_what_the_driver_posts(dut: Any) -> None:
    """Messages leave the pins, are repeated where they were lost, and end once they are taken."""
    bench = BoardBench(dut, BOARD.clock, BOARD.baud, Ring(0, 4))
    await bench.start()
    await bridge(session)(bench)

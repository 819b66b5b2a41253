"""Tests a board at its pins: frames by RGMII, everything else by the UART.

The RNIC's results are compared with the golden model, as in ``rnic sim``.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import cocotb
from cocotbext.eth import GmiiFrame
from ddp_rnic.boards.ecpix5 import ECPIX5_85
from ddp_rnic.hdl.spec import board, regs
from ddp_rnic.hdl.spec.completion import Kind
from ddp_rnic.sim.capture.capture import capture_of
from ddp_rnic.sim.capture.tests.associations import Peers
from ddp_rnic.sim.capture.traffic import traffic_of, with_sctp
from ddp_rnic.sim.engines.board_bench import BoardBench
from ddp_rnic.sim.engines.engine import Ring
from ddp_rnic.sim.replay.differences import find_differences
from ddp_rnic.sim.replay.host import GUARD
from ddp_rnic.sim.replay.plan import Plan, plan
from ddp_rnic.sim.replay.sctp_regions import derive_all

#: Number of tests in this module.
COUNT = 4
#: The rings of a plan are twice as long as those of the driver, which fit in the board's memory.
BOARD = replace(ECPIX5_85, memory=2 * ECPIX5_85.memory)
#: The rings of tests without a plan: without that of SCTP's owner no frame is taken.
RING = Ring(0, 9, owner=BOARD.config.completion_queues)
SHORTEST = 60
STAG = 0x1234500


def traffic() -> Plan:
    """Returns Writes and messages of a session, out of order, some twice; and unrelated frames."""
    rng = random.Random(1)
    peers = Peers(streams=2)
    a, b = peers.ends
    peers.set_up()
    peers.open(0)
    chunks = [
        peers.write(a, 0, STAG, 0x1000 + 3, rng.randbytes(150)),
        peers.message(a, 0, rng.randbytes(77)),
        peers.write(a, 0, STAG, 0x1000 + 153, rng.randbytes(61)),
        peers.message(a, 0, rng.randbytes(5)),
    ]
    peers.send(a, chunks[0])
    peers.send(a, chunks[3])
    twice = peers.send(a, *chunks[1:3])
    peers.again(twice)
    peers.send(a, peers.control(a, 1, 9))  # type: ignore[arg-type]
    peers.close(0)
    frames = [
        replace(frame, octets=frame.octets.ljust(SHORTEST, b"\0"), number=number)
        for number, frame in enumerate(peers.frames, 1)
    ]
    capture = capture_of(frames, Path("board"))
    played = with_sctp(traffic_of(capture), capture.sctp)
    derived = derive_all(played)
    (planned,), notes = plan(played, derived.regions, BOARD.config, derived.ends)
    assert planned.config == BOARD.config, notes
    # Memory of a board is 0 initially.
    planned.memory[:] = 0
    assert len(planned.memory) <= BOARD.memory
    return planned


async def started(dut: Any, ring: Ring) -> BoardBench:
    bench = BoardBench(dut, BOARD.clock, BOARD.baud, ring)
    await bench.start()
    return bench


@cocotb.test()
async def the_host_reaches_registers_and_memory(dut: Any) -> None:
    """Identities, capabilities, scratch registers, memory, MDIO without a PHY, errors counted."""
    bench = await started(dut, RING)
    link = bench.link
    assert await link.read(board.RNIC.address + regs.address("ID"), 3) == [
        regs.ID,
        regs.VERSION,
        64,
    ]
    # The frames of the other tests do not use MPA.
    assert await link.read(board.RNIC.address + regs.address("CAP_MPA")) == [0]
    assert await link.read(board.address("ID"), 5) == [
        board.ID,
        board.VERSION,
        BOARD.memory,
        board.LONGEST,
        BOARD.clock,
    ]
    for scratch in (board.address("SCRATCH"), board.RNIC.address + regs.address("SCRATCH")):
        await link.write(scratch, [0xC0FFEE00])
        assert await link.read(scratch) == [0xC0FFEE00]
    last = board.MEMORY.address + BOARD.memory - 8
    await link.write(last, [0x01020304, 0x05060708])
    assert await link.read(last, 2) == [0x01020304, 0x05060708]
    assert await link.read_octets(last, 8) == bytes([4, 3, 2, 1, 8, 7, 6, 5])

    await link.write(board.address("MDIO_ADDRESS"), [board.pack("MDIO_ADDRESS", phy=3, register=2)])
    await link.write(board.address("MDIO_READ"), [1])
    assert await link.read(board.address("MDIO_RESULT")) == [
        board.pack("MDIO_RESULT", data=0xFFFF, silent=1)
    ]
    assert await link.read(board.address("HOST_ERRORS")) == [0]
    assert await link.read(board.MEMORY.address + BOARD.memory) == [board.NOTHING]
    await link.write(board.address("ID"), [0])
    await link.send(b"\0")
    assert await link.read(board.address("HOST_ERRORS")) == [3]
    # One of the windows of frames is read only, the other write only.
    assert await link.read(board.TRANSMIT.address) == [board.NOTHING]
    await link.write(board.RECEIVED.address, [0])
    assert await link.read(board.address("HOST_ERRORS")) == [5]
    assert await link.read(board.RECEIVED.address) != [board.NOTHING]


@cocotb.test()
async def frames_go_out_and_damaged_ones_are_counted(dut: Any) -> None:
    """A frame of the host reaches the PHY; the FCS of received frames is checked."""
    bench = await started(dut, RING)
    await bench.run(RING.program())
    link = bench.link
    for frame in (bytes(range(14)), bytes(range(75))):
        words = [
            int.from_bytes(frame[at : at + 4].ljust(4, b"\0"), "little")
            for at in range(0, len(frame), 4)
        ]
        await link.write(board.TRANSMIT.address, words)
        await link.write(board.address("TRANSMIT_LENGTH"), [len(frame), 1])
        sent = await bench.sink.recv()
        assert sent.check_fcs()
        assert sent.get_payload() == frame.ljust(SHORTEST, b"\0")
    assert await link.read(board.address("LINK_SENT")) == [2]

    good = bytes(12) + b"\x88\xb5" + bytes(range(100))
    await bench.send(good, damaged=True)
    await bench.send(good)
    await bench.drain()
    assert [packet.octets for packet in bench.exceptions] == [good]
    assert await link.read(board.address("LINK_UNSTARTED")) == [0]
    undelimited = GmiiFrame.from_payload(good)
    undelimited.data = undelimited.data.replace(b"\xd5", b"\x5d", 1)
    await bench.source.send(undelimited)
    await bench.source.wait()
    assert await link.read(board.address("LINK_UNSTARTED")) == [1]
    assert await link.read(board.address("LINK_FRAMES"), 3) == [1, 1, 0]
    outcome = await bench.outcome()
    assert (outcome.counters["FRAMES_DROPPED"], outcome.counters["FRAMES_DIVERTED"]) == (1, 1)


@cocotb.test()
async def the_link_is_shown_as_up_at_gigabit_alone(dut: Any) -> None:
    """RGMII 2.0 section 3.4.1: between frames RXD shows the link's state, speed and duplex."""
    bench = await started(dut, RING)
    bench.source._run_cr.cancel()  # this test drives the pins itself
    # An LED stays lit for longer than this test takes.
    for link, speed, lit in ((0, 2, 0), (1, 0, 0), (1, 1, 0), (1, 3, 0), (1, 2, 1)):
        dut.eth_rgmii_rx_data.value = link | speed << 1 | 1 << 3
        status = (await bench.link.read(board.address("STATUS")))[0]
        fields = board.unpack("STATUS", status)
        assert (fields["link"], fields["speed"], fields["duplex"]) == (link, speed, 1)
        assert int(dut.rgb_led0_g.value) == 1 - lit  # the pin is low for light


@cocotb.test()
async def an_association_is_placed_and_delivered(dut: Any) -> None:
    """Memory, completions, exceptions and counters are those of the golden model."""
    planned = traffic()
    bench = await started(dut, planned.ring)
    await bench.run(planned.operations)
    memory = await bench.memory(looked_at(planned), len(planned.memory))
    expected = planned.expected_memory()
    assert expected.any() and sum(map(len, looked_at(planned))) > expected.astype(bool).sum()
    outcome = await bench.outcome()
    assert find_differences(planned, outcome, memory) == []
    messages = [each for each in outcome.completions if each.kind is Kind.MESSAGE]
    assert len(messages) >= 4 and not outcome.events
    assert await bench.link.read(board.address("LINK_DAMAGED"), 2) == [0, 0]
    assert await bench.link.read(board.address("HOST_ERRORS")) == [0]


def looked_at(planned: Plan) -> list[range]:
    """Returns the parts of memory that are read back: those written, and their surroundings."""
    written = planned.expected_memory().nonzero()[0]
    around: list[range] = []
    for octet in written.tolist():
        start = max(octet - GUARD // 4, 0)
        stop = min(octet + GUARD // 4, len(planned.memory))
        if around and start <= around[-1].stop:
            around[-1] = range(around[-1].start, stop)
        else:
            around.append(range(start, stop))
    return around

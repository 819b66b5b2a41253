"""Tests a board with TCP in front of MPA at its pins: segments by RGMII, the rest by the UART.

The RNIC's results are compared with the golden models of TCP and of the RNIC.
"""

from __future__ import annotations

import ipaddress
import random
from dataclasses import replace
from typing import Any

import cocotb
from ddp_rnic.boards.ecpix5 import ECPIX5_85
from ddp_rnic.boards.sizes import SMALL
from ddp_rnic.hdl.spec import board
from ddp_rnic.hdl.spec.net import tcp_words
from ddp_rnic.hdl.spec.sctp import Diversion
from ddp_rnic.sim.capture.tests.frames import ACK, FIN, PUSH, ethernet, tcp_packet
from ddp_rnic.sim.capture.tests.streams import SEND, Conversation
from ddp_rnic.sim.engines.board_bench import BoardBench
from ddp_rnic.sim.engines.engine import Frame, Operation, Packet
from ddp_rnic.sim.model.tcp import Connection, Diverted, Dropped, FpduReceived, TcpReceiver
from ddp_rnic.sim.replay.differences import find_differences
from ddp_rnic.sim.replay.plan import Plan, plan
from ddp_rnic.sim.replay.regions import derive

from .board_tests import looked_at

#: Number of tests in this module.
COUNT = 1
#: The Colorlight's RNIC, at the pins that the test bench uses, with the fewest cycles per bit that
#: the bridge accepts, because simulation is slow.
BOARD = replace(ECPIX5_85, baud=ECPIX5_85.clock // 8, **SMALL)  # type: ignore[arg-type]
HOST = "10.7.0.2"
STAG = 0x1234500
START = 0xFFFFFF00


def traffic() -> tuple[Plan, list[Connection], list[bytes]]:
    """Returns Writes and messages of two connections with markers, and an FPDU with a wrong CRC;
    their frames, in which TCP has cut FPDUs anywhere, and other frames.
    """
    rng = random.Random(1)
    conversation = Conversation(markers=True)
    for number, length in enumerate((150, 61, 1, 300, 0, 77)):
        conversation.write(HOST, STAG, 0x1003 + 300 * number, rng.randbytes(length))
        conversation.message(HOST, SEND, rng.randbytes(5 + 9 * number), connection=number % 2)
    conversation.segment(HOST, rng.randbytes(40), connection=1, spoil=True)
    told = conversation.traffic()
    derived = derive(told)
    (planned,), notes = plan(told, derived.regions, BOARD.config, derived.ends)
    assert planned.config == BOARD.config, notes
    planned.memory[:] = 0
    assert len(planned.memory) <= BOARD.memory

    connections = [
        Connection(
            ipaddress.ip_address(each.source.address).packed,
            ipaddress.ip_address(each.destination.address).packed,
            each.source.port,
            each.destination.port,
            each.number,
            START,
            each.markers,
        )
        for each in told.streams
    ]
    octets = {
        stream: b"".join(each.raw for each in told.arrivals if each.stream is stream)
        for stream in told.streams
    }
    at = dict.fromkeys(told.streams, 0)
    frames = []
    for arrival in told.arrivals:
        # Up to its end, and into the FPDU after it.
        stream = arrival.stream
        ends = stream.source, stream.destination
        end = arrival.position + len(arrival.raw)
        while at[stream] < end:
            stop = min(at[stream] + rng.randint(1, 200), end + rng.choice((0, 3, 10)))
            payload = octets[stream][at[stream] : stop]
            segment = tcp_packet(*ends, START + at[stream], payload, ACK | PUSH)
            spoilt = segment[:-1] + bytes([segment[-1] ^ 1])
            frames += [ethernet(spoilt), ethernet(segment), ethernet(segment)]
            at[stream] += len(payload)
    frames += [ethernet(tcp_packet(*ends, START + at[stream], flags=ACK | FIN))]
    frames += [bytes(12) + b"\x08\x06" + bytes(46)]
    return planned, connections, frames


@cocotb.test()
async def segments_are_placed_and_delivered(dut: Any) -> None:
    """Memory, completions, events and counters are those of the golden model, and the host has all
    frames that belong to it.
    """
    planned, connections, frames = traffic()
    model = TcpReceiver(BOARD.connections, BOARD.window)
    for index, connection in enumerate(connections):
        model.connect(index, connection)
    events = [event for frame in frames for event in model.receive(frame)]
    packets = [each for each in planned.operations if isinstance(each, Packet)]
    assert [each.octets for each in packets] == [
        each.octets for each in events if isinstance(each, FpduReceived)
    ]

    bench = BoardBench(dut, BOARD.clock, BOARD.baud, planned.ring, sctp=False)
    await bench.start()
    link = bench.link
    assert await link.read(board.address("CAP_CONNECTIONS"), 2) == [BOARD.connections, BOARD.window]
    for index, each in enumerate(connections):
        for field, word in tcp_words(
            each.source,
            each.destination,
            (each.source_port, each.destination_port),
            sequence=each.sequence,
            stream=each.stream,
            sent=each.sent,
            span=each.span,
            markers=each.markers,
        ):
            await link.write(
                board.address("TCP_SELECT"),
                [board.pack("TCP_SELECT", connection=index, field=field), word, 1],
            )
    # Insert the frames at the position of the packets.
    first = planned.operations.index(packets[0])
    operations: list[Operation] = [
        each for each in planned.operations if not isinstance(each, Packet)
    ]
    operations[first:first] = [Frame(frame) for frame in frames]
    await bench.run(operations)

    memory = await bench.memory(looked_at(planned), len(planned.memory))
    outcome = await bench.outcome()
    diverted = [each for each in outcome.exceptions if each.reason == Diversion.FRAME]
    assert [each.octets for each in diverted] == [
        each.octets for each in events if isinstance(each, Diverted)
    ]
    outcome.exceptions = [each for each in outcome.exceptions if each not in diverted]
    assert find_differences(planned, outcome, memory) == []
    assert planned.expected_memory().any() and outcome.completions and outcome.events
    for index in range(len(connections)):
        await link.write(board.address("TCP_SELECT"), [board.pack("TCP_SELECT", connection=index)])
        acknowledged, window = model.peer(index)
        assert await link.read(board.address("TCP_NEXT"), 3) == [
            model.next(index),
            acknowledged,
            window,
        ]
    dropped = sum(isinstance(each, Dropped) for each in events)
    taken = len(frames) - dropped - len(diverted)
    assert await link.read(board.address("TCP_TAKEN"), 4) == [taken, len(diverted), dropped, 0]
    assert await link.read(board.address("HOST_ERRORS")) == [0]

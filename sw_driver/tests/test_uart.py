"""The serial transport, against gateware that is connected to a pseudo-terminal."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import serial
from ddp_rnic.hdl.spec import board as layout
from ddp_rnic.hdl.spec import regs
from ddp_rnic.sim.devices.live import Peer, SimTransport
from ddp_rnic.sw_driver import (
    CQ,
    PD,
    Device,
    ResourceExhausted,
    Stream,
    StreamError,
    TransportError,
    TransportTimeout,
    UnsupportedDevice,
)
from ddp_rnic.sw_driver.tests.virtual_board import VirtualBoard
from ddp_rnic.sw_driver.transports.uart import UartTransport

SCRATCH = regs.address("SCRATCH")
POP = regs.address("EVENT_POP")


@pytest.fixture
def board() -> Iterator[VirtualBoard]:
    with SimTransport() as sim, VirtualBoard(sim) as board:
        yield board


def session(board: VirtualBoard, transport: UartTransport) -> None:
    """Makes a Write into an array, a Send, an error and a revocation over the link."""
    rng = np.random.default_rng(1)
    array, buffer = rng.integers(0, 256, 5001, np.uint8), bytearray(b"\xee" * 1001)
    expected, data = array.copy(), rng.integers(0, 256, 3003, np.uint8)
    with Device(transport).open(completions=16) as context:
        pd, cq = PD(context), CQ(context)
        stream = Stream(pd, cq)
        peer = Peer(board._sim, stream.number)
        with pd.register(array) as region:
            peer.write(region.stag, 1001, data.tobytes())
            assert cq.wait(10)[0].mr is region
            expected[1001:4004] = data
            # Octets that the peer did not write are unchanged.
            assert (array == expected).all()
            assert region.read(3, 1001) == data[:3].tobytes()
            region.write(b"host", 7)
            (extent,) = region.mapping.memory.extents
            octets = board.memory[extent.address : extent.address + 5001]
            assert octets[7:11] == b"host" and octets[1001:4004] == data.tobytes()
            stream.post_recv(buffer, 3, wr_id="sent")
            peer.send(data[:999].tobytes(), 3)
            (completion,) = cq.wait(10)
            assert (completion.wr_id, completion.byte_len) == ("sent", 999)
            assert buffer == data[:999].tobytes() + b"\xee\xee"
            peer.write(region.stag ^ 1, 0, b"wrong key")
            with pytest.raises(StreamError, match="Invalid STag"):
                cq.wait(10)
    # All of the board's memory was freed.
    transport.allocate(len(board.memory)).close()


def test_a_board_without_dma_is_a_device_like_any_other(board: VirtualBoard) -> None:
    with UartTransport(board.port) as transport:
        session(board, transport)
    assert board.broken == 0


def test_completions_bring_what_was_written_once_and_leave_the_hosts_octets(
    board: VirtualBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A region's copy is as long as the region, and the link is slow, so octets are copied once."""
    array = np.zeros(1000, np.uint8)
    with UartTransport(board.port) as transport, Device(transport).open() as context:
        pd, cq, other = PD(context), CQ(context), CQ(context)
        stream = Stream(pd, cq)
        peer, region, read = Peer(board._sim, stream.number), pd.register(array), []
        ask = transport.read_memory

        def count(address: int, length: int) -> bytes:
            read.append(length)
            return ask(address, length)

        monkeypatch.setattr(region.mapping.memory, "_read", count)
        for n in range(10):
            peer.write(region.stag, 10 * n, bytes([n + 1]) * 10)
        # The host uses the rest of its buffer, which no peer writes.
        array[500:] = 0xEE
        taken = cq.wait(10)
        while len(taken) < 10:
            assert other.poll() == []  # serves the device, and takes no completion
            calls, more = len(read), cq.poll()
            # A completion that is not taken causes no copy.
            assert len(read) == calls + bool(more)
            taken += more
        assert [wc.mr for wc in taken] == [region] * 10 and len(read) < 10
        assert (array[:100] == np.repeat(np.arange(1, 11), 10)).all()
        assert (array[500:] == 0xEE).all()
        calls = len(read)
        assert cq.poll() == [] and len(read) == calls
        region.revoke()
        assert (array[500:] == 0xEE).all() and not array[100:500].any()


def test_a_link_that_loses_damages_and_adds_octets_of_answers_is_asked_again(
    board: VirtualBoard,
) -> None:
    rng = random.Random(4)
    faults: list[int] = []

    def mangle(answer: bytes) -> bytes:
        if len(faults) >= 8 or rng.random() > 0.02:
            return answer
        faults.append(len(answer))
        at = rng.randrange(len(answer))
        return [answer[:at] + answer[at + 1 :], b"\xff" + answer, b"", answer + b"\0\0"][
            len(faults) % 4
        ]

    with UartTransport(board.port) as transport:
        # The faults come between commands that cannot be given twice; another test has those.
        for turn in range(300):
            board.answers = mangle
            transport.write(SCRATCH, turn)
            assert transport.read(SCRATCH) == turn
            octets = rng.randbytes(rng.randrange(1, 40))
            transport.write_memory(turn, octets)
            assert transport.read_memory(turn, len(octets)) == octets
        board.answers = bytes
        session(board, transport)
    assert len(faults) == 8


def test_what_is_lost_on_its_way_to_a_register_is_written_again(board: VirtualBoard) -> None:
    with UartTransport(board.port) as transport:
        lost = [5]

        def lose(octets: bytes) -> bytes:
            return octets if not lost else octets[: -lost.pop()]

        board.commands = lose
        transport.write(SCRATCH, 0x12345678)
        assert transport.read(SCRATCH) == 0x12345678
        assert not lost and board.broken >= 1


@pytest.mark.parametrize("call", ["read", "write"])
def test_what_an_interrupted_call_left_on_the_link_is_no_part_of_the_next_one(
    board: VirtualBoard, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """A signal may come while half a command was given, or before its answer."""

    def late(octets: bytes) -> bytes:
        time.sleep(0.01)
        return octets

    with UartTransport(board.port) as transport:
        transport.write(SCRATCH, 0x1234)
        transport.read(SCRATCH)
        whole = transport._serial.write

        def interrupted(octets: Any) -> None:
            if call == "write":
                whole(octets[: len(octets) // 2])
            raise KeyboardInterrupt

        board.answers = late
        for _ in range(5):
            with monkeypatch.context() as patch:
                patch.setattr(transport._serial, call, interrupted)
                with pytest.raises(KeyboardInterrupt):
                    transport.read(regs.address("ID"))
            assert transport.read(SCRATCH) == 0x1234
        board.answers = bytes


def test_a_closed_port_is_free_while_a_forked_child_has_it(board: VirtualBoard) -> None:
    transport = UartTransport(board.port)
    child = os.dup(transport._serial.fileno())  # shares the lock, as the child's does
    try:
        transport.close()
        UartTransport(board.port).close()
    finally:
        os.close(child)


def test_a_port_that_fails_before_the_answer_is_reported(
    board: VirtualBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unplugged(**_: Any) -> None:
        raise serial.SerialException("Could not configure port: (5, 'Input/output error')")

    with UartTransport(board.port) as transport:
        transport.write(SCRATCH, 1)  # so that the time for the answer is another one
        with monkeypatch.context() as patch:
            patch.setattr(transport._serial, "_reconfigure_port", unplugged)
            with pytest.raises(TransportError, match="the serial port failed: Could not configure"):
                transport.read_memory(0, 400)


def test_an_answer_has_time_until_the_command_has_left(board: VirtualBoard) -> None:
    """At a low rate a long command takes longer to send than an answer may be late."""
    rate, asked = 4800, []

    def slow(octets: bytes) -> bytes:
        time.sleep(10 * len(octets) / rate)
        return octets

    def slow_command(octets: bytes) -> bytes:
        asked.append(len(octets))
        return slow(octets)

    with UartTransport(board.port, rate) as transport:
        board.commands, board.answers = slow_command, slow
        transport.write_memory(0, bytes(range(100)) * 4)
        board.commands = board.answers = bytes
    assert sum(asked) == 6 + 400 + 6, "nothing was asked for twice"


def test_a_value_that_never_reads_back_is_reported(board: VirtualBoard) -> None:
    with UartTransport(board.port) as transport:
        board.commands = lambda octets: octets.replace(b"\x12\x34", b"\x13\x34")
        transport.write(SCRATCH, 0x1234)
        with pytest.raises(TransportError, match="not read back in 3 attempts: check the cable"):
            transport.read(SCRATCH)
        board.commands = bytes
        transport._pending.clear()


def test_a_command_that_may_be_lost_is_reported_and_not_given_again(board: VirtualBoard) -> None:
    with UartTransport(board.port) as transport:
        board.commands = lambda octets: octets[:-1] if octets[0] == 1 else octets
        transport.write(POP, 1)
        with pytest.raises(TransportError, match="and perhaps the last command"):
            transport.read(SCRATCH)
        board.commands = bytes
        transport.write(SCRATCH, 9)
        assert transport.read(SCRATCH) == 9


def test_noise_between_commands_does_no_harm(board: VirtualBoard) -> None:
    with UartTransport(board.port) as transport:
        for turn in range(5):
            noise = random.Random(turn).randbytes(3)
            transport._put(noise)
            time.sleep(0.15)  # the bridge gives the incomplete command up
            transport.write(SCRATCH, turn)
            assert transport.read(SCRATCH) == turn


def test_a_board_that_falls_silent_is_reported_in_time(board: VirtualBoard) -> None:
    with UartTransport(board.port) as transport:
        board.answers = lambda answer: b""
        begun = time.monotonic()
        with pytest.raises(TransportTimeout, match="does not answer at 0x0002001c: check power"):
            transport.read(SCRATCH)
        assert time.monotonic() - begun < 3
        board.answers = bytes
        assert transport.read(regs.address("ID")) == regs.ID


@pytest.mark.parametrize(
    ("registers", "message"),
    [
        ({"ID": 0xFFFFFFFF}, "ID reads 0xffffffff, not 0x52425244: check port, baud rate"),
        ({"VERSION": 0x00010001}, r"map is 1\.1, the driver's is 2\.1: update the older one"),
        ({"CAP_MEMORY": 0}, "CAP_MEMORY reads 0: check the link"),
    ],
)
def test_another_board_is_refused(registers: dict[str, int], message: str) -> None:
    with SimTransport() as sim, VirtualBoard(sim, registers=registers) as board:
        with pytest.raises(UnsupportedDevice, match=message):
            UartTransport(board.port)


def test_a_port_that_is_not_there_or_goes_away_is_reported(board: VirtualBoard) -> None:
    with pytest.raises(TransportError, match="/dev/ttyNone cannot be opened"):
        UartTransport("/dev/ttyNone")
    transport = UartTransport(board.port)
    with pytest.raises(TransportError, match="cannot be opened"):
        UartTransport(board.port)
    board.close()
    with pytest.raises(TransportError):
        transport.read(SCRATCH)
    transport.close()
    transport.close()
    for call in (lambda: transport.read(SCRATCH), lambda: transport.write(SCRATCH, 1)):
        with pytest.raises(TransportError, match="the transport is closed"):
            call()


def test_memory_of_the_board_ends_and_its_neighbours_stay(board: VirtualBoard) -> None:
    with UartTransport(board.port) as transport:
        board.memory[:16] = bytes(range(16))
        transport.write_memory(5, b"\xaa\xbb")
        assert board.memory[:16] == b"\0\1\2\3\4\xaa\xbb" + bytes(range(7, 16))
        with Device(transport).open(completions=2) as context, PD(context) as pd:
            with pytest.raises(ResourceExhausted, match="consecutive octets of the board's memory"):
                pd.register(bytearray(1 << 20))
            with pd.register(bytearray(1000)):
                pass


def test_a_revocation_that_may_be_lost_is_not_taken_for_done(board: VirtualBoard) -> None:
    with UartTransport(board.port) as transport, Device(transport).open(completions=2) as context:
        array = bytearray(10)
        region = PD(context).register(array)
        revoke = (layout.RNIC.address + regs.address("REVOKE_STAG") >> 2).to_bytes(4, "big")
        board.commands = lambda octets: octets[:-1] if octets[2:6] == revoke else octets
        with pytest.raises(TransportError, match="and perhaps the last command"):
            region.revoke()
        assert not region.revoked
        with pytest.raises(BufferError):
            array.clear()
        board.commands = bytes
        region.revoke()
        array.clear()

"""TCP connections of a board through the driver; the registers lead to the golden model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
from ddp_rnic.hdl.spec import board, regs
from ddp_rnic.sim.capture.tests.frames import A, B, ethernet, tcp_packet
from ddp_rnic.sim.model.tcp import FpduReceived
from ddp_rnic.sw_driver import (
    InvalidRequest,
    ResourceExhausted,
    RnicTimeout,
    StateError,
    UnsupportedDevice,
)
from ddp_rnic.sw_driver.tests.virtual_tcp import VirtualTcp
from ddp_rnic.sw_driver.transports import tcp
from ddp_rnic.sw_driver.transports.tcp import BoardTcp, Progress
from ddp_rnic.sw_driver.transports.uart import UartTransport

STREAMS = 64
#: An FPDU with a ULPDU of 17 octets, without its CRC's value.
FPDU = b"\0\x11" + bytes(range(17)) + b"\0" + b"\xcc" * 4


class Link:
    """A link to a board that has only TCP, or not even that.

    Parameters
    ----------
    tcp
        The board's TCP, or None.
    busy
        How often TCP_STATE reads as busy after each write.
    """

    def __init__(self, tcp: VirtualTcp | None, busy: int = 1) -> None:
        self.tcp, self.busy, self._left = tcp, busy, 0

    def read_words(self, address: int, count: int) -> list[int]:
        return [self._read(address + 4 * k) for k in range(count)]

    def _read(self, address: int) -> int:
        if self.tcp is None:
            return board.NOTHING
        if address == board.RNIC.address + regs.address("CAP_STREAMS"):
            return STREAMS
        value = self.tcp.read(address)
        assert value is not None
        if address == board.address("TCP_STATE") and self._left:
            self._left -= 1
            value |= board.pack("TCP_STATE", writing=1)
        return value

    def write_words(self, address: int, words: Sequence[int]) -> None:
        for at, word in enumerate(words):
            assert self.tcp is not None and not self._left, "the last write is not done yet"
            assert self.tcp.write(address + 4 * at, word)
            if address + 4 * at == board.address("TCP_WRITE"):
                self._left = self.busy


def opened(connections: int = 2, window: int = 2048) -> tuple[BoardTcp, VirtualTcp]:
    virtual = VirtualTcp(connections, window)
    return BoardTcp(cast(UartTransport, Link(virtual))), virtual


def taken(virtual: VirtualTcp, *packets: bytes) -> list[FpduReceived]:
    events = [event for each in packets for event in virtual.receiver.receive(ethernet(each))]
    return [each for each in events if isinstance(each, FpduReceived)]


@pytest.mark.parametrize(
    ("peer", "host"), [(A, B), (("fd00::a", 65535), ("fd00::b", 1))], ids=["IPv4", "IPv6"]
)
@pytest.mark.parametrize("markers", [False, True])
def test_segments_of_a_connection_are_taken_until_it_is_closed(
    peer: tuple[str, int], host: tuple[str, int], markers: bool
) -> None:
    receiver, virtual = opened()
    assert (receiver.connections, receiver.window) == (2, 2048)
    octets = bytes(4 * markers) + FPDU
    segment = tcp_packet(peer, host, 0xFFFFFFFF, octets)
    assert not taken(virtual, segment)
    with receiver.connect(
        peer, host, sequence=0xFFFFFFFF, stream=STREAMS - 1, sent=0, markers=markers
    ) as connection:
        assert connection.number == 0 and connection.progress() == Progress(0, 0, 0, False)
        assert taken(virtual, segment) == [FpduReceived(STREAMS - 1, 0, octets)]
        assert connection.progress() == Progress(len(octets), 0, 0xFFFF, False)
        following = tcp_packet(peer, host, len(octets) - 1, b"\0\x11")
        assert not taken(virtual, following)
        assert connection.progress().taken == len(octets) + 2
    assert not taken(virtual, tcp_packet(peer, host, len(octets) + 1, FPDU[2:]))
    connection.close()
    with pytest.raises(StateError, match="TCP connection 0 is closed"):
        connection.progress()


def test_a_number_is_free_again_and_begins_anew() -> None:
    receiver, virtual = opened()
    first = receiver.connect(A, B, sequence=5, stream=1, sent=0)
    second = receiver.connect(B, A, sequence=6, stream=2, sent=0)
    assert (first.number, second.number) == (0, 1)
    with pytest.raises(ResourceExhausted, match="all 2 TCP connections are in use: close one"):
        receiver.connect(A, ("10.7.0.2", 1), sequence=0, stream=3, sent=0)
    taken(virtual, tcp_packet(A, B, 5, b"\0\x11"))
    first.close()
    again = receiver.connect(A, B, sequence=7, stream=4, sent=0)
    first.close()
    assert again.number == 0 and again.progress().taken == 0
    assert taken(virtual, tcp_packet(A, B, 7, FPDU)) == [FpduReceived(4, 0, FPDU)]
    assert taken(virtual, tcp_packet(B, A, 6, FPDU)) == [FpduReceived(2, 0, FPDU)]


def test_a_connection_with_too_long_an_fpdu_is_broken() -> None:
    receiver, virtual = opened()
    with receiver.connect(A, B, sequence=0, stream=0, sent=0) as connection:
        taken(virtual, tcp_packet(A, B, 0, b"\x08\0" + bytes(6)))
        assert connection.progress() == Progress(8, 0, 0xFFFF, True)


def test_a_connection_with_too_short_an_fpdu_is_broken_after_it() -> None:
    receiver, virtual = opened()
    short = b"\0\5" + bytes(10)
    with receiver.connect(A, B, sequence=0, stream=3, sent=0) as connection:
        assert taken(virtual, tcp_packet(A, B, 0, short + FPDU)) == [FpduReceived(3, 0, short)]
        assert connection.progress().broken


def test_a_segment_that_acknowledges_what_was_not_sent_is_not_taken() -> None:
    """RFC 5961 section 5.2: "(SND.UNA - MAX.SND.WND) <= SEG.ACK <= SND.NXT"."""
    receiver, virtual = opened()
    connection = receiver.connect(A, B, sequence=0, stream=3, sent=0xFFFFFFFF, span=10)
    segment = tcp_packet(A, B, 0, FPDU)  # acknowledges up to 0
    assert not taken(virtual, segment)
    connection.set_sent(11)
    assert not taken(virtual, segment)
    connection.set_sent(10)
    assert taken(virtual, segment) == [FpduReceived(3, 0, FPDU)]
    with pytest.raises(InvalidRequest, match=r"sent must be from 0 to 2\*\*32 - 1, not -1"):
        connection.set_sent(-1)
    connection.close()
    with pytest.raises(StateError, match="TCP connection 0 is closed"):
        connection.set_sent(0)


def test_what_an_earlier_host_left_is_gone() -> None:
    receiver, virtual = opened()
    for number in range(2):
        receiver.connect(("10.7.0.1", 1 + number), B, sequence=0, stream=number, sent=0)
    BoardTcp(cast(UartTransport, Link(virtual)))
    assert not taken(virtual, tcp_packet(("10.7.0.1", 2), B, 0, FPDU))


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"peer": ("10.7.0", 1)}, "an end must be an IP address and a port: '10.7.0' does not"),
        ({"host": ("host", 1)}, "an end must be an IP address and a port: 'host' does not"),
        ({"peer": ("::1", 1)}, "must have the same IP version, not '::1' and '10.7.0.2'"),
        ({"peer": ("10.7.0.1", 0)}, r"ports must be from 1 to 65535, not \(0, 7174\)"),
        ({"host": ("10.7.0.1", 1 << 16)}, r"ports must be from 1 to 65535, not \(40000, 65536\)"),
        ({"sequence": -1}, r"sequence must be from 0 to 2\*\*32 - 1, not -1"),
        ({"sequence": 1 << 32}, r"sequence must be from 0 to 2\*\*32 - 1, not 4294967296"),
        ({"sent": 1 << 32}, r"sent must be from 0 to 2\*\*32 - 1, not 4294967296"),
        ({"span": -1}, r"span must be from 0 to 2\*\*32 - 1, not -1"),
        ({"stream": -1}, "stream must be from 0 to 63, not -1"),
        ({"stream": STREAMS}, "stream must be from 0 to 63, not 64"),
    ],
)
def test_what_cannot_be_is_refused(changed: dict[str, Any], sentence: str) -> None:
    receiver, _ = opened()
    with pytest.raises(InvalidRequest, match=sentence):
        receiver.connect(**{"peer": A, "host": B, "sequence": 0, "stream": 0, "sent": 0, **changed})
    assert receiver.connect(A, B, sequence=0, stream=0, sent=0).number == 0


def test_the_same_ends_are_refused() -> None:
    receiver, _ = opened()
    with receiver.connect(("fd00::1", 1), ("fd00::2", 2), sequence=0, stream=0, sent=0):
        with pytest.raises(StateError, match=r"from \('fd00:0::1', 1\) to .* is set up already"):
            receiver.connect(("fd00:0::1", 1), ("fd00::2", 2), sequence=9, stream=1, sent=0)
    again = receiver.connect(("fd00::1", 1), ("fd00::2", 2), sequence=0, stream=0, sent=0)
    assert again.number == 0


def test_a_board_without_tcp_is_refused() -> None:
    with pytest.raises(UnsupportedDevice, match="the board receives no TCP: use a board whose"):
        BoardTcp(cast(UartTransport, Link(None)))


def test_a_board_that_does_not_take_an_entry_is_reported_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tcp, "_PATIENCE", 0.05)
    link = Link(VirtualTcp(2, 2048))
    receiver = BoardTcp(cast(UartTransport, link))
    connection = receiver.connect(A, B, sequence=0, stream=0, sent=0)
    link.busy = 1 << 62
    with pytest.raises(RnicTimeout, match="does not accept a TCP connection's entry: reset"):
        connection.close()
    with pytest.raises(RnicTimeout, match="does not accept a TCP connection's entry: reset"):
        receiver.connect(B, A, sequence=0, stream=0, sent=0)

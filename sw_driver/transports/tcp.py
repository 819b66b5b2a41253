"""TCP connections whose segments a board receives, with DDP over MPA in them (RFC 5044).

The board accepts segments that arrive in order, and its RNIC places their payload. The host's own
TCP does everything else: it sets the connection up, goes through MPA's start-up, acknowledges, and
sends. :meth:`.ethernet.BoardEthernet.receive` returns the frames that the board does not accept,
with the reason Diversion.FRAME.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Iterable
from typing import NamedTuple

from ...hdl.spec import board, regs
from ...hdl.spec.net import TcpField, tcp_words
from ..base.checks import any_integer, flag, instance, integer, shown
from ..base.closing import Closing, ProcessLock
from ..base.errors import (
    InvalidRequest,
    ResourceExhausted,
    RnicTimeout,
    StateError,
    UnsupportedDevice,
    WrongType,
)
from .uart import BoardLink

__all__ = ["BoardTcp", "Progress", "TcpConnection"]

#: How many seconds the driver waits for the board to do work of microseconds.
_PATIENCE = 1.0
_OFF = (TcpField.SETTINGS, 0)


class Progress(NamedTuple):
    """The progress of a connection.

    Parameters
    ----------
    taken
        How many octets the board has accepted since the connection was set up, modulo 2**32. The
        host acknowledges ``sequence`` plus this number, and offers a window of at most
        ``BoardTcp.window``.
    acknowledged, window
        Acknowledgment Number and Window of the last accepted segment, or 0.
    broken
        An FPDU is longer than the board's window, or too short for a DDP header: nothing more is
        accepted.
    """

    taken: int
    acknowledged: int
    window: int
    broken: bool


class BoardTcp:
    """The TCP receiver of a board. The constructor removes all earlier connections.

    Parameters
    ----------
    link
        The link to the board.

    Attributes
    ----------
    connections
        How many connections the board has room for.
    window
        How many octets the host may offer a connection as its window.
    streams
        How many DDP Streams its RNIC has.
    """

    def __init__(self, link: BoardLink) -> None:
        instance("a board's link", link, BoardLink)
        self._link = link
        self.lock = ProcessLock("the board")
        self.open: dict[int, TcpConnection] = {}
        self.connections, self.window = link.read_words(board.address("CAP_CONNECTIONS"), 2)
        if self.connections == board.NOTHING:
            raise UnsupportedDevice(
                "the board receives no TCP: use a board whose RNIC receives DDP over MPA, not SCTP"
            )
        (self.streams,) = link.read_words(board.RNIC.address + regs.address("CAP_STREAMS"), 1)
        for number in range(self.connections):
            self.write(number, [_OFF])

    def connect(
        self,
        peer: tuple[str, int],
        host: tuple[str, int],
        *,
        sequence: int,
        stream: int,
        sent: int,
        span: int = 1 << 16,
        markers: bool = False,
    ) -> TcpConnection:
        """Makes the board accept the segments of a connection from now on.

        Parameters
        ----------
        peer, host
            Address and port of either end.
        sequence
            Sequence number of the peer's first octet after MPA's start-up.
        stream
            The DDP Stream.
        sent
            Sequence number of the octet that the host sends next (SND.NXT).
            :meth:`TcpConnection.set_sent` sets later values.
        span
            How far an Acknowledgment Number may lie before SND.NXT: the number of octets that the
            host has in flight, plus the largest window that the peer has offered (RFC 5961 section
            5.2). The board forwards segments with other numbers to the host.
        markers
            Whether the peer sends markers.
        """
        ends = _ends(peer, host)
        most = (1 << 32) - 1
        sequence = integer("sequence", sequence, 0, most, "from 0 to 2**32 - 1")
        sent = integer("sent", sent, 0, most, "from 0 to 2**32 - 1")
        span = integer("span", span, 0, most, "from 0 to 2**32 - 1")
        stream = integer("stream", stream, 0, self.streams - 1)
        markers = flag("markers", markers)
        words = tcp_words(
            *ends, sequence=sequence, stream=stream, sent=sent, span=span, markers=markers
        )
        with self.lock:
            if any(each.ends == ends for each in self.open.values()):
                raise StateError(f"the connection from {peer!r} to {host!r} is set up already")
            free = min(set(range(self.connections)) - self.open.keys(), default=None)
            if free is None:
                raise ResourceExhausted(
                    f"all {self.connections} TCP connections are in use: close one"
                )
            # The entry may be on, where an earlier call failed.
            self.write(free, [_OFF, *words])
            self.open[free] = TcpConnection(self, free, ends)
            return self.open[free]

    def write(self, number: int, words: Iterable[tuple[int, int]]) -> None:
        """Writes fields of a connection's entry, and waits until they take effect."""
        with self.lock:
            for field, word in words:
                self._settle()
                self._select(number, field, word, 1)
            self._settle()

    def progress(self, number: int) -> Progress:
        """Returns the progress of a connection."""
        with self.lock:
            self._select(number)
            taken, acknowledged, state = self._link.read_words(board.address("TCP_NEXT"), 3)
        fields = board.unpack("TCP_STATE", state)
        return Progress(taken, acknowledged, fields["window"], bool(fields["broken"]))

    def _select(self, number: int, field: int = 0, *values: int) -> None:
        """Writes TCP_SELECT and the registers after it."""
        selected = board.pack("TCP_SELECT", connection=number, field=field)
        self._link.write_words(board.address("TCP_SELECT"), [selected, *values])

    def _settle(self) -> None:
        deadline = time.monotonic() + _PATIENCE
        writing = board.pack("TCP_STATE", writing=1)
        while self._link.read_words(board.address("TCP_STATE"), 1)[0] & writing:
            if time.monotonic() > deadline:
                raise RnicTimeout("the board does not accept a TCP connection's entry: reset it")


class _Ends(NamedTuple):
    """The addresses and ports that identify a connection, the peer's first."""

    source: bytes
    destination: bytes
    ports: tuple[int, int]


class TcpConnection(Closing):
    """A connection whose segments a board accepts. A ``with`` block closes it at its end.

    :meth:`BoardTcp.connect` makes it.

    Attributes
    ----------
    number
        The board's number for the connection.
    """

    def __init__(self, tcp: BoardTcp, number: int, ends: _Ends) -> None:
        self._tcp, self.number, self.ends, self.closed = tcp, number, ends, False

    def progress(self) -> Progress:
        """Returns the connection's progress."""
        with self._tcp.lock:
            if self.closed:
                raise StateError(f"TCP connection {self.number} is closed")
            return self._tcp.progress(self.number)

    def set_sent(self, sent: int) -> None:
        """Sets SND.NXT, so that the peer may acknowledge octets before sequence number ``sent``.

        The host calls this before it sends those octets.
        """
        sent = integer("sent", sent, 0, (1 << 32) - 1, "from 0 to 2**32 - 1")
        with self._tcp.lock:
            if self.closed:
                raise StateError(f"TCP connection {self.number} is closed")
            self._tcp.write(self.number, [(TcpField.SENT, sent)])

    def close(self) -> None:
        """Makes the board accept nothing more of the connection, and frees its number.

        Its frames are forwarded to the host from then on. A second call does nothing.
        """
        with self._tcp.lock:
            if self.closed:
                return
            self._tcp.write(self.number, [_OFF])
            self.closed = True
            del self._tcp.open[self.number]


def _ends(peer: tuple[str, int], host: tuple[str, int]) -> _Ends:
    for end in (peer, host):
        if not isinstance(end, tuple) or len(end) != 2:
            raise WrongType(f"an end must be an IP address and a port, not {shown(end)}")
    try:
        source, destination = (ipaddress.ip_address(address) for address, _ in (peer, host))
    except ValueError as error:
        raise InvalidRequest(f"an end must be an IP address and a port: {error}") from error
    if source.version != destination.version:
        raise InvalidRequest(
            f"the addresses must have the same IP version, not {peer[0]!r} and {host[0]!r}"
        )
    ports = any_integer("a port", peer[1]), any_integer("a port", host[1])
    if not all(0 < port < 1 << 16 for port in ports):
        raise InvalidRequest(f"ports must be from 1 to 65535, not {ports!r}")
    return _Ends(source.packed, destination.packed, ports)

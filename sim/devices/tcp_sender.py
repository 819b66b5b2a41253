"""The peers of a board's TCP connections: they send packets of FPDUs as segments in Ethernet
frames.
"""

from __future__ import annotations

import ipaddress
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack

import dpkt

from ...sw_driver import InvalidRequest
from ...sw_driver.base.closing import Closing
from ...sw_driver.transports.tcp import BoardTcp, TcpConnection
from ..capture.traffic import fpdu_length
from ..engines.engine import DeviceError, Packet

__all__ = ["TcpSender"]

#: The addresses of both ends (RFC 5737), and the port of the host. The port of a peer is the first
#: one plus the number of its stream.
_PEER, _HOST = "192.0.2.1", "192.0.2.2"
_FIRST, _PORT = 1024, 7174
#: Most octets of a segment, as on Ethernet without jumbo frames.
_MSS = 1460
#: Seconds within which a board must take a segment that arrived.
_PATIENCE = 1.0
_WORD = 0xFFFFFFFF


class TcpSender(Closing):
    """Sends segments in order, and no more octets than the board's window holds.

    A stream has a connection from its first packet on, until all are closed.

    Parameters
    ----------
    tcp
        The board's TCP.
    send
        Sends a frame without FCS, and returns when it has arrived.
    markers
        Whether a stream has markers, by the stream's number.
    """

    def __init__(
        self, tcp: BoardTcp, send: Callable[[bytes], None], markers: Mapping[int, bool]
    ) -> None:
        self._tcp, self._send, self._markers = tcp, send, markers
        self._open = ExitStack()
        self._connections: dict[int, TcpConnection] = {}
        self._ends: dict[int, int] = {}  # position after the last octet of each stream
        self._waiting: deque[tuple[int, int, bytes]] = deque()

    @property
    def waiting(self) -> int:
        """The number of calls of :meth:`send_next` that have octets to send."""
        return len(self._waiting)

    def give(self, packet: Packet) -> None:
        """Queues a packet's octets; nothing is sent yet.

        Raises
        ------
        InvalidRequest
            TCP cannot bring such a packet.
        """
        stream = packet.stream
        if packet.error:
            raise InvalidRequest(
                f"a damaged packet of stream {stream} cannot be sent: TCP drops damaged segments"
            )
        end = self._ends.get(stream, 0)
        if packet.sequence != end:
            raise InvalidRequest(
                f"stream {stream} continues at octet {packet.sequence}, not at {end}: TCP cannot"
                " leave octets out"
            )
        for octets in self._windows(packet):
            self._waiting.append((stream, end, octets))
            end = end + len(octets) & _WORD
        self._ends[stream] = end

    def _windows(self, packet: Packet) -> Iterator[bytes]:
        """Yields the packet's octets, as many whole FPDUs at a time as a window holds."""
        octets, start, end = packet.octets, 0, 0
        while end < len(octets):
            position = packet.sequence + end
            length = fpdu_length(octets, end, position, self._markers[packet.stream])
            assert length is not None
            if start < end and end + length - start > self._tcp.window:
                yield octets[start:end]
                start = end
            end += length
        yield octets[start:]

    def send_next(self) -> None:
        """Sends the next octets, when the board holds none.

        Raises
        ------
        DeviceError
            The board does not take them.
        """
        stream, position, octets = self._waiting.popleft()
        if stream not in self._connections:
            connection = self._tcp.connect(
                (_PEER, _FIRST + stream), (_HOST, _PORT),
                sequence=0, stream=stream, sent=0, markers=self._markers[stream],
            )  # fmt: skip
            self._connections[stream] = self._open.enter_context(connection)
        for at in range(0, len(octets), _MSS):
            payload = octets[at : at + _MSS]
            start = position + at & _WORD
            self._send(_frame(_FIRST + stream, start, payload))
            self._await(stream, start + len(payload) & _WORD)

    def _await(self, stream: int, end: int) -> None:
        """Waits until a stream's octets are taken up to ``end``."""
        deadline = time.monotonic() + _PATIENCE
        while (progress := self._connections[stream].progress()).taken != end:
            if time.monotonic() > deadline:
                why = ", because an FPDU is longer than its window" if progress.broken else ""
                raise DeviceError(
                    f"the board has taken octets of stream {stream} up to {progress.taken}, not to"
                    f" {end}{why}"
                )

    def close(self) -> None:
        self._open.close()


def _frame(port: int, sequence: int, payload: bytes) -> bytes:
    """Returns an Ethernet frame with a segment from a peer's port, with right checksums."""
    segment = dpkt.tcp.TCP(
        sport=port, dport=_PORT, seq=sequence, flags=dpkt.tcp.TH_ACK | dpkt.tcp.TH_PUSH,
        data=payload,
    )  # fmt: skip
    source, destination = (ipaddress.ip_address(end).packed for end in (_PEER, _HOST))
    packet = dpkt.ip.IP(src=source, dst=destination, p=dpkt.ip.IP_PROTO_TCP, data=segment)
    packet.len = len(packet)
    return bytes(dpkt.ethernet.Ethernet(dst=bytes(6), src=bytes(6), data=packet))

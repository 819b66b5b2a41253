"""Associations with a guest's kernel: this side's part of SCTP that the device leaves to its host.

Every frame of the kernel passes through the device. The host gets the chunks that are not DATA, the
packets of no known association, and reports of the DATA chunks (RFC 9260).
"""

from __future__ import annotations

import asyncio
import ipaddress
import random
import struct
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from ....hdl.spec.completion import ChunkStatus, Kind
from ....hdl.spec.net import SCTP_UDP_PORT, EtherType, Protocol
from ....hdl.spec.path import SendPath
from ....hdl.spec.sctp import Diversion
from ....sw_driver import Association, Context, Report
from ....sw_driver.base.errors import InvalidRequest
from ....sw_driver.verbs.chunks import AssociationSender
from ...engines.engine import ExceptionPacket
from ...model.events import ProtocolError
from ...model.sctp import (
    ADAPTATION_DDP,
    ADAPTATION_PARAMETER,
    AnyChunk,
    Chunk,
    ChunkType,
    InitChunk,
    Packet,
    SackChunk,
)
from ...replay.paths import frame_of
from ..guest.ethernet import GUEST, GUEST6, HOST, HOST6, LINK, Ethernet
from ..live import SimTransport
from .channel import Wrong
from .network import LiveNetwork, Rates

__all__ = ["MTU", "AssociationEnd", "Received", "SctpNetwork"]

_TSN = 1 << 32
#: Octets that this side takes; they go to the buffers of the ULP, which the kernel does not know.
_WINDOW = 1 << 17
_STATE_COOKIE = 7  # RFC 9260 section 3.3.3.1
#: Octets of a frame before its IP header; the addresses of the kernel and of this side.
_IP = len(LINK) + 2
_ADDRESSES = {False: (GUEST, HOST), True: (GUEST6, HOST6)}
#: The ports of this side begin here.
_PORTS = 50_000
#: Octets of a frame through the IP header of 20 octets, the protocol of whose packet it names.
_SHORTEST = _IP + 20
#: The most blocks and duplicates of a SACK chunk, which fits in a packet of 576 octets then.
_BLOCKS = 120
#: The chunks whose flag T says that they have the Verification Tag of the other direction.
_REFLECTED, _T = (ChunkType.ABORT, ChunkType.SHUTDOWN_COMPLETE), 1
#: RFC 9260 section 3.3.3: the least window of an INIT ACK chunk.
_LEAST_WINDOW = 1500
#: Seconds until a chunk that was not answered is sent again, and how often it is sent.
_AGAIN, _TRIES = 1.0, 30
MTU = 1500


class Received:
    """The TSNs that have been received (RFC 9260 section 6.2). They continue past 2**32 - 1."""

    def __init__(self, tsn: int) -> None:
        self.next = tsn  #: all numbers before this one were received
        self.ahead: set[int] = set()
        self.duplicates: list[int] = []

    def _number(self, tsn: int) -> int:
        """Returns the number of a TSN, which is the one closest to the next number."""
        return self.next + (tsn - self.next + _TSN // 2) % _TSN - _TSN // 2

    def reports(self, tsn: int) -> bool:
        """Returns whether a SACK chunk can report a TSN: its offsets have 16 bits."""
        return self._number(tsn) - self.next + 1 < 1 << 16

    def take(self, tsn: int) -> bool:
        """Notes a TSN; returns whether it is new."""
        number = self._number(tsn)
        if number < self.next or number in self.ahead:
            self.duplicates.append(tsn)
            return False
        self.ahead.add(number)
        while self.next in self.ahead:
            self.ahead.remove(self.next)
            self.next += 1
        return True

    def sack(self, window: int) -> SackChunk:
        """Returns the SACK chunk that reports them, and the duplicates since the last one.

        Blocks and duplicates that do not fit in a packet are left out (RFC 9260 section 3.3.4).
        """
        gaps: list[tuple[int, int]] = []
        for number in sorted(self.ahead):
            at = number - self.next + 1
            if gaps and gaps[-1][1] == at - 1:
                gaps[-1] = gaps[-1][0], at
            else:
                gaps.append((at, at))
            if len(gaps) == _BLOCKS:
                break
        duplicates, self.duplicates = tuple(self.duplicates[: _BLOCKS - len(gaps)]), []
        return SackChunk((self.next - 1) % _TSN, max(0, window), tuple(gaps), duplicates)


class _Way(NamedTuple):
    """A direction of the network."""

    receive: Callable[[bytes], None]


class SctpNetwork(LiveNetwork[bytes]):
    """A network that carries frames between the device and the guest's kernel.

    Parameters
    ----------
    ethernet, sim
        Where the kernel's frames come from, and the device.
    rates
        Those of :class:`.Network`; None: the network is good, and its MTU stays.
    counts
        Those of :class:`.Network`, how many packets were too ``long``, and how many chunks have
        left again, from host memory (``repeats``) and from ``copies``.
    record
        Takes every frame before the network can lose it; None: nobody does.
    seed
        The seed of the network and of its associations.

    Attributes
    ----------
    ends
        All associations: the kernel may repeat the end of one that is closed here.
    bad
        Packets are lost.
    mtu
        Octets of the longest IP packet on the way to the kernel.
    """

    def __init__(
        self,
        ethernet: Ethernet,
        sim: SimTransport,
        rates: Rates | None,
        counts: Counter[str],
        record: Callable[[bytes], object] | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(rates or Rates(0, 0, 0), random.Random(seed), counts)
        self.bad = rates is not None
        self.sim, self._ethernet, self._record = sim, ethernet, record
        self._to_kernel, self._to_device = _Way(ethernet.put), _Way(sim.send_frame)
        self.ends: list[AssociationEnd] = []
        self.mtu = MTU

    def transmit(self, frame: bytes) -> None:
        """Sends a frame to the kernel."""
        if self._record is not None:
            self._record(frame)
        if len(frame) - _IP > self.mtu:
            self.counts["long"] += 1
        else:
            self.send(self._to_kernel, frame)

    def deliver(self) -> None:
        """Takes the kernel's frames, and delivers those that arrive by now."""
        for frame in self._ethernet.frames():
            if self._record is not None:
                self._record(frame)
            self.send(self._to_device, frame)
        super().deliver()
        for each in self.sim.take_exceptions():
            if each.reason == Diversion.FRAME:
                self._take(each.octets)
            else:
                for end in self.ends:
                    end.take_exception(each)

    def _take(self, frame: bytes) -> None:
        """Takes a frame of no association that the device knows."""
        if len(frame) < _SHORTEST:
            return
        try:
            packet = Packet.parse(frame[_before_sctp(frame) :])
        except ProtocolError:
            return  # no SCTP, for example ICMPv6
        for end in self.ends:
            end.receive(packet)


def _before_sctp(frame: bytes) -> int:
    """Returns the octets of a frame before its SCTP packet."""
    v6 = frame[len(LINK) : _IP] == EtherType.IPV6.to_bytes(2, "big")
    udp = frame[_IP + (6 if v6 else 9)] == Protocol.UDP
    return _IP + (40 if v6 else 20) + 8 * udp


def _headers(v6: bool, udp: bool) -> bytes:
    """Returns the headers of packets to the kernel."""
    protocol = Protocol.UDP if udp else Protocol.SCTP
    if v6:
        ip = bytes([0x60, 0, 0, 0, 0, 0, protocol, 64])
    else:
        # Without the flag DF: after the path MTU dropped, longer chunks leave in fragments.
        ip = bytes([0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0])
    ends = b"".join(ipaddress.ip_address(each).packed for each in reversed(_ADDRESSES[v6]))
    kind = EtherType.IPV6 if v6 else EtherType.IPV4
    ports = SCTP_UDP_PORT.to_bytes(2, "big") * 2 + bytes(4) if udp else b""
    return LINK + kind.to_bytes(2, "big") + ip + ends + ports


class AssociationEnd:
    """This side's end of an association, which this side sets up.

    Parameters
    ----------
    network, context
        The network, and the device.
    v6, udp
        True: packets are those of IPv6; they are in UDP (RFC 6951).
    streams
        How many SCTP streams there are in each direction.

    Attributes
    ----------
    association, sender
        Those of the device, once the kernel has answered.
    port
        This side's SCTP port.
    failures
        Reports of sessions that have ended in an error.
    """

    association: Association
    sender: AssociationSender

    def __init__(
        self, network: SctpNetwork, context: Context, *, v6: bool, udp: bool, streams: int
    ) -> None:
        self._network, self._context, self._streams = network, context, streams
        self.port = _PORTS + len(network.ends)
        # TSNs wrap early in one of two associations.
        self._tsn = network.rng.choice((0, _TSN - 20))
        self._tag, self._tag_there = network.rng.randrange(1, _TSN), 0
        self._port_there, self._cookie = 0, b""
        self._v6, self._headers = v6, _headers(v6, udp)
        #: Chunks that the device has forwarded, and TSNs that it has reported HELD: the one waits
        #: for the other.
        self._forwarded: dict[int, ExceptionPacket] = {}
        self._reported: set[int] = set()
        self._fresh = False  # there is something to acknowledge
        self._window = _WINDOW  # the last one that the kernel got
        self._known = self._established = self._closed = False
        self._lost = False  # the kernel has aborted the association, and gets no ABORT
        #: When to let the kernel end the association for which it has asked, or to repeat that.
        self._accepts_at: float | None = None
        self.ended = False  #: gracefully, by either side
        self._reason = ""  # why the association has failed, or nothing
        self.failures: list[Report] = []
        network.ends.append(self)

    # -- the user's side --------------------------------------------------------------------------

    async def connect(self, port: int) -> None:
        """Sets the association up (RFC 9260 section 5.1)."""
        self._port_there = port
        indication = ADAPTATION_PARAMETER, ADAPTATION_DDP.to_bytes(4, "big")
        streams = self._streams, self._streams
        await self._ask(
            InitChunk(self._tag, self._tsn, *streams, _WINDOW, (indication,)),
            lambda: self._known,
        )
        await self._ask(Chunk(ChunkType.COOKIE_ECHO, value=self._cookie), lambda: self._established)

    async def disconnect(self) -> None:
        """Ends the association, all of whose messages have ended (RFC 9260 section 9.2)."""
        cumulative = self._received.sack(0).cumulative.to_bytes(4, "big")
        await self._ask(Chunk(ChunkType.SHUTDOWN, value=cumulative), lambda: self.ended)

    async def _ask(self, chunk: AnyChunk, answered: Callable[[], bool]) -> None:
        """Sends a chunk until it is answered."""
        for _ in range(_TRIES):
            self._send(chunk)
            if await self.until(answered, _AGAIN):
                return
        raise Wrong(f"the kernel does not answer {chunk}")

    async def until(self, ready: Callable[[], object], timeout: float) -> bool:
        """Waits until ``ready`` returns True; returns False if that takes ``timeout`` seconds.

        Raises :class:`.Wrong` once the association has failed.
        """
        deadline = time.monotonic() + timeout
        while not ready():
            if self._reason:
                raise Wrong(self._reason)
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0)
        return True

    def close(self) -> None:
        """Frees everything. The kernel gets an ABORT unless the association has ended."""
        if self._known and not self.ended and not self._lost:
            self._send(Chunk(ChunkType.ABORT))
        if self._known and not self._closed:
            self.association.close()
        self._closed = True

    # -- SCTP -------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Acknowledges the chunks that the device has reported, and lets lost ones leave again."""
        if not self._known or self._closed:
            return
        while reports := self.association.poll():
            for report in reports:
                self._report(report)
        self.association.hand_back(self._network.sim.send_frame)
        window = _WINDOW - self.association.held
        if self._fresh or window > self._window:
            self._fresh, self._window = False, window
            self._send(self._received.sack(window))
        outstanding = self.sender.tick() is not None
        if self._accepts_at is not None and not outstanding and not self.ended:
            self._accept_end(self._accepts_at)

    def _report(self, report: Report) -> None:
        if report.kind is Kind.SESSION:
            self.failures.append(report)
        if report.kind is not Kind.CHUNK or report.status == ChunkStatus.OUTSIDE:
            return
        if report.status == ChunkStatus.HELD:
            self._reported.add(report.tsn)
            self._hold(report.tsn)
        elif self._acknowledge(report.tsn) and report.status == ChunkStatus.DUPLICATE:
            self._reason = f"the device takes the new TSN {report.tsn} for a repetition"

    def _acknowledge(self, tsn: int) -> bool:
        """Notes a TSN that has arrived; returns whether it is new."""
        if not self._received.reports(tsn):
            self._reason = f"the kernel has sent the TSN {tsn}, which is beyond any window"
            return False
        self._fresh = True
        return self._received.take(tsn)

    def _hold(self, tsn: int) -> None:
        """Keeps a chunk that the device has reported and forwarded."""
        if tsn in self._reported and tsn in self._forwarded:
            self._reported.remove(tsn)
            packet = self._forwarded.pop(tsn)
            if self._acknowledge(tsn):
                try:
                    self.association.hold(packet.reason, packet.octets)
                except InvalidRequest as error:
                    self._reason = f"the kernel has sent a message that is too long: {error}"

    def take_exception(self, packet: ExceptionPacket) -> None:
        """Takes a packet of the exception stream, if it is of this association."""
        if not self._known or self._closed or packet.stream != self.association.number:
            return
        if packet.reason == Diversion.CHUNK:
            self.take(packet.octets)
        elif packet.reason in (Diversion.EARLY, Diversion.FRAGMENT):
            self._forwarded[packet.sequence] = packet
            self._hold(packet.sequence)

    def receive(self, packet: Packet) -> None:
        """Takes a packet of no association that the device knows (RFC 9260 sections 8.4, 8.5.1)."""
        if (packet.destination, packet.source) != (self.port, self._port_there):
            return
        kinds = []
        for chunk in packet.chunks:
            octets = chunk.encode()
            kind, flags = octets[:2]
            reflected = kind in _REFLECTED and flags & _T
            if packet.tag == (self._tag_there if reflected else self._tag):
                kinds.append(kind)
                if not self._aborted:
                    self.take(octets)
            elif kind == ChunkType.SHUTDOWN_ACK:
                # The end of an earlier association between these ports was lost.
                self._send(Chunk(ChunkType.SHUTDOWN_COMPLETE, flags=_T), packet.tag)
        if kinds and self._aborted and ChunkType.ABORT not in kinds:
            self._send(Chunk(ChunkType.ABORT))  # the first one was lost

    @property
    def _aborted(self) -> bool:
        """True if this side has given up an association that had not ended."""
        return self._closed and not self.ended

    def take(self, octets: bytes) -> None:
        """Takes a chunk other than DATA."""
        kind, _, length = struct.unpack_from(">BBH", octets)
        value = octets[4:length]
        match kind:
            case ChunkType.INIT_ACK if not self._known:
                self._begin(InitChunk.decode(Chunk(kind, value=value)))
            case ChunkType.COOKIE_ACK:
                self._established = True
            case ChunkType.SACK if self._known and not self._closed:
                self.sender.receive(octets)
            case ChunkType.HEARTBEAT:
                self._send(Chunk(ChunkType.HEARTBEAT_ACK, value=value))
            case ChunkType.SHUTDOWN:
                self._accepts_at = 0.0
            case ChunkType.SHUTDOWN_ACK:
                self.ended = True
                self._send(Chunk(ChunkType.SHUTDOWN_COMPLETE))
            case ChunkType.SHUTDOWN_COMPLETE:
                self.ended = True
            case ChunkType.ABORT | ChunkType.ERROR if self._known:
                self._lost |= kind == ChunkType.ABORT
                self._reason = f"the kernel has sent {ChunkType(kind).name}: {value.hex()}"

    def _accept_end(self, at: float) -> None:
        """Lets the kernel end the association, from a time on (RFC 9260 section 9.2).

        No chunk of this side is outstanding. A kernel whose answer was lost answers again.
        """
        if (now := time.monotonic()) > at:
            self._accepts_at = now + _AGAIN
            self._send(Chunk(ChunkType.SHUTDOWN_ACK))

    def _begin(self, answer: InitChunk) -> None:
        """Gives the association to the device, before the kernel can send on it."""
        cookie = dict(answer.parameters).get(_STATE_COOKIE)
        if not answer.tag or cookie is None or answer.window < _LEAST_WINDOW:
            return  # RFC 9260 section 3.3.3 forbids such an answer
        self._tag_there, self._cookie = answer.tag, cookie
        if min(answer.inbound, answer.outbound) < self._streams:
            self._reason = (
                f"the kernel has {answer.inbound} and {answer.outbound} streams, not at least"
                f" {self._streams}"
            )
        if answer.adaptation != ADAPTATION_DDP:
            self._reason = "the kernel does not indicate DDP (RFC 5043 section 5.1)"
        self._received = Received(answer.tsn)
        self.association = Association(
            self._context, paths=[_ADDRESSES[self._v6]], ports=(self._port_there, self.port),
            tag=self._tag, tsn=answer.tsn, streams=self._streams,
        )  # fmt: skip
        self.sender = self.association.send_by(
            SendPath(self._headers, self.port, self._port_there, answer.tag),
            tsn=self._tsn, window=answer.window, mtu=MTU, transmit=self._network.transmit,
        )  # fmt: skip
        self._known = True

    def _send(self, chunk: AnyChunk, tag: int | None = None) -> None:
        """Sends a chunk, with the kernel's Verification Tag unless another one is given."""
        tag = self._tag_there if tag is None else tag
        packet = Packet(self.port, self._port_there, tag, (chunk,)).encode()
        self._network.transmit(frame_of(self._headers, packet))

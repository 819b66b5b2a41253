"""SCTP between two devices that send and receive, with DDP Stream Sessions that the golden model
judges.

The model's end of each association gets each frame that its device gets, and each that the device
sends: it checks the packets, the sessions (RFC 5043 section 6, RFC 6581 section 7) and the
segments, and delivers the messages. The device has to deliver the same ones in the same order, with
the octets that were sent; only RDMA Read Requests does it answer itself.
"""

from __future__ import annotations

import asyncio
import ipaddress
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ....hdl.spec.completion import ChunkStatus
from ....hdl.spec.completion import Kind as Reported
from ....hdl.spec.path import SendPath
from ....hdl.spec.sctp import ENHANCED_DATA, MOST_PRIVATE, Diversion, Function
from ....hdl.spec.send import Kind, Piece, Record
from ....sw_driver import CQ, MR, PD, WC, Access, Association, Context, Opcode, Stream
from ....sw_driver.base.errors import StateError
from ....sw_driver.cm import Enhanced
from ....sw_driver.transports.transport import SentFpdu
from ....sw_driver.verbs.chunks import ChunkHalf
from ....sw_driver.verbs.cq import WcStatus
from ...model import sctp
from ...model.ddp import DataSink
from ...model.events import Delivered, Event
from ...model.header import TaggedHeader, UntaggedHeader
from ...model.memory import Access as ModelAccess
from ...model.memory import Memory, Region
from ...model.rdmap import Opcode as Rdmap
from ...model.rdmap import QueueNumber, ReadRequest, rsvdulp
from ...replay.paths import example_path, frame_of
from ..live import SimTransport
from .association import Received
from .bodies import Bodies, base
from .channel import Wrong
from .end import carry
from .entries import RingEntries, broken, silent
from .lockstep import Kept, Lengths
from .network import Network

__all__ = ["Exceptions", "SctpEnd", "play_sessions"]

_TSN = 1 << 32
#: Seconds that a turn of the network takes, so that the timer of RFC 9260 expires soon.
_TURN = 0.05
#: The peer's window; octets of the longest packets, of which the first is that of RFC 5043, and the
#: last one more than the device's longest chunk; SCTP streams of an association; and sessions of a
#: stream, one after the other.
_WINDOW, _MTUS, _STREAMS, _SESSIONS = 1 << 16, (600, 1500, 9000, 16000), (1, 2, 5), (1, 2)
#: Messages to an end that are under way, their longest tagged ones, and its buffers in each queue.
_UNDER_WAY, _LONGEST, _DEPTH = 24, 20_000, 8
_QUEUES = (0, 2, 3)
#: RDMA Reads of an end that may be outstanding, and the share of messages that are one.
_READS, _READ = (1, 2, 3, 8), 0.2
_REQUEST = rsvdulp(Rdmap.READ_REQUEST, tagged=False)
_RESPONSE = rsvdulp(Rdmap.READ_RESPONSE, tagged=True)
#: The shares of messages that may have many segments, and of those of them that are as long as they
#: may be.
_LONG, _FULL = 0.1, 0.2
#: The share of sessions after which a message is posted that is none, or a doorbell rings for more
#: entries than a ring has.
_FAILS, _RING = 0.5, 1 << 8
#: The shares of messages before which the MULPDU changes, and of those whose success is not
#: reported.
_CHANGES, _SILENT = 0.05, 0.2
#: The share of sessions before which the peer refuses one, and of those that are enhanced.
_REFUSED, _ENHANCED = 0.3, 0.5
_SHORT = (0, 1, 3, 4, 17, 63, 64, 65, 479, 480, 481)


class Exceptions:
    """Distributes the packets that a device forwards to the ends of its associations."""

    def __init__(self, context: Context) -> None:
        sim = context.transport
        assert isinstance(sim, SimTransport)
        self._sim, self.ends = sim, list[SctpEnd]()
        context.settle()
        sim.take_exceptions()  # those of associations that are closed

    def serve(self) -> None:
        """Passes the packets on that the device has forwarded."""
        for packet in self._sim.take_exceptions():
            by_stream = packet.reason == Diversion.CONTROL
            for end in self.ends:
                owner = end.association
                if (
                    0 <= packet.stream - owner.first < owner.count
                    if by_stream
                    else packet.stream == owner.number
                ):
                    end.forwarded(packet.reason, packet.octets)
                    break
            else:
                raise Wrong(f"a packet was forwarded with the reason {packet.reason:#x}")


class SctpEnd:
    """One end of an association.

    Parameters
    ----------
    network, pd
        The network, and a protection domain of this end's device.
    paths
        The path to the peer, and that of the peer.
    tsns
        The first TSNs of this end and of the peer.
    streams, mtu
        SCTP streams, and octets of the longest packets.
    """

    peer: SctpEnd

    def __init__(
        self,
        network: Network[bytes],
        pd: PD,
        paths: tuple[SendPath, SendPath],
        tsns: tuple[int, int],
        streams: int,
        mtu: int,
    ) -> None:
        self._network, self.pd = network, pd
        self._path, theirs = paths
        sim = pd.context.transport
        assert isinstance(sim, SimTransport)
        self._sim = sim
        self.association = Association(
            pd.context, paths=[_addresses(theirs)], tag=theirs.tag, tsn=tsns[1], streams=streams,
            ports=(theirs.source_port, theirs.destination_port),
        )  # fmt: skip
        self.sender = self.association.send_by(
            self._path, tsn=tsns[0], window=_WINDOW, mtu=mtu, transmit=self._transmit,
            clock=lambda: network.turn * _TURN,
        )  # fmt: skip
        self._sent: dict[int, bytes] = {}  # frames, by their TSNs
        self._records: dict[int, Kept] = {}  # by their TSNs
        leave = self.sender.leave

        def left(frame: SentFpdu) -> None:
            self._check_record(frame)
            leave(frame)

        self.sender.leave = left  # type: ignore[method-assign]
        self._wrong: Wrong | None = None
        self._judge = _judge(paths, tsns, streams)
        self._received = Received(tsns[1])
        self._due = False  # a SACK chunk
        self.flows = [Flow(self, sid) for sid in range(streams)]

    # -- frames -----------------------------------------------------------------------------------

    def _transmit(self, frame: bytes) -> None:
        """Takes a frame of the device. A fault is raised later: here it would interrupt the driver,
        which then has other complaints.
        """
        try:
            self._check(frame)
        except Wrong as wrong:
            self._wrong = self._wrong or wrong
        self._network.send(self.peer, frame)

    def _check(self, frame: bytes) -> None:
        """Compares a frame of the device with the one that the model sends."""
        headers = self._path.headers
        octets = frame[len(headers) :]
        packet = sctp.Packet.parse(octets)
        if frame != frame_of(headers, packet.encode()):
            raise Wrong(f"the golden model sends another frame than {frame.hex()}")
        (chunk,) = packet.chunks
        assert isinstance(chunk, sctp.DataChunk)
        if (before := self._sent.setdefault(chunk.tsn, frame)) is not frame:
            self._network.counts["repeats"] += 1
            if before != frame and self.sender.outstanding(chunk.tsn):
                raise Wrong(f"{frame.hex()} was sent again, which was {before.hex()}")
        elif chunk.ppid == sctp.Ppid.SEGMENT:
            segment = chunk.payload[2:]
            if not self.flows[chunk.stream].lengths.fit(segment):
                raise Wrong(f"a segment of {len(segment)} octets has not the MULPDU")
        self._follow(self._judge.observe(octets))

    def _check_record(self, frame: SentFpdu) -> None:
        """Compares the record of a frame that leaves again with the first one."""
        record = Record.decode(frame.record)
        kept = self._records.setdefault(frame.sequence, Kept(frame.octets, record))
        if record.repeat and record != kept.again:
            self._wrong = self._wrong or Wrong(f"{record} is not {kept.again}")

    def receive(self, frame: bytes) -> None:
        """Takes a frame of the network."""
        self._sim.send_frame(frame)
        self._follow(self._judge.receive(frame[len(self._path.headers) :]))

    def _follow(self, events: Sequence[sctp.SctpEvent]) -> None:
        for event in events:
            match event:
                case sctp.SegmentReceived():
                    flow = self.flows[event.stream]
                    flow.place(event.segment, event.order)
                case sctp.SessionIllegal() | sctp.SessionRefused():
                    raise Wrong(f"the golden model refuses what a device has sent: {event}")

    def forwarded(self, reason: int, octets: bytes) -> None:
        """Takes a chunk that the device has forwarded."""
        if reason == Diversion.CHUNK:
            self.sender.receive(octets)
        elif reason == Diversion.EARLY:
            self.association.hold(reason, octets)
            self._take(int.from_bytes(octets[4:8], "big"))
        elif reason == Diversion.CONTROL:
            length = int.from_bytes(octets[2:4], "big")
            self.flows[int.from_bytes(octets[8:10], "big")].private.append(octets[20:length])
        else:
            raise Wrong(f"a chunk was forwarded with the reason {reason:#x}")

    def serve(self) -> None:
        """Processes the device's reports, and acknowledges chunks."""
        if self._wrong is not None:
            raise self._wrong
        for report in self.association.pick(1 << 16):
            if report.kind is Reported.CHUNK:
                self._report(report.status, report.tsn)
            elif report.kind is Reported.CONTROL:
                assert report.function is not None
                self.flows[report.stream].functions.append(report.function)
            elif report.kind is Reported.SESSION:
                raise Wrong(f"the device has ended a session: {report}")
        if self.association.hand_back(self._sim.send_frame):
            self._due = True  # the window is open again
        self.sender.tick()
        if self._due:
            self._due = False
            self._network.send(self.peer, self._sack())

    def _report(self, status: Any, tsn: int) -> None:
        """Takes the report of a chunk."""
        self._due = True
        if status is ChunkStatus.TAKEN:
            self._take(tsn)
        elif status is ChunkStatus.DUPLICATE:
            if self._received.take(tsn):
                raise Wrong(f"the first chunk with TSN {tsn:#x} is reported as a repetition")
        elif status not in (ChunkStatus.OUTSIDE, ChunkStatus.HELD):
            raise Wrong(f"the chunk with TSN {tsn:#x} is {status.name}")

    def _take(self, tsn: int) -> None:
        """Notes a chunk of the peer, which is acknowledged soon."""
        self._received.take(tsn)
        self._due, self._network.moved = True, self._network.turn

    def _sack(self) -> bytes:
        """Returns a frame with a SACK chunk."""
        path, chunk = self._path, self._received.sack(_WINDOW - self.association.held)
        packet = sctp.Packet(path.source_port, path.destination_port, path.tag, (chunk,))
        return frame_of(path.headers, packet.encode())

    def close(self) -> None:
        """Removes the association from the device."""
        for flow in self.flows:
            flow.close()
        self.association.close()


def _addresses(path: SendPath) -> tuple[str, str]:
    """Returns the source and the destination of a path's packets."""
    at = len(path.headers) - 8 * path.udp - (32 if path.v6 else 8)
    size = 16 if path.v6 else 4
    source, destination = (
        str(ipaddress.ip_address(path.headers[begin : begin + size])) for begin in (at, at + size)
    )
    return source, destination


def reversed_path(path: SendPath, tag: int) -> SendPath:
    """Returns the path of the packets in the other direction."""
    headers = bytearray(path.headers)
    at = len(headers) - 8 * path.udp - (32 if path.v6 else 8)
    size = 16 if path.v6 else 4
    headers[at : at + 2 * size] = headers[at + size : at + 2 * size] + headers[at : at + size]
    return SendPath(bytes(headers), path.destination_port, path.source_port, tag)


def _judge(
    paths: tuple[SendPath, SendPath], tsns: tuple[int, int], streams: int
) -> sctp.Association:
    """Returns the model's end of an association, after its set-up."""
    judge, (own, theirs) = sctp.Association(), paths
    adapts = ((sctp.ADAPTATION_PARAMETER, sctp.ADAPTATION_DDP.to_bytes(4, "big")),)
    # Each side sends the tag that it expects.
    init = sctp.InitChunk(theirs.tag, tsns[0], streams, streams, _WINDOW, adapts)
    answer = sctp.InitChunk(own.tag, tsns[1], streams, streams, _WINDOW, adapts, acknowledges=True)
    judge.observe(sctp.Packet(own.source_port, own.destination_port, 0, (init,)).encode())
    judge.receive(
        sctp.Packet(own.destination_port, own.source_port, theirs.tag, (answer,)).encode()
    )
    return judge


# -- messages -------------------------------------------------------------------------------------


@dataclass
class _Message:
    """A message on its way: its octets, and its header's fields."""

    octets: bytes
    rsvdulp: int
    qn: int | None = None
    at: int = 0  #: tagged: its octets' place in the region of the end that gets it


def _region(pd: PD, rng: random.Random, octets: bytearray, access: Access) -> MR:
    return pd.register(octets, access, to=base(rng, len(octets)))


class Flow:
    """An end of a DDP Stream, through its sessions."""

    stream: Stream
    half: ChunkHalf

    def __init__(self, end: SctpEnd, sid: int) -> None:
        self.end, self.sid = end, sid
        self.functions: deque[Function] = deque()  # that the peer has sent
        self.private: deque[bytes] = deque()
        self.cq = CQ(end.pd.context)
        self._open = False

    @property
    def peer(self) -> Flow:
        return self.end.peer.flows[self.sid]

    def open(self, rng: random.Random, tally: Any) -> None:
        """Begins a session: a stream, its buffers, and memory that the peer may write."""
        end, self.rng, self._tally = self.end, rng, tally
        self.stream = end.association.stream(self.sid, end.pd, self.cq)
        self.half = end.sender.open(self.stream)
        self._entries = RingEntries(self.half)
        self.lengths = Lengths(end.sender.mulpdu)
        self.bodies = Bodies(end.pd, rng)
        self.memory = bytearray(_UNDER_WAY * _LONGEST)
        self.target = _region(end.pd, rng, self.memory, Access.REMOTE_WRITE)
        # RDMA Reads: the octets that the peer may read, and the sinks of the own ones.
        self.octets = rng.randbytes(_LONGEST)
        self.source = _region(end.pd, rng, bytearray(self.octets), Access.REMOTE_READ)
        self.ird = rng.choice(_READS)
        self.stream.answer_reads(self.ird)
        self._sinks = bytearray(max(_READS) * _LONGEST)
        self._sink_region = _region(end.pd, rng, self._sinks, Access.REMOTE_WRITE)
        self._reading: deque[_Message] = deque()
        self._read = self._asked = 0
        self.coming: deque[_Message] = deque()
        self._requests: deque[tuple[int, tuple[range, ...]]] = deque()
        self._count = 0
        self._open = True
        model = Memory()
        for region, octets in ((self.target, self.memory), (self._sink_region, self._sinks)):
            model.register(
                Region(
                    stag=region.stag, to=region.to, length=len(octets),
                    access=ModelAccess.REMOTE_WRITE, pd=end.pd.number,
                )
            )  # fmt: skip
        self._sink = DataSink(model, stream=self.stream.number, pd=end.pd.number, first=1)
        self._delivered: deque[Delivered] = deque()
        self.rooms: dict[int, deque[int]] = {qn: deque() for qn in _QUEUES}
        for _ in range(self.ird):
            self._sink.post(QueueNumber.READ_REQUEST, ReadRequest.SIZE)
        for qn in _QUEUES:
            for _ in range(_DEPTH):
                self._post_buffer(qn)

    def close(self) -> None:
        """Ends the session's stream."""
        if self._open:
            self._open = False
            self.stream.close()
            for region in (self.target, self.source, self._sink_region, self.bodies.region):
                region.close()
            self.cq.poll(1 << 16)

    def _post_buffer(self, qn: int) -> None:
        room = self._most(self.rng.randrange(1, _LONGEST))
        buffer = bytearray(room)
        self.stream.post_recv(buffer, qn, wr_id=buffer)
        self._sink.post(qn, room)
        self.rooms[qn].append(room)

    def _most(self, long: int) -> int:
        """Draws the octets that a message may have at most: seldom ``long``."""
        if self.rng.random() < _LONG:
            return self.rng.choice((3000, long))
        return self.rng.choice((1, 64, 64, 200, 500))

    def place(self, segment: bytes, order: int) -> None:
        """Lets the model receive a segment."""
        events: list[Event] = self._sink.receive(segment, order)
        for event in events:
            if not isinstance(event, Delivered):
                continue
            header = event.header
            if isinstance(header, UntaggedHeader) and header.qn == QueueNumber.READ_REQUEST:
                self._asked += 1
                self._sink.post(QueueNumber.READ_REQUEST, ReadRequest.SIZE)
            else:
                self._delivered.append(event)
        if self._sink.error is not None:
            raise Wrong(f"the golden model refuses a segment: {self._sink.error}")

    # -- sending ----------------------------------------------------------------------------------

    async def post(self, count: int) -> None:
        """Posts messages to the peer."""
        rng, peer = self.rng, self.peer
        for number in range(count):
            while len(peer.coming) >= _UNDER_WAY:
                await asyncio.sleep(0)
            if rng.random() < _CHANGES:
                self.lengths.change(self.stream, rng.randint(516, self.end.sender.mulpdu))
            if number < count - 1 and rng.random() < _SILENT:
                self._entries.change = silent
            qns = [qn for qn in _QUEUES if peer.rooms[qn]]
            if rng.random() < _READ and len(self._reading) < peer.ird:
                self._post_read(peer, number)
            elif qns and rng.random() < 0.5:
                self._post_untagged(peer, rng.choice(qns), number)
            else:
                self._post_tagged(peer, number)
            self._entries.change = None

    def _post(self, peer: Flow, kind: Kind, most: int, number: int, **fields: int) -> _Message:
        rng = self.rng
        length = min(most, rng.choice((most, *_SHORT, rng.randrange(3000))))
        if most > _SHORT[-1] and rng.random() < _FULL:
            length = most
        taken = (place for _, places in self._requests for place in places)
        body = self.bodies.draw(length, taken)
        rsvdulp = rng.getrandbits(40)
        self._requests.append((number, body.places))
        self.half.post(kind, body.posted, wr_id=number, rsvdulp=rsvdulp, **fields)
        self.cq.wake()
        message = _Message(body.octets, rsvdulp)
        peer.coming.append(message)
        self._tally.kinds[f"{kind.name.lower()} message"] += 1
        return message

    def _post_untagged(self, peer: Flow, qn: int, number: int) -> None:
        self._post(peer, Kind.UNTAGGED, peer.rooms[qn].popleft(), number, qn=qn).qn = qn

    def _post_tagged(self, peer: Flow, number: int) -> None:
        # Messages that are under way have places of their own: placement is in any order.
        at = peer._count % _UNDER_WAY * _LONGEST
        peer._count += 1
        to = peer.target.to + at
        self._post(
            peer, Kind.TAGGED, self._most(_LONGEST), number, stag=peer.target.stag, to=to
        ).at = at

    def _post_read(self, peer: Flow, number: int) -> None:
        """Posts an RDMA Read of some of the octets that the peer has for that."""
        length = min(self._most(_LONGEST), self.rng.choice((*_SHORT, _LONGEST)))
        offset = self.rng.randint(0, _LONGEST - length)
        at = self._read % max(_READS) * _LONGEST
        self._read += 1
        self._reading.append(
            _Message(peer.octets[offset : offset + length], _RESPONSE << 32, at=at)
        )
        self._requests.append((number, ()))
        self.half.post(
            Kind.READ, Piece(self._sink_region.stag, length, self._sink_region.to + at),
            wr_id=number, rsvdulp=_REQUEST, stag=peer.source.stag, to=peer.source.to + offset,
        )  # fmt: skip
        self.cq.wake()
        self._tally.kinds["RDMA Read"] += 1

    # -- completions ------------------------------------------------------------------------------

    async def take(self, count: int) -> None:
        """Takes completions until as many messages have been sent, and have arrived, and all RDMA
        Reads have ended.
        """
        sent = received = 0
        while sent < count or received + self._asked < count or self._reading:
            for wc in self.cq.pick(64):
                if wc.status is not WcStatus.SUCCESS:
                    raise Wrong(f"{wc.opcode.name} completed with {wc.status.name}")
                if wc.opcode is not Opcode.SENT:
                    received += self._receive(wc)
                elif wc.wr_id is not None:  # None: a session control message
                    number, places = self._requests.popleft()
                    if wc.wr_id != number:
                        raise Wrong(f"message {number} completed as {wc.wr_id}")
                    self.bodies.free(places)
                    sent += 1
            await asyncio.sleep(0)

    def _receive(self, wc: WC) -> bool:
        """Compares a message that was delivered with the one that was sent, and with that of the
        model. Returns False if it is a Read Response.
        """
        if not self._delivered:
            raise Wrong(f"the device delivers a message that the golden model does not: {wc}")
        event = self._delivered.popleft()
        answers = wc.opcode is not Opcode.RECV and wc.stag == self._sink_region.stag
        message = (self._reading if answers else self.coming).popleft()
        region, memory = (self._sink_region, self._sinks) if answers else (self.target, self.memory)
        header, length = event.header, len(message.octets)
        model: tuple[int, ...] | None = None
        if wc.opcode is Opcode.RECV:
            octets: Any = wc.wr_id[:length]
            got = wc.qn, wc.msn, wc.byte_len, wc.rsvdulp
            if isinstance(header, UntaggedHeader):
                model = header.qn, header.msn, event.length, header.rsvdulp
            sent = message.qn, wc.msn, length, message.rsvdulp
            self._post_buffer(wc.qn)
        else:
            region.refresh()
            octets = memory[message.at : message.at + length]
            got = wc.stag, wc.to, wc.byte_len, wc.rsvdulp
            if isinstance(header, TaggedHeader):
                model = header.stag, event.begin % (1 << 32), event.length, header.rsvdulp
            to = (region.to + message.at) % (1 << 32)
            sent = region.stag, to, length, message.rsvdulp >> 32
        if got != model or got != sent or octets != message.octets:
            raise Wrong(f"a device delivers {got}, the golden model {model}; {sent} was sent")
        self._tally.messages += 1
        self._tally.octets += length
        return not answers

    # -- sessions ---------------------------------------------------------------------------------

    async def control(self, function: Function, private: bytes = b"") -> None:
        """Sends a session control message as soon as it may be sent."""
        while True:
            try:
                self.end.sender.control(self.sid, function, private)
                return
            except StateError:  # RFC 5043 section 6.6: chunks are outstanding
                await asyncio.sleep(0)

    def refuses(self, functions: Sequence[Function], private: bytes) -> None:
        """Checks that the device refuses each of these messages, which do not fit its session."""
        for function in functions:
            try:
                self.end.sender.control(self.sid, function, private)
            except StateError:
                continue
            raise Wrong(f"the device takes {function.name}, which fits no legal sequence")

    async def expect(self, function: Function, private: bytes = b"") -> None:
        """Waits for a session control message of the peer."""
        while not self.functions or not self.private:
            await asyncio.sleep(0)
        got = self.functions.popleft(), self.private.popleft()
        if got != (function, private):
            raise Wrong(f"{got} has arrived instead of {function.name} with {private.hex()}")

    async def fail(self) -> None:
        """Posts a message that is none, and others after it, or names more entries than the ring
        has, once nothing more is to be sent: the device reports the failure, and sends nothing.
        """
        statuses, entries = [WcStatus.NOT_READ], self._entries
        if self.rng.random() < 0.5:
            statuses += [WcStatus.FLUSHED] * self.rng.randrange(3)
            entries.change = broken(self.rng)
        else:
            entries.beyond = self.rng.randrange(_RING, 1 << 15)
        for _ in statuses:
            self.half.post(Kind.UNTAGGED, bytes(self.rng.choice((0, 32, 400))), wr_id=-1, qn=0)
            entries.change, entries.beyond = None, 0
        self.cq.wake()
        got: list[WcStatus] = []
        while len(got) < len(statuses):
            got += [wc.status for wc in self.cq.pick(64) if wc.wr_id == -1]
            await asyncio.sleep(0)
        if got != statuses:
            raise Wrong(f"messages after one that is none completed with {got}, not {statuses}")

    def check(self) -> None:
        if self._delivered:
            raise Wrong("the golden model delivers messages that the device does not")


class _Words(NamedTuple):
    """The messages that open a session, accept it or refuse it; and answers that do not fit."""

    initiate: Function
    accept: Function
    refusals: tuple[Function, ...]
    unfit: tuple[Function, ...]


#: Those of a session of RFC 5043 section 6, and those of one of RFC 6581 section 7.
_WORDS = (
    _Words(
        Function.INITIATE, Function.ACCEPT, (Function.REJECT, Function.TERMINATE),
        (Function.ENHANCED_ACCEPT, Function.ENHANCED_REJECT, Function.ENHANCED_INITIATE),
    ),
    _Words(
        Function.ENHANCED_INITIATE, Function.ENHANCED_ACCEPT,
        (Function.ENHANCED_REJECT, Function.REJECT, Function.TERMINATE),
        (Function.ACCEPT, Function.INITIATE),
    ),
)  # fmt: skip


async def _begin(
    flows: tuple[Flow, Flow], rng: random.Random, tally: Any
) -> tuple[_Words, list[bytes]]:
    """Lets the first end initiate a session.

    Returns its messages, and the Private Data of those of both ends.
    """
    one, other = flows
    for flow in flows:
        flow.close()
    words = _WORDS[rng.random() < _ENHANCED]
    texts = [rng.randbytes(rng.choice((0, 1, 30, 512))) for _ in flows]
    if words.initiate is Function.ENHANCED_INITIATE:
        limits = Enhanced(rng.getrandbits(14), rng.getrandbits(14)).encode()
        texts = [(limits + text)[:MOST_PRIVATE] for text in texts]
    for flow in flows:
        flow.open(random.Random(rng.getrandbits(64)), tally)
    await one.control(words.initiate, texts[0])
    return words, texts


async def _refused(flows: tuple[Flow, Flow], rng: random.Random, tally: Any) -> None:
    """Plays a session that the second end refuses."""
    one, other = flows
    words, texts = await _begin(flows, rng, tally)
    await other.expect(words.initiate, texts[0])
    other.refuses(words.unfit, bytes(ENHANCED_DATA))
    refusal = rng.choice(words.refusals)
    text = b"" if refusal is Function.TERMINATE else texts[1]
    await other.control(refusal, text)
    await one.expect(refusal, text)


async def _session(flows: tuple[Flow, Flow], count: int, rng: random.Random, tally: Any) -> None:
    """Plays a session, which the first end initiates, and which either one ends."""
    one, other = flows
    async with asyncio.TaskGroup() as group:
        words, texts = await _begin(flows, rng, tally)
        # These messages wait for the session.
        group.create_task(one.post(count))
        group.create_task(one.take(count))
        await other.expect(words.initiate, texts[0])
        other.refuses(words.unfit, bytes(ENHANCED_DATA))
        await other.control(words.accept, texts[1])
        group.create_task(other.post(count))
        group.create_task(other.take(count))
        await one.expect(words.accept, texts[1])
    first, last = rng.sample(flows, 2)
    for flow, peer in ((first, last), (last, first)):
        await flow.control(Function.TERMINATE)
        await peer.expect(Function.TERMINATE)
    if rng.random() < _FAILS:
        await first.fail()
    for flow in flows:
        flow.check()
    tally.connections += 1


async def _stream(flows: tuple[Flow, Flow], count: int, rng: random.Random, tally: Any) -> None:
    sessions = rng.choice(_SESSIONS)
    for _ in range(sessions):
        flows = flows if rng.random() < 0.5 else flows[::-1]
        if rng.random() < _REFUSED:
            await _refused(flows, rng, tally)
        await _session(flows, max(1, count // sessions), rng, tally)


def _associate(
    network: Network[bytes], pds: Sequence[PD], number: int, rng: random.Random
) -> tuple[SctpEnd, SctpEnd]:
    """Returns the ends of an association."""
    path = example_path(number)
    path = SendPath(path.headers, path.source_port, path.destination_port, rng.getrandbits(32) | 1)
    paths = path, reversed_path(path, rng.getrandbits(32) | 1)
    near = _TSN - rng.randrange(1, 200)
    tsns = rng.choice((near, rng.getrandbits(32))), rng.choice((near, rng.getrandbits(32)))
    streams = rng.choice(_STREAMS)
    one, other = (
        SctpEnd(network, pd, way, tsn, streams, rng.choice(_MTUS))
        for pd, way, tsn in zip(pds, (paths, paths[::-1]), (tsns, tsns[::-1]), strict=True)
    )
    one.peer, other.peer = other, one
    return one, other


async def play_sessions(
    network: Network[bytes],
    pds: Sequence[PD],
    many: int,
    each: int,
    rng: random.Random,
    tally: Any,
) -> None:
    """Plays sessions of ``many`` associations, with about ``each`` messages in each direction."""
    exceptions = [Exceptions(pd.context) for pd in pds]
    pairs = [_associate(network, pds, number, rng) for number in range(many)]
    for at, distributor in enumerate(exceptions):
        distributor.ends += [pair[at] for pair in pairs]
    ends = [end for pair in pairs for end in pair]
    async with asyncio.TaskGroup() as group:
        contexts = [pd.context for pd in pds]
        carries = group.create_task(carry(network, contexts, [*exceptions, *ends]))
        async with asyncio.TaskGroup() as works:
            for one, other in pairs:
                for flows in zip(one.flows, other.flows, strict=True):
                    share = max(1, each // len(one.flows))
                    seed = random.Random(rng.getrandbits(64))
                    works.create_task(_stream(flows, share, seed, tally))
        carries.cancel()
    for end in ends:
        end.close()
        for flow in end.flows:
            flow.cq.close()

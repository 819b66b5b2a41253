"""Plays malformed frames to the whole RNIC: none has an effect on the next frame.

Bad frames are sent to one DDP Stream of an association; each is a damaged copy of the frame that
would be next. After each comes a good frame on another stream, and then, unless a chunk of the bad
one was a legal reason to end the session, that next frame. The reader of frames in the parser's
tests and the parts of the golden model determine the required results.
"""

from __future__ import annotations

import random
import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from itertools import islice
from typing import Any

import numpy as np
import pytest
from ddp_rnic.hdl.lib.tests.long import long
from ddp_rnic.hdl.sctp.frame import Kind as FrameKind
from ddp_rnic.hdl.sctp.tests.frames import Said, internet_sum, say
from ddp_rnic.hdl.spec import commands
from ddp_rnic.hdl.spec.completion import ChunkStatus, Completion, Kind, Status
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.hdl.spec.ddp import OVERTAKES, WAITING
from ddp_rnic.hdl.spec.net import SCTP_UDP_PORT, AssociationKey, EtherType, Protocol, insert
from ddp_rnic.hdl.spec.sctp import MOST_CHUNKS, Diversion, Reason, State
from ddp_rnic.hdl.spec.sctp import Function as Told
from ddp_rnic.hdl.spec.stag import Access
from ddp_rnic.sim.engines.choice import load
from ddp_rnic.sim.engines.engine import (
    UNSTALLED,
    Drain,
    ErrorEvent,
    ExceptionPacket,
    Frame,
    Ring,
    Stalls,
)
from ddp_rnic.sim.model.ddp import DataSink, TaggedHeader, UntaggedHeader, header_length
from ddp_rnic.sim.model.events import DdpError, Delivered, Placed
from ddp_rnic.sim.model.memory import Memory, Region
from ddp_rnic.sim.model.sctp import (
    ACCEPTS,
    INITIATES,
    REJECTS,
    Chunk,
    ChunkType,
    DataChunk,
    Function,
    Packet,
    Ppid,
    SegmentReceived,
    Session,
    SessionControl,
    SessionIllegal,
    checksum,
)
from ddp_rnic.sim.replay.host import guard_octets
from ddp_rnic.sim.replay.tables import Tables
from numpy.typing import NDArray

WIDTHS = [64, *long(512)]
STALLS = Stalls(source=0.2, write=0.3, response=0.2, exceptions=0.3, completions=0.3)

#: The association, its DDP Streams, and the roles of its SCTP streams.
ASSOCIATION, FIRST, COUNT = 3, 8, 2
VICTIM, BYSTANDER = 0, 1
PORTS, TAG, TSN = (40001, 40002), 0x0DDBA115, 0xFFFFFF00
V4 = bytes([10, 0, 0, 2]), bytes([10, 0, 0, 1])
V6 = bytes([0xFD, *range(1, 16)]), bytes([0xFD, *range(101, 116)])

#: The places of segments: each has a slot of its own, in a region of the stream.
BASE, SLOT, SLOTS = 0x1234_5678_9000, 160, 12000
BUFFER, COOKIE, QN = 64, 0xC0_0C1E, 2
#: DDP-SSNs of a session: few, so that finding a free one takes little time.
MOST_SSNS = 96
RING = Ring(SLOT * SLOTS, 10, RnicConfig().completion_queues)


#: IRD and ORD (RFC 6581 section 9).
LIMITS = bytes.fromhex("0004 0002")


class Fate(Enum):
    """The outcome of a frame, see :class:`~ddp_rnic.hdl.sctp.receiver.ItemHold`."""

    TAKEN = auto()
    EXCEPTION = auto()
    DROPPED = auto()


# -- the parts of frames --------------------------------------------------------------------------


@dataclass(frozen=True)
class Carrier:
    """The layers that carry an SCTP packet. ``extensions`` are headers of IPv6: protocol,
    octets.
    """

    v6: bool = False
    tags: bytes = b""
    options: bytes = b""
    extensions: tuple[tuple[int, int], ...] = ()
    udp: bool = False

    @property
    def ip(self) -> int:
        """The offset of the IP header."""
        return 14 + len(self.tags)

    @property
    def start(self) -> int:
        """The offset of the packet."""
        extended = sum(size for _, size in self.extensions)
        ip = 40 + extended if self.v6 else 20 + len(self.options)
        return self.ip + ip + 8 * self.udp

    def frame(self, packet: bytes) -> bytes:
        octets = packet
        protocol = Protocol.UDP if self.udp else Protocol.SCTP
        if self.udp:
            octets = struct.pack(">HHHH", 1234, SCTP_UDP_PORT, 8 + len(packet), 0) + octets
        if self.v6:
            kinds = [*(kind for kind, _ in self.extensions), protocol]
            chain = b"".join(
                bytes([after, size // 8 - 1, 1, size - 4]) + bytes(size - 4)
                for (_, size), after in zip(self.extensions, kinds[1:], strict=True)
            )
            octets = chain + octets
            header = struct.pack(">IHBB", 6 << 28, len(octets), kinds[0], 64) + b"".join(V6)
        else:
            words = 5 + len(self.options) // 4
            total = 4 * words + len(octets)
            header = struct.pack(">BBHHHBBH", 64 | words, 0, total, 7, 0, 64, protocol, 0)
            header += b"".join(V4) + self.options
            header = header[:10] + (0xFFFF - internet_sum(header)).to_bytes(2, "big") + header[12:]
        kind = EtherType.IPV6 if self.v6 else EtherType.IPV4
        return bytes(range(12)) + self.tags + struct.pack(">H", kind) + header + octets

    def lengths(self) -> Iterator[tuple[str, int, int]]:
        """The length fields before the packet: name, place in the frame, octets."""
        if self.v6:
            yield "Payload Length", self.ip + 4, 2
            at = self.ip + 40
            for _, size in self.extensions:
                yield "Hdr Ext Len", at + 1, 1
                at += size
        else:
            yield "IHL", self.ip, 1
            yield "Total Length", self.ip + 2, 2
        if self.udp:
            yield "UDP Length", self.start - 4, 2


TAGGED = struct.pack(">HH", EtherType.VLAN, 5)
CARRIERS = {
    "IPv4": Carrier(),
    "IPv4 with options": Carrier(options=b"\1\1\1\1\1\1\1\0"),
    "VLAN": Carrier(tags=TAGGED),
    "two VLANs, IPv4 in UDP": Carrier(
        tags=struct.pack(">HH", EtherType.SERVICE_VLAN, 6) + TAGGED, udp=True
    ),
    "IPv6": Carrier(v6=True),
    "IPv6 with extension headers": Carrier(
        v6=True, extensions=((Protocol.HOP_BY_HOP, 8), (Protocol.DESTINATION_OPTIONS, 24))
    ),
    "VLAN, IPv6 in UDP": Carrier(v6=True, tags=TAGGED, udp=True),
}
IPV4 = CARRIERS["IPv4"]


def packet_of(*chunks: DataChunk | Chunk) -> bytes:
    return Packet(*PORTS, TAG, chunks).encode()


def sealed(packet: bytes) -> bytes:
    """Returns the packet with a right checksum."""
    return packet[:8] + checksum(packet) + packet[12:]


def mended(frame: bytes) -> bytes:
    """Returns the frame with right checksums of IPv4 and SCTP, at the places that its fields
    state.
    """
    octets = bytearray(frame)
    at = 12
    while octets[at : at + 2] in (b"\x81\x00", b"\x88\xa8"):
        at += 4
    if octets[at : at + 2] == b"\x08\x00" and len(octets) >= at + 22:
        at += 2
        octets[at + 10 : at + 12] = bytes(2)
        header = bytes(octets[at : at + 4 * (octets[at] & 15)])
        octets[at + 10 : at + 12] = (0xFFFF - internet_sum(header)).to_bytes(2, "big")
    said = say(bytes(octets))
    if said.kind is FrameKind.SCTP:
        end = said.start + said.octets
        octets[said.start : end] = sealed(bytes(octets[said.start : end]))
    return bytes(octets)


def added(frame: bytes, at: int, size: int, delta: int) -> bytes:
    """Returns the frame with another number in a field."""
    number = (int.from_bytes(frame[at : at + size], "big") + delta) % (1 << 8 * size)
    return frame[:at] + number.to_bytes(size, "big") + frame[at + size :]


def inverted(octets: bytes, bit: int) -> bytes:
    """Returns the octets with one bit inverted."""
    at, bit = divmod(bit, 8)
    return octets[:at] + bytes([octets[at] ^ 1 << bit]) + octets[at + 1 :]


def key_of(said: Said) -> AssociationKey:
    return AssociationKey(
        source=int.from_bytes(said.source, "little"),
        destination=int.from_bytes(said.destination, "little"),
        source_port=said.source_port,
        destination_port=said.destination_port,
        tag=said.tag,
        v6=said.v6,
    )


KEYS = [key_of(say(carrier.frame(packet_of()))) for carrier in (IPV4, CARRIERS["IPv6"])]


def split(octets: bytes) -> list[bytes] | None:
    """Returns chunks without padding; None if they do not add up (RFC 9260 sections 3.2, 3.3.1)."""
    chunks = []
    while octets:
        length = int.from_bytes(octets[2:4], "big")
        least = 17 if octets[0] == ChunkType.DATA else 4
        if not least <= length <= len(octets):
            return None
        chunks.append(octets[:length])
        octets = octets[length + -length % 4 :]
    return chunks


def is_message(chunk: DataChunk) -> bool:
    """Returns True if a DATA chunk is a DDP message (RFC 5043 sections 5.2 and 10)."""
    if not (chunk.unordered and chunk.beginning and chunk.ending):
        return False
    if chunk.ppid != Ppid.CONTROL or len(chunk.payload) < 4:
        return chunk.ppid == Ppid.SEGMENT and len(chunk.payload) >= 2
    function, private = int.from_bytes(chunk.payload[2:4], "big"), len(chunk.payload) - 4
    longest = 0 if function == Function.TERMINATE else 512
    return function in set(Function) and private <= longest


Order = tuple[Kind, int]


def order_of(entry: Completion) -> Order:
    """Returns the group of an entry of the ring, within which entries are in order."""
    if entry.kind in (Kind.CHUNK, Kind.PACKET):
        return Kind.CHUNK, 0
    return entry.kind, entry.stream


# -- the run --------------------------------------------------------------------------------------


@dataclass
class End:
    """A DDP Stream, with its part of the model."""

    number: int
    region: Region
    session: Session = field(init=False)
    sink: DataSink = field(init=False)
    seen: set[int] = field(default_factory=set)  # DDP-SSNs that were taken
    buffer: int = 0  # address of its buffer

    def ssn(self, ahead: int) -> int:
        """Returns the next free DDP-SSN, or the one ``ahead`` places later."""
        free = (ssn for ssn in range(1 << 16) if ssn not in self.seen)
        return next(islice(free, ahead, None))

    @property
    def broken(self) -> bool:
        return self.session.silent or self.sink.error is not None


class Play(Tables):
    """Collects frames, and the required results."""

    def __init__(self, seed: str) -> None:
        super().__init__(RnicConfig())
        self.rng = random.Random(seed)
        self.carriers = list(CARRIERS.values())
        self.carry_out(RING.command())
        self.memory = guard_octets(RING.octets.stop + 256)
        self.expected = self.memory.copy()
        self.beats: list[tuple[int, int]] = []  # address and octets of each placement
        self.tsn = TSN
        self.exceptions: list[ExceptionPacket] = []
        self.events: list[ErrorEvent] = []
        #: Entries in their order: those of chunks and packets, and the others by stream.
        self.entries: dict[Order, list[Completion]] = defaultdict(list)
        self.fates: Counter[Fate] = Counter()
        self.names: list[str] = []  # names of the frames
        self.back_to_back: list[bool] = []
        self._slots = 0
        self._model = Memory()
        self._associate()
        self.ends = []
        for sid in range(COUNT):
            number = FIRST + sid
            region = Region(
                stag=0x511_00 + (number << 8) + 0x5A, to=BASE, length=SLOT * SLOTS - 2 * SLOT,
                address=SLOT, pd=number,
            )  # fmt: skip
            self._model.register(region)
            self._register(region)
            self.ends.append(End(number, region))
            self.begin(self.ends[-1])

    # the host

    def _associate(self) -> None:
        entries: dict[tuple[int, int], AssociationKey] = {}
        for key in KEYS:
            for move in insert(entries, key, RnicConfig().associations):
                entries[move.way, move.slot] = move.key
                self.carry_out(
                    commands.set_association(move, first=FIRST, count=COUNT, number=ASSOCIATION)
                )

    def _register(self, region: Region) -> None:
        self.set_stag(
            region.stag, Access.REMOTE_WRITE, to=region.to, length=region.length,
            address=region.address, pd=region.pd,
        )  # fmt: skip

    def begin(self, end: End) -> None:
        """Begins a new session, in any state."""
        enhanced = self.rng.random() < 0.5
        self.ask(end, INITIATES[enhanced])
        self.send("Accept", IPV4.frame(packet_of(self.answer(end, ACCEPTS[enhanced]))))

    def ask(self, end: End, initiate: Function) -> None:
        """Initiates a new session, in any state."""
        self.operations.append(Drain())
        self._tell(end, Told.FORGET)
        self.set_stream(end.number, pd=end.number)
        end.buffer = self.slot(BUFFER)
        self.open_queue(end.number, QN)
        self.post_buffer(end.number, QN, 1, address=end.buffer, length=BUFFER, cookie=COOKIE)
        self._tell(end, Told(initiate))
        end.session = Session(end.number - FIRST)
        end.session.control(initiate, LIMITS if initiate is not Function.INITIATE else b"")
        end.sink = DataSink(
            self._model,
            stream=end.number,
            pd=end.number,
            first=1,
            waiting=WAITING,
            overtakes=OVERTAKES,
        )
        end.sink.post(QN, BUFFER)
        end.seen.clear()

    def answer(self, end: End, function: Function) -> DataChunk:
        """Returns the peer's answer to an Initiate."""
        private = LIMITS if function is Function.ENHANCED_ACCEPT else b""
        body = struct.pack(">H", function) + private
        return self.data(body, end.number - FIRST, ppid=Ppid.CONTROL)

    def _tell(self, end: End, function: Told) -> None:
        # A TSN that was drawn and never taken is of the past, too.
        tsn = (self.tsn - 1) % (1 << 32)
        self.carry_out(commands.tell_session(end.number, function, tsn, taken=True))

    # the peer

    def slot(self, size: int) -> int:
        """Returns the address of unused octets."""
        self._slots += 1
        assert self._slots < SLOTS - 2, "memory is too small"
        return self._slots * SLOT + self.rng.randrange(SLOT - size + 1)

    def tagged(self, sid: int = VICTIM, size: int = 37) -> bytes:
        """Returns a segment to a slot of its own."""
        region = self.ends[sid].region
        to = region.to + self.slot(size) - region.address
        return TaggedHeader(region.stag, to, last=True).encode() + self.rng.randbytes(size)

    def untagged(self, size: int = 37) -> bytes:
        """Returns the last segment of the victim's first untagged message."""
        return UntaggedHeader(QN, 1, 3, last=True).encode() + self.rng.randbytes(size)

    def data(
        self, body: bytes, sid: int = VICTIM, *, ppid: int = Ppid.SEGMENT, ahead: int = 0
    ) -> DataChunk:
        """Returns a DATA chunk with the next TSN, and a DDP-SSN ``ahead`` of the next one."""
        tsn, self.tsn = self.tsn, (self.tsn + 1) % (1 << 32)
        ssn = self.ends[sid].ssn(ahead)
        return DataChunk(tsn, sid, ppid, struct.pack(">H", ssn) + body)

    def packet(self) -> bytes:
        """Returns a good packet to the victim."""
        return packet_of(self.data(self.tagged()))

    def play(self, frames: Iterable[tuple[str, bytes | Frame]]) -> None:
        """Sends bad frames, and good ones after each."""
        victim = self.ends[VICTIM]
        for name, each in frames:
            frame = each if isinstance(each, Frame) else Frame(each)
            before = len(self.operations)
            self.fates[self.send(name, frame.octets, error=frame.error)] += 1
            if victim.session.silent:
                # Items that were taken and not delivered by then are never delivered.
                self.operations.insert(before, Drain())
                self.back_to_back[-1] = False
            carrier = self.rng.choice(self.carriers)
            good = self.data(self.tagged(BYSTANDER), BYSTANDER)
            fate = self.send(f"good behind {name}", carrier.frame(packet_of(good)))
            assert fate is Fate.TAKEN and not self.ends[BYSTANDER].broken
            if not victim.broken:
                assert self.send(f"next behind {name}", carrier.frame(self.packet())) is Fate.TAKEN
                assert not victim.broken
            far = any(len(end.seen) > MOST_SSNS for end in self.ends)
            for end in self.ends if far else [victim] if victim.broken else []:
                self.begin(end)

    def send(self, name: str, octets: bytes, *, error: bool = False) -> Fate:
        """Sends a frame; returns its outcome."""
        self.names.append(name)
        self.back_to_back.append(isinstance(self.operations[-1], Frame))
        self.operations.append(Frame(octets, error))
        fate, chunks = self._judge(octets, error)
        if fate is Fate.EXCEPTION:
            self.exceptions.append(ExceptionPacket(0, 0, octets, Diversion.FRAME))
        elif fate is Fate.TAKEN:
            over = False
            for number, chunk in enumerate(chunks, 1):
                told = self._take(chunk, over=over, ends=number == len(chunks))
                # RFC 9260 sections 3, 3.2 and 3.3.7: such a type ends the packet.
                over |= 15 <= chunk[0] < 128 or chunk[0] in (1, 2, 6, 14)
            if not chunks or not told:
                self._entry(Kind.PACKET, length=len(chunks), cookie=ASSOCIATION << 16)
        return fate

    # the required results

    def _judge(self, octets: bytes, error: bool) -> tuple[Fate, list[bytes]]:
        """Returns the outcome of a frame, and its chunks if it is TAKEN."""
        said = say(octets, damaged=error)
        if said.kind is FrameKind.DAMAGED or len(octets) > RnicConfig.buffer_octets:
            return Fate.DROPPED, []
        if said.kind is not FrameKind.SCTP or key_of(said) not in KEYS:
            return Fate.EXCEPTION, []
        packet = octets[said.start : said.start + said.octets]
        if len(packet) % 4 or packet[8:12] != checksum(packet):
            return Fate.DROPPED, []
        chunks = split(packet[12:])
        if chunks is None or len(chunks) >= MOST_CHUNKS:
            return Fate.EXCEPTION, []
        return Fate.TAKEN, chunks

    def _entry(self, kind: Kind, **values: int | Status | ChunkStatus | Reason) -> None:
        known: dict[str, Any] = dict.fromkeys(
            ("stream", "tag", "length", "cookie", "rsvdulp", "qn"), 0
        )
        known |= {"tagged": False, "status": Status.DELIVERED} | values
        entry = Completion(phase=0, kind=kind, **known)
        self.entries[order_of(entry)].append(entry)

    def _take(self, octets: bytes, *, over: bool, ends: bool) -> bool:
        """Takes a chunk, ``over`` if it is discarded; returns whether it has a record."""
        if over or octets[0] != ChunkType.DATA:
            self.exceptions.append(ExceptionPacket(ASSOCIATION, 0, octets, Diversion.CHUNK))
            return False
        chunk = DataChunk.decode(Chunk(octets[0], octets[1], octets[4:]))
        if chunk.stream >= COUNT:
            self._exception(ASSOCIATION, chunk, octets, Diversion.DATA)
            return False
        end = self.ends[chunk.stream]
        if chunk.unordered and not (chunk.beginning and chunk.ending) and chunk.ppid in set(Ppid):
            # A fragment, of which the host lacks the others.
            self._exception(ASSOCIATION, chunk, octets, Diversion.FRAGMENT)
            self._entry(
                Kind.CHUNK, status=ChunkStatus.HELD, stream=end.number, tag=chunk.tsn,
                cookie=ASSOCIATION << 16, ends=ends,
            )  # fmt: skip
            return True
        message = is_message(chunk)
        if not message:
            self._exception(ASSOCIATION, chunk, octets, Diversion.DATA)
        status, placed = ChunkStatus.SILENT, 0
        state = State[end.session.state.name]
        for event in end.session.receive(chunk.ppid if message else 0, chunk.payload):
            match event:
                case SessionIllegal():
                    status = ChunkStatus.ILLEGAL
                    reason = Reason.SEQUENCE if message else Reason.MALFORMED
                    self._entry(Kind.SESSION, status=reason, stream=end.number, tag=state)
                case SessionControl(function=function):
                    status = ChunkStatus.TAKEN
                    end.seen.add(len(end.seen))
                    self._exception(end.number, chunk, octets, Diversion.CONTROL)
                    self._entry(Kind.CONTROL, stream=end.number, tag=function)
                case SegmentReceived(order=order, segment=segment):
                    end.seen.add(order)
                    status, placed = self._segment(end, chunk, octets, order, segment)
        ssn = int.from_bytes(chunk.payload[:2], "big")
        self._entry(
            Kind.CHUNK, status=status, stream=end.number, tag=chunk.tsn, length=placed,
            cookie=ASSOCIATION << 16 | ssn, ends=ends,
        )  # fmt: skip
        return True

    def _exception(self, stream: int, chunk: DataChunk, octets: bytes, reason: int) -> None:
        self.exceptions.append(ExceptionPacket(stream, chunk.tsn, octets, reason))

    def _segment(
        self, end: End, chunk: DataChunk, octets: bytes, order: int, segment: bytes
    ) -> tuple[ChunkStatus, int]:
        status, placed = ChunkStatus.DROPPED, 0
        for event in end.sink.receive(segment, order):
            match event:
                case Placed(header=header):
                    status, placed = ChunkStatus.TAKEN, event.length
                    address = end.buffer if event.address is None else event.address
                    address += header.mo if isinstance(header, UntaggedHeader) else 0
                    payload = np.frombuffer(segment[header.size :], np.uint8)
                    self.expected[address : address + placed] = payload
                    self.beats += [(address, placed)] if placed else []
                case Delivered(header=UntaggedHeader() as header):
                    self._entry(
                        Kind.MESSAGE, stream=end.number, tag=header.msn,
                        length=event.length, cookie=COOKIE, qn=header.qn,
                    )  # fmt: skip
                case Delivered(header=TaggedHeader() as header):
                    self._entry(
                        Kind.MESSAGE, tagged=True, stream=end.number, tag=header.stag,
                        length=event.length, cookie=event.begin % (1 << 32),
                    )  # fmt: skip
                case DdpError(number=number, length=length):
                    begins = length.to_bytes(2, "big") + segment[: header_length(segment)]
                    self.events.append(
                        ErrorEvent(end.number, number.type, number.code, length, chunk.tsn, begins)
                    )
                    reason = number.type << 8 | number.code
                    self._exception(end.number, chunk, octets, reason)
        return status, placed

    # the verdict

    def check(self, width: int, stalls: Stalls = UNSTALLED) -> None:
        """Runs the frames, and compares."""
        config = RnicConfig(width=width, sctp=True)
        memory = self.memory.copy()
        outcome = load("compiled").run(config, self.operations, memory, ring=RING, stalls=stalls)
        assert len(outcome.taken) == len(self.names)

        for number, (got, want) in enumerate(
            zip(outcome.exceptions, self.exceptions, strict=False)
        ):
            assert got == want, f"exception {number}"
        assert len(outcome.exceptions) == len(self.exceptions)
        got_events = [
            replace(got, header=got.header[: len(want.header)])
            for got, want in zip(outcome.events, self.events, strict=True)
        ]
        assert got_events == self.events
        came: dict[Order, list[Completion]] = defaultdict(list)
        for entry in outcome.completions:
            came[order_of(entry)].append(entry._replace(phase=0))
        assert set(came) == set(self.entries)
        for order, wanted in self.entries.items():
            for number, (have, due) in enumerate(zip(came[order], wanted, strict=False)):
                assert have == due, f"{order} {number}"
            assert len(came[order]) == len(wanted), order

        # Only the segments are written: no other octet, and no beat that would write an octet
        # unchanged.
        unlike = memory != self.expected
        unlike[RING.octets.start : RING.octets.stop] = False
        assert not np.flatnonzero(unlike).tolist(), "octets of memory are wrong"
        assert not outcome.stray
        step = config.octets
        touched = [
            at // step * step
            for address, size in self.beats
            for at in range(address // step * step, address + size, step)
        ]
        assert outcome.writes["address"].tolist() == touched

        packets = self.entries[Kind.CHUNK, 0]
        counts = outcome.counters
        assert counts["FRAMES"] == sum(each.kind is Kind.PACKET or each.ends for each in packets)
        diverted = sum(each.reason == Diversion.FRAME for each in self.exceptions)
        assert counts["FRAMES_DIVERTED"] == diverted
        counted = ("FRAMES", "FRAMES_DIVERTED", "FRAMES_DROPPED")
        assert sum(counts[name] for name in counted) == len(self.names)
        assert counts["EXCEPTIONS"] == len(self.exceptions) and not counts["EXCEPTIONS_DROPPED"]
        assert counts["PLACED_OCTETS"] == sum(size for _, size in self.beats)

        if stalls is UNSTALLED:
            self._check_pace(config, outcome.taken["last"].astype(int))

    def _check_pace(self, config: RnicConfig, last: NDArray) -> None:
        """Checks that no frame had to wait because of a faulty frame before it."""
        frames = [each for each in self.operations if isinstance(each, Frame)]
        words = [len(frame.octets) // 4 for frame in frames]
        for number, frame in enumerate(frames):
            if self.back_to_back[number]:
                waited = last[number] - last[number - 1] + -len(frame.octets) // config.octets
                # There may be a chunk in each word.
                most = 64 + sum(words[max(0, number - 2) : number + 1])
                assert waited <= most, f"{self.names[number]} waited for {waited} cycles"


# -- the faults of frames -------------------------------------------------------------------------

PADDING = b"\xa5" * 9  #: padding of a frame
Frames = Iterator[tuple[str, bytes | Frame]]


def lengths_before_the_packet(play: Play) -> Frames:
    """Yields frames with every length field before the packet, and the frame's own, off by one."""
    for name, carrier in CARRIERS.items():
        for what, at, size in carrier.lengths():
            for delta in (-1, 1):
                for behind, mend in ((b"", mended), (PADDING, mended), (PADDING, bytes)):
                    frame = added(carrier.frame(play.packet()) + behind, at, size, delta)
                    label = f"{name}, {what} {delta:+}, {len(behind)} behind, {mend.__name__}"
                    yield label, mend(frame)
        yield f"{name}, an octet less", carrier.frame(play.packet())[:-1]
        yield f"{name}, an octet more", carrier.frame(play.packet()) + b"\0"
        # A packet of this length has an octet, or a word, that belongs to no chunk.
        for count in range(1, 9):
            packet = sealed(play.packet() + bytes(count))
            yield f"{name}, {count} octets behind the chunk", carrier.frame(packet)


def cut_frames(play: Play) -> Frames:
    """Yields frames cut at every octet."""
    for name, carrier in CARRIERS.items():
        for count in range(1, len(carrier.frame(play.packet()))):
            yield f"{name}, {count} octets", carrier.frame(play.packet())[:count]


def cut_packets(play: Play) -> Frames:
    """Yields packets, and then segments, cut at every octet; everything around them is right."""
    for name in ("IPv4", "VLAN, IPv6 in UDP"):
        carrier = CARRIERS[name]
        for count in range(len(play.packet())):
            packet = play.packet()[:count]
            packet = sealed(packet) if count >= 12 else packet
            yield f"{name}, packet of {count} octets", carrier.frame(packet)
    for sender in (play.tagged, play.untagged):
        for count in range(len(sender())):
            chunk = play.data(sender()[:count])
            yield f"{sender.__name__} segment of {count} octets", IPV4.frame(packet_of(chunk))
            if sender == play.untagged:
                play.begin(play.ends[VICTIM])
    for count in range(4):
        chunk = play.data(b"\0")
        chunk = replace(chunk, payload=chunk.payload[:count])
        yield f"{count} octets of user data", IPV4.frame(packet_of(chunk))


def chunk_lengths(play: Play) -> Frames:
    """Yields packets in which a chunk's length is every number from 0 to beyond the packet.

    The chunk is first, between two others, or last.
    """

    def packet(kind: str, position: int) -> tuple[bytes, int]:
        chunks: list[DataChunk | Chunk] = [
            play.data(play.tagged(size=11), ahead=ahead) for ahead in range(2 + (kind == "DATA"))
        ]
        if kind != "DATA":
            chunks.insert(position, Chunk(0x3F, 5, play.rng.randbytes(22)))
        before = sum(len(chunk.encode()) for chunk in chunks[:position])
        return packet_of(*chunks), 12 + before

    for kind in ("DATA", "other"):
        for position in range(3):
            good, at = packet(kind, position)
            right = int.from_bytes(good[at + 2 : at + 4], "big")
            for length in [*range(len(good) - at + 9), 0x4000, 0x8000, 0xFFFC, 0xFFFF]:
                for mend in (sealed,) if abs(length - right) != 1 else (sealed, bytes):
                    good, _ = packet(kind, position)
                    spoilt = good[: at + 2] + struct.pack(">H", length) + good[at + 4 :]
                    name = f"{kind} chunk {position} of {length} octets, {mend.__name__}"
                    yield name, play.rng.choice(play.carriers).frame(mend(spoilt))


def nested_chunks(play: Play) -> Frames:
    """Yields packets in which a segment's payload, or another chunk, is itself a chunk, of
    every length.
    """
    for depth in (1, 2):
        for outer in (None, *range(20, 37)):
            for inner in (None, 0, 4, 16, 17, 31, 32, 33, 0xFFFF):
                # From the inside out; each begins after the 32 octets of the one around it.
                body = b""
                for level in reversed(range(depth + 1)):
                    segment = play.tagged(size=12)
                    chunk = play.data(segment[:14] + (body or segment[14:]), ahead=level).encode()
                    length = outer if level == 0 else inner
                    if length is not None:
                        chunk = chunk[:2] + struct.pack(">H", length) + chunk[4:]
                    body = chunk
                name = f"{depth} chunks of {inner} octets in one of {outer}"
                yield name, play.rng.choice(play.carriers).frame(sealed(packet_of() + body))
    for length in (None, 0, 4, 8, 17):
        hidden = play.data(play.tagged(), ahead=0).encode()
        chunk = Chunk(0x3F, 0, hidden).encode()
        if length is not None:
            chunk = chunk[:2] + struct.pack(">H", length) + chunk[4:]
        yield f"in another chunk of {length}", IPV4.frame(sealed(packet_of() + chunk))
    for words in range(1, 12):
        yield f"{words} words of zeros", IPV4.frame(sealed(packet_of() + bytes(4 * words)))


def single_bits(play: Play) -> Frames:
    """Yields frames with every single bit wrong, and an unchanged checksum."""
    for name in ("IPv4", "VLAN, IPv6 in UDP"):
        carrier = CARRIERS[name]
        for bit in range(8 * len(carrier.frame(play.packet()))):
            yield f"{name}, bit {bit}", inverted(carrier.frame(play.packet()), bit)


def headers(play: Play) -> Frames:
    """Yields frames with every bit before the chunks wrong, and right checksums."""
    for name, carrier in CARRIERS.items():
        for bit in range(8 * 12, 8 * (carrier.start + 12)):
            yield f"{name}, bit {bit}", mended(inverted(carrier.frame(play.packet()), bit))


def messages(play: Play) -> Frames:
    """Yields DATA chunks that are no DDP messages, or not on a stream of DDP."""

    def frame(chunk: DataChunk) -> bytes:
        return play.rng.choice(play.carriers).frame(packet_of(chunk))

    for flags in range(7):
        unordered, beginning, ending = flags & 4 > 0, flags & 2 > 0, flags & 1 > 0
        chunk = replace(
            play.data(play.tagged()), unordered=unordered, beginning=beginning, ending=ending
        )
        yield f"flags {flags:03b}", frame(chunk)
    for ppid in (0, 15, 18, 16 << 8, 16 << 24, 0xFFFFFFFF):
        yield f"PPID {ppid}", frame(play.data(play.tagged(), ppid=ppid))
    for sid in (COUNT, COUNT + 1, 0x100, 0x8000, 0xFFFF):
        yield f"SCTP stream {sid}", frame(replace(play.data(play.tagged()), stream=sid))
    for function in (0, 8, 9, 0x101, 0x8001):
        body = struct.pack(">H", function)
        yield f"Function Code {function}", frame(play.data(body, ppid=Ppid.CONTROL))
    for function in Function:
        for size in (1, 511, 512, 513, 1000):
            body = struct.pack(">H", function) + bytes(size)
            chunk = play.data(body, ppid=Ppid.CONTROL)
            yield f"{function.name} with {size} octets", frame(chunk)
    for count in range(2):
        yield f"control message of {count}", frame(play.data(bytes(count), ppid=Ppid.CONTROL))


def answers(play: Play) -> Frames:
    """Yields answers to an Initiate that are legal for no session, or accept another one (RFC 5043
    section 6.2, RFC 6581 section 7).
    """
    victim = play.ends[VICTIM]
    for enhanced, initiate in enumerate(INITIATES):
        for function in Function:
            if function in (*REJECTS[: 1 + enhanced], Function.TERMINATE):
                continue  # a legal refusal, after which no segment is legal
            play.ask(victim, initiate)
            chunk = play.answer(victim, function)
            name = f"{function.name} after {initiate.name}"
            yield name, play.rng.choice(play.carriers).frame(packet_of(chunk))


def segments(play: Play) -> Frames:
    """Yields segments whose header fields for the place of their octets are off by one, or
    otherwise wrong.
    """
    victim, other = play.ends[VICTIM], play.ends[BYSTANDER]
    region = victim.region
    end = region.to + region.length
    octets = play.rng.randbytes(21)

    def tagged(to: int, stag: int = region.stag, payload: bytes = octets) -> bytes:
        return TaggedHeader(stag, to % (1 << 64), last=True).encode() + payload

    def untagged(mo: int, msn: int = 1, qn: int = QN, payload: bytes = octets) -> bytes:
        return UntaggedHeader(qn, msn % (1 << 32), mo, last=False).encode() + payload

    for name, body in (
        *((f"TO {delta:+} from its begin", tagged(region.to + delta)) for delta in (-1, 0)),
        *(
            (f"{delta:+} beyond its end", tagged(end - len(octets) + delta))
            for delta in (0, 1, len(octets), len(octets) + 1)
        ),
        *((f"TO {to} of 2**64", tagged(to)) for to in (-22, -21, -20, -1, 0)),
        *((f"STag {delta:+}", tagged(region.to, region.stag + delta)) for delta in (-1, 1, 256)),
        ("STag of another", tagged(region.to, other.region.stag)),
        ("no payload, wrong STag and TO", tagged(-1, 0, b"")),
        *((f"MO {mo}", untagged(mo)) for mo in range(BUFFER - len(octets) - 1, BUFFER + 3)),
        *((f"MO {mo:#x}", untagged(mo)) for mo in (1 << 31, (1 << 32) - 21, (1 << 32) - 1)),
        *((f"MO {mo}, no payload", untagged(mo, payload=b"")) for mo in (0, BUFFER, BUFFER + 1)),
        *((f"MSN {msn}", untagged(0, msn)) for msn in (-1, 0, 1, 2, 1 << 31)),
        *((f"QN {qn}", untagged(0, qn=qn)) for qn in (0, 1, 3, 4, QN + 256, 1 << 31)),
    ):
        yield name, IPV4.frame(packet_of(play.data(body)))
        # Its message is not over; the next one uses a new queue.
        play.begin(victim)
    for version in (0, 2, 3):
        for good in (play.tagged(), play.untagged()):
            wrong = bytes([good[0] & 0xFC | version]) + good[1:]
            yield f"DDP version {version}", IPV4.frame(packet_of(play.data(wrong)))


def others(play: Play) -> Frames:
    """Yields frames that are damaged, too long, of too many chunks, fragments, or not SCTP
    at all.
    """
    for name, carrier in CARRIERS.items():
        yield f"{name}, damaged", Frame(carrier.frame(play.packet()), error=True)
        yield f"{name}, damaged, cut", Frame(carrier.frame(play.packet())[:-7], error=True)
        yield f"{name}, padded", carrier.frame(play.packet()) + bytes(46)
        yield f"{name}, no chunk", carrier.frame(packet_of())
        for count in (1, 5, 13):
            chunks = [play.data(play.tagged(), ahead=ahead) for ahead in range(count)]
            yield f"{name}, {count} chunks, damaged", Frame(carrier.frame(packet_of(*chunks)), True)
    for kind in (1, 2, 6, 10, 14, 15):
        for first in (True, False):
            before, *after = (play.data(play.tagged(), ahead=ahead) for ahead in range(3))
            start = (Chunk(kind), before) if first else (before, Chunk(kind))
            yield f"DATA beside a chunk of type {kind}", IPV4.frame(packet_of(*start, *after))
    for count in (MOST_CHUNKS - 1, MOST_CHUNKS, MOST_CHUNKS + 1, 1500):
        yield f"{count} chunks", IPV4.frame(packet_of(*[Chunk(0x3F)] * count))
    for size in (RnicConfig.buffer_octets + 4, 60000):
        packet = packet_of(play.data(play.tagged(size=12) + bytes(size)))
        yield f"more than {size} octets", IPV4.frame(packet)
    for piece in (0x2000, 1, 0x1FFF, 0x3FFF):
        at = IPV4.ip + 6
        frame = added(IPV4.frame(play.packet()), at, 2, piece)
        yield f"fragment {piece:#x}", mended(frame)
    six = CARRIERS["IPv6"].frame(play.packet())
    fragment = six[:18] + struct.pack(">HB", len(six) - 46, Protocol.FRAGMENT) + six[21:54]
    yield "IPv6 fragment", fragment + bytes([Protocol.SCTP, 0, 0, 1]) + bytes(4) + six[54:]
    yield "three VLANs", replace(IPV4, tags=3 * TAGGED).frame(play.packet())
    kinds = ((Protocol.DESTINATION_OPTIONS, 8),) * 5
    yield "five extension headers", Carrier(v6=True, extensions=kinds).frame(play.packet())
    yield "ARP", bytes(12) + b"\x08\x06" + bytes(46)
    for size in (1, 2, 13, 14, 15, 60, 63, 64, 65, 127, 1500, 9000):
        yield f"{size} random octets", play.rng.randbytes(size)
        yield f"{size} octets, damaged", Frame(play.rng.randbytes(size), error=True)


#: The kinds of frames, and the outcomes of each.
TAKEN, EXCEPTION, DROPPED = Fate.TAKEN, Fate.EXCEPTION, Fate.DROPPED
CASES: dict[Callable[[Play], Frames], set[Fate]] = {
    lengths_before_the_packet: {TAKEN, EXCEPTION, DROPPED},
    cut_frames: {EXCEPTION},
    cut_packets: {TAKEN, EXCEPTION, DROPPED},
    chunk_lengths: {TAKEN, EXCEPTION, DROPPED},
    nested_chunks: {TAKEN, EXCEPTION},
    single_bits: {TAKEN, EXCEPTION, DROPPED},
    headers: {TAKEN, EXCEPTION},
    messages: {TAKEN},
    answers: {TAKEN},
    segments: {TAKEN},
    others: {TAKEN, EXCEPTION, DROPPED},
}


@pytest.mark.parametrize("stalls", [*long(UNSTALLED), STALLS], ids=["unstalled", "stalled"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_malformed_frame_has_its_fate_and_no_effect_on_the_next(
    case: Callable[[Play], Frames], width: int, stalls: Stalls
) -> None:
    play = Play(case.__name__)
    play.play(case(play))
    assert set(play.fates) == CASES[case]
    play.check(width, stalls)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_packet_of_an_odd_length_is_dropped_whatever_its_checksum(width: int) -> None:
    def frames(play: Play) -> Frames:
        for name, carrier in CARRIERS.items():
            *_, (_, at, size) = carrier.lengths()
            for less in (1, 2, 3):
                if carrier.v6 and not carrier.udp:
                    at, size = carrier.ip + 4, 2
                frame = carrier.frame(play.packet())
                frame += bytes(-(len(frame) + 2) % (width // 8))
                frame = mended(added(frame, at, size, -less))
                start = carrier.start
                yield f"{name}, {less} less", frame[:start] + sealed(frame[start:])

    play = Play("odd")
    play.play(frames(play))
    assert set(play.fates) == {Fate.DROPPED}
    play.check(width)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("chunks", [0, 1, 2])
def test_a_frame_after_quiet_is_waited_for(chunks: int, width: int) -> None:
    for size in range(0, 40, 8):
        play = Play("quiet")
        play.operations.append(Drain())
        segments = [play.data(play.tagged(size=size), ahead=at) for at in range(chunks)]
        assert play.send("the last", IPV4.frame(packet_of(*segments))) is Fate.TAKEN
        play.check(width)

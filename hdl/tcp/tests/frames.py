"""Makes frames of TCP connections with FPDUs, and many other frames, to test a receiver."""

import random
import struct
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ddp_rnic.sim.model.mpa import MpaSender
from ddp_rnic.sim.model.tcp import Connection, Flag

__all__ = ["Scenario", "scenario"]

MAXIMUM_SEGMENT = 1460
MODULO = 1 << 32
VLAN, SERVICE_VLAN, IPV4, IPV6, ARP = 0x8100, 0x88A8, 0x0800, 0x86DD, 0x0806
TCP, UDP, SCTP = 6, 17, 132
TAGS = ((), (), (), (VLAN,), (SERVICE_VLAN,), (SERVICE_VLAN, VLAN), (VLAN, VLAN))
#: The IPv6 extension headers that may precede TCP.
HOP_BY_HOP, ROUTING, FRAGMENT, DESTINATION = 0, 43, 44, 60


@dataclass(frozen=True)
class Scenario:
    """Frames, each with whether it is marked as damaged, for a receiver with these connections.

    ``streams`` are the octets that the peer of each connection sent in order, from position 0 on. A
    stream may end inside an FPDU. ``broken`` is the connection with an FPDU that is too long or too
    short.
    """

    connections: list[Connection]
    frames: list[tuple[bytes, bool]]
    streams: list[bytes]
    broken: int | None


# --- packets -------------------------------------------------------------------------------------


def checksum(octets: bytes) -> int:
    """Returns the Internet checksum: with its carries added, it is a sum modulo 65535."""
    return -int.from_bytes(octets + bytes(len(octets) % 2), "big") % 0xFFFF


@dataclass(frozen=True)
class Wire:
    """A segment, and the headers around it."""

    source: bytes
    destination: bytes
    source_port: int
    destination_port: int
    sequence: int
    payload: bytes
    acknowledgment: int = 0
    window: int = 0
    flags: int = Flag.ACK
    tcp_options: bytes = b""
    ip_options: bytes = b""  # IPv4
    extensions: tuple[tuple[int, bytes], ...] = ()  # IPv6: header's number, octets after "next"
    tags: tuple[tuple[int, int], ...] = ()  # EtherType, TCI
    addresses: bytes = bytes(12)  # of Ethernet
    trailer: bytes = b""
    # Errors of the segment, if it has any.
    offset: int | None = None  # Data Offset
    tcp_checksum: Callable[[int], int] | None = None
    ip_checksum: Callable[[int], int] | None = None
    more: int = 0  # flags and Fragment Offset of IPv4
    version: int | None = None
    words: int | None = None  # IHL
    longer: int = 0  # octets that IP's length has too many

    def segment(self) -> bytes:
        """Returns the TCP segment with its checksum."""
        offset = 5 + len(self.tcp_options) // 4 if self.offset is None else self.offset
        header = struct.pack(
            ">HHIIBBHHH",
            self.source_port,
            self.destination_port,
            self.sequence,
            self.acknowledgment,
            offset << 4,
            self.flags,
            self.window,
            0,
            0,
        )
        octets = header + self.tcp_options + self.payload
        pseudo = self.source + self.destination + struct.pack(">II", len(octets), TCP)
        digest = checksum(pseudo + octets)
        if self.tcp_checksum is not None:
            digest = self.tcp_checksum(digest)
        return octets[:16] + struct.pack(">H", digest) + octets[18:]

    def frame(self) -> bytes:
        """Returns the Ethernet frame of the segment."""
        return self.around(TCP, self.segment())

    def around(self, protocol: int, payload: bytes) -> bytes:
        """Returns an Ethernet frame between the same ends with another payload."""
        if len(self.source) == 4:
            return self.ethernet(IPV4, self._ipv4(protocol, payload))
        return self.ethernet(IPV6, self._ipv6(protocol, payload))

    def ethernet(self, kind: int, packet: bytes) -> bytes:
        """Returns a frame around any packet."""
        tags = b"".join(struct.pack(">HH", *tag) for tag in self.tags)
        return self.addresses + tags + struct.pack(">H", kind) + packet + self.trailer

    def _ipv4(self, protocol: int, payload: bytes) -> bytes:
        size = 20 + len(self.ip_options)
        words = size // 4 if self.words is None else self.words
        first = (4 if self.version is None else self.version) << 4 | words
        total = size + len(payload) + self.longer
        header = struct.pack(">BBHHHBBH", first, 0, total, 7, self.more, 64, protocol, 0)
        header += self.source + self.destination + self.ip_options
        digest = checksum(header[: 4 * words])
        if self.ip_checksum is not None:
            digest = self.ip_checksum(digest)
        return header[:10] + struct.pack(">H", digest) + header[12:] + payload

    def _ipv6(self, protocol: int, payload: bytes) -> bytes:
        for number, rest in reversed(self.extensions):
            payload, protocol = bytes((protocol,)) + rest + payload, number
        first = (6 if self.version is None else self.version) << 28 | 0x12345
        header = struct.pack(">IHBB", first, max(0, len(payload) + self.longer), protocol, 64)
        return header + self.source + self.destination + payload


# --- a peer --------------------------------------------------------------------------------------


@dataclass
class Peer:
    """Sends FPDUs over a connection, and tracks which of them the receiver holds.

    The receiver expects ``next``; the last FPDU that began before it began at ``begun``.
    """

    rng: random.Random
    connection: Connection
    window: int
    breaks_at: int | None = None  # position; the next FPDU from there on is too long or too short
    over: int | None = None  # position where a too short FPDU ends: no later octet is taken
    stream: bytearray = field(default_factory=bytearray)
    ends: list[int] = field(default_factory=lambda: [0])
    next: int = 0
    begun: int = 0
    sent: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.mpa = MpaSender(markers=self.connection.markers)

    def add(self, ulpdu: int) -> None:
        """Appends an FPDU to the stream."""
        self.stream += self.mpa.send(self.rng.randbytes(ulpdu))
        self.ends.append(len(self.stream))

    def fill(self, upto: int) -> None:
        """Appends FPDUs until the stream has ``upto`` octets."""
        while len(self.stream) < upto:
            if self.breaks_at is not None and len(self.stream) >= self.breaks_at:
                self.breaks_at = None
                if self.rng.random() < 0.5:
                    self.add(self.rng.choice((0, 1, 2, 12, 13)))
                    self.over = len(self.stream)
                    continue
                more = self.rng.choice((1, 2, 4, 5, 8, 600, self.most))
                self.add(min(self.most, self.longest() + more))
                continue
            some = self.rng.choice((14, 15, 17, 22, 34, 64, 300, 1440, 1440, 3000, self.most))
            ulpdu = self.rng.choice((some, self.rng.randint(14, some)))
            surely = self.window - 4 * (self.window // 508) - 20
            self.add(ulpdu if ulpdu <= surely else min(ulpdu, self.longest()))

    @property
    def most(self) -> int:
        """Returns the octets of the longest ULPDU; the pointers of markers have only 16 bits."""
        return 64000 if self.connection.markers else 65535

    def longest(self) -> int:
        """Returns the length of the longest ULPDU whose FPDU would fit the window now."""
        return bisect_right(range(self.most + 1), self.window, key=self.length) - 1

    def length(self, ulpdu: int) -> int:
        """Returns the length that the next FPDU would have."""
        position, markers = len(self.stream), self.connection.markers
        return len(MpaSender(crc=False, markers=markers, position=position).send(bytes(ulpdu)))

    def cut(self) -> int:
        """Returns the length of the next segment."""
        rng = self.rng
        self.fill(self.next + 2 * MAXIMUM_SEGMENT)
        end = min(end for end in self.ends if end > self.next) - self.next
        length = rng.choice(
            (
                rng.randint(1, 8),
                rng.randint(1, 64),
                rng.randint(1, MAXIMUM_SEGMENT),
                MAXIMUM_SEGMENT,
                MAXIMUM_SEGMENT,
                end,
                end + rng.randint(-5, 5),
            )
        )
        return max(1, min(length, MAXIMUM_SEGMENT, self.room()))

    def room(self) -> int:
        """Returns the octets that the receiver has room for; less than 1 on a broken connection."""
        if self.over is not None and self.next >= self.over:
            return 0
        return self.window - (self.next - self.begun)

    def took(self, length: int) -> None:
        """Records that the receiver took a segment."""
        self.sent.append((self.next, length))
        self.next += length
        self.begun = max(end for end in self.ends if end <= self.next)

    def wire(self, position: int, length: int) -> Wire:
        """Returns a segment of the stream; all fields that do not matter are random."""
        rng, connection = self.rng, self.connection
        v4 = len(connection.source) == 4
        fill = rng.choice((0, 0, 0, 1, 7, 40))
        wire = Wire(
            connection.source,
            connection.destination,
            connection.source_port,
            connection.destination_port,
            (connection.sequence + position) % MODULO,
            bytes(self.stream[position : position + length]),
            acknowledgment=(connection.sent - rng.randint(0, connection.span)) % MODULO,
            window=rng.getrandbits(16),
            flags=Flag.ACK | rng.choice((0, Flag.PSH, Flag.PSH, Flag.ECE | Flag.CWR)),
            tcp_options=rng.randbytes(4 * rng.choice((0, 0, 0, 1, 3, 3, 7, 10))),
            ip_options=rng.randbytes(4 * rng.choice((0, 0, 0, 0, 1, 3, 10))) if v4 else b"",
            tags=tuple((kind, rng.getrandbits(16)) for kind in rng.choice(TAGS)),
            addresses=rng.randbytes(12),
            trailer=rng.randbytes(fill),
        )
        short = 60 - len(wire.frame())
        if short > 0:
            wire = replace(wire, trailer=rng.choice((bytes, rng.randbytes))(fill + short))
        return wire


# --- other frames --------------------------------------------------------------------------------


def _again(peer: Peer, wire: Wire) -> list[bytes]:
    """Returns segments that were sent before; at the beginning, the octet before the stream."""
    if not peer.sent:
        return [replace(wire, sequence=(wire.sequence - 1) % MODULO, payload=b"\0").frame()]
    start, length = peer.rng.choice(peer.sent[-4:])
    return [peer.wire(start, length).frame()]


def _overlapping(peer: Peer, wire: Wire) -> list[bytes]:
    """Returns segments from an octet that was taken to one that was not."""
    start = max(0, peer.next - peer.rng.choice((1, 2, 4, peer.rng.randint(1, 600))))
    if start == peer.next:
        return []
    return [peer.wire(start, peer.next - start + peer.rng.randint(1, 600)).frame()]


def _ahead(peer: Peer, wire: Wire) -> list[bytes]:
    """Returns segments after the next one, sent before it: adjacent, far ahead, or one octet."""
    length = len(wire.payload)
    far = peer.rng.choice((0x100, 0x10000, 0x1000000, 0x80000000, MODULO - 1))
    sequence = (wire.sequence + far) % MODULO
    return peer.rng.choice(
        (
            [peer.wire(peer.next + length, peer.rng.randint(1, 600)).frame()],
            [
                peer.wire(peer.next + length, 9).frame(),
                peer.wire(peer.next + length + 9, 700).frame(),
            ],
            [peer.wire(peer.next + 1, length).frame()],
            [replace(wire, sequence=sequence).frame()],
        )
    )


def _wrong_tcp_checksum(peer: Peer, wire: Wire) -> list[bytes]:
    bit = 1 << peer.rng.randrange(16)
    pseudo = wire.source + wire.destination + struct.pack(">II", len(wire.segment()), TCP)
    left = -checksum(pseudo) % 0xFFFF  # as by a sender that leaves the rest to its network card
    spoilt: tuple[Callable[[int], int], ...] = (
        lambda digest: digest ^ bit,
        lambda digest: digest ^ bit,
        lambda digest: (digest - left) % 0xFFFF,
        lambda digest: left,
        lambda digest: digest ^ 0x8000,
    )
    return [replace(wire, tcp_checksum=peer.rng.choice(spoilt)).frame()]


def _wrong_ip_checksum(peer: Peer, wire: Wire) -> list[bytes]:
    if len(wire.source) == 16:
        return []
    bit = 1 << peer.rng.randrange(16)
    return [replace(wire, ip_checksum=lambda digest: digest ^ bit).frame()]


def _flipped(peer: Peer, wire: Wire) -> list[bytes]:
    """Returns segments with a wrong bit anywhere, with a right checksum or without."""
    frame = bytearray(wire.frame())
    bit = peer.rng.randrange(8 * peer.rng.choice((len(frame), min(len(frame), 100))))
    frame[bit // 8] ^= 1 << bit % 8
    return [bytes(frame)]


def _acknowledgment(peer: Peer, wire: Wire) -> list[bytes]:
    return [replace(wire, payload=b"").frame()]


def _wrong_acknowledgment(peer: Peer, wire: Wire) -> list[bytes]:
    """Acknowledges octets not sent yet, or acknowledged long ago (RFC 5961 section 5.2)."""
    known = peer.connection
    beyond = peer.rng.randrange(1, MODULO - known.span)
    number = known.sent + peer.rng.choice((1, beyond, -known.span - 1))
    return [replace(wire, acknowledgment=number % MODULO).frame()]


def _wrong_flags(peer: Peer, wire: Wire) -> list[bytes]:
    flags = peer.rng.choice(
        (
            Flag.SYN,
            Flag.SYN | Flag.ACK,
            Flag.RST,
            Flag.RST | Flag.ACK,
            Flag.URG | Flag.ACK,
            Flag.FIN,
            Flag.PSH,
            Flag(0),
            Flag(peer.rng.getrandbits(8)) | Flag.URG,
        )
    )
    payload = peer.rng.choice((wire.payload, b"")) if flags & (Flag.SYN | Flag.RST) else None
    return [
        replace(wire, flags=flags, payload=wire.payload if payload is None else payload).frame()
    ]


def _bare_fin(peer: Peer, wire: Wire) -> list[bytes]:
    return [replace(wire, flags=Flag.FIN | Flag.ACK, payload=b"").frame()]


def _other_ends(peer: Peer, wire: Wire) -> list[bytes]:
    """Changes one bit of an address or a port, or exchanges the ends."""
    rng = peer.rng
    size = len(wire.source)
    bit = rng.randrange(8 * size)
    source, destination = (
        (int.from_bytes(address, "big") ^ 1 << bit).to_bytes(size, "big")
        for address in (wire.source, wire.destination)
    )
    return [
        rng.choice(
            (
                replace(wire, source=source),
                replace(wire, destination=destination),
                replace(wire, source_port=wire.source_port ^ 1 << rng.randrange(16)),
                replace(wire, destination_port=wire.destination_port ^ 1 << rng.randrange(16)),
                replace(
                    wire,
                    source=wire.destination,
                    destination=wire.source,
                    source_port=wire.destination_port,
                    destination_port=wire.source_port,
                ),
            )
        ).frame()
    ]


def _other_protocol(peer: Peer, wire: Wire) -> list[bytes]:
    """Returns UDP and SCTP between the same ends; TCP under another number; ARP; anything."""
    rng = peer.rng
    ports = struct.pack(">HH", wire.source_port, wire.destination_port)
    udp = ports + struct.pack(">HH", 8 + len(wire.payload), 0) + wire.payload
    sctp = ports + rng.randbytes(8 + 4 * rng.randrange(80))
    return [
        rng.choice(
            (
                lambda: wire.around(UDP, udp),
                lambda: wire.around(SCTP, sctp),
                lambda: wire.around(rng.choice((0, 5, 7, 22, 134)), wire.segment()),
                lambda: wire.ethernet(ARP, rng.randbytes(46)),
                lambda: wire.ethernet(rng.choice((IPV4, IPV6)), rng.randbytes(80)),
                lambda: wire.ethernet(rng.getrandbits(16), wire.frame()[14:]),
                lambda: replace(
                    wire, tags=tuple((VLAN, rng.getrandbits(16)) for _ in range(3))
                ).frame(),
            )
        )()
    ]


def _fragment(peer: Peer, wire: Wire) -> list[bytes]:
    more = peer.rng.choice((0x2000, 0x0001, 0x1000, 0x2000 | peer.rng.randrange(1, 0x2000)))
    if len(wire.source) == 4:
        return [replace(wire, more=more).frame()]
    header = struct.pack(">BHI", 0, peer.rng.choice((0, 1, 8, 0xFFF9)), 7)
    return [replace(wire, extensions=((FRAGMENT, header),)).frame()]


def _extension(peer: Peer, wire: Wire) -> list[bytes]:
    """Returns TCP after extension headers, or with IPv4 flags that mark no fragment."""
    if len(wire.source) == 4:
        return [replace(wire, more=peer.rng.choice((0x4000, 0x8000, 0xC000))).frame()]
    extensions = tuple(
        (peer.rng.choice((HOP_BY_HOP, ROUTING, DESTINATION)), bytes((units, *range(8 * units + 6))))
        for units in (peer.rng.choice(((0,), (1,), (0, 2))))
    )
    return [replace(wire, extensions=extensions).frame()]


def _truncated(peer: Peer, wire: Wire) -> list[bytes]:
    frame = wire.frame()
    return [frame[: peer.rng.randrange(1, peer.rng.choice((len(frame), min(len(frame), 100))))]]


def _short(peer: Peer, wire: Wire) -> list[bytes]:
    return [peer.rng.randbytes(peer.rng.randint(1, 60))]


def _malformed(peer: Peer, wire: Wire) -> list[bytes]:
    """Returns impossible lengths and versions; all checksums are right."""
    rng = peer.rng
    words = rng.choice((0, 4, 15, 5 + len(wire.ip_options) // 4 + 1))
    few = wire.payload[: rng.randint(0, 30)]
    beyond = 5 + len(few) // 4 + rng.randint(1, 3)
    segment = wire.segment()
    return [
        rng.choice(
            (
                lambda: replace(wire, offset=rng.randrange(5)).frame(),
                lambda: replace(wire, payload=few, tcp_options=b"", offset=beyond).frame(),
                lambda: replace(wire, longer=len(wire.trailer) + rng.choice((1, 2, 900))).frame(),
                lambda: replace(wire, longer=-len(segment) + rng.randrange(20)).frame(),
                lambda: replace(wire, longer=-len(segment) - rng.randint(1, 20)).frame(),
                lambda: replace(wire, longer=-1).frame(),
                lambda: replace(wire, version=rng.choice((0, 4, 5, 6, 15))).frame(),
                lambda: replace(wire, words=words).frame(),
                lambda: wire.around(TCP, segment[: rng.randrange(20)]),
            )
        )()
    ]


def _too_much(peer: Peer, wire: Wire) -> list[bytes]:
    """Returns segments that exceed the receiver's room by an octet or more."""
    length = peer.room() + peer.rng.choice((1, 1, 2, 50))
    if not 0 < length <= MAXIMUM_SEGMENT:
        return []
    peer.fill(peer.next + length)
    return [peer.wire(peer.next, length).frame()]


NOISE: tuple[Callable[[Peer, Wire], list[bytes]], ...] = (
    *(_again, _again, _overlapping, _ahead, _ahead),
    *(_wrong_tcp_checksum, _wrong_tcp_checksum, _wrong_ip_checksum, _flipped, _flipped),
    *(_acknowledgment, _wrong_acknowledgment, _wrong_flags, _wrong_flags, _bare_fin),
    *(_other_ends, _other_ends, _other_protocol, _other_protocol, _fragment, _extension),
    *(_truncated, _truncated, _short, _malformed, _malformed, _too_much, _too_much),
)
#: Changes that may leave a segment valid, such as a wrong bit in the padding; the segment follows.
HARMLESS = (_flipped, _extension, _truncated, _malformed)


# --- the scenario --------------------------------------------------------------------------------


def scenario(rng: random.Random, *, connections: int, window: int, segments: int) -> Scenario:
    """Draws connections and frames.

    Parameters
    ----------
    connections
        Number of connections, one for every index of a receiver.
    window
        Octets that the receiver can hold of a connection, at least 16.
    segments
        Number of segments that are next in order, unless their connection is broken. About as many
        other frames are mixed in.
    """
    table = _connections(rng, connections)
    broken = rng.randrange(connections) if window < 64000 and rng.random() < 0.5 else None
    reach = 700 * segments // connections  # about where the streams end
    peers = [Peer(rng, connection, window) for connection in table]
    if broken is not None:
        peers[broken].breaks_at = rng.randint(0, reach // 2)
    turns = _turns(rng, connections, segments)
    last = {index: turn for turn, index in enumerate(turns)}
    frames: list[tuple[bytes, bool]] = []
    for turn, index in enumerate(turns):
        peer = peers[index]
        length = peer.cut()
        wire = peer.wire(peer.next, length)
        if turn == last[index] and rng.random() < 0.7:
            wire = replace(wire, flags=wire.flags | Flag.FIN)
        while rng.random() < 0.5:
            if rng.random() < 0.07:
                frames.append((wire.frame(), True))
                continue
            noise = rng.choice(NOISE)
            frames += [(octets, False) for octets in noise(peer, wire)]
            if noise in HARMLESS:
                break
        frames.append((wire.frame(), False))
        peer.took(length)
    streams = [bytes(peer.stream[: peer.next]) for peer in peers]
    return Scenario(table, frames, streams, broken)


def _turns(rng: random.Random, connections: int, segments: int) -> list[int]:
    """Draws the order in which connections send: in turn, or several segments in a row."""
    turns: list[int] = []
    while len(turns) < segments:
        turns += [rng.randrange(connections)] * rng.choice((1, 1, 1, 2, 5))
    return turns[:segments]


def _connections(rng: random.Random, count: int) -> list[Connection]:
    """Draws connections, many of which differ from another one in a detail."""
    table: list[Connection] = []
    names: set[tuple[bytes, bytes, int, int]] = set()
    streams = rng.sample(range(count), count)
    # At most one wraps: a segment sent to a neighbour by mistake must not be in order there.
    wraps = rng.randrange(count + 1)
    while len(table) < count:
        size = rng.choice((4, 16))
        source, destination = rng.randbytes(size), rng.randbytes(size)
        ports = [rng.getrandbits(16), rng.getrandbits(16)]
        if table and rng.random() < 0.6:
            other = rng.choice(table)
            source, destination = other.source, other.destination
            ports = [other.source_port, other.destination_port]
            change = rng.randrange(5)
            if change < 2:
                ports[change] ^= 1 << rng.randrange(16)
            elif change == 2:
                source = bytes((source[0] ^ 1 << rng.randrange(8), *source[1:]))
            elif change == 3:
                destination = bytes((*destination[:-1], destination[-1] ^ 1 << rng.randrange(8)))
            else:  # of the other IP version, with the same first four octets
                source, destination = (
                    address + bytes(12) if len(address) == 4 else address[:4]
                    for address in (source, destination)
                )
        name = source, destination, ports[0], ports[1]
        if name in names:
            continue
        names.add(name)
        sequence = rng.getrandbits(32)
        if len(table) == wraps:
            sequence = (MODULO - rng.randint(0, 3000)) % MODULO
        table.append(
            Connection(
                source,
                destination,
                ports[0],
                ports[1],
                streams[len(table)],
                sequence,
                markers=rng.random() < 0.4,
                sent=rng.choice((0, 7, rng.getrandbits(32))),
                span=rng.choice((0, 1, 1 << 16, rng.getrandbits(31))),
            )
        )
    return table

"""Makes Ethernet frames for the tests, and reads them independently of the gateware."""

import random
import struct
from typing import NamedTuple

from ddp_rnic.hdl.sctp.frame import Kind

PORT = 9899
EXTENSIONS = (0, 43, 51, 60)
NO_PROTOCOL = 59  # RFC 8200 section 4.7, No Next Header


class Said(NamedTuple):
    """The expected result for a frame; if it is no SCTP packet, only its kind."""

    kind: Kind
    start: int = 0  # of the SCTP packet, in octets from the frame's first
    octets: int = 0
    v6: bool = False
    source: bytes = b""
    destination: bytes = b""
    source_port: int = 0
    destination_port: int = 0
    tag: int = 0
    udp: bool = False


def say(frame, *, damaged=False, port=PORT):
    """Reads a frame by the standards, independently of the gateware."""
    if damaged:
        return Said(Kind.DAMAGED)
    at, tags = 12, 0
    padded = frame + bytes(64)
    while True:
        ethertype = int.from_bytes(padded[at : at + 2], "big")
        at += 2
        if ethertype not in (0x8100, 0x88A8) or tags == 2:
            break
        at, tags = at + 2, tags + 1
    if ethertype == 0x0800:
        return _ipv4(frame, at, port)
    if ethertype == 0x86DD:
        return _ipv6(frame, at, port)
    return Said(Kind.OTHER)


def _ipv4(frame, at, port):
    header = frame[at : at + 20]
    if len(header) < 20 or header[0] >> 4 != 4:
        return Said(Kind.MALFORMED)
    size = 4 * (header[0] & 15)
    total, _, piece, _, protocol = struct.unpack_from(">HHHBB", header, 2)
    if not 20 <= size <= total <= len(frame) - at:
        return Said(Kind.MALFORMED)
    if internet_sum(frame[at : at + size]) != 0xFFFF:
        return Said(Kind.MALFORMED)
    if piece & 0x3FFF:
        return Said(Kind.FRAGMENT)
    names = {"source": header[12:16], "destination": header[16:20]}
    return _transport(frame, at + size, at + total, protocol, port, names)


def _ipv6(frame, at, port):
    header = frame[at : at + 40]
    if len(header) < 40 or header[0] >> 4 != 6:
        return Said(Kind.MALFORMED)
    length, protocol = struct.unpack_from(">HB", header, 4)
    names = {"v6": True, "source": header[8:24], "destination": header[24:]}
    at += 40
    end = at + length
    if end > len(frame):
        return Said(Kind.MALFORMED)
    for _ in range(4):
        if protocol not in EXTENSIONS:
            break
        if end - at < 8:
            return Said(Kind.MALFORMED)
        size = 4 * (frame[at + 1] + 2) if protocol == 51 else 8 * (frame[at + 1] + 1)
        underway = protocol == 43 and frame[at + 3]  # RFC 8200 section 4.4, Segments Left
        protocol, at = NO_PROTOCOL if underway else frame[at], at + size
    if at > end:
        return Said(Kind.MALFORMED)
    if protocol == 44:
        return Said(Kind.FRAGMENT)
    return _transport(frame, at, end, protocol, port, names)


def _transport(frame, at, end, protocol, port, names):
    udp = protocol == 17
    if udp:
        if end - at < 8:
            return Said(Kind.MALFORMED)
        to, length = struct.unpack_from(">HH", frame, at + 2)
        if to != port:
            return Said(Kind.OTHER)
        if length > end - at:
            return Said(Kind.MALFORMED)
        at, end = at + 8, at + length
    elif protocol != 132:
        return Said(Kind.OTHER)
    if end - at < 12:
        return Said(Kind.MALFORMED)
    source_port, destination_port, tag = struct.unpack_from(">HHI", frame, at)
    return Said(
        Kind.SCTP,
        start=at,
        octets=end - at,
        source_port=source_port,
        destination_port=destination_port,
        tag=tag,
        udp=udp,
        **names,
    )


def internet_sum(octets):
    """Returns the sum of RFC 1071, without the inversion."""
    total = sum(struct.unpack(f">{len(octets) // 2}H", octets))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def sctp(rng, length=40):
    """Returns an SCTP packet of this length; the parser ignores octets after the tag."""
    return rng.randbytes(length)


def udp(payload, *, to=PORT, length=None):
    length = len(payload) + 8 if length is None else length
    return struct.pack(">HHHH", 1234, to, length, 0) + payload


def ethernet(rng, ethertype, payload, tags=()):
    frame = rng.randbytes(12)
    for tag in tags:
        frame += struct.pack(">HH", tag, rng.getrandbits(16))
    return frame + struct.pack(">H", ethertype) + payload


def ipv4(rng, protocol, payload, *, words=5, piece=0, total=None, version=4):
    size = 4 * words
    total = size + len(payload) if total is None else total
    header = bytearray(rng.randbytes(max(size, 20)))
    first = version << 4 | words
    struct.pack_into(">BBHHHBBH", header, 0, first, 0, total, 7, piece, 64, protocol, 0)
    struct.pack_into(">H", header, 10, 0xFFFF - internet_sum(bytes(header[:size])))
    return bytes(header) + payload


def ipv6(rng, protocol, payload, *, extensions=(), left=0, length=None, version=6):
    """Returns an IPv6 packet; ``extensions`` are (protocol, its length field).

    ``left`` is the Segments Left of routing headers.
    """
    chain = b""
    following = [*(kind for kind, _ in extensions), protocol][1:]
    for (kind, count), after in zip(extensions, following, strict=True):
        size = 4 * (count + 2) if kind == 51 else 8 * (count + 1)
        content = bytearray(rng.randbytes(size - 2))
        if kind == 43:
            content[1] = left
        chain += bytes((after, count)) + content
    payload = chain + payload
    head = extensions[0][0] if extensions else protocol
    length = len(payload) if length is None else length
    return struct.pack(">IHBB", version << 28, length, head, 64) + rng.randbytes(32) + payload


def draw(rng):
    """Returns a random frame of any kind, some of them malformed."""
    tags = rng.choice(((), (), (0x8100,), (0x88A8, 0x8100), (0x8100, 0x8100), (0x8100,) * 3))
    payload = sctp(rng, rng.choice((0, 3, 11, 12, 13, 16, 27, 28, 40, rng.randrange(300))))
    protocol = rng.choice((132, 132, 132, 6, 59, 51, 0))
    if rng.random() < 0.4:
        length = len(payload) + 8 + rng.choice((0, 0, 0, 1, -1, -8, -len(payload)))
        payload = udp(payload, to=rng.choice((PORT,) * 4 + (53,)), length=length)
        protocol = 17
    wrong = rng.choice((None, None, None, -1, 1, 20, -30))
    if rng.random() < 0.5:
        words = rng.choice((5, 5, 6, 7, 10, 15, rng.randrange(16)))
        piece = rng.choice((0, 0, 0x4000, 0x8000, 0, 0x2000, 1, 0x1FFF))
        total = None if wrong is None else max(0, 4 * words + len(payload) + wrong)
        packet = ipv4(rng, protocol, payload, words=words, piece=piece, total=total)
        ethertype = 0x0800
    else:
        count = rng.choice((0, 0, 1, 2, 3, 4, 4, 5))
        extensions = [
            (rng.choice(EXTENSIONS + (44,) * (rng.random() < 0.1)), rng.choice((0, 1, 2, 5)))
            for _ in range(count)
        ]
        extensions = [(kind, 0 if kind == 44 else size) for kind, size in extensions]
        left = rng.choice((0, 0, 0, 1, 128))
        packet = ipv6(rng, protocol, payload, extensions=extensions, left=left)
        if wrong is not None:
            length = max(0, len(packet) - 40 + wrong)
            packet = packet[:4] + struct.pack(">H", length) + packet[6:]
        ethertype = 0x86DD
    frame = ethernet(rng, rng.choice((ethertype,) * 9 + (0x0806,)), packet, tags)
    spoilt = rng.randrange(8)
    if spoilt == 0:
        frame = frame[: rng.randrange(1, len(frame) + 1)]
    elif spoilt == 1:
        at = rng.randrange(12, min(len(frame), 90))
        frame = frame[:at] + bytes((frame[at] ^ 1 << rng.randrange(8),)) + frame[at + 1 :]
    elif spoilt in (2, 3):
        frame += rng.randbytes(rng.randrange(40))
    return frame


def seeded(*what):
    """Returns random numbers that are the same in each run."""
    return random.Random(repr(what))

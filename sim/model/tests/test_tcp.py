"""RFC 9293 segments in order, and their FPDUs, checked by Scapy, captures and MPA's sender."""

from __future__ import annotations

import ipaddress
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import dpkt
import pytest
from ddp_rnic.hdl.lib.tests.long import first
from ddp_rnic.hdl.tcp.tests.frames import scenario
from ddp_rnic.sim.capture.capture import Direction, read_capture
from ddp_rnic.sim.capture.pcap import read_frames
from ddp_rnic.sim.model.mpa import Fpdu, MpaReceiver, MpaSender, StartupFrame
from ddp_rnic.sim.model.tcp import (
    Connection,
    Diverted,
    Dropped,
    FpduReceived,
    TcpEvent,
    TcpReceiver,
)
from scapy.layers.inet import ICMP, IP, TCP, UDP, IPOption_Router_Alert, IPOption_Timestamp
from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrFragment, IPv6ExtHdrHopByHop
from scapy.layers.l2 import ARP, Dot1AD, Dot1Q, Ether
from scapy.layers.sctp import SCTP
from scapy.packet import Packet, Raw
from scapy.utils import checksum

WINDOW = 4096
STREAM = 5
V4 = Connection(
    ipaddress.ip_address("10.7.0.1").packed,
    ipaddress.ip_address("10.7.0.2").packed,
    40000,
    7174,
    STREAM,
    0xFFFFFE00,
)
V6 = replace(
    V4,
    source=ipaddress.ip_address("fd00::1").packed,
    destination=ipaddress.ip_address("fd00::2").packed,
)
both_versions = pytest.mark.parametrize("connection", [V4, V6], ids=["v4", "v6"])


def below(connection: Connection, tags: tuple[Packet, ...] = (), **ip: Any) -> Packet:
    """Returns the layers below TCP."""
    packet = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
    for tag in tags:
        packet /= tag
    source, destination = (
        str(ipaddress.ip_address(end)) for end in (connection.source, connection.destination)
    )
    kind = IP if len(connection.source) == 4 else IPv6
    return packet / kind(src=source, dst=destination, **ip)


def segment(connection: Connection, position: int, payload: bytes, **tcp: Any) -> Packet:
    fields = {
        "sport": connection.source_port,
        "dport": connection.destination_port,
        "seq": (connection.sequence + position) % (1 << 32),
        "flags": "A",
    }
    return TCP(**{**fields, **tcp}) / Raw(payload)


def frame(connection: Connection, position: int, payload: bytes, **tcp: Any) -> bytes:
    return bytes(below(connection) / segment(connection, position, payload, **tcp))


def receiver_of(*connections: Connection, window: int = WINDOW) -> TcpReceiver:
    receiver = TcpReceiver(len(connections), window)
    for index, connection in enumerate(connections):
        receiver.connect(index, connection)
    return receiver


def fpdus(*ulpdus: int, markers: bool = False) -> list[FpduReceived]:
    """Returns FPDUs whose ULPDUs have these numbers of octets, from position 0 on."""
    sender = MpaSender(markers=markers)
    out = []
    for number, octets in enumerate(ulpdus):
        position = sender.position
        out.append(FpduReceived(STREAM, position, sender.send(bytes([number + 1]) * octets)))
    return out


def joined(events: list[FpduReceived]) -> bytes:
    return b"".join(event.octets for event in events)


def refused(receiver: TcpReceiver, octets: bytes) -> None:
    """Checks that the frame is forwarded to the host and changes nothing in the receiver."""
    before = receiver.next(0), receiver.peer(0), receiver.broken(0)
    assert receiver.receive(octets) == [Diverted(octets)]
    assert (receiver.next(0), receiver.peer(0), receiver.broken(0)) == before


# --- frames that are accepted --------------------------------------------------------------------


def test_a_frame_of_linux() -> None:
    """Frame 8 of the capture siw_crc_1500/small has TCP options, and one FPDU of 24 octets."""
    octets = bytes.fromhex(
        "02000a070002 02000a070001 0800"
        "4500004c203e40004006065e 0a070001 0a070002"
        "b6d2 4856 47548280 39471464 8018 01f6 845b 0000 0101080a9ca0a4247edd280f"
        "000fc140fbdb4b000000123450000000830000004010b06f"
    )
    source, destination = bytes((10, 7, 0, 1)), bytes((10, 7, 0, 2))
    receiver = TcpReceiver(3, WINDOW)
    known = Connection(source, destination, 46802, 18518, STREAM, 0x47548280, sent=0x39471464)
    receiver.connect(1, known)
    assert receiver.peer(1) == (0, 0)
    assert receiver.receive(octets) == [FpduReceived(STREAM, 0, octets[-24:])]
    assert receiver.next(1) == 24
    assert receiver.peer(1) == (0x39471464, 0x01F6)


@both_versions
@pytest.mark.parametrize("markers", [False, True], ids=["plain", "markers"])
@pytest.mark.parametrize("seed", first(range(4)))
def test_a_stream_survives_any_cutting(connection: Connection, markers: bool, seed: int) -> None:
    """Every FPDU is returned with the segment that brings its last octet."""
    rng = random.Random(repr((connection, markers, seed)))
    v4 = len(connection.source) == 4
    sent = fpdus(
        *(rng.choice((14, 15, rng.randint(14, 40), rng.randint(14, 2000))) for _ in range(60)),
        *(496, 497, 498, 499, 500, 501, 502, 503, 504, 1000, 508, 14, 14),
        markers=markers,
    )
    octets = joined(sent)
    receiver = receiver_of(replace(connection, markers=markers))
    left = list(sent)
    at = 0
    while at < len(octets):
        piece = octets[at : at + rng.choice((1, 2, 4, rng.randint(1, 99), rng.randint(1, 1460)))]
        options = [("NOP", None), ("Timestamp", (rng.getrandbits(32), at))]
        alert = rng.choice(([], [IPOption_Router_Alert()], [IPOption_Timestamp()]))
        tags = rng.choice(((), (Dot1Q(vlan=7),), (Dot1AD(vlan=8), Dot1Q(vlan=9))))
        ip = {"options": alert, "flags": "DF"} if v4 else {"fl": rng.getrandbits(20)}
        flags = rng.choice(("A", "PA", "PAEC"))
        tcp = segment(connection, at, piece, flags=flags, options=rng.choice(([], options)))
        packet = bytes(below(connection, tags, **ip) / tcp)
        at += len(piece)
        whole = [event for event in left if event.position + len(event.octets) <= at]
        del left[: len(whole)]
        assert receiver.receive(packet.ljust(60 + rng.randrange(9), b"\x55")) == whole
        assert receiver.next(0) == at
    assert not left
    assert not receiver.broken(0)


@pytest.mark.parametrize(
    "tags",
    [
        (),
        (Dot1Q(vlan=5),),
        (Dot1AD(vlan=5),),
        (Dot1AD(vlan=5), Dot1Q(vlan=6)),
        (Dot1Q(vlan=5), Dot1AD(vlan=6)),
    ],
    ids=len,
)
@both_versions
def test_two_vlan_tags_are_gone_past(connection: Connection, tags: tuple[Packet, ...]) -> None:
    (fpdu,) = fpdus(30)
    tagged = bytes(below(connection, tags) / segment(connection, 0, fpdu.octets))
    assert receiver_of(connection).receive(tagged) == [fpdu]


def test_padding_is_no_payload() -> None:
    first, second = fpdus(14, 14)
    receiver = receiver_of(V4)
    padded = frame(V4, 0, first.octets[:3]) + second.octets + bytes(3)
    assert receiver.receive(padded) == []
    assert receiver.next(0) == 3
    assert receiver.receive(frame(V4, 3, first.octets[3:] + second.octets)) == [first, second]


def test_the_sequence_number_wraps() -> None:
    (fpdu,) = fpdus(1000)
    receiver = receiver_of(V4)
    assert receiver.receive(frame(V4, 0, fpdu.octets[:0x200])) == []
    rest = frame(V4, 0x200, fpdu.octets[0x200:])
    assert TCP(rest[34:]).seq == 0
    assert receiver.receive(rest) == [fpdu]


def test_the_last_segment_taken_says_what_the_peer_acknowledges() -> None:
    first, second = fpdus(18, 18)
    receiver = receiver_of(replace(V4, sent=11))
    for position, octets, ack, window in ((0, first.octets, 7, 500), (24, second.octets, 9, 0)):
        receiver.receive(frame(V4, position, octets, ack=ack, window=window))
        assert receiver.peer(0) == (ack, window)
    receiver.receive(frame(V4, 48, b"", ack=11, window=1))
    receiver.receive(frame(V4, 0, first.octets, ack=11, window=1))
    assert receiver.peer(0) == (9, 0)


def test_the_host_gets_a_fin_after_what_it_ends() -> None:
    first, second = fpdus(18, 18)
    octets = frame(V4, 0, first.octets + second.octets[:5], flags="FA")
    receiver = receiver_of(V4)
    assert receiver.receive(octets) == [first, Diverted(octets)]
    assert receiver.next(0) == 29
    assert receiver.receive(octets) == [Diverted(octets)], "repeated"


# --- the table of connections --------------------------------------------------------------------


def test_each_connection_has_its_own_stream() -> None:
    table = [
        V4,
        replace(V4, source_port=40001),
        replace(V4, destination_port=7175),
        replace(V4, source=V4.destination),
        replace(V4, destination=V4.source),
        replace(V6, source=V4.source + bytes(12), destination=V4.destination + bytes(12)),
    ]
    table = [replace(known, stream=number) for number, known in enumerate(table)]
    receiver = receiver_of(*table)
    (fpdu,) = fpdus(20)
    for number, known in enumerate(table):
        assert receiver.receive(frame(known, 0, fpdu.octets[:9])) == []
        assert [receiver.next(index) for index in range(6)] == [9] * (number + 1) + [0] * (
            5 - number
        )
    for number, known in enumerate(table):
        expected = [replace(fpdu, stream=number)]
        assert receiver.receive(frame(known, 9, fpdu.octets[9:])) == expected


def test_of_equal_connections_the_first_is_meant() -> None:
    (fpdu,) = fpdus(20)
    receiver = receiver_of(V6, V4, replace(V4, stream=9))
    assert receiver.receive(frame(V4, 0, fpdu.octets)) == [fpdu]
    receiver.connect(1, None)
    assert receiver.receive(frame(V4, 0, fpdu.octets)) == [replace(fpdu, stream=9)]
    receiver.connect(2, None)
    octets = frame(V4, 0, fpdu.octets)
    assert receiver.receive(octets) == [Diverted(octets)]


def test_a_connection_begins_anew() -> None:
    (fpdu,) = fpdus(20)
    receiver = receiver_of(replace(V4, sent=4))
    receiver.receive(frame(V4, 0, fpdu.octets + b"\xff\xff\0\0", ack=4))
    assert (receiver.next(0), receiver.peer(0), receiver.broken(0)) == (32, (4, 8192), True)
    receiver.connect(0, V4)
    assert (receiver.next(0), receiver.peer(0), receiver.broken(0)) == (0, (0, 0), False)
    receiver.receive(frame(V4, 0, fpdu.octets[:7]))
    receiver.connect(0, V4)
    assert receiver.receive(frame(V4, 0, fpdu.octets)) == [fpdu]


# --- segments out of order -----------------------------------------------------------------------


@both_versions
def test_what_is_not_next_goes_to_the_host(connection: Connection) -> None:
    sent = fpdus(300, 300, 300)
    octets = joined(sent)
    receiver = receiver_of(connection)
    assert receiver.receive(frame(connection, 0, octets[:400])) == sent[:1]
    for start, end in (
        *((0, 400), (399, 400), (0, 1)),  # repeated
        *((399, 500), (0, 924)),  # overlapping
        *((401, 500), (500, 924)),  # skipped
    ):
        refused(receiver, frame(connection, start, octets[start:end]))
    for far in (1 << 31, 1 << 16, 1 << 24, 1 << 8):
        refused(receiver, frame(connection, 400 + far, octets[400:]))
    assert receiver.receive(frame(connection, 400, octets[400:])) == sent[1:]


# --- damaged frames ------------------------------------------------------------------------------


def test_a_damaged_frame_is_dropped_unread() -> None:
    (fpdu,) = fpdus(20)
    receiver = receiver_of(V4)
    octets = frame(V4, 0, fpdu.octets)
    for damaged in (octets, octets[:20], bytes(60)):
        assert receiver.receive(damaged, damaged=True) == [Dropped()]
    assert receiver.next(0) == 0
    assert receiver.receive(octets) == [fpdu]


@both_versions
def test_any_flipped_bit_is_seen(connection: Connection) -> None:
    """IPv4's checksum covers the IP header, TCP's the rest. In IPv6 some fields have no
    checksum.
    """
    (fpdu,) = fpdus(21)
    octets = frame(connection, 0, fpdu.octets)
    v4 = len(connection.source) == 4
    tcp = 34 if v4 else 54
    for bit in range(8 * len(octets)):
        flipped = bytearray(octets)
        flipped[bit // 8] ^= 0x80 >> bit % 8
        at = bit // 8
        expected: list[TcpEvent]
        if at < 12:
            expected = [fpdu]  # Ethernet's addresses
        elif not v4 and (18 * 8 - 28 <= bit < 18 * 8 or at == 21):
            expected = [fpdu]  # Traffic Class, Flow Label, Hop Limit
        elif not v4 and at in (18, 19):
            length = int.from_bytes(flipped[18:20], "big")
            expected = [Dropped() if 20 <= length < len(octets) - 54 else Diverted(bytes(flipped))]
        else:
            expected = [Diverted(bytes(flipped)) if at < tcp + 4 else Dropped()]
        assert receiver_of(connection).receive(bytes(flipped)) == expected, f"octet {at}"


@both_versions
@pytest.mark.parametrize("fields", [{"dataofs": 4}, {"flags": "S"}, {"seq": 5}])
def test_a_wrong_checksum_comes_before_what_else_is_wrong(
    connection: Connection, fields: dict[str, Any]
) -> None:
    octets = frame(connection, 0, b"abc", chksum=0x1234, **fields)
    assert receiver_of(connection).receive(octets) == [Dropped()]
    other = replace(connection, source_port=1)
    assert receiver_of(other).receive(octets) == [Diverted(octets)], "no connection's"


@both_versions
def test_a_frame_that_ends_too_early_goes_to_the_host(connection: Connection) -> None:
    (fpdu,) = fpdus(20)
    octets = bytes(below(connection, (Dot1Q(),)) / segment(connection, 0, fpdu.octets))
    receiver = receiver_of(connection)
    for end in range(len(octets)):
        refused(receiver, octets[:end])
    assert receiver.receive(octets) == [fpdu]


# --- other frames for the host -------------------------------------------------------------------


PAYLOAD = fpdus(20)[0].octets


def without_a_fifth_word() -> bytes:
    """Returns an IPv4 frame with IHL 4, in which TCP's ports are also the destination address."""
    connection = replace(V4, source_port=0x0A07, destination_port=0x0002)
    tcp = bytes(below(connection) / segment(connection, 0, PAYLOAD))[34:]
    header = bytes(IP(src="10.7.0.1", ihl=4, len=16 + len(tcp), proto=6, chksum=0))[:16]
    # Scapy counted the four octets of the address as payload, too.
    digest = checksum(tcp_pseudo(connection, len(tcp)) + tcp[:16] + bytes(2) + tcp[18:])
    tcp = tcp[:16] + digest.to_bytes(2, "big") + tcp[18:]
    header = header[:10] + checksum(header).to_bytes(2, "big") + header[12:]
    return frame(V4, 0, b"")[:14] + header + tcp


def tcp_pseudo(connection: Connection, length: int) -> bytes:
    return connection.source + connection.destination + bytes((0, 6)) + length.to_bytes(2, "big")


def of_ip(**ip: Any) -> Callable[[Connection], bytes]:
    return lambda known: bytes(below(known, **ip) / segment(known, 0, PAYLOAD))


def of_tcp(**tcp: Any) -> Callable[[Connection], bytes]:
    return lambda known: frame(known, 0, PAYLOAD, **tcp)


def behind(*extensions: Packet) -> Callable[[Connection], bytes]:
    def build(known: Connection) -> bytes:
        packet = below(known)
        for extension in extensions:
            packet /= extension
        return bytes(packet / segment(known, 0, PAYLOAD))

    return build


def around(*layers: Packet) -> Callable[[Connection], bytes]:
    def build(known: Connection) -> bytes:
        packet = below(known)
        for layer in layers:
            packet /= layer
        return bytes(packet).ljust(60, b"\0")

    return build


def too_short(known: Connection) -> bytes:
    """Returns a frame with 19 octets of TCP, followed by padding."""
    tcp = bytes(segment(known, 0, PAYLOAD))
    if len(known.source) == 4:
        return bytes(below(known, len=39, proto=6) / Raw(tcp))
    return bytes(below(known, plen=19, nh=6) / Raw(tcp))


EITHER: dict[str, Callable[[Connection], bytes]] = {
    "three VLAN tags": lambda known: bytes(
        below(known, (Dot1Q(), Dot1Q(), Dot1Q())) / segment(known, 0, PAYLOAD)
    ),
    "another tag": lambda known: bytes(
        below(known, (Dot1Q(type=0x9100), Dot1Q())) / segment(known, 0, PAYLOAD)
    ),
    "ARP": lambda known: bytes(Ether(dst="02:00:00:00:00:02") / ARP()).ljust(60, b"\0"),
    "IP under another EtherType": lambda known: (
        of_tcp()(known)[:12] + b"\x08\x01" + of_tcp()(known)[14:]
    ),
    "the other version's EtherType": lambda known: (
        of_tcp()(known)[:12]
        + (b"\x86\xdd" if len(known.source) == 4 else b"\x08\x00")
        + of_tcp()(known)[14:]
    ),
    "another version": of_ip(version=5),
    "UDP": around(UDP(sport=40000, dport=7174), Raw(PAYLOAD)),
    "SCTP": around(SCTP(sport=40000, dport=7174), Raw(PAYLOAD)),
    "no 20 octets of TCP": too_short,
    "the peer's port": of_tcp(sport=40001),
    "our port": of_tcp(dport=7175),
    "ports exchanged": of_tcp(sport=7174, dport=40000),
    "the peer's address": lambda known: frame(replace(known, source=known.destination), 0, PAYLOAD),
    "our address": lambda known: frame(replace(known, destination=known.source), 0, PAYLOAD),
    "Data Offset 4": of_tcp(dataofs=4),
    "Data Offset 0": of_tcp(dataofs=0),
    "Data Offset beyond the end": of_tcp(dataofs=14),
    "Data Offset at the end": of_tcp(dataofs=13),
    "no payload": lambda known: frame(known, 0, b""),
    "no ACK": of_tcp(flags=""),
    "only PSH": of_tcp(flags="P"),
    "SYN": of_tcp(flags="SA"),
    "RST": of_tcp(flags="RA"),
    "URG": of_tcp(flags="UA"),
    "FIN alone": lambda known: frame(known, 0, b"", flags="FA"),
}
ONLY_V4: dict[str, Callable[[Connection], bytes]] = {
    "the first fragment": of_ip(flags="MF"),
    "a later fragment": of_ip(frag=1),
    "a last fragment far behind": of_ip(frag=0x1000),
    "another protocol": of_ip(proto=22),
    "ICMP": around(ICMP(), Raw(PAYLOAD)),
    "the header's checksum": of_ip(chksum=0x1234),
    "a Total Length beyond the frame": of_ip(len=41 + len(PAYLOAD)),
    "a Total Length inside the header": of_ip(len=19),
    "IHL 4": lambda known: without_a_fifth_word(),
    "IHL beyond the packet": of_ip(ihl=15, len=58),
}
ONLY_V6: dict[str, Callable[[Connection], bytes]] = {
    "Hop-by-Hop Options": behind(IPv6ExtHdrHopByHop()),
    "Destination Options": behind(IPv6ExtHdrDestOpt()),
    "a fragment": behind(IPv6ExtHdrFragment(m=1)),
    "an atomic fragment": behind(IPv6ExtHdrFragment()),
    "another Next Header": of_ip(nh=22),
    "a Payload Length beyond the frame": of_ip(plen=21 + len(PAYLOAD)),
    "a Payload Length of 0": of_ip(plen=0),
}


@pytest.mark.parametrize(
    ("connection", "build"),
    [
        pytest.param(connection, build, id=f"{name}, {version}")
        for version, connection, only in (("v4", V4, ONLY_V4), ("v6", V6, ONLY_V6))
        for name, build in (EITHER | only).items()
    ],
)
def test_what_belongs_to_the_host_goes_there(
    connection: Connection, build: Callable[[Connection], bytes]
) -> None:
    # The connection of :func:`without_a_fifth_word` as well.
    receiver = receiver_of(connection, replace(V4, source_port=0x0A07, destination_port=2))
    refused(receiver, build(connection))
    assert receiver.next(1) == 0
    assert receiver.receive(frame(connection, 0, PAYLOAD)) == [FpduReceived(STREAM, 0, PAYLOAD)]


# --- the window ----------------------------------------------------------------------------------


def test_what_does_not_fit_goes_to_the_host() -> None:
    """Only the octets that are held count, not those that leave with the same segment."""
    sent = fpdus(86, 186)
    octets = joined(sent)
    receiver = receiver_of(V4, window=196)
    refused(receiver, frame(V4, 0, octets[:197]))
    assert receiver.receive(frame(V4, 0, octets[:196])) == sent[:1]
    refused(receiver, frame(V4, 196, octets[196:] + bytes(8)))
    refused(receiver, frame(V4, 196, octets[196:292] + bytes(5)))
    assert receiver.receive(frame(V4, 196, octets[196:292])) == sent[1:]


@pytest.mark.parametrize("markers", [False, True], ids=["plain", "markers"])
@pytest.mark.parametrize(
    ("ulpdu", "lengths"),
    [
        (402, (408, 408)),
        (438, (444, 444)),  # to the marker at 512
        (439, (448, 452)),
        (946, (952, 956)),  # to the marker at 1024
        (947, (956, 964)),
    ],
)
def test_an_fpdu_longer_than_the_window_breaks_the_connection(
    markers: bool, ulpdu: int, lengths: tuple[int, int]
) -> None:
    connection = replace(V4, markers=markers)
    before, fpdu = fpdus(58, ulpdu, markers=markers)
    first, length = len(before.octets), lengths[markers]
    assert (first, len(fpdu.octets)) == (64 + 4 * markers, length)
    for window, broken in ((length - 1, True), (length, False)):
        receiver = receiver_of(connection, window=window)
        assert receiver.receive(frame(V4, 0, before.octets + fpdu.octets[:3])) == [before]
        assert not receiver.broken(0), "the word with the length is not whole"
        assert receiver.receive(frame(V4, first + 3, fpdu.octets[3:4])) == []
        assert receiver.broken(0) == broken
        assert receiver.next(0) == first + 4, "the octets that tell were taken"
        rest = frame(V4, first + 4, fpdu.octets[4:])
        if broken:
            refused(receiver, rest)
            refused(receiver, frame(V4, first + 4, b"\0"))
        else:
            assert receiver.receive(rest) == [fpdu]


def test_after_a_marker_the_length_is_known_with_the_word_after_it() -> None:
    (fpdu,) = fpdus(1000, markers=True)
    receiver = receiver_of(replace(V4, markers=True), window=900)
    receiver.receive(frame(V4, 0, fpdu.octets[:7]))
    assert not receiver.broken(0)
    last = frame(V4, 7, fpdu.octets[7:200], flags="FA")
    assert receiver.receive(last) == [Diverted(last)]
    assert receiver.broken(0)
    assert receiver.next(0) == 200


@pytest.mark.parametrize("markers", [False, True], ids=["plain", "markers"])
@pytest.mark.parametrize("ulpdu", [0, 2, 13])
def test_an_fpdu_too_short_for_a_ddp_header_breaks_the_connection_once_it_has_left(
    ulpdu: int, markers: bool
) -> None:
    """RFC 5041 section 7.1, of the errors that DDP finds in a segment: "DDP MUST silently drop any
    subsequent incoming DDP Segments."
    """
    connection = replace(V4, markers=markers)
    before, short, after = fpdus(14, ulpdu, 14, markers=markers)
    octets = before.octets + short.octets
    receiver = receiver_of(connection)
    assert receiver.receive(frame(V4, 0, octets + after.octets)) == [before, short]
    assert receiver.broken(0)
    refused(receiver, frame(V4, len(octets + after.octets), after.octets))


@pytest.mark.parametrize(
    ("ack", "taken"),
    [(1000, True), (1001, False), (900, True), (899, False), (1000 + (1 << 31), False)],
)
def test_the_acknowledgment_number_is_checked(ack: int, taken: bool) -> None:
    """RFC 5961 section 5.2: "The ACK value is considered acceptable only if it is in the range of
    ((SND.UNA - MAX.SND.WND) <= SEG.ACK <= SND.NXT). All incoming segments whose ACK value doesn't
    satisfy the above condition MUST be discarded and an ACK sent back." The host sends that ACK.
    """
    (fpdu,) = fpdus(20)
    receiver = receiver_of(replace(V4, sent=1000, span=100))
    octets = frame(V4, 0, fpdu.octets, ack=ack)
    if taken:
        assert receiver.receive(octets) == [fpdu]
    else:
        refused(receiver, octets)
        receiver.set_sent(0, ack)
        assert receiver.receive(octets) == [fpdu]


@pytest.mark.parametrize("short", [0, 4, 8])
def test_a_marker_between_two_fpdus_belongs_to_the_second(short: int) -> None:
    first, second = fpdus(512 - 4 - 6 - short, 15, markers=True)
    assert (len(first.octets), len(second.octets)) == (512 - short, 24 + 4)
    receiver = receiver_of(replace(V4, markers=True))
    octets = first.octets + second.octets
    assert receiver.receive(frame(V4, 0, octets[: 512 - short])) == [first]
    assert receiver.receive(frame(V4, 512 - short, octets[512 - short : -1])) == []
    assert receiver.receive(frame(V4, len(octets) - 1, octets[-1:])) == [second]


# --- captures ------------------------------------------------------------------------------------

#: The markers of this capture are not where RFC 5044 requires them.
NOT_CONFORMANT = {"read_write_long_run_mrkr"}


def sent_by(direction: Direction, octets: bytes) -> dpkt.tcp.TCP | None:
    """Returns the TCP segment in a frame if the frame is of this direction, or None."""
    ip = dpkt.ethernet.Ethernet(octets).data
    if not isinstance(ip, dpkt.ip.IP | dpkt.ip6.IP6) or not isinstance(ip.data, dpkt.tcp.TCP):
        return None
    ends = (str(ipaddress.ip_address(ip.src)), ip.data.sport) + (
        str(ipaddress.ip_address(ip.dst)),
        ip.data.dport,
    )
    return ip.data if ends == (*direction.source, *direction.destination) else None


def behind_startup(direction: Direction, frames: list[bytes]) -> int:
    """Returns the sequence number of the first octet after the start-up."""
    for octets in frames:
        tcp = sent_by(direction, octets)
        if tcp is not None and tcp.data.startswith(b"MPA ID Re"):
            parsed = StartupFrame.parse(tcp.data)
            assert parsed is not None
            return int(tcp.seq + parsed[1])
    raise AssertionError("no start-up")


def with_checksums(octets: bytes) -> bytes:
    """Returns a frame as it was sent: it was captured before the network card filled in the
    checksums.
    """
    ethernet = dpkt.ethernet.Ethernet(octets)
    if isinstance(ethernet.data, dpkt.ip.IP) and isinstance(ethernet.data.data, dpkt.tcp.TCP):
        ethernet.data.sum = ethernet.data.data.sum = 0
    return bytes(ethernet)


def test_a_captures_octets_arrive(mpa_capture: Path) -> None:
    """The receiver accepts every octet of a capture, given only two kinds of help from the host.

    The host offers early segments a second time, and reports what this end sends. A kernel's
    acknowledgments are acceptable by RFC 5961 section 5.2.
    """
    (talk,) = read_capture(mpa_capture).connections
    frames = [record.octets for record in read_frames(mpa_capture)]
    if mpa_capture.parent.name == "SoftUiWarp":
        frames = [with_checksums(octets) for octets in frames]
    table = [
        Connection(
            ipaddress.ip_address(direction.source.address).packed,
            ipaddress.ip_address(direction.destination.address).packed,
            direction.source.port,
            direction.destination.port,
            stream,
            behind_startup(direction, frames),
            direction.markers,
        )
        for stream, direction in enumerate(talk.directions)
    ]
    receiver = receiver_of(*table, window=1 << 17)
    got: defaultdict[int, bytes] = defaultdict(bytes)
    waiting: list[bytes] = []

    def takes(octets: bytes) -> bool:
        before = receiver.next(0), receiver.next(1)
        for event in receiver.receive(octets):
            if isinstance(event, FpduReceived):
                assert event.position == len(got[event.stream])
                got[event.stream] += event.octets
        return before != (receiver.next(0), receiver.next(1))

    for octets in frames:
        for stream, direction in enumerate(reversed(talk.directions)):
            if (tcp := sent_by(direction, octets)) is not None:
                controls = bool(tcp.flags & dpkt.tcp.TH_SYN) + bool(tcp.flags & dpkt.tcp.TH_FIN)
                receiver.set_sent(stream, (tcp.seq + len(tcp.data) + controls) % (1 << 32))
        if takes(octets):
            while early := next((held for held in waiting if takes(held)), None):
                waiting.remove(early)
        elif any((tcp := sent_by(end, octets)) and tcp.data for end in talk.directions):
            waiting.append(octets)
    if talk.rejected:
        return
    for stream, direction in enumerate(talk.directions):
        if mpa_capture.name in NOT_CONFORMANT:
            assert direction.octets.startswith(got[stream])
            assert receiver.broken(stream) or receiver.next(stream) == len(direction.octets)
        else:
            assert got[stream] == direction.octets and not receiver.broken(stream)


# --- everything together -------------------------------------------------------------------------


@pytest.mark.parametrize("window", [64, 512, 2048, 16384, 65536])
@pytest.mark.parametrize("connections", [1, 3, 16])
def test_a_scenario_gives_the_streams_fpdus(connections: int, window: int) -> None:
    """Compares the FPDUs with those that MPA's receiver finds in the peers' octets, in order."""
    drawn = scenario(
        random.Random(f"{connections} {window}"),
        connections=connections,
        window=window,
        segments=400,
    )
    receiver = receiver_of(*drawn.connections, window=window)
    got: defaultdict[int, list[FpduReceived]] = defaultdict(list)
    kinds = set()
    for octets, damaged in drawn.frames:
        for event in receiver.receive(octets, damaged=damaged):
            kinds.add(type(event))
            if isinstance(event, FpduReceived):
                got[event.stream].append(event)
            elif isinstance(event, Diverted):
                assert event.octets == octets
    assert kinds == {FpduReceived, Diverted, Dropped}
    assert all(len(octets) for octets, _ in drawn.frames)
    for index, (known, stream) in enumerate(zip(drawn.connections, drawn.streams, strict=True)):
        mpa = MpaReceiver(markers=known.markers)
        found = [frame for frame in mpa.receive(stream) if isinstance(frame, Fpdu)]
        expected = [FpduReceived(known.stream, frame.position, frame.raw) for frame in found]
        if receiver.broken(index):
            assert index == drawn.broken
            taken = receiver.next(index)
            whole = [e for e in expected if e.position + len(e.octets) <= taken]
            lengths = [len(frame.ulpdu) for frame in found]
            short = next((at for at, length in enumerate(lengths) if length < 14), len(whole))
            whole = whole[: short + 1]
            if short < len(whole):
                expected = whole
            assert got[known.stream] == whole
            after = expected[len(whole) : len(whole) + 1]
            assert all(len(event.octets) > window for event in after)
        else:
            assert got[known.stream] == expected
            assert receiver.next(index) == len(stream)


def test_scenarios_have_connections_that_break() -> None:
    broken = 0
    for seed in range(20):
        drawn = scenario(random.Random(seed), connections=2, window=512, segments=60)
        receiver = receiver_of(*drawn.connections, window=512)
        for octets, damaged in drawn.frames:
            receiver.receive(octets, damaged=damaged)
        broken += receiver.broken(0) or receiver.broken(1)
    assert 3 <= broken <= 17

"""IP packets are found under every common encapsulation. Scapy builds the frames."""

from __future__ import annotations

import random
import warnings
from pathlib import Path

import pytest
from ddp_rnic.hdl.spec.net import internet_sum
from ddp_rnic.sim.capture.capture import capture_of
from ddp_rnic.sim.capture.layers import IpPacket, Packets, ip_packet
from ddp_rnic.sim.capture.pcap import Frame
from ddp_rnic.sim.capture.sctp_frames import sctp_frame
from ddp_rnic.sim.capture.tests.associations import Peers
from ddp_rnic.sim.capture.tests.frames import A, B, first_octet, frames, handshake, tcp_packet
from hypothesis import given
from hypothesis import strategies as st

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # scapy warns about cryptography that is not used here
    from scapy.contrib.erspan import ERSPAN_II, ERSPAN_III
    from scapy.contrib.geneve import GENEVE
    from scapy.contrib.mpls import MPLS
    from scapy.contrib.nsh import NSH
    from scapy.layers.inet import IP, TCP, UDP, fragment
    from scapy.layers.inet6 import (
        IPv6,
        IPv6ExtHdrDestOpt,
        IPv6ExtHdrFragment,
        IPv6ExtHdrHopByHop,
        IPv6ExtHdrRouting,
        fragment6,
    )
    from scapy.layers.ipsec import AH
    from scapy.layers.l2 import (
        GRE,
        LLC,
        SNAP,
        CookedLinux,
        CookedLinuxV2,
        Dot1AD,
        Dot1Q,
        Dot3,
        Ether,
        Loopback,
    )
    from scapy.layers.ppp import PPP, PPPoE
    from scapy.layers.vxlan import VXLAN
    from scapy.packet import Packet, Raw

ETHERNET = 1
#: Ethernet has addresses, because Scapy would otherwise ask the network for them.
ETHER = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
DATA = b"octets of an FPDU " * 4
#: The inner packets: IPv4 and IPv6.
FOUR = IP(src="10.7.0.1", dst="10.7.0.2") / TCP(sport=1, dport=2, seq=7) / Raw(DATA)
SIX = IPv6(src="fd00::1", dst="fd00::2") / TCP(sport=1, dport=2, seq=7) / Raw(DATA)
OUTER = ETHER / IP(src="192.0.2.1", dst="192.0.2.2")
OUTER_6 = ETHER / IPv6(src="2001:db8::1", dst="2001:db8::2")


def carried(kind: type[Packet]) -> int:
    """Returns the EtherType of an IP packet."""
    return 0x0800 if kind is IP else 0x86DD


def ether_of(kind: int) -> Packet:
    return Ether(src=ETHER.src, dst=ETHER.dst, type=kind)


def udp(port: int) -> Packet:
    return OUTER / UDP(sport=50000, dport=port)


def encapsulations(inner: Packet) -> dict[str, tuple[int, bytes]]:
    """Returns link types and frames, by their names."""
    four = isinstance(inner, IP)
    ether = ETHER / inner
    kind = carried(type(inner))
    snap = LLC(dsap=0xAA, ssap=0xAA, ctrl=3) / SNAP(OUI=0, code=kind) / inner
    ppp = (0x21 if four else 0x57).to_bytes(2, "big") + bytes(inner)
    found = {
        "no tag": ether,
        "a tag": ETHER / Dot1Q(vlan=5) / inner,
        "QinQ": ETHER / Dot1AD(vlan=5) / Dot1Q(vlan=6) / inner,
        "three tags": ETHER / Dot1Q(vlan=5) / Dot1Q(vlan=6) / Dot1Q(vlan=7) / inner,
        "SNAP": Dot3(src=ETHER.src, dst=ETHER.dst) / snap,
        "SNAP with a tag": ETHER / Dot1Q(vlan=5, type=len(snap)) / snap,
        "PPPoE": ETHER / PPPoE(sessionid=1) / PPP(ppp),
        "MPLS": ETHER / MPLS(label=16, s=1) / inner,
        "MPLS with three labels": ETHER
        / MPLS(label=16, s=0) / MPLS(label=17, s=0) / MPLS(label=18, s=1) / inner,
        "a pseudowire of MPLS": ether_of(0x8847) / MPLS(label=16, s=1) / Raw(bytes(ether)),
        "a pseudowire with a control word": ether_of(0x8847)
        / MPLS(label=16, s=1) / Raw(bytes(4) + bytes(ether)),
        "GRE": OUTER / GRE(proto=kind) / inner,
        "GRE with checksum, key and sequence number": OUTER
        / GRE(proto=kind, chksum_present=1, key_present=1, seqnum_present=1) / inner,
        "GRE over IPv6": OUTER_6 / GRE(proto=kind) / inner,
        "NVGRE": OUTER / GRE(proto=0x6558, key_present=1, key=0x1234) / ether,
        "ERSPAN I": OUTER / GRE(proto=0x88BE) / Raw(bytes(ether)),
        "ERSPAN II": OUTER / GRE(proto=0x88BE, seqnum_present=1) / ERSPAN_II() / ether,
        "ERSPAN III": OUTER / GRE(proto=0x22EB, seqnum_present=1) / ERSPAN_III() / ether,
        "MPLS in GRE": OUTER / GRE(proto=0x8847) / MPLS(label=16, s=1) / inner,
        "VXLAN": udp(4789) / VXLAN(vni=5, flags="Instance") / ether,
        "VXLAN on Linux's port, with a tag": udp(8472)
        / VXLAN(vni=5, flags="Instance") / ETHER / Dot1Q(vlan=5) / inner,
        "VXLAN over IPv6": OUTER_6
        / UDP(sport=50000, dport=4789) / VXLAN(vni=5, flags="Instance") / ether,
        "VXLAN-GPE": udp(4790) / Raw(bytes([0x0C, 0, 0, 1 if four else 2, 0, 0, 5, 0])) / inner,
        "GENEVE": udp(6081) / GENEVE(vni=5, proto=0x6558) / ether,
        "GENEVE with an option": udp(6081) / Raw(b"\x01\0\x65\x58\0\0\5\0" + bytes(4)) / ether,
        "NSH": ether_of(0x894F) / NSH(mdtype=1, nextproto=3) / ether,
        "IP in IP": OUTER / inner,
        "IP in IPv6": OUTER_6 / inner,
        "IP in IP in IP": OUTER / IP(src="198.51.100.1", dst="198.51.100.2") / inner,
        "AH, tunnel": OUTER / AH(nh=4 if four else 41, payloadlen=4, icv=bytes(12)) / inner,
        "EtherIP": ETHER
        / IP(src="192.0.2.1", dst="192.0.2.2", proto=97) / Raw(b"\x30\0" + bytes(ether)),
        "VXLAN in QinQ, with PPPoE inside": ETHER
        / Dot1AD() / Dot1Q() / IP() / UDP(dport=4789) / VXLAN(flags="Instance")
        / ETHER / PPPoE() / PPP(ppp),
    }  # fmt: skip
    raw = bytes(inner)
    family = (2 if four else 10).to_bytes(4, "little")
    return {name: (ETHERNET, bytes(frame)) for name, frame in found.items()} | {
        "Linux cooked": (113, bytes(CookedLinux(proto=kind) / inner)),
        "Linux cooked with a tag": (113, bytes(CookedLinux(proto=0x8100) / Dot1Q() / inner)),
        "Linux cooked 2": (276, bytes(CookedLinuxV2(proto=kind) / inner)),
        "loopback": (0, family + raw),
        "loopback, big-endian": (108, family[::-1] + raw),
        "raw": (101, raw),
        "raw, BSD": (12, raw),
        "raw, of one version": (228 if four else 229, raw),
        "PPP": (9, b"\xff\x03" + ppp),
        "PPP with a short protocol": (9, ppp[1:]),
        "PPP in HDLC-like framing": (50, b"\xff\x03" + ppp),
        "Cisco HDLC": (104, b"\x0f\0" + kind.to_bytes(2, "big") + raw),
        "Frame Relay": (107, b"\x18\x41\x03" + (b"\xcc" if four else b"\x8e") + raw),
        "PKTAP": (258, b"\x10\0\0\0\1\0\0\0\1\0\0\0" + bytes(4) + bytes(ether)),
        "the older loopback of scapy": (0, bytes(Loopback(type=2 if four else 30) / inner)),
    }


KINDS = sorted(encapsulations(FOUR))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("inner", [FOUR, SIX], ids=["IPv4", "IPv6"])
def test_an_encapsulation_is_taken_off(inner: Packet, kind: str) -> None:
    link, octets = encapsulations(inner)[kind]
    raw = bytes(inner)
    size = 20 if isinstance(inner, IP) else 40
    got = ip_packet(Frame(1, 0, link, octets + b"\xaa" * 6))
    assert got is not None and (got.octets, got.payload) == (raw, raw[size:])
    assert (got.source, got.destination, got.protocol) == (inner.src, inner.dst, 6)
    assert got.sound and not got.missing and got.fragment is None
    assert internet_sum(got.pseudo_header + got.payload) == 0xFFFF
    # The RNIC accepts Ethernet with up to two tags; other packets get a frame of their own.
    assert got.plain == (kind in ("no tag", "a tag", "QinQ"))
    assert ip_packet(Frame(1, 0, ETHERNET, got.frame())) is not None


@pytest.mark.parametrize(
    "packet",
    [
        IP(src="10.7.0.1", dst="10.7.0.2") / AH(nh=6, payloadlen=4, icv=bytes(12)),
        IPv6(src="fd00::1", dst="fd00::2") / AH(nh=6, payloadlen=4, icv=bytes(12)),
        IPv6(src="fd00::1", dst="fd00::2")
        / IPv6ExtHdrHopByHop()
        / AH(nh=6, payloadlen=4, icv=bytes(12)),
        IPv6(src="fd00::1", dst="fd00::2") / IPv6ExtHdrDestOpt(nh=6),
        IPv6(src="fd00::1", dst="fd00::2") / IPv6ExtHdrHopByHop() / IPv6ExtHdrFragment(nh=6, m=0),
        IPv6(src="fd00::1", dst="2001:db8::5") / IPv6ExtHdrRouting(nh=6, addresses=["fd00::2"]),
    ],
    ids=["AH", "AH of IPv6", "AH after options", "options", "an atomic fragment", "routing"],
)
def test_headers_before_tcp_are_passed_over(packet: Packet) -> None:
    # The checksum's pseudo-header has the last destination (RFC 8200 section 8.1).
    want = bytes(FOUR if isinstance(packet, IP) else SIX)[20 if isinstance(packet, IP) else 40 :]
    got = ip_packet(Frame(1, 0, ETHERNET, bytes(ETHER / packet / Raw(want))))
    assert got is not None and got.payload == want and got.protocol == 6
    assert internet_sum(got.pseudo_header + got.payload) == 0xFFFF
    if not got.plain:
        alone = ip_packet(Frame(1, 0, ETHERNET, got.frame()))
        assert alone is not None and alone.payload == want and alone.plain and alone.sound


def test_a_packet_that_the_rnic_would_not_read_gets_a_frame_of_its_own() -> None:
    """The RNIC skips four extension headers, and takes IP's lengths by their word."""
    head, want = IPv6(src="fd00::1", dst="fd00::2"), bytes(range(40))
    last = bytes([132, 0, 1, 4, 0, 0, 0, 0])
    for count in range(1, 7):
        middle = bytes([60, 0, 1, 4, 0, 0, 0, 0]) * (count - 1)
        octets = bytes(ETHER / head.copy() / Raw(middle + last + want))
        octets = octets[:20] + bytes([60]) + octets[21:]
        assert plain(octets, want) == (count <= 4)
        mobility = octets[:20] + bytes([135]) + octets[21:]
        assert not plain(mobility, want)
    assert not plain(bytes(ETHER / IPv6(nh=132, plen=0) / Raw(want)), want)
    for length in (None, 0):
        packet = ETHER / IP(proto=132, len=length) / Raw(want)
        assert plain(bytes(packet), want) == (length is None)


def plain(octets: bytes, want: bytes) -> bool:
    """Returns True if the frame stays as it is; another one has the same content."""
    got = ip_packet(Frame(1, 0, ETHERNET, octets))
    assert got is not None and (got.payload, got.protocol) == (want, 132)
    if not got.plain:
        alone = ip_packet(Frame(1, 0, ETHERNET, got.frame()))
        assert alone is not None and alone.payload == want and alone.plain and alone.sound
    return got.plain


def joined(octets: list[bytes], link: int = ETHERNET, times: float = 0) -> list[IpPacket]:
    packets = Packets()
    found = [packets.take(Frame(n, n * times, link, each)) for n, each in enumerate(octets, 1)]
    return [each for each in found if each is not None]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("inner", [FOUR, SIX], ids=["IPv4", "IPv6"])
def test_fragments_are_put_together_in_whatever_order_they_come(inner: Packet, seed: int) -> None:
    long = inner / Raw(random.Random(1).randbytes(900))
    if isinstance(long, IP):
        pieces = fragment(IP(bytes(long)), fragsize=200)
        want = bytes(long)[20:]
    else:
        head, rest = IPv6(src=SIX.src, dst=SIX.dst), bytes(long)[40:]
        pieces = fragment6(head / IPv6ExtHdrFragment(id=7, nh=6) / Raw(rest), 300)
        want = rest
    octets = [bytes(ETHER / piece) for piece in pieces]
    octets += octets[:1]  # one fragment is repeated
    random.Random(seed).shuffle(octets)
    assert len(octets) > 4
    (got,) = joined(octets)
    assert got.payload == want and got.protocol == 6 and got.fragment is None and not got.plain
    alone = ip_packet(Frame(1, 0, ETHERNET, got.frame()))
    assert alone is not None and alone.sound and alone.payload == want


@pytest.mark.parametrize("late", [False, True])
def test_fragments_of_ipv6_that_overlap_are_not_put_together(late: bool) -> None:
    # RFC 8200 section 4.5: "reassembly of that packet must be abandoned".
    rest = random.Random(1).randbytes(900)

    def piece(low: int, high: int) -> bytes:
        position = IPv6ExtHdrFragment(id=7, nh=6, offset=low // 8, m=high < 900)
        return bytes(ETHER / IPv6(src=SIX.src, dst=SIX.dst) / position / Raw(rest[low:high]))

    octets = [piece(0, 512), piece(256, 768), piece(0, 512), piece(512, 900)]
    packets = Packets()
    found = [packets.take(Frame(n, n, ETHERNET, each)) for n, each in enumerate(octets)]
    if late:
        found.append(packets.take(Frame(9, 99, ETHERNET, piece(0, 512))))
    assert not any(found)
    left = [str(each) for each in packets.left_out()]
    why = "of packets some of whose fragments overlap, RFC 8200 section 4.5"
    assert f"4 IP fragments ({why})" in left and len(left) == 1 + late


def test_a_tunnel_in_fragments_is_taken_off() -> None:
    whole = IP(src="192.0.2.1", dst="192.0.2.2") / GRE(proto=0x0800) / FOUR
    pieces = fragment(IP(bytes(whole)), fragsize=64)
    (got,) = joined([bytes(ETHER / piece) for piece in pieces])
    assert got.octets == bytes(FOUR)


def test_fragments_that_miss_others_are_counted() -> None:
    pieces = [bytes(ETHER / piece) for piece in fragment(IP(bytes(FOUR)), fragsize=40)]
    packets = Packets()
    assert all(packets.take(Frame(1, 0, ETHERNET, each)) is None for each in pieces[1:])
    (left,) = packets.left_out()
    assert (left.count, left.what) == (len(pieces) - 1, "IP fragment")
    # RFC 8200 section 4.5: after 60 seconds "reassembly of that packet must be abandoned".
    assert packets.take(Frame(2, 61, ETHERNET, pieces[0])) is None


def test_a_connection_in_a_tunnel_is_played() -> None:
    packets = [*handshake(), tcp_packet(A, B, first_octet(1000), b"FPDU")]
    octets = [bytes(udp(4789) / VXLAN(flags="Instance") / ETHER / IP(each)) for each in packets]
    found = capture_of([Frame(n, 0, 1, each) for n, each in enumerate(octets, 1)], Path("test"))
    assert found.directions[0].octets == b"FPDU" and not found.left_out


@pytest.mark.parametrize(
    ("link", "octets", "name"),
    [
        (ETHERNET, bytes(12) + b"\x08\x06" + bytes(28), "ARP"),
        (ETHERNET, bytes(12) + b"\x12\x34" + bytes(28), "EtherType 0x1234"),
        (ETHERNET, bytes(12) + b"\x88\xe5" + bytes(28), "MACsec"),
        (ETHERNET, bytes(14)[:-1], "a cut Ethernet header"),
        (ETHERNET, bytes(12) + b"\x00\x26\x42\x42\x03" + bytes(40), "LLC of spanning tree"),
        (ETHERNET, bytes(OUTER / GRE(proto=0x1234) / Raw(b"x")), "EtherType 0x1234"),
        (ETHERNET, bytes(udp(4790) / Raw(b"\x04\0\0\x09" + bytes(4))), "VXLAN-GPE of protocol 9"),
        (239, bytes(60), "link type NFLOG (239)"),
        (197, bytes(60), "link type ERF (197)"),
        (247, bytes(60), "link type INFINIBAND (247)"),
        (60000, bytes(60), "link type without a name here (60000)"),
        (113, bytes(8), "a cut header of Linux cooked capture"),
    ],
)
def test_a_frame_without_a_packet_is_counted_by_name(link: int, octets: bytes, name: str) -> None:
    packets = Packets()
    for number in (1, 2):
        assert packets.take(Frame(number, 0, link, octets)) is None
    assert [str(each) for each in packets.left_out()] == [f"2 frames ({name})"]


def test_packets_without_tcp_and_sctp_are_counted_by_name() -> None:
    others = [
        OUTER / UDP(sport=7, dport=4791) / Raw(b"x"),
        OUTER / UDP(sport=7, dport=53) / Raw(b"x"),
        ETHER / IP(proto=50) / Raw(bytes(30)),
        ETHER / IP(proto=1) / Raw(bytes(8)),
        ETHER / IP(proto=200) / Raw(bytes(8)),
    ]
    found = capture_of(
        [Frame(n, 0, ETHERNET, bytes(each)) for n, each in enumerate(others, 1)], Path("test")
    )
    assert {left.reason for left in found.left_out} == {
        "RoCEv2", "UDP", "ESP, which is encrypted", "ICMP", "IP protocol 200",
    }  # fmt: skip


def test_layers_without_end_are_given_up() -> None:
    for step in (b"\x81\x00\0\1", b"\x88\x47\0\1\0\xff"):
        assert ip_packet(Frame(1, 0, 1, bytes(12) + step * 9000)) is None
    nested = bytes(FOUR)
    for _ in range(100):
        nested = bytes(IP(proto=4) / Raw(nested))
    packets = Packets()
    assert packets.take(Frame(1, 0, 101, nested)) is None
    assert "layers" in next(iter(packets.left_out())).reason


@given(st.sampled_from(KINDS), st.data())
def test_no_damage_to_an_encapsulation_makes_the_reader_stumble(
    kind: str, data: st.DataObject
) -> None:
    link, octets = ENCAPSULATED[kind]
    spoilt = bytearray(octets[: data.draw(st.integers(0, len(octets)))])
    for at, value in data.draw(
        st.lists(st.tuples(st.integers(0, 120), st.integers(0, 255)), max_size=8)
    ):
        if at < len(spoilt):
            spoilt[at] = value
    capture_of([Frame(1, 0, link, bytes(spoilt))], Path("test"))


ENCAPSULATED = encapsulations(FOUR) | {
    f"{kind}, IPv6": each for kind, each in encapsulations(SIX).items()
}


def test_sctp_reaches_the_rnic_without_what_it_cannot_take_off() -> None:
    peers = Peers()
    peers.set_up()
    frame = peers.frames[0]
    direct = ip_packet(frame)
    assert direct is not None and direct.plain
    plain = sctp_frame(frame, direct)
    assert plain is not None and plain.octets == frame.octets
    tunnel = bytes(udp(4789) / VXLAN(flags="Instance") / Raw(frame.octets))
    inside = ip_packet(Frame(1, 0, ETHERNET, tunnel))
    assert inside is not None
    taken = sctp_frame(Frame(1, 0, ETHERNET, tunnel), inside)
    assert taken is not None and taken.packet == plain.packet and taken.whole
    assert taken.octets == bytes(12) + b"\x08\x00" + direct.octets
    # A packet in UDP of another port is given without UDP (RFC 6951).
    octets = bytes(OUTER / UDP(sport=6511, dport=6511) / Raw(plain.packet))
    packet = ip_packet(Frame(1, 0, ETHERNET, octets))
    assert packet is not None and sctp_frame(Frame(1, 0, ETHERNET, octets), packet) is None
    other = sctp_frame(Frame(1, 0, ETHERNET, octets), packet, {6511})
    assert other is not None and other.packet == plain.packet and other.whole
    assert ip_packet(Frame(1, 0, ETHERNET, other.octets)).protocol == 132  # type: ignore[union-attr]


def test_an_ipv4_header_without_checksum_is_filled_in() -> None:
    packets = [bytearray(packet) for packet in [*handshake(), tcp_packet(A, B, 1021, b"FPDU")]]
    for packet in packets:
        packet[10:12] = b"\0\0"
    found = capture_of(frames(map(bytes, packets)), Path("test"))
    assert found.directions[0].octets == b"FPDU" and not found.left_out
    assert "IPv4 header checksum 0" in found.notes[-1]

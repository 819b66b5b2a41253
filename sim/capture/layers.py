"""Finds the IP packets in frames: removes link layers and tunnels, and joins fragments.

The layouts are here rather than in a library. Of the available ones, dpkt parses all headers of a
frame, by recursion, so that a frame of nested headers exhausts the stack, and the Ethernet header
takes 20 times as long as here. It refuses frames that a snapshot length cut, and has no VXLAN,
GENEVE, ERSPAN or NVGRE. Its IPv4 header without the recursion takes 1.9 times as long, and its IPv6
does not know all extension headers. TCP is dpkt's, see connections.py. Scapy needs a millisecond
per frame, and builds the tests' frames.

A layer's reader gets the layer's octets. It returns the kind and the octets of the next layer, or
an :class:`Unknown` with its name. Kinds are pairs of a name space and a number: ("ether", 0x0800)
is IPv4.
"""

from __future__ import annotations

import ipaddress
import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import dpkt.pcap

from ...hdl.spec.net import SCTP_UDP_PORT, internet_sum
from .pcap import Frame, LeftOut

TCP = 6
UDP = 17
SCTP = 132

_IPV4, _IPV6 = 0x0800, 0x86DD
_ETHERNET = 1
#: Most layers of a frame; the MTU leaves no room for more that are meaningful.
_DEEPEST = 32
#: Seconds after which an incomplete packet is given up (RFC 8200 section 4.5).
_REASSEMBLY = 60
_LONGEST_PACKET = 0xFFFF
_PENDING = 4096  # most incomplete packets that wait for fragments

#: VLAN tags and similar tags: their EtherTypes, and the number of octets up to the next EtherType.
_TAGS = {0x8100: 2, 0x88A8: 2, 0x9100: 2, 0x9200: 2, 0x9300: 2, 0x8926: 4, 0x893F: 6, 0xF1C1: 4}
#: Tags that the RNIC removes.
_RNIC_TAGS = (0x8100, 0x88A8)
#: IPv6 extension headers of the form {next, length - 1 in units of 8 octets}.
_OPTIONS = (0, 43, 60, 135, 139, 140)
_FRAGMENT, _AUTHENTICATION = 44, 51
#: Those that the RNIC skips, and how many of them in a packet.
_RNIC_OPTIONS, _RNIC_SKIPS = (0, 43, 60), 4

_ETHERTYPES = {
    0x0806: "ARP", 0x8035: "RARP", 0x8863: "PPPoE discovery", 0x8809: "LACP", 0x888E: "EAPOL",
    0x88CC: "LLDP", 0x88E5: "MACsec", 0x88F7: "PTP", 0x8902: "CFM", 0x8906: "FCoE",
    0x8914: "FCoE initialization", 0x8915: "RoCE", 0x9000: "loopback test", 0x22F0: "AVTP",
    0x88A2: "ATA over Ethernet", 0x8808: "Ethernet flow control", 0x0842: "Wake-on-LAN",
}  # fmt: skip
_PROTOCOLS = {
    1: "ICMP", 2: "IGMP", 17: "UDP", 33: "DCCP", 46: "RSVP", 50: "ESP, which is encrypted",
    58: "ICMPv6", 59: "no next header", 88: "EIGRP", 89: "OSPF", 103: "PIM", 112: "VRRP",
    115: "L2TPv3", 136: "UDP-Lite",
}  # fmt: skip
_UDP_PORTS = {
    500: "IKE", 4500: "ESP in UDP, which is encrypted", 4791: "RoCEv2", 51820: "WireGuard",
    1701: "L2TP", 443: "QUIC",
}  # fmt: skip
_LINKS = {
    number: name.removeprefix("DLT_")
    for name, number in vars(dpkt.pcap).items()
    if name.startswith("DLT_")
}

Kind = tuple[str, int]


class Unknown(NamedTuple):
    """A layer without an IP packet, or of an unsupported kind, by its name."""

    name: str


@dataclass(frozen=True)
class Fragment:
    """The position of a fragment in its packet, RFC 791 section 3.1, RFC 8200 section 4.5."""

    number: int
    offset: int
    more: bool


@dataclass(frozen=True)
class IpPacket:
    """An IP packet from any layers of a frame.

    Parameters
    ----------
    missing
        Octets at the payload's end that were not captured.
    octets
        The packet, for an Ethernet frame of its own. AH and a fragment header, which stood between
        its IP header and its ``payload``, are not in it.
    plain
        Whether the frame holds the packet in a form that the RNIC accepts: on Ethernet with at most
        two tags, with its length, and with extension headers that the RNIC skips.
    sound
        Whether the checksum of an IPv4 header is right.
    """

    source: str
    destination: str
    protocol: int
    payload: bytes
    missing: int
    fragment: Fragment | None
    pseudo_header: bytes
    octets: bytes
    plain: bool = True
    sound: bool = True

    @property
    def ethertype(self) -> int:
        return _IPV6 if ":" in self.source else _IPV4

    @property
    def sum_is_zero(self) -> bool:
        """True if the checksum of an IPv4 header was not filled in."""
        return self.ethertype == _IPV4 and not any(self.octets[10:12])

    def frame(self) -> bytes:
        """Returns an Ethernet frame that has only the packet."""
        return bytes(12) + self.ethertype.to_bytes(2, "big") + self.octets

    def udp(self) -> tuple[int, int, int] | None:
        """Returns source port, destination port and length of a UDP datagram that has a
        whole header.
        """
        if self.protocol != UDP or self.fragment or len(self.payload) < 8:
            return None
        source, destination, length = struct.unpack_from(">HHH", self.payload)
        return source, destination, length

    def carrying(self, protocol: int, payload: bytes, missing: int = 0) -> IpPacket | Unknown:
        """Returns the packet, unfragmented, with another payload directly after its IP header."""
        if self.ethertype == _IPV4:
            size = (self.octets[0] & 15) * 4
            octets = _with_sum(
                self.octets[:2]
                + struct.pack(">H", min(size + len(payload) + missing, _LONGEST_PACKET))
                + self.octets[4:6]
                + bytes(2)  # no fragment
                + self.octets[8:9]
                + bytes([protocol])
                + self.octets[10:size]
            )
            found = _ipv4(octets + payload)
        else:
            length = struct.pack(">HB", min(len(payload) + missing, _LONGEST_PACKET), protocol)
            found = _ipv6(self.octets[:4] + length + self.octets[7:40] + payload)
        if isinstance(found, Unknown):
            return found
        return replace(found, plain=False, sound=self.sound or self.sum_is_zero)


def _u16(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 2], "big") if at + 2 <= len(data) else 0


def _with_sum(header: bytes) -> bytes:
    """Returns an IPv4 header with the right checksum."""
    header = header[:10] + bytes(2) + header[12:]
    return header[:10] + struct.pack(">H", 0xFFFF - internet_sum(header)) + header[12:]


def with_header_sum(octets: bytes, at: int) -> bytes:
    """Returns a frame whose IPv4 header at ``at`` has the right checksum."""
    end = at + (octets[at] & 15) * 4
    return octets[:at] + _with_sum(octets[at:end]) + octets[end:]


# -- IP --


def _ipv4(data: bytes) -> IpPacket | Unknown:
    if len(data) < 20 or data[0] >> 4 != 4:
        return Unknown("a damaged or cut IPv4 header")
    size = (data[0] & 15) * 4
    length = _u16(data, 2) or len(data)  # 0: left to the network card (segmentation offload)
    if size < 20 or length < size or len(data) < size:
        return Unknown("a damaged or cut IPv4 header")
    payload, bits = data[size:length], _u16(data, 6)
    fragment = None
    if bits & 0x3FFF:
        fragment = Fragment(_u16(data, 4), (bits & 0x1FFF) * 8, bool(bits & 0x2000))
    found = IpPacket(
        source=str(ipaddress.IPv4Address(data[12:16])),
        destination=str(ipaddress.IPv4Address(data[16:20])),
        protocol=data[9],
        payload=payload,
        missing=length - size - len(payload),
        fragment=fragment,
        pseudo_header=data[12:20] + struct.pack(">HH", data[9], (length - size) & 0xFFFF),
        octets=data[:length],
        sound=internet_sum(data[:size]) == 0xFFFF,
    )
    # The RNIC takes the length by its word.
    if _u16(data, 2) or fragment or length > _LONGEST_PACKET:
        return found
    return found.carrying(data[9], payload)


def _ipv6(data: bytes) -> IpPacket | Unknown:
    if len(data) < 40 or data[0] >> 4 != 6:
        return Unknown("a damaged or cut IPv6 header")
    length = _u16(data, 4) or len(data) - 40
    body, protocol, fragment = data[40 : 40 + length], data[6], None
    octets, missing, plain = data[: 40 + length], length - len(body), _u16(data, 4) > 0
    skipped = 0
    while protocol in _OPTIONS or protocol == _FRAGMENT:
        if len(body) < 8:
            return Unknown("a damaged or cut IPv6 extension header")
        size = 8 if protocol == _FRAGMENT else (body[1] + 1) * 8
        if len(body) < size:
            return Unknown("a damaged or cut IPv6 extension header")
        if protocol == _FRAGMENT:
            bits = _u16(body, 2)
            if bits & 0xFFF9:
                number = int.from_bytes(body[4:8], "big")
                fragment = Fragment(number, bits & 0xFFF8, bool(bits & 1))
            plain = False
        elif protocol == 43 and body[3]:
            # Section 8.1: the pseudo-header has the last destination.
            last = size - 16 if body[2] == 0 else 8
            if size < 24:
                return Unknown("a damaged or cut IPv6 extension header")
            octets, plain = octets[:24] + body[last : last + 16] + octets[40:], False
        skipped += 1
        plain &= protocol in _RNIC_OPTIONS and skipped <= _RNIC_SKIPS
        protocol, body, length = body[0], body[size:], length - size
        if fragment:
            break
    found = IpPacket(
        source=str(ipaddress.IPv6Address(data[8:24])),
        destination=str(ipaddress.IPv6Address(octets[24:40])),
        protocol=protocol,
        payload=body,
        missing=missing,
        fragment=fragment,
        pseudo_header=octets[8:40] + struct.pack(">II", length, protocol),
        octets=octets,
    )
    if plain or fragment:
        return replace(found, plain=plain)
    return found.carrying(protocol, body, missing)


# -- the other layers --

_Step = tuple[Kind, bytes] | Unknown


def _ethernet(data: bytes) -> _Step:
    if len(data) < 14:
        return Unknown("a cut Ethernet header")
    return _typed(_u16(data, 12), data[14:])


def _typed(kind: int, rest: bytes) -> _Step:
    """Returns the layer for an EtherType; up to 1500 the number is a length, IEEE 802.3."""
    return (("llc", 0), rest[:kind]) if kind <= 1500 else (("ether", kind), rest)


def _tag(size: int) -> Callable[[bytes], _Step]:
    return lambda data: _typed(_u16(data, size), data[size + 2 :])


def _llc(data: bytes) -> _Step:
    """Reads LLC of IEEE 802.2, with SNAP."""
    if data[:3] == b"\xaa\xaa\x03" and len(data) >= 8:
        if data[3:6] in (b"\0\0\0", b"\0\0\xf8"):
            return ("ether", _u16(data, 6)), data[8:]
        return Unknown(f"SNAP of organization {data[3:6].hex()}")
    if data[:3] == b"\x06\x06\x03":
        return ("ether", _IPV4), data[3:]
    name = {0x42: "spanning tree", 0xE0: "IPX", 0xF0: "NetBIOS", 0xFE: "IS-IS"}
    return Unknown(f"LLC of {name.get(data[0], hex(data[0]))}" if data else "a cut LLC header")


def _by_version(size: int) -> Callable[[bytes], _Step]:
    """Makes a reader that finds IP of either version after a header of ``size`` octets."""

    def read(data: bytes) -> _Step:
        version = data[size] >> 4 if len(data) > size else 0
        kind = {4: _IPV4, 6: _IPV6}.get(version)
        return Unknown("no IP header") if kind is None else (("ether", kind), data[size:])

    return read


def _cooked(size: int, at: int) -> Callable[[bytes], _Step]:
    """Makes a reader of Linux cooked capture, whose protocol is an EtherType, or 4 for LLC."""

    def read(data: bytes) -> _Step:
        if len(data) < size:
            return Unknown("a cut header of Linux cooked capture")
        kind = _u16(data, at)
        return (("llc", 0), data[size:]) if kind == 4 else (("ether", kind), data[size:])

    return read


def _ppp(data: bytes) -> _Step:
    at = 2 if data[:2] == b"\xff\x03" else 0
    if len(data) < at + 2:
        return Unknown("a cut PPP header")
    # A protocol of one octet is odd (RFC 1661 section 6.5).
    size = 1 if data[at] & 1 else 2
    number = int.from_bytes(data[at : at + size], "big")
    kind = {0x21: _IPV4, 0x57: _IPV6, 0x281: 0x8847, 0x283: 0x8848}.get(number)
    if kind is None:
        return Unknown(f"PPP of protocol {number:#06x}")
    return ("ether", kind), data[at + size :]


def _ppp_serial(data: bytes) -> _Step:
    return _ppp(data) if data[:1] == b"\xff" else _hdlc(data)


def _hdlc(data: bytes) -> _Step:
    return _typed(_u16(data, 2), data[4:])


def _pppoe(data: bytes) -> _Step:
    if len(data) < 6:
        return Unknown("a cut PPPoE header")
    return (("ppp", 0), data[6 : 6 + _u16(data, 4)])


def _frame_relay(data: bytes) -> _Step:
    if data[2:4] == b"\x03\xcc":
        return ("ether", _IPV4), data[4:]
    if data[2:4] == b"\x03\x8e":
        return ("ether", _IPV6), data[4:]
    if data[2:5] == b"\x03\x00\x80" and len(data) >= 10:
        return ("ether", _u16(data, 8)), data[10:]
    return Unknown("Frame Relay of another protocol")


def _mpls(data: bytes) -> _Step:
    at = 0
    while at + 4 <= len(data):
        label = int.from_bytes(data[at : at + 3], "big") >> 4
        at += 4
        if data[at - 2] & 1:
            return _below_labels(label, data[at:])
    return Unknown("a cut MPLS label")


def _below_labels(label: int, data: bytes) -> _Step:
    """Guesses the layer below MPLS labels, which none of them names: IP, or Ethernet of a
    pseudowire.
    """
    nibble = data[0] >> 4 if data else 0
    if label == 0 or (nibble == 4 and isinstance(_ipv4(data), IpPacket) and _fits_4(data)):
        return ("ether", _IPV4), data
    if label == 2 or (nibble == 6 and _fits_6(data)):
        return ("ether", _IPV6), data
    if nibble == 1:
        return Unknown("an MPLS associated channel")
    # RFC 4448 section 4.6: a control word begins with 0; without one the octets are an address.
    for size in (4, 0) if data[:2] == b"\0\0" or nibble == 0 else (0, 4):
        if _u16(data, size + 12) in _KNOWN_TYPES:
            return ("eth", 0), data[size:]
    return ("eth", 0), data[4:] if nibble == 0 else data


def _fits_4(data: bytes) -> bool:
    return _u16(data, 2) <= len(data) + 1500 and 5 <= data[0] & 15


def _fits_6(data: bytes) -> bool:
    return len(data) >= 40 and _u16(data, 4) <= len(data) - 40


def _gre(data: bytes) -> _Step:
    if len(data) < 4:
        return Unknown("a cut GRE header")
    flags, kind = struct.unpack_from(">HH", data)
    sequence, at = bool(flags & 0x1000), 4
    at += 4 * bool(flags & 0xC000) + 4 * bool(flags & 0x2000) + 4 * sequence
    if flags & 7 == 1:  # RFC 2637 section 4.1
        at += 4 * bool(flags & 0x80)
    while flags & 0x4000 and at + 4 <= len(data):  # routing, RFC 1701
        size = data[at + 3]
        at += 4 + size
        if not size:
            break
    rest = data[at:]
    if kind == 0x88BE:  # ERSPAN: type I has no sequence number and no header of its own
        if not sequence:
            return ("eth", 0), rest
        return _erspan(rest)
    if kind == 0x22EB:
        return _erspan(rest)
    return ("ether", kind), rest


def _erspan(data: bytes) -> _Step:
    if len(data) < 8:
        return Unknown("a cut ERSPAN header")
    version = data[0] >> 4
    if version == 1:
        return ("eth", 0), data[8:]
    if version == 2 and len(data) >= 12:
        kind = data[10] >> 2 & 31
        rest = data[20:] if data[11] & 1 else data[12:]
        if kind == 0:
            return ("eth", 0), rest
        if kind == 2:
            return _by_version(0)(rest)
        return Unknown(f"ERSPAN of frame type {kind}")
    return Unknown(f"ERSPAN of version {version}")


#: Layers by the Next Protocol of VXLAN-GPE and NSH.
_NEXT = {1: ("ether", _IPV4), 2: ("ether", _IPV6), 3: ("eth", 0), 4: ("ether", 0x894F),
         5: ("ether", 0x8847)}  # fmt: skip


def _vxlan(data: bytes) -> _Step:
    if len(data) < 8:
        return Unknown("a cut VXLAN header")
    kind: Kind | None = _NEXT.get(data[3]) if data[0] & 4 else ("eth", 0)
    return Unknown(f"VXLAN-GPE of protocol {data[3]}") if kind is None else (kind, data[8:])


def _geneve(data: bytes) -> _Step:
    if len(data) < 8 or data[0] >> 6:
        return Unknown("a cut GENEVE header, or one of another version")
    return ("ether", _u16(data, 2)), data[8 + (data[0] & 63) * 4 :]


def _nsh(data: bytes) -> _Step:
    kind = _NEXT.get(data[3]) if len(data) >= 8 else None
    if kind is None:
        return Unknown("NSH of another protocol")
    return kind, data[(data[1] & 63) * 4 :]


def _gtp(data: bytes) -> _Step:
    if len(data) < 8 or data[0] >> 5 != 1 or data[1] != 255:
        return Unknown("GTP without a packet of a user")
    at = 12 if data[0] & 7 else 8
    following = data[11] if data[0] & 4 and len(data) > 11 else 0
    while following and at < len(data) and data[at]:
        at += data[at] * 4
        following = data[at - 1] if at <= len(data) else 0
    return _by_version(0)(data[at:])


def _tzsp(data: bytes) -> _Step:
    if len(data) < 4 or _u16(data, 2) != 1:
        return Unknown("TZSP without Ethernet")
    at = 4
    while at < len(data) and data[at] != 1:
        at += 1 if data[at] == 0 else 2 + (data[at + 1] if at + 1 < len(data) else 0)
    return ("eth", 0), data[at + 1 :]


def _pktap(data: bytes) -> _Step:
    if len(data) < 12:
        return Unknown("a cut PKTAP header")
    size, link = struct.unpack_from("<I4xI", data)
    return ("link", link), data[size:]


def _ppi(data: bytes) -> _Step:
    if len(data) < 8:
        return Unknown("a cut PPI header")
    size, link = struct.unpack_from("<2xHI", data)
    return ("link", link), data[size:]


def _pflog(data: bytes) -> _Step:
    return _by_version((data[0] + 3) // 4 * 4 if data else 0)(data)


def _skip(size: int, kind: Kind) -> Callable[[bytes], _Step]:
    return lambda data: (kind, data[size:])


_ETH: Kind = ("eth", 0)
_LAYERS: dict[Kind, Callable[[bytes], _Step | IpPacket]] = {
    ("ether", _IPV4): _ipv4,
    ("ether", _IPV6): _ipv6,
    **{("ether", kind): _tag(size) for kind, size in _TAGS.items()},
    ("ether", 0x8847): _mpls,
    ("ether", 0x8848): _mpls,
    ("ether", 0x8864): _pppoe,
    ("ether", 0x880B): _ppp,
    ("ether", 0x6558): _ethernet,
    ("ether", 0x88E7): _skip(4, _ETH),  # I-TAG of IEEE 802.1ah
    ("ether", 0x8903): _skip(2, _ETH),  # FabricPath
    ("ether", 0x894F): _nsh,
    ("ether", 0x8870): _llc,
    _ETH: _ethernet,
    ("llc", 0): _llc,
    ("ppp", 0): _ppp,
    ("link", _ETHERNET): _ethernet,
    **{("link", link): _by_version(4) for link in (0, 108)},  # BSD loopback
    **{("link", link): _by_version(0) for link in (12, 14, 101, 228, 229)},  # raw IP
    ("link", 9): _ppp,
    ("link", 50): _ppp_serial,
    ("link", 51): _pppoe,
    ("link", 104): _hdlc,
    ("link", 107): _frame_relay,
    ("link", 109): _by_version(12),  # OpenBSD's enc
    ("link", 113): _cooked(16, 14),
    ("link", 117): _pflog,
    ("link", 166): _skip(1, ("ppp", 0)),
    ("link", 192): _ppi,
    ("link", 204): _skip(1, ("ppp", 0)),
    ("link", 205): _skip(1, ("link", 104)),
    ("link", 219): _mpls,
    ("link", 240): _skip(4, _ETH),  # Hilscher netANALYZER
    ("link", 258): _pktap,
    ("link", 276): _cooked(20, 0),
    ("ip", 4): _skip(0, ("ether", _IPV4)),
    ("ip", 41): _skip(0, ("ether", _IPV6)),
    ("ip", 47): _gre,
    ("ip", 97): _skip(2, _ETH),  # EtherIP
    ("ip", 137): _mpls,
    ("ip", 143): _ethernet,
    ("udp", 2152): _gtp,
    ("udp", 4789): _vxlan,
    ("udp", 4790): _vxlan,
    ("udp", 6081): _geneve,
    ("udp", 6635): _mpls,
    ("udp", 8472): _vxlan,  # Linux's older port
    ("udp", 37008): _tzsp,
}
_KNOWN_TYPES = {number for space, number in _LAYERS if space == "ether"} | set(_ETHERTYPES)


def _name(kind: Kind) -> str:
    space, number = kind
    if space == "link":
        return f"link type {_LINKS.get(number, 'without a name here')} ({number})"
    return _ETHERTYPES.get(number, f"EtherType {number:#06x}")


def _inside(packet: IpPacket) -> _Step | IpPacket | None:
    """Returns the layer inside an IP packet that is a tunnel, or None."""
    if packet.fragment:
        return None
    if packet.protocol == _AUTHENTICATION:
        data = packet.payload
        size = (data[1] + 2) * 4 if len(data) >= 12 else 0
        if not 12 <= size <= len(data):
            return Unknown("a cut AH header")
        return packet.carrying(data[0], data[size:], packet.missing)
    if (ports := packet.udp()) is not None:
        kind = ("udp", ports[1])
        return (kind, packet.payload[8 : max(8, ports[2])]) if kind in _LAYERS else None
    kind = ("ip", packet.protocol)
    return (kind, packet.payload) if kind in _LAYERS else None


def _peel(kind: Kind, data: bytes) -> IpPacket | Unknown:
    """Returns the innermost IP packet."""
    plain, tags = kind == ("link", _ETHERNET), 0
    step: _Step | IpPacket = (kind, data)
    for _ in range(_DEEPEST):
        if isinstance(step, Unknown):
            return step
        if isinstance(step, IpPacket):
            plain &= step.plain
            inside = _inside(step)
            if inside is None:
                return replace(step, plain=plain)
            plain, step = False, inside
            continue
        kind, data = step
        if (reader := _LAYERS.get(kind)) is None:
            return Unknown(_name(kind))
        step = reader(data)
        if kind[0] == "ether" and not isinstance(step, IpPacket):
            tags += 1
            plain &= kind[1] in _RNIC_TAGS and tags <= 2
        plain &= kind[0] == "ether" or kind == ("link", _ETHERNET)
    return Unknown(f"more than {_DEEPEST} layers")


def ip_packet(frame: Frame) -> IpPacket | None:
    """Returns the innermost IP packet in a frame, possibly a fragment, or None without any."""
    found = _peel(("link", frame.link), frame.octets)
    return None if isinstance(found, Unknown) else found


# -- fragments --


@dataclass
class _Pieces:
    """The fragments of a packet. With IPv6 it is ``abandoned`` once two of them overlap."""

    since: float
    abandoned: bool = False
    first: IpPacket | None = None
    total: int | None = None
    octets: dict[int, bytes] = field(default_factory=dict)
    count: int = 0

    def add(self, packet: IpPacket, fragment: Fragment) -> None:
        self.count += 1
        if packet.missing or fragment.offset + len(packet.payload) > _LONGEST_PACKET:
            return
        # RFC 8200 section 4.5: "If any of the fragments being reassembled overlap with any other
        # fragments [...], reassembly of that packet must be abandoned", but not for an exact
        # repetition.
        again = self.octets.get(fragment.offset) == packet.payload
        if packet.ethertype == _IPV6 and not again:
            self.abandoned |= self._overlaps(fragment.offset, len(packet.payload))
        if fragment.offset == 0 and self.first is None:
            self.first = packet
        if not fragment.more:
            self.total = fragment.offset + len(packet.payload)
        if len(self.octets.get(fragment.offset, b"")) < len(packet.payload):
            self.octets[fragment.offset] = packet.payload

    def _overlaps(self, offset: int, length: int) -> bool:
        return any(
            start < offset + length and offset < start + len(octets)
            for start, octets in self.octets.items()
        )

    def whole(self) -> bytes | None:
        if self.abandoned or self.first is None or self.total is None:
            return None
        found = bytearray()
        for offset in sorted(self.octets):
            if offset > len(found):
                return None
            found += self.octets[offset][len(found) - offset :]
        return bytes(found[: self.total]) if len(found) >= self.total else None


class Packets:
    """Extracts the IP packets of a capture's frames, joins fragments, and counts frames without a
    packet.

    Parameters
    ----------
    sctp_ports
        UDP ports in which SCTP may be (RFC 6951).
    """

    def __init__(self, sctp_ports: Collection[int] = (SCTP_UDP_PORT,)) -> None:
        self.sctp_ports = sctp_ports
        self._unknown: Counter[str] = Counter()
        self._pieces: dict[tuple[str, str, int, int], _Pieces] = {}
        self._lost = self._overlapping = 0  # fragments
        self.joined = 0  #: how many packets were joined from fragments

    def take(self, frame: Frame) -> IpPacket | None:
        """Returns the packet of a frame, or the packet that its fragment completes, or None."""
        found = _peel(("link", frame.link), frame.octets)
        while isinstance(found, IpPacket) and found.fragment is not None:
            whole = self._join(found, found.fragment, frame.time)
            if whole is None:
                return None
            found = whole
            if isinstance(whole, IpPacket):
                found = _peel(("ether", whole.ethertype), whole.octets)
        if isinstance(found, Unknown):
            self._unknown[found.name] += 1
            return None
        return found

    def _join(self, packet: IpPacket, fragment: Fragment, time: float) -> IpPacket | Unknown | None:
        # RFC 791 section 3.2 identifies packets by the protocol too, RFC 8200 section 4.5 does not.
        protocol = packet.protocol if packet.ethertype == _IPV4 else 0
        key = packet.source, packet.destination, protocol, fragment.number
        pieces = self._pieces.get(key)
        if pieces is None or time - pieces.since > _REASSEMBLY:
            if pieces is not None:
                self._lose(pieces)
            pieces = self._pieces[key] = _Pieces(time)
            if len(self._pieces) > _PENDING:
                self._lose(self._pieces.pop(next(iter(self._pieces))))
        pieces.add(packet, fragment)
        payload = pieces.whole()
        if payload is None or pieces.first is None:
            return None
        del self._pieces[key]
        self.joined += 1
        return pieces.first.carrying(pieces.first.protocol, payload)

    def _lose(self, pieces: _Pieces) -> None:
        if pieces.abandoned:
            self._overlapping += pieces.count
        else:
            self._lost += pieces.count

    def pass_over(self, packet: IpPacket) -> None:
        """Counts a packet without TCP and SCTP."""
        name = _PROTOCOLS.get(packet.protocol, f"IP protocol {packet.protocol}")
        if (ports := packet.udp()) is not None:
            name = next((_UDP_PORTS[port] for port in ports[:2] if port in _UDP_PORTS), name)
        self._unknown[name] += 1

    def left_out(self) -> Iterator[LeftOut]:
        """Yields the frames without a packet, by their contents."""
        for name, count in self._unknown.most_common():
            yield LeftOut(count, "frame", name)
        rest = self._pieces.values()
        if lost := self._lost + sum(each.count for each in rest if not each.abandoned):
            yield LeftOut(lost, "IP fragment", "other fragments of these packets are missing")
        if overlapping := self._overlapping + sum(each.count for each in rest if each.abandoned):
            yield LeftOut(
                overlapping,
                "IP fragment",
                "of packets some of whose fragments overlap, RFC 8200 section 4.5",
            )

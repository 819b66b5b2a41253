"""Capture files: pcap and pcapng records, and the IP packets in them.

Written here rather than taken from a library because captures meet all of this: several sections
and interfaces in one file, either byte order, nanoseconds, a last record cut short, and frames cut
by a snapshot length."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TCP = 6
UDP = 17
SCTP = 132

_PCAP_MAGICS = {
    b"\xd4\xc3\xb2\xa1": ("<", 1e-6),
    b"\xa1\xb2\xc3\xd4": (">", 1e-6),
    b"\x4d\x3c\xb2\xa1": ("<", 1e-9),
    b"\xa1\xb2\x3c\x4d": (">", 1e-9),
}
_SECTION = b"\x0a\x0d\x0d\x0a"
_MAXIMUM_RECORD = 1 << 24

_ETHERNET = 1
_ETHERTYPE_IPV4 = 0x0800
_ETHERTYPE_IPV6 = 0x86DD
_VLAN_TAGS = (0x8100, 0x88A8, 0x9100)
#: IPv6 extension headers that may stand before TCP, all of the form {next, length - 1 in units of 8
#: octets}.
_IPV6_OPTIONS = (0, 43, 60, 135)


class CaptureError(ValueError):
    """A file that cannot be read as a capture, or that has nothing to play. The message is one
    sentence.
    """


@dataclass(frozen=True)
class Frame:
    """A record of a capture file. Frames are numbered from 1, as Wireshark does."""

    number: int
    time: float
    link: int
    octets: bytes


@dataclass(frozen=True)
class IpPacket:
    """A whole IP packet. ``missing`` octets of the payload's end were not captured."""

    source: str
    destination: str
    protocol: int
    payload: bytes
    missing: int
    fragment: bool
    pseudo_header: bytes


def read_frames(path: Path) -> Iterator[Frame]:
    """The frames of a pcap or pcapng file, in file order.

    Raises
    ------
    CaptureError
        The file is missing, or is neither.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise CaptureError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise CaptureError(f"{path} is a directory, not a capture") from None
    except OSError as error:
        raise CaptureError(f"{path} cannot be read: {error.strerror}") from None
    if data[:4] in _PCAP_MAGICS and len(data) >= 24:
        return _pcap_frames(data)
    if data[:4] == _SECTION and len(data) >= 28:
        return _pcapng_frames(data, path)
    raise CaptureError(f"{path} is not a capture: it begins neither like pcap nor like pcapng")


def _pcap_frames(data: bytes) -> Iterator[Frame]:
    order, unit = _PCAP_MAGICS[data[:4]]
    link = struct.unpack_from(order + "I", data, 20)[0] & 0xFFFF
    at, number = 24, 0
    while at + 16 <= len(data):
        seconds, fraction, captured, _ = struct.unpack_from(order + "IIII", data, at)
        if captured > _MAXIMUM_RECORD:
            return
        number += 1
        yield Frame(number, seconds + fraction * unit, link, data[at + 16 : at + 16 + captured])
        at += 16 + captured


def _pcapng_frames(data: bytes, path: Path) -> Iterator[Frame]:
    order = "<"
    interfaces: list[tuple[int, float, int]] = []  # link, unit of time, snapshot length
    at, number = 0, 0
    while at + 12 <= len(data):
        if data[at : at + 4] == _SECTION:
            order = "<" if data[at + 8 : at + 12] == b"\x4d\x3c\x2b\x1a" else ">"
            interfaces = []
        kind, length = struct.unpack_from(order + "II", data, at)
        if length < 12 or length % 4:
            raise CaptureError(
                f"{path} is damaged: the pcapng block at octet {at} has the length {length}"
            )
        body = data[at + 8 : at + length - 4]
        at += length
        if kind == 1 and len(body) >= 8:
            link, snaplen = struct.unpack_from(order + "HxxI", body)
            interfaces.append((link, _time_unit(body[8:], order), snaplen))
        elif kind == 6 and len(body) >= 20:
            interface, high, low, captured = struct.unpack_from(order + "IIII", body)
            if interface < len(interfaces):
                number += 1
                link, unit, _ = interfaces[interface]
                yield Frame(number, (high << 32 | low) * unit, link, body[20 : 20 + captured])
        elif kind == 3 and len(body) >= 4 and interfaces:  # Simple Packet Block
            link, _, snaplen = interfaces[0]
            captured = min(struct.unpack_from(order + "I", body)[0], snaplen or _MAXIMUM_RECORD)
            number += 1
            yield Frame(number, 0.0, link, body[4 : 4 + captured])
        elif kind == 2 and len(body) >= 20:  # the obsolete Packet Block
            interface, _, high, low, captured = struct.unpack_from(order + "HHIII", body)
            if interface < len(interfaces):
                number += 1
                link, unit, _ = interfaces[interface]
                yield Frame(number, (high << 32 | low) * unit, link, body[20 : 20 + captured])


def _time_unit(options: bytes, order: str) -> float:
    at = 0
    while at + 4 <= len(options):
        code, length = struct.unpack_from(order + "HH", options, at)
        if code == 0:
            break
        if code == 9 and length == 1 and at + 4 < len(options):  # if_tsresol
            value = options[at + 4]
            return float(2.0 ** -(value & 0x7F) if value & 0x80 else 10.0**-value)
        at += 4 + (length + 3) // 4 * 4
    return 1e-6


def ip_packet(frame: Frame) -> IpPacket | None:
    """The IP packet in a frame, or nothing if there is none."""
    at, kind = _network(frame)
    if kind == _ETHERTYPE_IPV4:
        return _ipv4(frame.octets[at:])
    if kind == _ETHERTYPE_IPV6:
        return _ipv6(frame.octets[at:])
    return None


def ethernet(frame: Frame) -> bytes:
    """The frame as Ethernet has it, without FCS: what another link captured gets a header."""
    if frame.link == _ETHERNET:
        return frame.octets
    at, kind = _network(frame)
    return bytes(12) + kind.to_bytes(2, "big") + frame.octets[at:]


def _network(frame: Frame) -> tuple[int, int]:
    """Where the header of the network layer begins, and its EtherType; 0 if that is not known."""
    data, link = frame.octets, frame.link
    if link == _ETHERNET:
        at, kind = 14, _u16(data, 12)
    elif link == 113:  # Linux cooked
        at, kind = 16, _u16(data, 14)
    elif link == 276:  # Linux cooked, version 2
        at, kind = 20, _u16(data, 0)
    elif link in (0, 108, 12, 14, 101, 228, 229):  # BSD loopback; raw IP
        at = 4 if link in (0, 108) else 0
        version = data[at] >> 4 if len(data) > at else 0
        return at, {4: _ETHERTYPE_IPV4, 6: _ETHERTYPE_IPV6}.get(version, 0)
    else:
        return 0, 0
    while kind in _VLAN_TAGS:
        at, kind = at + 4, _u16(data, at + 2)
    return at, kind


def _u16(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 2], "big") if at + 2 <= len(data) else 0


def _ipv4(data: bytes) -> IpPacket | None:
    if len(data) < 20 or data[0] >> 4 != 4:
        return None
    header = (data[0] & 15) * 4
    length = _u16(data, 2) or len(data)  # 0: left to the network card (segmentation offload)
    if header < 20 or length < header or len(data) < header:
        return None
    payload = data[header:length]
    return IpPacket(
        source=str(ipaddress.IPv4Address(data[12:16])),
        destination=str(ipaddress.IPv4Address(data[16:20])),
        protocol=data[9],
        payload=payload,
        missing=length - header - len(payload),
        fragment=bool(_u16(data, 6) & 0x3FFF),
        pseudo_header=data[12:20] + struct.pack(">HH", data[9], length - header),
    )


def _ipv6(data: bytes) -> IpPacket | None:
    if len(data) < 40 or data[0] >> 4 != 6:
        return None
    length = _u16(data, 4) or len(data) - 40
    body, protocol, fragment = data[40 : 40 + length], data[6], False
    missing = length - len(body)
    while protocol in _IPV6_OPTIONS or protocol == 44:
        if len(body) < 8:
            return None
        size = 8 if protocol == 44 else (body[1] + 1) * 8
        if protocol == 44 and _u16(body, 2) & 0xFFF9:
            fragment = True
        protocol, body, length = body[0], body[size:], length - size
    return IpPacket(
        source=str(ipaddress.IPv6Address(data[8:24])),
        destination=str(ipaddress.IPv6Address(data[24:40])),
        protocol=protocol,
        payload=body,
        missing=missing,
        fragment=fragment,
        pseudo_header=data[8:40] + struct.pack(">II", length, protocol),
    )


def internet_sum(data: bytes) -> int:
    """The ones' complement sum of RFC 1071, 16 bits, not complemented."""
    if len(data) % 2:
        data += b"\0"
    value = sum(struct.unpack(f">{len(data) // 2}H", data))
    while value >> 16:
        value = (value & 0xFFFF) + (value >> 16)
    return value

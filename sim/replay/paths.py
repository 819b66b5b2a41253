"""Puts SCTP packets into frames: the headers before that of SCTP (RFC 791, RFC 8200, RFC 6951)."""

from __future__ import annotations

import struct

from ...hdl.spec.net import SCTP_UDP_PORT, EtherType, Protocol
from ...hdl.spec.path import SendPath

__all__ = ["example_path", "frame_of"]

_MACS, _TYPE, _TAG, _UDP = 12, 2, 4, 8


def frame_of(headers: bytes, packet: bytes) -> bytes:
    """Returns an Ethernet frame without FCS: ``headers`` with their lengths and checksums, and the
    SCTP packet.

    ``headers`` are Ethernet header and VLAN tags, an IPv4 header without options or an IPv6 header
    without extension headers, and a UDP header or none.
    """
    at = _MACS
    while int.from_bytes(headers[at : at + _TYPE], "big") in (
        EtherType.VLAN, EtherType.SERVICE_VLAN,
    ):  # fmt: skip
        at += _TAG
    v6 = int.from_bytes(headers[at : at + _TYPE], "big") == EtherType.IPV6
    link, ip = headers[: at + _TYPE], bytearray(headers[at + _TYPE :])
    end = 40 if v6 else 20
    ip, udp = ip[:end], ip[end:]
    length = len(udp) + len(packet)
    addresses = bytes(ip[8:40] if v6 else ip[12:20])
    if udp:
        udp[4:8] = length.to_bytes(2, "big") + bytes(2)
        pseudo = addresses + length.to_bytes(4, "big") + bytes([0, 0, 0, Protocol.UDP])
        # Zero would say that there is no checksum.
        udp[6:8] = (_checksum(pseudo + udp + packet) or 0xFFFF).to_bytes(2, "big")
    if v6:
        ip[4:6] = length.to_bytes(2, "big")
    else:
        ip[2:4] = (end + length).to_bytes(2, "big")
        ip[10:12] = bytes(2)
        ip[10:12] = _checksum(bytes(ip)).to_bytes(2, "big")
    return link + ip + udp + packet


def _checksum(octets: bytes) -> int:
    """Returns the checksum of RFC 1071; an odd octet counts as if a zero followed."""
    octets += bytes(len(octets) % 2)
    total = sum(int.from_bytes(octets[at : at + 2], "big") for at in range(0, len(octets), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def example_path(number: int) -> SendPath:
    """Returns a path for tests and trials: the three lowest bits of ``number`` choose IPv6, UDP and
    a VLAN tag.
    """
    v6, udp, tagged = number & 1, number >> 1 & 1, number >> 2 & 1
    headers = bytes(range(2, 14))
    if tagged:
        headers += EtherType.VLAN.to_bytes(2, "big") + number.to_bytes(2, "big")
    protocol = Protocol.UDP if udp else Protocol.SCTP
    if v6:
        headers += EtherType.IPV6.to_bytes(2, "big") + bytes([0x60, 0, 0, 0, 0, 0, protocol, 64])
        headers += bytes(range(0x20, 0x40))
    else:
        headers += EtherType.IPV4.to_bytes(2, "big")
        headers += bytes([0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, protocol, 0, 0, *range(10, 18)])
    if udp:
        headers += struct.pack(">HHHH", SCTP_UDP_PORT, SCTP_UDP_PORT, 0, 0)
    return SendPath(headers, 5000 + number, 6000 + number, 0x01020304 * number)

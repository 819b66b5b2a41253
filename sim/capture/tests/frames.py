"""Builds frames for the tests with dpkt, whose TCP header alone the project's reader has, too."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

import dpkt
from ddp_rnic.sim.capture.pcap import Frame
from ddp_rnic.sim.model.mpa import StartupFrame

SYN, ACK, RST, FIN, PUSH = 0x02, 0x10, 0x04, 0x01, 0x08
A = ("10.7.0.1", 40000)
B = ("10.7.0.2", 7174)
REQUEST = StartupFrame(kind="request").encode()
REPLY = StartupFrame(kind="reply").encode()


def tcp_packet(
    source: tuple[str, int],
    destination: tuple[str, int],
    sequence: int,
    octets: bytes = b"",
    flags: int = ACK,
    acknowledged: int = 0,
) -> bytes:
    """Returns an IP packet with right checksums."""
    ends = [ipaddress.ip_address(end[0]) for end in (source, destination)]
    tcp = dpkt.tcp.TCP(
        sport=source[1],
        dport=destination[1],
        seq=sequence & 0xFFFFFFFF,
        ack=acknowledged & 0xFFFFFFFF,
        flags=flags,
        data=octets,
    )
    if ends[0].version == 4:
        packet = dpkt.ip.IP(src=ends[0].packed, dst=ends[1].packed, p=6, data=tcp)
        packet.len = len(packet)
    else:
        packet = dpkt.ip6.IP6(src=ends[0].packed, dst=ends[1].packed, nxt=6, hlim=64, data=tcp)
        packet.extension_hdrs = {}
        packet.plen = len(tcp)
    return bytes(packet)


def ethernet(packet: bytes, tags: bytes = b"") -> bytes:
    """Returns an Ethernet frame around an IP packet, padded to 60 octets; ``tags`` are whole
    VLAN tags.
    """
    kind = b"\x08\x00" if packet[0] >> 4 == 4 else b"\x86\xdd"
    return (bytes(12) + tags + kind + packet).ljust(60, b"\xaa")


def frames(packets: Iterable[bytes]) -> list[Frame]:
    """Returns Ethernet frames, numbered and timed."""
    return [
        Frame(number, number * 1e-3, 1, ethernet(packet))
        for number, packet in enumerate(packets, 1)
    ]


def handshake(
    a: tuple[str, int] = A,
    b: tuple[str, int] = B,
    starts: tuple[int, int] = (1000, 5000),
    request: bytes = REQUEST,
    reply: bytes = REPLY,
) -> list[bytes]:
    """Returns TCP's three packets and MPA's two. ``starts`` are the initial sequence numbers."""
    return [
        tcp_packet(a, b, starts[0], flags=SYN),
        tcp_packet(b, a, starts[1], flags=SYN | ACK, acknowledged=starts[0] + 1),
        tcp_packet(a, b, starts[0] + 1, acknowledged=starts[1] + 1),
        tcp_packet(a, b, starts[0] + 1, request, acknowledged=starts[1] + 1),
        tcp_packet(b, a, starts[1] + 1, reply, acknowledged=starts[0] + 1),
    ]


def first_octet(start: int, startup: bytes = REQUEST) -> int:
    """Returns the sequence number of the first octet after start-up."""
    return start + 1 + len(startup)

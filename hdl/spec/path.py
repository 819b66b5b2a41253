"""Declares how packets of an SCTP association reach the peer: their headers, and the sums over them
(RFC 791, RFC 8200, RFC 6951).
"""

from dataclasses import dataclass

from .net import EtherType, Protocol
from .sctp import PATH_AREA, PATH_HEADERS

__all__ = ["SendPath"]

_UDP, _V4, _V6 = 8, 20, 40
_MACS, _TYPE = 12, 2


def _sum(octets: bytes) -> int:
    """Returns the ones' complement sum of halves, the first octet of each lowest (RFC 1071)."""
    total = sum(int.from_bytes(octets[at : at + 2], "little") for at in range(0, len(octets), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


@dataclass(frozen=True)
class SendPath:
    """The way of an association's packets.

    Attributes
    ----------
    headers
        Ethernet header, VLAN tags if any, IPv4 header without options or IPv6 header without
        extension headers, and the UDP header if there is one. Lengths and checksums in them do not
        count: the device computes these.
    source_port, destination_port, tag
        The SCTP ports and the Verification Tag of packets to the peer.
    """

    headers: bytes
    source_port: int
    destination_port: int
    tag: int

    def __post_init__(self) -> None:
        at = self._ip
        if len(self.headers) > PATH_HEADERS:
            raise ValueError(
                f"headers must have at most {PATH_HEADERS} octets, not {len(self.headers)}"
            )
        version = self.headers[at] >> 4 if at < len(self.headers) else 0
        if version != (6 if self.v6 else 4) or (not self.v6 and self.headers[at] != 0x45):
            raise ValueError(
                "headers must have an IPv4 header of 20 octets or an IPv6 header after the"
                " Ethernet header"
            )
        protocol = self.headers[at + (6 if self.v6 else 9)]
        left = len(self.headers) - at - (_V6 if self.v6 else _V4)
        if (protocol, left) not in ((Protocol.SCTP, 0), (Protocol.UDP, _UDP)):
            raise ValueError(
                "headers must end with the IP header of protocol 132, SCTP, or with a UDP header"
            )

    @property
    def _ip(self) -> int:
        """The octet with which the IP header begins."""
        at = _MACS
        while self._type(at) in (EtherType.VLAN, EtherType.SERVICE_VLAN):
            at += 4
        return at + _TYPE

    def _type(self, at: int) -> int:
        return int.from_bytes(self.headers[at : at + _TYPE], "big")

    @property
    def v6(self) -> bool:
        """The packets are those of IPv6."""
        return self._type(self._ip - _TYPE) == EtherType.IPV6

    @property
    def udp(self) -> bool:
        """The packets are in UDP."""
        return len(self.headers) - self._ip - (_V6 if self.v6 else _V4) == _UDP

    @property
    def first(self) -> int:
        """The word of the area with which a frame begins."""
        return (PATH_HEADERS - len(self.headers)) // 4

    @property
    def ip_sum(self) -> int:
        """The sum of the IPv4 header without its length and its checksum."""
        ip = self.headers[self._ip : self._ip + _V4]
        return 0 if self.v6 else _sum(ip[:2] + ip[4:10] + ip[12:])

    @property
    def udp_sum(self) -> int:
        """The sum of pseudo-header and UDP header without lengths and checksum."""
        start, end = (8, _V6) if self.v6 else (12, _V4)
        addresses = self.headers[self._ip + start : self._ip + end]
        ports = self.headers[-_UDP:-4]
        return _sum(addresses + bytes([0, Protocol.UDP]) + ports) if self.udp else 0

    @property
    def words(self) -> dict[int, int]:
        """The headers as words of the area, the first octet lowest, by the number of the word."""
        area = (bytes(4 * self.first) + self.headers).ljust(PATH_AREA, b"\0")
        return {
            at: int.from_bytes(area[4 * at : 4 * at + 4], "little")
            for at in range(self.first, -(-PATH_HEADERS // 4))
        }

    @property
    def ports(self) -> int:
        """The ports as in the common header, the first octet lowest."""
        ports = self.source_port.to_bytes(2, "big") + self.destination_port.to_bytes(2, "big")
        return int.from_bytes(ports, "little")

    @property
    def wire_tag(self) -> int:
        """The Verification Tag as in the common header, the first octet lowest."""
        return int.from_bytes(self.tag.to_bytes(4, "big"), "little")

"""Declares numbers of the network below SCTP and TCP, and the layout of the association table."""

import struct
from collections import deque
from collections.abc import Mapping
from enum import IntEnum
from functools import cache
from typing import NamedTuple

__all__ = [
    "KEY_FIELDS",
    "SCTP_UDP_PORT",
    "WAYS",
    "AssociationKey",
    "EtherType",
    "Move",
    "Protocol",
    "TcpField",
    "hash_bits",
    "hash_way",
    "insert",
    "slot_bits",
    "tcp_words",
]

SCTP_UDP_PORT = 9899  #: RFC 6951 section 3, "sctp-tunneling"


class EtherType(IntEnum):
    """IEEE 802 numbers."""

    IPV4 = 0x0800
    VLAN = 0x8100  # IEEE 802.1Q, customer tag
    IPV6 = 0x86DD
    SERVICE_VLAN = 0x88A8  # IEEE 802.1Q, service tag


class Protocol(IntEnum):
    """Protocol numbers of IPv4, which are the Next Header values of IPv6."""

    HOP_BY_HOP = 0
    TCP = 6
    UDP = 17
    ROUTING = 43
    FRAGMENT = 44
    AUTHENTICATION = 51
    DESTINATION_OPTIONS = 60
    SCTP = 132


class TcpField(IntEnum):
    """Words of a TCP connection's entry.

    The octet that comes first on the wire, of an address or of the ports, is the lowest octet of
    its word. An IPv4 address uses the first of the four words.
    """

    SOURCE = 0  # the peer's address, words 0 to 3
    DESTINATION = 4  # this end's address, words 4 to 7
    PORTS = 8
    SEQUENCE = 9  # sequence number of the first octet after MPA's start-up frames
    SENT = 11  # SND.NXT, of the octet that the host sends next; may be written at any time
    SPAN = 12  # how far an Acknowledgment Number may lie before SENT (RFC 5961 section 5.2)
    SETTINGS = 10  # bit 0: valid, if the stream exists; 1: IPv6; 2: MPA markers; 16 to 31: stream


def tcp_words(
    source: bytes,
    destination: bytes,
    ports: tuple[int, int],
    *,
    sequence: int,
    stream: int,
    sent: int,
    span: int,
    markers: bool = False,
) -> list[tuple[int, int]]:
    """Returns the words of a TCP connection's entry as (field, word), in the order to write them.

    ``source`` and ``ports[0]`` are the address and the port of the peer.
    """
    words = [
        (first + at // 4, int.from_bytes(address[at : at + 4], "little"))
        for first, address in ((TcpField.SOURCE, source), (TcpField.DESTINATION, destination))
        for at in range(0, len(address), 4)
    ]
    octets = b"".join(port.to_bytes(2, "big") for port in ports)
    settings = 1 | (len(source) == 16) << 1 | bool(markers) << 2 | stream << 16
    return [
        *words,
        (TcpField.PORTS, int.from_bytes(octets, "little")),
        (TcpField.SEQUENCE, sequence),
        (TcpField.SENT, sent),
        (TcpField.SPAN, span),
        (TcpField.SETTINGS, settings),
    ]


#: The fields that identify an association: (name, bits).
KEY_FIELDS = (
    ("source", 128),
    ("destination", 128),
    ("source_port", 16),
    ("destination_port", 16),
    ("tag", 32),
    ("v6", 1),
)

WAYS = 2


class AssociationKey(NamedTuple):
    """The fields that identify an association.

    The octet of an address that comes first on the wire is the lowest; an IPv4 address has four
    octets. Ports and Verification Tag are numbers.
    """

    source: int
    destination: int
    source_port: int
    destination_port: int
    tag: int
    v6: bool


class Move(NamedTuple):
    """A write of ``key`` to ``slot`` of way ``way``."""

    way: int
    slot: int
    key: AssociationKey


def slot_bits(associations: int) -> int:
    """Returns the bits of a slot's number in either way of the association table.

    A device of up to 16 associations has 128 slots in each way, a larger one 512. An even number of
    bits would map similar ports to few slots.
    """
    return 7 if associations <= 16 else 9


@cache
def hash_bits(way: int, width: int) -> tuple[tuple[tuple[str, int], ...], ...]:
    """Returns, for each of the ``width`` bits of a slot's number, the key's bits to XOR for it.

    A bit of the key is given as (field, bit). Each field is folded from its bit 0, so that its
    lowest bits alone reach every slot. The second way rotates every fold by one more bit, so that
    bits that cancel in one way do not cancel in the other.
    """
    terms: list[list[tuple[str, int]]] = [[] for _ in range(width)]
    for number, (name, bits) in enumerate(KEY_FIELDS):
        for bit in range(bits):
            # Fields start at different bits, so that equal ports do not cancel.
            turned = bit + (4 if way else 2) * number + way * (bit // width)
            terms[turned % width].append((name, bit))
    return tuple(map(tuple, terms))


def hash_way(way: int, key: AssociationKey, width: int) -> int:
    """Returns the slot, a number of ``width`` bits, where ``way`` of the table may hold ``key``."""
    values = key._asdict()
    return sum(
        (sum(values[name] >> bit & 1 for name, bit in terms) & 1) << at
        for at, terms in enumerate(hash_bits(way, width))
    )


def insert(
    entries: Mapping[tuple[int, int], AssociationKey], key: AssociationKey, associations: int
) -> tuple[Move, ...]:
    """Finds room for one more key in the association table (cuckoo hashing).

    Parameters
    ----------
    entries
        Keys in the table, by (way, slot).
    key
        The key to add.
    associations
        Associations of the device.

    Returns the writes in the order in which to do them: a key that moves is written to its new slot
    before its old one is overwritten, so that look-ups find it at all times.

    Raises :exc:`ValueError` if the key is in the table already, or no moves make room for it.
    """
    width = slot_bits(associations)
    nests = [(way, hash_way(way, key, width)) for way in range(WAYS)]
    if any(entries.get(nest) == key for nest in nests):
        raise ValueError(f"association must not be in the table already: {key}")
    # Breadth first: the fewest moves.
    came_from: dict[tuple[int, int], tuple[int, int] | None] = dict.fromkeys(nests)
    queue = deque(nests)
    while queue:
        nest = queue.popleft()
        if nest not in entries:
            break
        way = 1 - nest[0]
        other = (way, hash_way(way, entries[nest], width))
        if other not in came_from:
            came_from[other] = nest
            queue.append(other)
    else:
        raise ValueError(
            f"association table has no room for {key} beside its {len(entries)} entries; "
            "remove one that shares its slots"
        )
    moves = []
    while (before := came_from[nest]) is not None:
        moves.append(Move(*nest, entries[before]))
        nest = before
    return (*moves, Move(*nest, key))


def internet_sum(data: bytes) -> int:
    """Returns the ones' complement sum of RFC 1071, 16 bits, not complemented."""
    if len(data) % 2:
        data += b"\0"
    value = sum(struct.unpack(f">{len(data) // 2}H", data))
    while value >> 16:
        value = (value & 0xFFFF) + (value >> 16)
    return value

"""An entry of the completion ring: where each field is, and how the host reads it."""

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

OCTETS = 32  #: of an entry


class Status(IntEnum):
    """What became of a message."""

    DELIVERED = 0
    NOT_PLACED = 1  #: the bus refused a write on the message's stream


class Field(NamedTuple):
    """``bits`` bits, little-endian, from bit ``bit`` of octet ``octet`` up."""

    name: str
    octet: int
    bit: int
    bits: int
    doc: str


#: The fields of an entry; what is between them and after them is 0.
FIELDS = (
    Field("tagged", 0, 0, 1, "The message was tagged."),
    Field("status", 1, 0, 8, "A Status."),
    Field("stream", 2, 0, 16, "The DDP Stream."),
    Field("tag", 4, 0, 32, "Tagged: the STag; untagged: the MSN."),
    Field("length", 8, 0, 32, "Octets of an untagged message; tagged: 0."),
    Field("cookie", 12, 0, 32, "BUFFER_COOKIE of an untagged message's buffer."),
    Field("rsvdulp", 16, 0, 40, "RsvdULP in the order of the wire: 5 octets, tagged: 1."),
    Field("qn", 21, 0, 8, "The Queue Number of an untagged message."),
    # In the last octet, which is written last: where it is right, all the others are.
    Field("phase", 31, 0, 1, "1 in the first pass over the ring, 0 in the second, and so on."),
)


@dataclass(frozen=True)
class Completion:
    """A completion.

    ``rsvdulp`` is the number that the DDP header has, 40 bits or, tagged, 8. The other members
    are those of ``FIELDS``.
    """

    phase: int
    tagged: bool
    status: Status
    stream: int
    tag: int
    length: int
    cookie: int
    rsvdulp: int
    qn: int


def decode(octets: bytes) -> Completion:
    """Reads an entry of the ring."""
    if len(octets) != OCTETS:
        raise ValueError(f"A completion must be {OCTETS} octets, not {len(octets)}")
    entry = int.from_bytes(octets, "little")
    value = {
        field.name: entry >> (8 * field.octet + field.bit) & (1 << field.bits) - 1
        for field in FIELDS
    }
    wire = value["rsvdulp"].to_bytes(5, "little")
    return Completion(
        phase=value["phase"],
        tagged=bool(value["tagged"]),
        status=Status(value["status"]),
        stream=value["stream"],
        tag=value["tag"],
        length=value["length"],
        cookie=value["cookie"],
        rsvdulp=int.from_bytes(wire[: 1 if value["tagged"] else 5], "big"),
        qn=value["qn"],
    )


def phase(number: int, size: int) -> int:
    """The phase bit of completion ``number``, counted from 0, in a ring of 2**size entries."""
    return ~number >> size & 1

"""An entry of the completion ring: where each field is, and how the host reads it."""

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from .sctp import Reason

OCTETS = 32  #: of an entry


class Kind(IntEnum):
    """What an entry tells of. All but MESSAGE are of DDP over SCTP.

    CHUNK and PACKET come in the order in which the chunks came, each once its octets are in host
    memory: from them the host's SCTP can acknowledge. MESSAGE and CONTROL come in the order of
    their stream's DDP-SSNs.
    """

    MESSAGE = 0  #: a DDP message, delivered
    CHUNK = 1  #: a DATA chunk on a DDP Stream: TSN, DDP-SSN, octets placed
    PACKET = 2  #: a packet of an association, behind its chunks, if none of them ``ends`` it
    CONTROL = 3  #: a DDP Stream Session Control message, whose turn it was
    SESSION = 4  #: an event of a session


class Status(IntEnum):
    """What became of a message."""

    DELIVERED = 0
    NOT_PLACED = 1  #: the bus refused a write on the message's stream


class ChunkStatus(IntEnum):
    """What became of a DATA chunk. All but OUTSIDE are to be acknowledged."""

    TAKEN = 0  #: placed, or a control message that was taken
    DUPLICATE = 1  #: it came before
    OUTSIDE = 2  #: ahead of the window, or no place to wait: dropped, and has to come again
    ILLEGAL = 3  #: it fits no legal sequence: the session is aborted
    SILENT = 4  #: its session was aborted before
    DROPPED = 5  #: DDP refused it, or its stream is in error or disabled
    NOT_PLACED = 6  #: the bus refused a write on its stream
    #: It is forwarded whole to the host, see Diversion: acknowledged once the host has the chunk.
    HELD = 7


class Field(NamedTuple):
    """``bits`` bits, little-endian, from bit ``bit`` of octet ``octet`` up."""

    name: str
    octet: int
    bit: int
    bits: int
    doc: str


#: The fields of an entry; what is between them and after them is 0.
#:
#: A tagged message begins with its first segment. Where segments of another message come between
#: its segments, which RFC 5041 section 5.3 does not allow a Data Source, only the segments after
#: the last of these count for ``length`` and ``cookie``.
FIELDS = (
    Field("tagged", 0, 0, 1, "The message was tagged."),
    Field("ends", 0, 1, 1, "CHUNK: it is the packet's last one."),
    Field("kind", 0, 4, 4, "A Kind."),
    Field("status", 1, 0, 8, "A Status; CHUNK: a ChunkStatus; SESSION: a Reason."),
    Field("stream", 2, 0, 16, "The DDP Stream; PACKET: 0."),
    Field("tag", 4, 0, 32, "Tagged: the STag; untagged: the MSN; CHUNK: the TSN; CONTROL: the"
          " Function Code; SESSION: the State that met it; PACKET: 0."),
    Field("length", 8, 0, 32, "Octets of a message; tagged: from where it begins to the end of its"
          " last segment, modulo 2^32; CHUNK: octets placed; PACKET: its chunks; otherwise 0."),
    Field("cookie", 12, 0, 32, "BUFFER_COOKIE of an untagged message's buffer; tagged: the lower 32"
          " bits of the Tagged Offset with which it begins; CHUNK: DDP-SSN, and in the upper half"
          " the association; PACKET: the association in the upper half; otherwise 0."),
    Field("rsvdulp", 16, 0, 40, "RsvdULP in the order of the wire: 5 octets, tagged: 1."),
    Field("qn", 21, 0, 8, "The Queue Number of an untagged message."),
    # In the last octet, which is written last: where it is right, all the others are.
    Field("phase", 31, 0, 1, "1 in the first pass over the ring, 0 in the second, and so on."),
)


@dataclass(frozen=True)
class Completion:
    """A completion.

    ``rsvdulp`` is the number that the DDP header has, 40 bits or, tagged, 8. ``status`` is of the
    type that goes with ``kind``. The other members are those of ``FIELDS``.
    """

    phase: int
    tagged: bool
    status: Status | ChunkStatus | Reason
    stream: int
    tag: int
    length: int
    cookie: int
    rsvdulp: int
    qn: int
    kind: Kind = Kind.MESSAGE
    ends: bool = False


_STATUS: dict[Kind, type[Status | ChunkStatus | Reason]] = {
    Kind.CHUNK: ChunkStatus,
    Kind.SESSION: Reason,
}


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
    kind = Kind(value["kind"])
    return Completion(
        phase=value["phase"],
        tagged=bool(value["tagged"]),
        status=_STATUS.get(kind, Status)(value["status"]),
        stream=value["stream"],
        tag=value["tag"],
        length=value["length"],
        cookie=value["cookie"],
        rsvdulp=int.from_bytes(wire[: 1 if value["tagged"] else 5], "big"),
        qn=value["qn"],
        kind=kind,
        ends=bool(value["ends"]),
    )


def phase(number: int, size: int) -> int:
    """The phase bit of completion ``number``, counted from 0, in a ring of 2**size entries."""
    return ~number >> size & 1

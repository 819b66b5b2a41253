"""Declares the entries of the send ring, and the records of FPDUs.

A message is one entry of 64 octets or several. Its first entry has the message's header, and then
two pieces or 32 octets inline; each further entry has four pieces or 64 octets.

Beside each FPDU stands a record, which says where its octets are. With it the owner of an LLP that
keeps no copy has the FPDU sent again, see the ``REPEAT`` registers.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum, IntFlag

from .completion import Field

__all__ = [
    "ENTRY", "LONGEST_SEGMENT", "MESSAGE", "PIECE", "PIECE_OCTETS", "READS", "RECORD",
    "RECORD_OCTETS", "Flag", "Kind", "Message", "Piece", "Record", "Waits"]

ENTRY = 64  #: octets of an entry of the send ring
PIECE_OCTETS = 16
RECORD_OCTETS = 8
LONGEST_SEGMENT = 1 << 15  #: octets of the longest segment that is sent: those of the staging ring
READS = 16  #: RDMA Reads over MPA that a stream may have outstanding
#: Where the pieces, or the octets inline, begin in a message's first entry.
_BODY = 32


class Kind(IntEnum):
    """The kind of a message to send."""

    TAGGED = 0
    UNTAGGED = 1
    #: a Read Request; its one piece is the sink of the response. A device that does not receive
    #: cannot take the response: the message fails there as one whose entry is not valid.
    READ = 2
    CONTROL = 3  #: a session control message of SCTP; its octets are the Private Data


class Flag(IntFlag):
    """Conditions under which the device sends a message and reports its end."""

    SIGNALED = 1  #: the message's success is reported by a completion; any failure is
    #: The message waits for the end of all earlier Reads of its stream, where READ_ORD bounds them.
    FENCE = 2
    INLINE = 4  #: the entries have the message's octets instead of pieces


class Waits(IntEnum):
    """The reason why the next message of a stream waits, as SEND_STATE shows it."""

    NOTHING = 0
    CREDIT = 1  #: room at the LLP
    #: The end of one of the stream's Reads: as many as its ORD are outstanding, or any with FENCE.
    READS = 2
    ASSOCIATION = 3  #: room in the association, or other streams that wait for that already


#: The first entry of a message. The octets between the fields are 0.
MESSAGE = (
    Field("kind", 0, 0, 8, "A Kind."),
    Field("flags", 1, 0, 8, "Flags."),
    Field("entries", 2, 0, 8, "Entries of the message."),
    Field("pieces", 3, 0, 8, "Pieces of the message; 0 with INLINE."),
    Field("length", 4, 0, 32, "Octets of the message: the sum of its pieces' lengths."),
    Field("rsvdulp", 8, 0, 40, "RsvdULP in the order of the wire; CONTROL: the first two octets are"
          " the Function Code."),
    Field("qn", 13, 0, 8, "The Queue Number of an untagged message."),
    Field("stag", 16, 0, 32, "The remote STag; READ: of the source."),
    Field("to", 24, 0, 64, "The remote Tagged Offset; READ: of the source."),
)
#: A part of a region of this end, from which or into which octets go.
PIECE = (
    Field("stag", 0, 0, 32, "The region's STag."),
    Field("length", 4, 0, 32, "Octets."),
    Field("to", 8, 0, 64, "The Tagged Offset of the first octet."),
)

#: The record of an FPDU that leaves, beside it.
RECORD = (
    Field("entry", 0, 0, 16, "Index into the send ring of the first entry of its message; response:"
          " Read Responses that had left whole before, as in SEND_STATE."),
    Field("entries", 2, 0, 8, "Entries of the message; response: 0."),
    Field("response", 3, 0, 1, "The message is a Read Response."),
    Field("ends", 3, 1, 1, "The FPDU is the last one of its message."),
    Field("signaled", 3, 2, 1, "The message has the flag SIGNALED."),
    Field("repeat", 3, 3, 1, "The FPDU was sent before; its entry is that of REPEAT_ENTRY."),
    Field("offset", 4, 0, 32, "Octets of the message before those of the FPDU."),
)


def _pack(fields: Iterable[Field], octets: int, values: dict[str, int]) -> bytes:
    number = 0
    for name, octet, bit, bits, _ in fields:
        if not 0 <= values[name] < 1 << bits:
            raise ValueError(f"{name} must be from 0 to 2**{bits} - 1, not {values[name]!r}")
        number |= values[name] << 8 * octet + bit
    return number.to_bytes(octets, "little")


def _unpack(fields: Iterable[Field], octets: int, what: str, entry: bytes) -> dict[str, int]:
    if len(entry) != octets:
        raise ValueError(f"{what} must be {octets} octets, not {len(entry)}")
    number = int.from_bytes(entry, "little")
    values = {
        name: number >> 8 * octet + bit & (1 << bits) - 1 for name, octet, bit, bits, _ in fields
    }
    if _pack(fields, octets, values) != entry:
        raise ValueError(f"{what} must have only zeros between its fields")
    return values


@dataclass(frozen=True)
class Record:
    """A decoded :data:`RECORD`. A response has as ``entry`` the number of responses before it."""

    entry: int
    entries: int
    response: int
    ends: int
    signaled: int
    repeat: int
    offset: int

    @property
    def number(self) -> int:
        """The record as a number, whose lowest octet is the first one."""
        return sum(getattr(self, name) << 8 * octet + bit for name, octet, bit, _, _ in RECORD)

    @classmethod
    def decode(cls, number: int) -> "Record":
        """Decodes the octets of a record, of which the first is the lowest of ``number``."""
        return cls(**{
            name: number >> 8 * octet + bit & (1 << bits) - 1
            for name, octet, bit, bits, _ in RECORD
        })  # fmt: skip


@dataclass(frozen=True)
class Piece:
    """A part of a region: ``length`` octets from the Tagged Offset ``to`` on."""

    stag: int
    length: int
    to: int

    def encode(self) -> bytes:
        return _pack(PIECE, PIECE_OCTETS, vars(self))

    @classmethod
    def decode(cls, octets: bytes) -> "Piece":
        return cls(**_unpack(PIECE, PIECE_OCTETS, "A piece", octets))


@dataclass(frozen=True)
class Message:
    """A message to send. It has pieces or, with INLINE, octets.

    ``rsvdulp`` is the number in the DDP header, of 40 bits. The other members are those of
    :data:`MESSAGE`.
    """

    kind: Kind
    flags: Flag = Flag(0)
    pieces: tuple[Piece, ...] = ()
    octets: bytes = b""
    rsvdulp: int = 0
    qn: int = 0
    stag: int = 0
    to: int = 0

    def __post_init__(self) -> None:
        if self.kind is Kind.READ and len(self.pieces) != 1:
            raise ValueError(f"A READ must have one piece, not {len(self.pieces)}")
        if self.pieces if Flag.INLINE in self.flags else self.octets:
            raise ValueError("A message must have pieces, or INLINE and octets")

    @property
    def length(self) -> int:
        """Octets of the message."""
        return len(self.octets) + sum(piece.length for piece in self.pieces)

    def encode(self) -> bytes:
        """Returns the message's entries; raises ValueError if a field is too large."""
        body = self.octets or b"".join(piece.encode() for piece in self.pieces)
        entries = 1 + -(-max(len(body) - (ENTRY - _BODY), 0) // ENTRY)
        head = _pack(MESSAGE, _BODY, {
            "kind": self.kind, "flags": self.flags, "entries": entries, "pieces": len(self.pieces),
            "length": self.length, "rsvdulp": _turned(self.rsvdulp), "qn": self.qn,
            "stag": self.stag, "to": self.to,
        })  # fmt: skip
        return (head + body).ljust(entries * ENTRY, b"\0")

    @classmethod
    def decode(cls, entries: bytes) -> "Message":
        """Decodes the entries of one message; raises ValueError if they are not valid."""
        values = _unpack(MESSAGE, _BODY, "A message's header", entries[:_BODY])
        body, flags = entries[_BODY:], Flag(values["flags"])
        count, length = values["pieces"], values["length"]
        inline = Flag.INLINE in flags
        pieces = tuple(
            Piece.decode(body[at : at + PIECE_OCTETS])
            for at in range(0, count * PIECE_OCTETS, PIECE_OCTETS)
        )
        message = cls(
            Kind(values["kind"]), flags, pieces, body[:length] if inline else b"",
            _turned(values["rsvdulp"]), values["qn"], values["stag"], values["to"],
        )  # fmt: skip
        if message.length != length:
            raise ValueError(f"A message's pieces must add up to {length}, not {message.length}")
        if message.encode() != entries:
            raise ValueError(
                "A message must have no more entries than it needs, and zeros after its end")
        return message


def _turned(rsvdulp: int) -> int:
    """Turns the order of RsvdULP's octets: that of a number and that of the wire."""
    if not 0 <= rsvdulp < 1 << 40:
        raise ValueError(f"rsvdulp must be from 0 to 2**40 - 1, not {rsvdulp!r}")
    return int.from_bytes(rsvdulp.to_bytes(5, "big"), "little")

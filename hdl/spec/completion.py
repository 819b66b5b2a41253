"""Declares an entry of a completion queue: the position of each field, and a decoder.

A queue is a ring in host memory. Where it is full, the device differs from the golden model, which
delivers every message that RFC 5041 section 5.4 lets it deliver:

* **Overrun.** A message that may be delivered while its stream's queue has no room is not
  delivered. Its stream is in error (:data:`~.ddp.QUEUE_OVERRUN`) as after any other error, and no
  later message of it is delivered, whether or not the queue has room by then. No other stream
  notices. A queue has no room that is disabled, that restarts, that holds as many entries as its
  size which the host has not taken, or of which the bus has refused an entry.
* **The queue of SCTP's owner** never overruns: the device takes a frame only while the queue has a
  free entry for each record of frames taken before, and ``RnicConfig.owner_entries`` more.
* **Sent messages** never overrun a queue: without room, the device keeps their latest completions.
"""

from enum import IntEnum
from typing import NamedTuple

from .sctp import Reason

OCTETS = 32  #: of an entry


class Kind(IntEnum):
    """The kind of an entry.

    CHUNK, PACKET, CONTROL and SESSION exist only with DDP over SCTP. The device writes CHUNK and
    PACKET in the order in which the chunks arrived, each once the chunk's octets are in host
    memory; from these entries the host's SCTP knows which chunks it may acknowledge. MESSAGE and
    CONTROL are in the order of their stream's DDP-SSNs.
    """

    MESSAGE = 0  #: a DDP message, delivered
    CHUNK = 1  #: a DATA chunk on a DDP Stream: TSN, DDP-SSN, octets placed
    PACKET = 2  #: the end of an association's packet, if none of its chunks has ``ends``
    CONTROL = 3  #: a DDP Stream Session Control message, when its DDP-SSN is next
    SESSION = 4  #: an event of a session
    SENT = 5  #: entries of a send ring have ended


class Status(IntEnum):
    """The outcome of a message."""

    DELIVERED = 0
    NOT_PLACED = 1  #: the bus refused a write on the message's stream


class SentStatus(IntEnum):
    """The outcome of all entries of a send ring from the index of its last completion on.

    A message with an entry that is not valid may be FAILED up to an index among its entries. The
    others are FLUSHED then.
    """

    SUCCESS = 0  #: all of their messages' FPDUs have left; with ``repeats``: they are released
    FAILED = 1  #: an entry was not valid, or its octets could not be read; see SEND_STATE
    FLUSHED = 2  #: not sent, because the sending half was closed


class ChunkStatus(IntEnum):
    """The outcome of a DATA chunk. The host acknowledges all chunks but those that are OUTSIDE."""

    TAKEN = 0  #: placed, or a control message that was accepted
    DUPLICATE = 1  #: received before
    OUTSIDE = 2  #: ahead of the window, or no slot to wait in: dropped; the peer has to repeat it
    ILLEGAL = 3  #: it fits no legal sequence: the session is aborted
    SILENT = 4  #: its session was aborted before
    DROPPED = 5  #: DDP refused it, or its stream is in error or disabled
    NOT_PLACED = 6  #: the bus refused a write on its stream
    #: The device forwards the whole chunk to the host, see Diversion. The host acknowledges it once
    #: it has received the chunk.
    HELD = 7


#: The outcome of an entry of any kind.
AnyStatus = Status | ChunkStatus | Reason | SentStatus


class Field(NamedTuple):
    """A field of ``bits`` bits, little-endian, from bit ``bit`` of octet ``octet`` up."""

    name: str
    octet: int
    bit: int
    bits: int
    doc: str


#: The fields of an entry. Bits between and after the fields are 0.
#:
#: A tagged message begins with its first segment. If segments of another message arrive between its
#: segments, which RFC 5041 section 5.3 does not allow a Data Source, ``length`` and ``cookie``
#: cover only the segments after the last segment of that other message.
FIELDS = (
    Field("tagged", 0, 0, 1, "The message was tagged."),
    Field("ends", 0, 1, 1, "CHUNK: the chunk is the last one of its packet."),
    Field("kind", 0, 4, 4, "A Kind."),
    Field("status", 1, 0, 8, "A Status; CHUNK: a ChunkStatus; SESSION: a Reason; SENT: a"
          " SentStatus."),
    Field("stream", 2, 0, 16, "The DDP Stream; PACKET: 0."),
    Field("tag", 4, 0, 32, "Tagged: the STag; untagged: the MSN; CHUNK: the TSN; CONTROL: the"
          " Function Code; SESSION: the session's State when the event occurred; PACKET: 0; SENT:"
          " an index into the send ring, modulo 2^16: all entries before it have ended."),
    Field("length", 8, 0, 32, "Octets of a message; tagged: from its beginning to the end of its"
          " last segment, modulo 2^32; CHUNK: octets placed; PACKET: number of its chunks;"
          " otherwise 0."),
    Field("cookie", 12, 0, 32, "BUFFER_COOKIE of an untagged message's buffer; tagged: the lower 32"
          " bits of the message's first Tagged Offset; CHUNK: the DDP-SSN, and in the upper half"
          " the association; PACKET: the association in the upper half; otherwise 0."),
    Field("rsvdulp", 16, 0, 40, "RsvdULP in the order of the wire: 5 octets, tagged: 1."),
    Field("qn", 21, 0, 8, "The Queue Number of an untagged message."),
    # The phase bit is in the last octet, which is written last: once it is new, all others are.
    Field("phase", 31, 0, 1, "1 in the first pass over the ring, 0 in the second, and so on."),
)


class Completion(NamedTuple):
    """A decoded entry of a completion queue.

    ``rsvdulp`` is the number in the DDP header, of 40 bits, or of 8 bits in a tagged message. The
    type of ``status`` depends on ``kind``. The other members are those of ``FIELDS``.
    """

    phase: int = 0
    tagged: bool = False
    status: AnyStatus = Status.DELIVERED
    stream: int = 0
    tag: int = 0
    length: int = 0
    cookie: int = 0
    rsvdulp: int = 0
    qn: int = 0
    kind: Kind = Kind.MESSAGE
    ends: bool = False


#: Of each field the lowest bit in the entry, and a mask of as many bits.
_BITS = [(8 * field.octet + field.bit, (1 << field.bits) - 1) for field in FIELDS]
#: The kinds, and of each one the statuses, by their numbers.
_KINDS = {int(kind): kind for kind in Kind}
_STATUS: dict[Kind, dict[int, AnyStatus]] = {kind: {int(s): s for s in Status} for kind in Kind}
_STATUS |= {
    Kind.CHUNK: {int(status): status for status in ChunkStatus},
    Kind.SESSION: {int(reason): reason for reason in Reason},
    Kind.SENT: {int(status): status for status in SentStatus},
}


def decode(octets: bytes) -> Completion:
    """Decodes one entry of the ring; raises ValueError unless it has 32 octets."""
    if len(octets) != OCTETS:
        raise ValueError(f"A completion must be {OCTETS} octets, not {len(octets)}")
    entry = int.from_bytes(octets, "little")
    tagged, ends, number, status, stream, tag, length, cookie, rsvdulp, qn, phase = [
        entry >> lowest & mask for lowest, mask in _BITS
    ]
    wire = rsvdulp.to_bytes(5, "little")
    try:
        kind = _KINDS[number]
        outcome = _STATUS[kind][status]
    except KeyError:
        raise ValueError(f"Kind {number} with status {status} does not exist") from None
    return Completion(
        phase, bool(tagged), outcome, stream, tag, length, cookie,
        int.from_bytes(wire[: 1 if tagged else 5], "big"), qn, kind, bool(ends),
    )  # fmt: skip


def phase(number: int, size: int) -> int:
    """Returns the phase bit of completion ``number``, from 0, in a ring of 2**size entries."""
    return ~number >> size & 1

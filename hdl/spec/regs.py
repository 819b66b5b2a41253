"""The register map: the one description that decoder, driver and documents derive from.

All registers are 32 bits wide, at octet addresses, little-endian on the bus. Three windows reach
the tables:

* write the ``STAG_*`` registers, then ``STAG_COMMIT``: the entry named by ``STAG_INDEX`` is
  replaced whole;
* write the ``STREAM_*`` registers, then ``STREAM_COMMIT``: likewise, and the stream's error
  state is cleared;
* while ``STATUS.event`` is set the ``EVENT_*`` registers show the oldest error event; writing
  ``EVENT_POP`` takes it off the queue.
"""

from __future__ import annotations

from dataclasses import dataclass

ID = 0x52_4E_49_43  #: "RNIC"
VERSION = 0x0001_0000  #: major in the upper half, minor in the lower
ADDRESS_BITS = 12


@dataclass(frozen=True)
class Field:
    """``bits`` bits of a register from bit ``low`` up."""

    name: str
    low: int
    bits: int
    doc: str


@dataclass(frozen=True)
class Register:
    """A register. Access is ``ro``, ``rw`` or ``wo`` (a write is a command; reads give 0)."""

    name: str
    address: int
    access: str
    doc: str
    fields: tuple[Field, ...] = ()


def _f(name: str, low: int, bits: int, doc: str) -> Field:
    return Field(name, low, bits, doc)


REGISTERS = (
    Register("ID", 0x000, "ro", "Identifies the device: 0x524E4943."),
    Register(
        "VERSION",
        0x004,
        "ro",
        "Version of this register map.",
        (_f("minor", 0, 16, "Compatible additions."), _f("major", 16, 16, "Incompatible changes.")),
    ),
    Register("CAP_WIDTH", 0x008, "ro", "Datapath width in bits."),
    Register("CAP_STAGS", 0x00C, "ro", "Entries in the Steering Tag table."),
    Register("CAP_STREAMS", 0x010, "ro", "DDP Streams."),
    Register("CAP_BUFFER", 0x014, "ro", "Octets in the packet buffer; an FPDU must fit in it."),
    Register(
        "STATUS",
        0x018,
        "ro",
        "State of the datapath.",
        (
            _f("event", 0, 1, "The EVENT registers hold an error event."),
            _f(
                "idle",
                1,
                1,
                "Nothing is in flight: every segment is placed, with its responses, or dropped.",
            ),
        ),
    ),
    Register("SCRATCH", 0x01C, "rw", "Keeps what is written, for bus tests."),
    Register(
        "STAG_INDEX", 0x040, "rw", "Index of the entry to write: the upper 24 bits of the STag."
    ),
    Register(
        "STAG_FLAGS",
        0x044,
        "rw",
        "Key, state and rights.",
        (
            _f("key", 0, 8, "The lower 8 bits of the STag."),
            _f("valid", 8, 1, "The entry is in use."),
            _f("remote_write", 9, 1, "Tagged segments may be placed."),
            _f("remote_read", 10, 1, "RDMA Read may take from it."),
            _f(
                "bound",
                11,
                1,
                "Associated with one DDP Stream rather than with a Protection Domain.",
            ),
        ),
    ),
    Register(
        "STAG_OWNER",
        0x048,
        "rw",
        "The DDP Stream (bound) or the Protection Domain (16 bits) of the entry.",
    ),
    Register("STAG_TO_LO", 0x04C, "rw", "Tagged Offset of the region's first octet, lower half."),
    Register("STAG_TO_HI", 0x050, "rw", "Upper half."),
    Register("STAG_LEN_LO", 0x054, "rw", "Length of the region in octets, lower half."),
    Register("STAG_LEN_HI", 0x058, "rw", "Upper half."),
    Register("STAG_ADDR_LO", 0x05C, "rw", "Host address of the region's first octet, lower half."),
    Register("STAG_ADDR_HI", 0x060, "rw", "Upper half."),
    Register("STAG_COMMIT", 0x064, "wo", "Writes the entry."),
    Register("STREAM_INDEX", 0x080, "rw", "Number of the stream to write."),
    Register(
        "STREAM_FLAGS",
        0x084,
        "rw",
        "How the stream is received.",
        (
            _f("enable", 0, 1, "Segments are placed; otherwise dropped and counted."),
            _f("crc", 1, 1, "MPA CRC in use (RFC 5044 section 4.4)."),
            _f("markers", 2, 1, "MPA markers in use (RFC 5044 section 4.3)."),
        ),
    ),
    Register("STREAM_PD", 0x088, "rw", "Protection Domain of the stream (16 bits)."),
    Register("STREAM_COMMIT", 0x08C, "wo", "Writes the entry and clears the stream's error state."),
    Register(
        "EVENT_CODE",
        0x0C0,
        "ro",
        "Error of RFC 5041 section 7.2.",
        (_f("code", 0, 8, "Error Code."), _f("type", 8, 4, "Error Type.")),
    ),
    Register("EVENT_STREAM", 0x0C4, "ro", "The stream that the error is on."),
    Register("EVENT_LENGTH", 0x0C8, "ro", "Octets of the DDP Segment, header included."),
    Register("EVENT_SEQUENCE", 0x0CC, "ro", "LLP sequence number of the segment's FPDU."),
    Register(
        "EVENT_HEADER0",
        0x0D0,
        "ro",
        "The DDP header as received, the LLP's length before it: octets 0 to 3, first lowest.",
    ),
    Register("EVENT_HEADER1", 0x0D4, "ro", "Octets 4 to 7."),
    Register("EVENT_HEADER2", 0x0D8, "ro", "Octets 8 to 11."),
    Register("EVENT_HEADER3", 0x0DC, "ro", "Octets 12 to 15."),
    Register("EVENT_HEADER4", 0x0E0, "ro", "Octets 16 to 19."),
    Register("EVENT_POP", 0x0E4, "wo", "Takes the event off the queue."),
    Register("PLACED_SEGMENTS", 0x100, "ro", "Tagged segments placed."),
    Register(
        "PLACED_OCTETS_LO",
        0x104,
        "ro",
        "Octets placed, lower half; reading it holds the upper half for PLACED_OCTETS_HI.",
    ),
    Register("PLACED_OCTETS_HI", 0x108, "ro", "Upper half, as of the last read of the lower half."),
    Register("EXCEPTIONS", 0x10C, "ro", "FPDUs that left on the exception stream."),
    Register("ERRORS", 0x110, "ro", "Segments that raised an error event."),
    Register(
        "DROPPED", 0x114, "ro", "Segments dropped silently, after an error or on a disabled stream."
    ),
    Register("DIGEST_ERRORS", 0x118, "ro", "FPDUs whose CRC did not match."),
)

BY_NAME = {register.name: register for register in REGISTERS}


def address(name: str) -> int:
    """Octet address of a register."""
    return BY_NAME[name].address

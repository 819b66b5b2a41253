"""A board as its host sees it: the one description of the address map behind the host link.

Addresses are of octets, 32 bits wide; an access is of an aligned 32-bit word, whose lowest octet
has the lowest address. Outside the windows, and where a window has nothing, a read gives
``NOTHING`` and a write has no effect; both count in HOST_ERRORS.

* ``RNIC`` has the registers of :mod:`.regs`.
* ``BOARD`` has those below.
* ``MEMORY`` is the placement memory, of CAP_MEMORY octets. The RNIC's bus address 0 (in STAG_ADDR,
  BUFFER_ADDR, PAGE_ADDR, CQ_BASE) is its first octet: what the RNIC writes to its address A, the
  host reads at ``MEMORY.address + A``.
* ``RECEIVED`` shows a packet of the exception stream, from its first octet on, while
  STATUS.received is set; writing RECEIVED_POP makes room for the next one.
* ``TRANSMIT`` takes a frame without FCS: while STATUS.transmitting is clear write its octets,
  then TRANSMIT_LENGTH, then TRANSMIT_SEND. A frame of less than 60 octets is padded.

A board whose RNIC takes DDP over MPA has TCP in front of it, and TCP_REGISTERS. A connection is set
up field by field (:class:`.net.TcpField`): write TCP_PLACE, TCP_WORD and TCP_WRITE, which lie in a
row, while TCP_STATE.writing is clear; SETTINGS comes last. To change one, write SETTINGS as 0
first; SENT alone may be written at any time.

MDIO (IEEE 802.3 clause 22) is there for the PHY: while STATUS.mdio is clear write MDIO_ADDRESS,
then MDIO_READ, or MDIO_DATA and MDIO_WRITE; what was read is in MDIO_RESULT once STATUS.mdio is
clear. A while after reset the board itself has each PHY advertise 1000 Mb/s alone, and STATUS.mdio
is set meanwhile.

The IDENTIFIER_WORDS words from IDENTIFIER up, in the window ``BOARD``, hold a text that names the
board, in LiteX's form: one character in the lowest octet of each word, and zeros after the last.
"""

from dataclasses import dataclass

from .regs import Field, Register

__all__ = [
    "BY_NAME",
    "ID",
    "IDENTIFIER",
    "IDENTIFIER_WORDS",
    "LONGEST",
    "NOTHING",
    "REGISTERS",
    "SHORTEST",
    "TCP_REGISTERS",
    "VERSION",
    "WINDOWS",
    "Window",
    "address",
    "pack",
    "unpack",
]

ID = 0x52_42_52_44  #: "RBRD"
VERSION = 0x0001_0001  #: major in the upper half, minor in the lower
IDENTIFIER = 0x800  #: octet address of its first word, in the window BOARD
IDENTIFIER_WORDS = 256
NOTHING = 0xFFFF_FFFF  #: what is read where nothing is
SHORTEST = 60  #: octets of a frame without FCS, IEEE 802.3 section 4A.4.2 (minFrameSize less FCS)
LONGEST = 1996  #: likewise, of an envelope frame (IEEE 802.3 section 3.2.7)


@dataclass(frozen=True)
class Window:
    """``size`` octets of the address map from ``address`` up, a multiple of it."""

    name: str
    address: int
    size: int
    doc: str


RNIC = Window("RNIC", 0x0000_0000, 0x1000, "Registers of the RNIC.")
BOARD = Window("BOARD", 0x0000_1000, 0x1000, "Registers of the board.")
MEMORY = Window("MEMORY", 0x1000_0000, 0x0100_0000, "Placement memory.")
RECEIVED = Window("RECEIVED", 0x2000_0000, 0x800, "A packet of the exception stream; read only.")
TRANSMIT = Window("TRANSMIT", 0x3000_0000, 0x800, "A frame to be sent; write only.")
WINDOWS = (RNIC, BOARD, MEMORY, RECEIVED, TRANSMIT)

#: Registers, at octet addresses in the window ``BOARD``.
REGISTERS = (
    Register("ID", 0x000, "ro", "Identifies the board's map: 0x52425244."),
    Register(
        "VERSION",
        0x004,
        "ro",
        "Version of this map.",
        (
            Field("minor", 0, 16, "Compatible additions."),
            Field("major", 16, 16, "Incompatible changes."),
        ),
    ),
    Register("CAP_MEMORY", 0x008, "ro", "Octets of placement memory."),
    Register("CAP_FRAME", 0x00C, "ro", "Octets of the longest frame, without FCS."),
    Register("CAP_CLOCK", 0x010, "ro", "The RNIC's clock in Hz: CQ_TIMEOUT counts its cycles."),
    Register("SCRATCH", 0x014, "rw", "Keeps what is written, for bus tests."),
    Register(
        "STATUS",
        0x018,
        "ro",
        "What goes on. Link, speed and duplex are as the PHY tells between frames, if it does"
        " (RGMII 2.0 section 3.4.1).",
        (
            Field("link", 0, 1, "The link is up."),
            Field("speed", 1, 2, "2: 1000 Mb/s, which alone is supported; 1: 100; 0: 10."),
            Field("duplex", 3, 1, "Full duplex."),
            Field("received", 4, 1, "The window RECEIVED holds a packet."),
            Field("transmitting", 5, 1, "The frame in TRANSMIT has not left yet."),
            Field("mdio", 6, 1, "MDIO is busy."),
            Field("interrupt", 7, 1, "The RNIC's interrupt."),
        ),
    ),
    Register(
        "MDIO_ADDRESS",
        0x020,
        "rw",
        "Of an MDIO access.",
        (
            Field("register", 0, 5, "Register of the PHY."),
            Field("phy", 8, 5, "Address of the PHY."),
        ),
    ),
    Register("MDIO_DATA", 0x024, "rw", "What MDIO_WRITE writes, 16 bits."),
    Register("MDIO_READ", 0x028, "wo", "Reads a register of the PHY; ignored while MDIO is busy."),
    Register("MDIO_WRITE", 0x02C, "wo", "Writes one; ignored while MDIO is busy."),
    Register(
        "MDIO_RESULT",
        0x030,
        "ro",
        "Of the last MDIO_READ.",
        (Field("data", 0, 16, "What was read."), Field("silent", 16, 1, "No PHY answered.")),
    ),
    Register("RECEIVED_LENGTH", 0x040, "ro", "Octets of the packet in RECEIVED."),
    Register("RECEIVED_STREAM", 0x044, "ro", "Its stream, as the exception stream tells it."),
    Register("RECEIVED_SEQUENCE", 0x048, "ro", "Its sequence number."),
    Register(
        "RECEIVED_REASON",
        0x04C,
        "ro",
        "Why it is there: Error Type and Error Code, 12 bits, or a Diversion.",
    ),
    Register("RECEIVED_POP", 0x050, "wo", "Makes room for the next packet."),
    Register(
        "TRANSMIT_LENGTH", 0x060, "rw", "Octets of the frame in TRANSMIT, from 14 to CAP_FRAME."
    ),
    Register(
        "TRANSMIT_SEND",
        0x064,
        "wo",
        "Sends it; ignored while a frame is being sent, or if TRANSMIT_LENGTH is out of range.",
    ),
    Register("LINK_FRAMES", 0x080, "ro", "Frames that came in undamaged."),
    Register("LINK_DAMAGED", 0x084, "ro", "Frames with a wrong FCS or length, or a symbol error."),
    Register("LINK_DROPPED", 0x088, "ro", "Frames for which the RNIC left no room."),
    Register("LINK_SENT", 0x08C, "ro", "Frames that were sent."),
    Register(
        "HOST_ERRORS",
        0x090,
        "ro",
        "Commands of the host link that were not understood or broken off, and accesses that found"
        " nothing.",
    ),
    Register(
        "LINK_UNSTARTED",
        0x094,
        "ro",
        "Frames without a start frame delimiter after their preamble: the timing of RGMII is wrong,"
        " or the link is not at 1000 Mb/s.",
    ),
)

#: Likewise, on a board with TCP.
TCP_REGISTERS = (
    Register("CAP_CONNECTIONS", 0x0A0, "ro", "TCP connections of which segments are taken."),
    Register(
        "CAP_TCP_WINDOW", 0x0A4, "ro", "Octets that the host may offer a connection as its window."
    ),
    Register(
        "TCP_PLACE",
        0x0A8,
        "rw",
        "Of a connection: that of TCP_WRITE, and of the registers from TCP_NEXT to TCP_STATE.",
        (
            Field("connection", 0, 8, "Its number."),
            Field("field", 8, 4, "TcpField that is written."),
        ),
    ),
    Register("TCP_WORD", 0x0AC, "rw", "What TCP_WRITE writes."),
    Register("TCP_WRITE", 0x0B0, "wo", "Writes it; ignored while TCP_STATE.writing is set."),
    Register(
        "TCP_NEXT",
        0x0B4,
        "ro",
        "Octets taken of the connection since it was set up, modulo 2^32: the host acknowledges"
        " SEQUENCE and these.",
    ),
    Register(
        "TCP_ACKNOWLEDGED", 0x0B8, "ro", "Acknowledgment Number of the last segment taken, or 0."
    ),
    Register(
        "TCP_STATE",
        0x0BC,
        "ro",
        "What there is to know of the connection.",
        (
            Field("window", 0, 16, "Window of the last segment taken, or 0."),
            Field("broken", 16, 1, "An FPDU is longer than CAP_TCP_WINDOW, or too short"
                  " for a DDP header: nothing more is taken."),
            Field("writing", 17, 1, "TCP_WRITE has not had its effect yet."),
        ),
    ),
    Register("TCP_TAKEN", 0x0C0, "ro", "Segments taken."),
    Register("TCP_HOST", 0x0C4, "ro", "Frames that were the host's."),
    Register("TCP_DROPPED", 0x0C8, "ro", "Segments with a wrong checksum, and damaged frames."),
    Register("TCP_LOST", 0x0CC, "ro", "Frames that were the host's and found no room."),
)

BY_NAME = {register.name: register for register in (*REGISTERS, *TCP_REGISTERS)}


def address(name: str) -> int:
    """Octet address of a register of the board, behind the host link."""
    return BOARD.address + BY_NAME[name].address


def pack(name: str, **values: int) -> int:
    """What a register holds whose fields have these values; the others are 0."""
    low = {field.name: field.low for field in BY_NAME[name].fields}
    return sum(int(value) << low[field] for field, value in values.items())


def unpack(name: str, value: int) -> dict[str, int]:
    """The fields of a register that holds this value."""
    return {
        field.name: value >> field.low & (1 << field.bits) - 1 for field in BY_NAME[name].fields
    }

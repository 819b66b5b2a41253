"""Declares the address map of a board, as the host sees it through the host link.

An address counts octets and has 32 bits. Each access reads or writes one aligned 32-bit word; the
word's lowest octet has the lowest address. A read outside the windows, or of an unused address in a
window, returns ``NOTHING``; a write there has no effect. HOST_ERRORS counts both.

* ``RNIC`` holds the registers of :mod:`.regs`.
* ``BOARD`` holds the registers declared below.
* ``MEMORY`` is the placement memory, CAP_MEMORY octets long. Its first octet is the RNIC's bus
  address 0 (in STAG_ADDR, BUFFER_ADDR, PAGE_ADDR, CQ_BASE): the host reads an octet that the RNIC
  wrote to bus address A at ``MEMORY.address + A``.
* ``RECEIVED`` shows one packet of the exception stream, from its first octet on, while
  STATUS.received is set. A write to RECEIVED_POP frees the window for the next packet.
* ``SENT``, of a board that sends, shows the copy of one frame that the RNIC has sent, while
  STATUS.sent is set. A write to SENT_POP frees the window. The next frame leaves once it is free.
* ``TRANSMIT`` takes a frame without FCS. While STATUS.transmitting is clear, the host writes the
  frame's octets, then TRANSMIT_LENGTH, then TRANSMIT_SEND. The board pads a frame of less than 60
  octets.

A board whose RNIC takes DDP over MPA has TCP in front of the RNIC, and the registers in
TCP_REGISTERS. The host sets a connection up field by field (:class:`.net.TcpField`): while
TCP_STATE.writing is clear, it writes TCP_SELECT, TCP_WORD and TCP_WRITE, whose addresses are
adjacent. SETTINGS is written last. To change a connection, the host first writes SETTINGS as 0;
only SENT may be written at any time.

The PHY is reached by MDIO (IEEE 802.3 clause 22). While STATUS.mdio is clear, the host writes
MDIO_ADDRESS and then either MDIO_READ, or MDIO_DATA and MDIO_WRITE; MDIO_RESULT is valid as soon as
STATUS.mdio is clear again. Some time after reset, the board itself configures every PHY to
advertise 1000 Mb/s alone; STATUS.mdio is set until that is done.

The IDENTIFIER_WORDS words from IDENTIFIER on, in the window ``BOARD``, hold a text that names the
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
    "SENT",
    "SENT_REGISTERS",
    "SHORTEST",
    "TCP_REGISTERS",
    "VERSION",
    "WINDOWS",
    "Window",
    "address",
    "pack",
    "registers_of",
    "unpack",
    "windows_of",
]

ID = 0x52_42_52_44  #: "RBRD"
VERSION = 0x0002_0001  #: major in the upper half, minor in the lower
IDENTIFIER = 0x800  #: octet address of its first word, in the window BOARD
IDENTIFIER_WORDS = 256
NOTHING = 0xFFFF_FFFF  #: the value of a read from an address where there is nothing
SHORTEST = 60  #: octets of a frame without FCS, IEEE 802.3 section 4A.4.2 (minFrameSize less FCS)
LONGEST = 1996  #: the same, for an envelope frame (IEEE 802.3 section 3.2.7)


@dataclass(frozen=True)
class Window:
    """``size`` octets of the address map, from ``address`` on, which is a multiple of ``size``."""

    name: str
    address: int
    size: int
    doc: str


RNIC = Window("RNIC", 0x0002_0000, 0x2_0000, "Registers and doorbell pages of the RNIC.")
BOARD = Window("BOARD", 0x0000_1000, 0x1000, "Registers of the board.")
MEMORY = Window("MEMORY", 0x1000_0000, 0x0100_0000, "Placement memory.")
RECEIVED = Window("RECEIVED", 0x2000_0000, 0x800, "A packet of the exception stream; read only.")
TRANSMIT = Window("TRANSMIT", 0x3000_0000, 0x800, "A frame that is to be sent; write only.")
SENT = Window("SENT", 0x4000_0000, 0x800, "The copy of a frame that was sent; read only.")
WINDOWS = (BOARD, RNIC, MEMORY, RECEIVED, TRANSMIT)

#: The registers of every board, at octet addresses in the window ``BOARD``.
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
    Register("CAP_CLOCK", 0x010, "ro", "The RNIC's clock in Hz; CQ_TIMEOUT counts its cycles."),
    Register("SCRATCH", 0x014, "rw", "Returns the value last written, for bus tests."),
    Register(
        "STATUS",
        0x018,
        "ro",
        "State of the board. Link, speed and duplex are those that the PHY reports between frames,"
        " if it reports any (RGMII 2.0 section 3.4.1).",
        (
            Field("link", 0, 1, "The link is up."),
            Field("speed", 1, 2, "2: 1000 Mb/s, which alone is supported; 1: 100; 0: 10."),
            Field("duplex", 3, 1, "Full duplex."),
            Field("received", 4, 1, "The window RECEIVED holds a packet."),
            Field("transmitting", 5, 1, "The frame in TRANSMIT has not left yet."),
            Field("mdio", 6, 1, "An MDIO access is in progress."),
            Field("interrupt", 7, 1, "Level of the RNIC's interrupt."),
            Field("sent", 8, 1, "The window SENT holds a frame."),
        ),
    ),
    Register(
        "MDIO_ADDRESS",
        0x020,
        "rw",
        "Address of the next MDIO access.",
        (
            Field("register", 0, 5, "Register of the PHY."),
            Field("phy", 8, 5, "Address of the PHY."),
        ),
    ),
    Register("MDIO_DATA", 0x024, "rw", "Value for MDIO_WRITE, 16 bits."),
    Register("MDIO_READ", 0x028, "wo", "Reads a register of the PHY; ignored while MDIO is busy."),
    Register(
        "MDIO_WRITE", 0x02C, "wo", "Writes a register of the PHY; ignored while MDIO is busy."
    ),
    Register(
        "MDIO_RESULT",
        0x030,
        "ro",
        "Result of the last MDIO_READ.",
        (Field("data", 0, 16, "The value read."), Field("silent", 16, 1, "No PHY answered.")),
    ),
    Register("RECEIVED_LENGTH", 0x040, "ro", "Octets of the packet in RECEIVED."),
    Register(
        "RECEIVED_STREAM", 0x044, "ro", "Stream of the packet in RECEIVED (tid of m_axis_exc)."
    ),
    Register("RECEIVED_SEQUENCE", 0x048, "ro", "Sequence number of the packet in RECEIVED."),
    Register(
        "RECEIVED_REASON",
        0x04C,
        "ro",
        "Reason why the packet in RECEIVED was forwarded: Error Type and Error Code, 12 bits, or a"
        " Diversion.",
    ),
    Register("RECEIVED_POP", 0x050, "wo", "Frees RECEIVED for the next packet."),
    Register(
        "TRANSMIT_LENGTH", 0x060, "rw", "Octets of the frame in TRANSMIT, from 14 to CAP_FRAME."
    ),
    Register(
        "TRANSMIT_SEND",
        0x064,
        "wo",
        "Sends the frame in TRANSMIT; ignored while a frame is being sent, or if TRANSMIT_LENGTH is"
        " out of range.",
    ),
    Register("LINK_FRAMES", 0x080, "ro", "Frames received undamaged."),
    Register("LINK_DAMAGED", 0x084, "ro", "Frames with a wrong FCS or length, or a symbol error."),
    Register("LINK_DROPPED", 0x088, "ro", "Frames dropped because the RNIC had no room for them."),
    Register("LINK_SENT", 0x08C, "ro", "Frames sent."),
    Register(
        "HOST_ERRORS",
        0x090,
        "ro",
        "Commands of the host link that were malformed or incomplete, and accesses to addresses"
        " where there is nothing.",
    ),
    Register(
        "LINK_UNSTARTED",
        0x094,
        "ro",
        "Frames without a start frame delimiter after their preamble: the timing of RGMII is wrong,"
        " or the link is not at 1000 Mb/s.",
    ),
)

#: Further registers of a board with TCP, in the same window.
TCP_REGISTERS = (
    Register("CAP_CONNECTIONS", 0x0A0, "ro", "TCP connections that the board can receive on."),
    Register(
        "CAP_TCP_WINDOW", 0x0A4, "ro", "Octets that the host may offer a connection as its window."
    ),
    Register(
        "TCP_SELECT",
        0x0A8,
        "rw",
        "Selects the connection for TCP_WRITE and for the registers from TCP_NEXT to TCP_STATE.",
        (
            Field("connection", 0, 8, "Number of the connection."),
            Field("field", 8, 4, "The TcpField that TCP_WRITE writes."),
        ),
    ),
    Register("TCP_WORD", 0x0AC, "rw", "Value for TCP_WRITE."),
    Register(
        "TCP_WRITE",
        0x0B0,
        "wo",
        "Writes TCP_WORD to the field in TCP_SELECT; ignored while TCP_STATE.writing is set.",
    ),
    Register(
        "TCP_NEXT",
        0x0B4,
        "ro",
        "Octets taken from the connection since it was set up, modulo 2^32. The host acknowledges"
        " up to SEQUENCE plus this number.",
    ),
    Register(
        "TCP_ACKNOWLEDGED", 0x0B8, "ro", "Acknowledgment Number of the last segment taken, or 0."
    ),
    Register(
        "TCP_STATE",
        0x0BC,
        "ro",
        "State of the connection.",
        (
            Field("window", 0, 16, "Window of the last segment taken, or 0."),
            Field("broken", 16, 1, "An FPDU is longer than CAP_TCP_WINDOW, or too short"
                  " for a DDP header: no further octets are taken."),
            Field("writing", 17, 1, "TCP_WRITE has not taken effect yet."),
        ),
    ),
    Register("TCP_TAKEN", 0x0C0, "ro", "Segments taken."),
    Register("TCP_HOST", 0x0C4, "ro", "Frames meant for the host."),
    Register("TCP_DROPPED", 0x0C8, "ro", "Segments with a wrong checksum, and damaged frames."),
    Register("TCP_LOST", 0x0CC, "ro", "Frames meant for the host, without room for them."),
)

#: Further registers of a board that sends, in the same window.
SENT_REGISTERS = (
    Register("SENT_LENGTH", 0x0E0, "ro", "Octets of the frame in SENT."),
    Register("SENT_STREAM", 0x0E4, "ro", "Stream of the frame in SENT (tid of m_axis_eth)."),
    Register("SENT_SEQUENCE", 0x0E8, "ro", "TSN of the chunk in SENT."),
    Register("SENT_RECORD", 0x0EC, "ro", "First four octets of the record of the frame in SENT."),
    Register("SENT_OFFSET", 0x0F0, "ro", "Last four octets of the record of the frame in SENT."),
    Register("SENT_POP", 0x0F4, "wo", "Frees SENT for the next frame."),
)

BY_NAME = {
    register.name: register for register in (*REGISTERS, *TCP_REGISTERS, *SENT_REGISTERS)
}


def registers_of(*, tcp: bool, sends: bool) -> tuple[Register, ...]:
    """Returns the registers of a board that has TCP, or that sends."""
    return (*REGISTERS, *TCP_REGISTERS * tcp, *SENT_REGISTERS * sends)


def windows_of(*, sends: bool) -> tuple[Window, ...]:
    """Returns the windows of a board."""
    return (*WINDOWS, *(SENT,) * sends)


def address(name: str) -> int:
    """Returns the octet address of a register of the board, as the host link takes it."""
    return BOARD.address + BY_NAME[name].address


def pack(name: str, **values: int) -> int:
    """Returns the value of a register whose fields have the given values; the others are 0."""
    return BY_NAME[name].pack(**values)


def unpack(name: str, value: int) -> dict[str, int]:
    """Returns the fields of a register that has this value, by name."""
    return BY_NAME[name].unpack(value)

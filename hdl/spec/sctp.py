"""DDP over SCTP as data: chunks (RFC 9260 sections 3.2 and 3.3.1), RFC 5043 section 5.2."""

from enum import IntEnum, IntFlag

COMMON_HEADER = 12  #: octets of a packet before its first chunk, RFC 9260 section 3.1
DATA_HEADER = 16  #: octets of a DATA chunk before its user data, section 3.3.1
SSN = 2  #: octets of a DDP-SSN, RFC 5043 section 5.2.1
MOST_CHUNKS = 448  #: of a packet; one with as many leaves whole, to the host


class ChunkType(IntEnum):
    """Chunk types that the gateware looks at; all others go to the host."""

    DATA = 0


class DataFlag(IntFlag):
    """Flags of a DATA chunk that tell a whole, unordered message."""

    ENDING = 1
    BEGINNING = 2
    UNORDERED = 4


class Ppid(IntEnum):
    """Payload Protocol Identifiers."""

    SEGMENT = 16
    CONTROL = 17


class Function(IntEnum):
    """Function Codes of DDP Stream Session Control (RFC 5043 section 5.2.3), and what else the host
    tells a stream's session: FORGET, that the association is gone.
    """

    FORGET = 0
    INITIATE = 1
    ACCEPT = 2
    REJECT = 3
    TERMINATE = 4


class State(IntEnum):
    """Where a stream's session is, seen from this end."""

    CLOSED = 0b000
    TERMINATE_SENT = 0b001
    TERMINATE_RECEIVED = 0b010
    #: Something illegal came. All is dropped until the next Initiate.
    ABORTED = 0b011
    # In the states above an Initiate may open the next session, in those below it may not.
    INITIATE_SENT = 0b100
    INITIATE_RECEIVED = 0b101
    #: An Initiate that the host has not got room for: it has to be answered with a Terminate.
    REFUSED = 0b110
    ESTABLISHED = 0b111


class Reason(IntEnum):
    """Why there is an event of a session."""

    #: A DATA chunk that is no DDP message; the stream is aborted.
    MALFORMED = 0
    #: A message fits no legal sequence; the stream is aborted.
    SEQUENCE = 1
    #: Something follows the end of the session; the stream is aborted.
    EXCESS = 2
    #: An Initiate came while too many wait for an answer. The host must answer it with a Terminate
    #: (RFC 5043 section 6.4).
    LIMIT = 3


class Diversion(IntEnum):
    """``reason`` of what leaves on the exception stream and is no error of RFC 5041 section 7.2."""

    FRAME = 0x800  #: a frame that is not ours, whole; its stream and sequence number are 0
    CHUNK = 0x900  #: a chunk other than DATA; its stream is the association, sequence number 0
    DATA = 0x901  #: a DATA chunk that is no DDP message; likewise, with its TSN
    CONTROL = 0xA00  #: a DDP Stream Session Control message; its DDP Stream and its TSN

"""DDP over SCTP as data: chunks (RFC 9260 sections 3.2 and 3.3.1), RFC 5043 section 5.2."""

from enum import IntEnum, IntFlag

COMMON_HEADER = 12  #: octets of a packet before its first chunk, RFC 9260 section 3.1
DATA_HEADER = 16  #: octets of a DATA chunk before its user data, section 3.3.1
SSN = 2  #: octets of a DDP-SSN, RFC 5043 section 5.2.1


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

"""Declares the messages about an FPDU: the segment at its start, the verdict at its end."""

from amaranth import *
from amaranth.lib import data, enum

__all__ = ["HEADER_WORDS", "IN_FLIGHT", "Outcome", "Segment", "SegmentVerdict"]

#: Words of an FPDU that are read for its header: ULPDU_Length and the longer DDP header, 20 octets.
HEADER_WORDS = 5
#: Segments of a kind that may be between their beginning and their commit.
IN_FLIGHT = 64


class Segment(data.StructLayout):
    """A segment whose FPDU has begun.

    Positions count 32-bit words in the packet buffer, modulo its size.

    Members
    -------
    header : 160
        ULPDU_Length and DDP header as received, markers taken out, first octet lowest.
    stream : stream_bits + 1
        DDP Stream. The upper bit is 1 if there is no such stream.
    sequence : 32
        LLP sequence number of the FPDU's first octet.
    start : position
        First word of the FPDU; this is the marker if there is one before the header.
    payload : position
        First word after the header; this may be a marker.
    phase : 7
        Words from the last marker position to ``payload``.
    markers : 1
        The stream has markers, one at every phase of 0.
    oversize : 1
        The FPDU does not fit the packet buffer and was not stored.
    """

    def __init__(self, config):
        position = range(config.buffer_octets // 4)
        super().__init__(
            {
                "header": 32 * HEADER_WORDS,
                "stream": config.stream_bits + 1,
                "sequence": 32,
                "start": position,
                "payload": position,
                "phase": 7,
                "markers": 1,
                "oversize": 1,
            }
        )


class Outcome(enum.Enum, shape=2):
    """The outcome of an FPDU."""

    GOOD = 0
    DIGEST = 1  # RFC 5044 section 8, code 2
    FRAMING = 2  # RFC 5044 section 8, code 3


class SegmentVerdict(data.StructLayout):
    """The outcome of a segment's FPDU.

    Members
    -------
    outcome : Outcome
    end : position
        The word after the last word of the FPDU.
    """

    def __init__(self, config):
        super().__init__({"outcome": Outcome, "end": range(config.buffer_octets // 4)})

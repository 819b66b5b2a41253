"""Declares the header of an RDMA Read Request (RFC 5040 section 4.4)."""

from amaranth import *

__all__ = ["OCTETS", "OPCODE", "QN", "RESPONSE", "VERSION", "decode", "encode"]

#: The RDMAP version, and the opcodes of a request and a response (RFC 5040 section 4.3).
VERSION, OPCODE, RESPONSE = 1, 1, 2
OCTETS = 28
QN = 1  #: the Queue Number of Read Requests (RFC 5040 section 4.1)
#: The fields in the order of the wire, with their bits.
_FIELDS = {"sink_stag": 32, "sink_to": 64, "length": 32, "source_stag": 32, "source_to": 64}


def _turned(value):
    """Turns the order of a value's octets."""
    return Cat(value.word_select(octet, 8) for octet in reversed(range(len(value) // 8)))


def encode(sink_stag, sink_to, length, source_stag, source_to):
    """Returns the header's octets, the first one lowest. STags and length have 32 bits, offsets
    64.
    """
    return Cat(_turned(field) for field in (sink_stag, sink_to, length, source_stag, source_to))


def decode(octets):
    """Returns the fields of a header, by the names of the arguments of :func:`encode`."""
    fields, at = {}, 0
    for name, bits in _FIELDS.items():
        fields[name] = _turned(octets[at:at + bits])
        at += bits
    return fields

"""Declares the header of an RDMA Read Request (RFC 5040 section 4.4)."""

from amaranth import *

__all__ = ["OCTETS", "QN", "encode"]

OCTETS = 28
QN = 1  #: the Queue Number of Read Requests (RFC 5040 section 4.1)


def encode(sink_stag, sink_to, length, source_stag, source_to):
    """Returns the header's octets, the first one lowest. STags and length have 32 bits, offsets
    64.
    """
    return Cat(
        Cat(field.word_select(octet, 8) for octet in reversed(range(len(field) // 8)))
        for field in (sink_stag, sink_to, length, source_stag, source_to))

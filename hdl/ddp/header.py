"""Parses DDP headers, for both buffer models (RFC 5041 sections 4.1 to 4.3)."""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..spec.ddp import (
    TAGGED_FIELDS,
    TAGGED_HEADER,
    UNTAGGED_FIELDS,
    UNTAGGED_HEADER,
    VERSION,
)
from .segment import HEADER_WORDS

__all__ = ["DdpHeader", "HeaderParser", "fields"]


def fields(octets, table):
    """Returns the big-endian fields of a header.

    Parameters
    ----------
    octets : Value
        The header, first octet lowest.
    table : sequence of (name, bits)
        Fields in wire order.

    Returns a dict of name to Value.
    """
    wire = Cat(octets.word_select(k, 8) for k in reversed(range(len(octets) // 8)))
    low = len(wire)
    found = {}
    for name, bits in table:
        low -= bits
        found[name] = wire[low : low + bits]
    return found


class DdpHeader(data.StructLayout):
    """A parsed DDP header.

    Members
    -------
    tagged, last : 1
        T and L of the DDP Control Field.
    short : 1
        The ULPDU has no room for the header that its T bit requires.
    version : 1
        DV is the version of RFC 5041.
    length : 16
        Octets of ULP payload; meaningless if ``short``.
    stag : 32, to : 64
        Fields of a tagged segment.
    qn, msn, mo : 32
        Fields of an untagged segment.
    """

    def __init__(self):
        super().__init__(
            {
                "tagged": 1,
                "last": 1,
                "short": 1,
                "version": 1,
                "length": 16,
                "stag": 32,
                "to": 64,
                "qn": 32,
                "msn": 32,
                "mo": 32,
            }
        )


class HeaderParser(wiring.Component):
    """Splits a DDP header into its fields.

    Latency: 2 cycles. Throughput: one header per cycle. Reset: empty.
    Errors: none; the checks evaluate ``short`` and ``version``.

    Members
    -------
    i : In(stream.Signature(160, always_ready=True))
        ULPDU_Length (RFC 5044 section 4.1) and DDP header, first octet lowest.
    o : Out(stream.Signature(DdpHeader, always_ready=True))
    """

    def __init__(self):
        super().__init__(
            {
                "i": In(stream.Signature(32 * HEADER_WORDS, always_ready=True)),
                "o": Out(stream.Signature(DdpHeader(), always_ready=True)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        ulpdu = fields(self.i.payload[:16], [("length", 16)])
        tagged = fields(self.i.payload[16 : 16 + 8 * TAGGED_HEADER], TAGGED_FIELDS)
        untagged = fields(self.i.payload[16 : 16 + 8 * UNTAGGED_HEADER], UNTAGGED_FIELDS)

        valid = Signal()
        held = Signal(DdpHeader())
        octets, rest = Signal(16), Signal(signed(18))
        m.d.sync += [valid.eq(self.i.valid), self.o.valid.eq(valid)]
        with m.If(self.i.valid):
            m.d.sync += [
                held.tagged.eq(tagged["t"]),
                held.last.eq(tagged["l"]),
                held.version.eq(tagged["dv"] == VERSION),
                held.stag.eq(tagged["stag"]),
                held.to.eq(tagged["to"]),
                *(held[name].eq(untagged[name]) for name in ("qn", "msn", "mo")),
                octets.eq(ulpdu["length"]),
            ]
        with m.If(valid):
            m.d.sync += [
                self.o.payload.eq(held),
                self.o.payload.short.eq(rest[-1]),
                self.o.payload.length.eq(rest),
            ]
        m.d.comb += rest.eq(octets - Mux(held.tagged, TAGGED_HEADER, UNTAGGED_HEADER))
        return m

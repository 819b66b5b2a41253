"""Checks STag, Tagged Offset, base and bounds (RFC 5041 sections 7.1 and 8.2)."""

from functools import partial
from typing import Any, NamedTuple

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..lib.stream import delayed, nibbles, plus
from ..spec import ddp
from .header import DdpHeader
from .stag import StagEntry

__all__ = ["CheckResult", "StreamRights", "TaggedCheck", "UlpResult"]


class StreamRights(data.StructLayout):
    """A stream as the checks see it: number, Protection Domain, and whether it is enabled."""

    def __init__(self):
        super().__init__({"stream": 16, "pd": 16, "enable": 1})


class CheckResult(data.StructLayout):
    """The result of the checks for a segment.

    Members
    -------
    error : 1
        The segment must not be placed; ``type`` and ``code`` give the reason, as numbers of RFC
        5041 section 7.2.
    type : 4, code : 8
    tagged, last : 1
        T and L of the segment's header.
    enable : 1
        The segment's stream is enabled.
    length : 16
        Octets of payload.
    address : 64
        Host address for the first octet, if tagged.
    pages : 4
        Page code of the region.
    """

    def __init__(self):
        super().__init__(
            {
                "error": 1,
                "type": 4,
                "code": 8,
                "tagged": 1,
                "last": 1,
                "enable": 1,
                "length": 16,
                "address": 64,
                "pages": 4,
            }
        )


class UlpResult(data.StructLayout):
    """The result of a ULP's own check of a tagged segment.

    ``error`` (1): the segment must not be placed; ``type`` (4) and ``code`` (8) give the reason, as
    an :class:`~..spec.ddp.ErrorNumber`.
    """

    def __init__(self):
        super().__init__({"error": 1, "type": 4, "code": 8})


class _Failed(NamedTuple):
    """The checks that a tagged segment failed.

    The STag is ``unknown``, or ``foreign`` to the stream; writing is ``forbidden``; the segment
    begins ``outside`` of the region, its sum of TO and length wraps, or it is ``too_long``.
    """

    unknown: Any
    foreign: Any
    forbidden: Any
    outside: Any
    wrap: Any
    too_long: Any


class TaggedCheck(wiring.Component):
    """Validates a tagged segment against the entry of its Steering Tag.

    The checks are in the order of RFC 5041 section 7.1: the STag is valid for this stream (entry
    valid and key equal, then association by Protection Domain or by stream, section 8.2), its
    buffer allows placement, the TO is in range, the 64-bit sum of TO and length does not wrap (see
    :data:`~..spec.ddp.TO_WRAP`), and the sum is in range. The RFC lists the wrap last; this block
    checks it before the sum's range, because a wrapped sum has no range. STag and TO of a segment
    without payload are not checked (section 5.2). Of an untagged segment, only length and version
    are checked.

    Latency: 10 cycles and ``wires``. Throughput: one segment per cycle. Reset: empty. Errors:
    reported in ``CheckResult``.

    Parameters
    ----------
    entries : int
        Entries of the table.
    right : str
        The right that the region must have: the name of a member of the entry.
    wires : int
        Cycles for the wires to the table.

    Members
    -------
    i : In(stream.Signature(DdpHeader(), always_ready=True))
    rights : In(StreamRights())
        Of the stream of the segment that came ``RIGHTS`` cycles before.
    index : Out(range(entries)), entry : In(StagEntry)
        Look-up in the Steering Tag table, answered after 2 cycles.
    o : Out(stream.Signature(CheckResult, always_ready=True))
    """

    #: Cycles for the wires to the table, if these are long, and the latency with them.
    WIRES, LATENCY = 2, 12
    #: Cycles from ``i`` to the rights of its stream.
    RIGHTS = 2

    def __init__(self, entries, *, right="remote_write", wires=WIRES):
        self.entries, self.right, self.wires = entries, right, wires
        self.latency = self.LATENCY - self.WIRES + wires
        super().__init__(
            {
                "i": In(stream.Signature(DdpHeader(), always_ready=True)),
                "rights": In(StreamRights()),
                "index": Out(range(entries)),
                "entry": In(StagEntry(entries)),
                "o": Out(stream.Signature(CheckResult(), always_ready=True)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        bits = self.entries.bit_length() - 1
        after = partial(delayed, m)

        # Untagged segments take the cycles for the wires, too.
        came = after(self.wires, self.i.valid, "came")
        header = after(self.wires, self.i.payload, "near")
        valid = Signal(self.LATENCY - self.WIRES - 1)
        m.d.sync += [valid.eq(Cat(came, valid)), self.o.valid.eq(valid[-1])]

        # Two cycles for the look-up, and one for the wires from the table. Meanwhile this checks
        # whether an octet of the segment lies past 2^64 - 1: the lower half of the sum carries, the
        # upper half is all ones, and the sum is not 2^64 itself. After a carry the sum is less than
        # the length, so that its 16 lowest bits decide.
        m.d.comb += self.index.eq(header.stag[8 : 8 + bits])
        first_low = Signal(33)
        m.d.sync += first_low.eq(header.to[:32] + header.length)
        to_1 = after(1, header.to, "to_1")
        ones, beyond, wraps = Signal(8), Signal(4), Signal()
        m.d.sync += [
            ones.eq(nibbles(to_1[32:], C(2**32 - 1, 32))),
            beyond.eq(Cat(first_low.word_select(k, 4).any() for k in range(4))),
            wraps.eq(after(1, first_low[32], "carry") & ones.all() & beyond.any()),
        ]
        wrap = after(6, wraps, "wrap")
        stag = after(3, header.stag, "stag")
        to = after(2, to_1, "to")
        rights = after(self.wires + 1, self.rights, "rights")
        length = after(5, header.length, "length")
        entry = Signal(StagEntry(self.entries), reset_less=True)
        with m.If(valid[1]):
            m.d.sync += entry.eq(self.entry)

        # Identity and rights as flags, the first step of a comparison in nibbles; and the offset
        # into the region, lower half.
        identity = nibbles(Cat(entry.key, entry.tag), Cat(stag[:8], stag[8 + bits :]))
        key, pd, stream_equal = Signal(len(identity)), Signal(4), Signal(4)
        allowed, bound, alive = Signal(), Signal(), Signal()
        offset_low = Signal(32)
        # The borrow of the lower half, inverted: no gate before the upper half's carry chain.
        no_borrow = Signal()
        with m.If(valid[2]):
            m.d.sync += [
                key.eq(identity),
                alive.eq(entry.valid),
                pd.eq(nibbles(entry.owner, rights.pd)),
                stream_equal.eq(nibbles(entry.owner, rights.stream)),
                bound.eq(entry.bound),
                allowed.eq(entry[self.right]),
                Cat(offset_low, no_borrow).eq(plus(to[:32], ~entry.to[:32], C(1, 1))),
            ]
        to_high = after(1, to[32:], "to_high")
        base_high = after(1, entry.to[32:], "base_high")
        size = after(2, entry.length, "size")
        host = after(2, entry.address, "host")

        # The offset's upper half. A borrow means that TO is below the base.
        offset = Signal(64)
        above = Signal()
        unknown, foreign, forbidden = Signal(), Signal(), Signal()
        m.d.sync += [
            Cat(offset[32:], above).eq(plus(to_high, ~base_high, no_borrow)),
            offset[:32].eq(offset_low),
            unknown.eq(~alive | ~key.all()),
            foreign.eq(~Mux(bound, stream_equal, pd).all()),
            forbidden.eq(~allowed),
        ]

        outside, too_long, address_low, address_high = self._fit(
            m, size, host, offset, above, length)

        self._result(m, header, entry, rights.enable, _Failed(
            unknown, foreign, forbidden, outside, wrap, too_long), address_low, address_high)
        return m

    def _fit(self, m, size, host, offset, above, length):
        """Compares the segment with the region.

        Computes the octets from the segment's offset to the region's end, and the host address,
        each in two halves. Returns whether the segment begins outside of the region, whether it
        ends outside, and the two halves of the address.
        """
        after = partial(delayed, m)
        room_low = Signal(32)
        no_borrow_6 = Signal()
        address_low = Signal(33)
        m.d.sync += [
            Cat(room_low, no_borrow_6).eq(plus(size[:32], ~offset[:32], C(1, 1))),
            address_low.eq(host[:32] + offset[:32]),
        ]
        offset_high = after(1, offset[32:], "offset_high")
        size_high = after(1, size[32:], "size_high")
        host_high = after(1, host[32:], "host_high")
        room_high, address_high = Signal(33), Signal(32)
        past, some = Signal(), Signal(4)
        m.d.sync += [
            room_high.eq(plus(size_high, ~offset_high, no_borrow_6)),
            address_high.eq(plus(host_high, offset_high, address_low[32])),
            past.eq(room_low[:16] < after(1, length, "length_6")),
            some.eq(Cat(room_low.word_select(k, 8).any() for k in range(4))),
        ]

        high, negative, less, empty = Signal(4), Signal(), Signal(), Signal()
        m.d.sync += [
            less.eq(past & ~some[2:].any()),
            empty.eq(~some.any()),
            high.eq(Cat(room_high.word_select(k, 8).any() for k in range(4))),
            negative.eq(~(after(2, above, "above") & room_high[32])),
        ]
        outside, too_long = Signal(), Signal()
        m.d.sync += [
            outside.eq(negative | (empty & ~high.any())),
            too_long.eq(less & ~high.any()),
        ]
        return outside, too_long, address_low, address_high

    def _result(self, m, header, entry, enable, failed, address_low, address_high):
        """Outputs the result: the first check that failed, in the order of the RFC."""
        after = partial(delayed, m)
        unknown, foreign, forbidden, outside, wrap, too_long = failed
        # The rest of the result is delayed to match.
        rest = Signal(data.StructLayout({
            "tagged": 1, "last": 1, "short": 1, "version": 1, "length": 16}))
        m.d.comb += [rest[name].eq(header[name]) for name, _ in rest.shape()]
        at_end = after(8, rest, "rest")
        enable = after(6, enable, "enable")
        checks = [
            (after(1, at_end.short, "short"), ddp.LLP_FRAMING),
            (after(1, ~at_end.version & at_end.tagged, "tagged_version"), ddp.TAGGED_VERSION),
            (after(1, ~at_end.version, "version"), ddp.UNTAGGED_VERSION),
            (after(1, ~at_end.tagged | ~at_end.length.any(), "unchecked"), None),
            (after(4, unknown, "unknown"), ddp.INVALID_STAG),
            (after(4, foreign, "foreign"), ddp.STAG_NOT_ASSOCIATED),
            (after(4, forbidden, "forbidden"), ddp.INVALID_STAG),
            (outside, ddp.BASE_OR_BOUNDS),
            (wrap, ddp.TO_WRAP),
            (too_long, ddp.BASE_OR_BOUNDS),
        ]
        result = self.o.payload
        m.d.sync += [
            result.error.eq(0),
            result.type.eq(0),
            result.code.eq(0),
            result.tagged.eq(after(1, at_end.tagged, "tagged")),
            result.last.eq(after(1, at_end.last, "last")),
            result.pages.eq(after(6, entry.pages, "pages")),
            result.enable.eq(enable),
            result.length.eq(after(1, at_end.length, "length_9")),
            result.address.eq(
                Cat(
                    after(3, address_low[:32], "address_low"),
                    after(2, address_high, "address_high"),
                )
            ),
        ]
        for position, (condition, number) in enumerate(checks):
            with m.If(condition) if not position else m.Elif(condition):
                if number is not None:
                    m.d.sync += [
                        result.error.eq(1),
                        result.type.eq(number.type),
                        result.code.eq(number.code),
                    ]

"""Gives the verdict on each FPDU, once its digest is known."""

from amaranth import *
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from ..ddp.segment import Outcome, SegmentVerdict
from ..lib.crc32c import Checksum
from .walker import Ending

__all__ = ["Judge", "RESIDUE"]

#: CRC32C of any octets followed by their own CRC32C.
RESIDUE = 0x48674BC7


class Judge(wiring.Component):
    """Compares digests and gives a verdict on each FPDU (RFC 5044 section 4.4).

    The CRC unit runs over an FPDU with its CRC field, so that a correct FPDU leaves a constant.

    Latency: ``latency`` + 2 cycles from an ending. Throughput: one verdict per cycle.
    Reset: empty.
    Errors: an ending's framing error has precedence over its digest.

    Parameters
    ----------
    latency : int
        Cycles from a slice to its checksum.

    Members
    -------
    endings : In(stream.Signature(Ending, always_ready=True))
    checksums : In(stream.Signature(Checksum, always_ready=True))
    o : Out(stream.Signature(SegmentVerdict, always_ready=True))
    """

    def __init__(self, config, *, latency):
        self.config = config
        self.latency = latency
        super().__init__(
            {
                "endings": In(stream.Signature(Ending(config), always_ready=True)),
                "checksums": In(stream.Signature(Checksum(), always_ready=True)),
                "o": Out(stream.Signature(SegmentVerdict(config), always_ready=True)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        valid, ending = self.endings.valid, self.endings.payload
        for k in range(self.latency):
            later_valid, later = (
                Signal(name=f"valid{k}"),
                Signal(Ending(self.config), name=f"ending{k}"),
            )
            m.d.sync += later_valid.eq(valid)
            with m.If(valid):
                m.d.sync += later.eq(ending)
            valid, ending = later_valid, later
        # Compared in two steps: each octet, then all of them.
        match = Signal(4)
        last_valid, last = Signal(), Signal(Ending(self.config))
        m.d.sync += last_valid.eq(valid)
        with m.If(valid):
            m.d.sync += [
                match.eq(
                    Cat(
                        self.checksums.payload.crc.word_select(k, 8) == (RESIDUE >> 8 * k & 0xFF)
                        for k in range(4)
                    )
                ),
                last.eq(ending),
            ]
        verdict = self.o.payload
        m.d.sync += [
            self.o.valid.eq(last_valid),
            verdict.end.eq(last.beat * self.config.words + last.words),
        ]
        with m.If(last.framing):
            m.d.sync += verdict.outcome.eq(Outcome.FRAMING)
        with m.Elif(last.crc & ~match.all()):
            m.d.sync += verdict.outcome.eq(Outcome.DIGEST)
        with m.Else():
            m.d.sync += verdict.outcome.eq(Outcome.GOOD)
        return m

"""Where packets come in: each beat gets the settings of its stream."""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..lib.stream import Beat, Store

__all__ = ["Intake", "KnownBeat", "LlpBeat", "LlpSettings"]


class LlpBeat(data.StructLayout):
    """One beat of in-order octets of one stream.

    Members
    -------
    beat : Beat(width)
    stream : 16
        DDP Stream, the same on all beats of a packet.
    sequence : 32
        LLP sequence number of the packet's first octet; read on the first beat.
    """

    def __init__(self, width):
        super().__init__({"beat": Beat(width), "stream": 16, "sequence": 32})


class LlpSettings(data.StructLayout):
    """How a stream's LLP is set up: CRC on (``crc``), markers on (``markers``), 1 bit each."""

    def __init__(self):
        super().__init__({"crc": 1, "markers": 1})


class KnownBeat(data.StructLayout):
    """A beat with its stream's settings: ``llp``, an LlpBeat, and ``settings``, LlpSettings."""

    def __init__(self, width):
        super().__init__({"llp": LlpBeat(width), "settings": LlpSettings()})


class Intake(wiring.Component):
    """Takes packets in, and looks up how their streams are set up.

    Latency: 3 cycles. Throughput: a beat a cycle. Reset: empty. Errors: none. ``o.payload`` is
    combinational, read from distributed RAM.

    Parameters
    ----------
    width : int

    Members
    -------
    i : In(stream.Signature(LlpBeat(width)))
    stream : Out(16), settings : In(LlpSettings())
        Look-up of a stream's settings, answered after 2 cycles.
    o : Out(stream.Signature(KnownBeat(width)))
    busy : Out(1)
        Beats are inside; may be low for up to 3 cycles between two steps.
    """

    def __init__(self, width):
        self.width = width
        super().__init__({
            "i": In(stream.Signature(LlpBeat(width))),
            "stream": Out(16),
            "settings": In(LlpSettings()),
            "o": Out(stream.Signature(KnownBeat(width))),
            "busy": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.queue = queue = Store(KnownBeat(self.width), depth=16)
        valid = Signal(2)
        beats = [Signal(LlpBeat(self.width), name=f"beat{k}") for k in range(2)]
        wiring.connect(m, queue.o, wiring.flipped(self.o))
        # Half of the queue is more than what can be on the way when ``half`` falls.
        m.d.sync += [
            self.i.ready.eq(queue.half),
            valid.eq(Cat(self.i.valid & self.i.ready, valid)),
            beats[0].eq(self.i.payload),
            beats[1].eq(beats[0]),
        ]
        m.d.comb += [
            self.stream.eq(self.i.payload.stream),
            queue.i.valid.eq(valid[1]),
            queue.i.payload.llp.eq(beats[1]),
            queue.i.payload.settings.eq(self.settings),
            self.busy.eq(self.i.valid | valid.any() | queue.o.valid),
        ]
        return m

"""Takes in packets, and adds the settings of its stream to each beat."""

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
    """Settings of a stream's LLP: ``crc`` (1) and ``markers`` (1) are in use."""

    def __init__(self):
        super().__init__({"crc": 1, "markers": 1})


class KnownBeat(data.StructLayout):
    """A beat with its stream's settings: ``llp``, an LlpBeat, and ``settings``, LlpSettings."""

    def __init__(self, width):
        super().__init__({"llp": LlpBeat(width), "settings": LlpSettings()})


class Intake(wiring.Component):
    """Takes in packets, and looks up the settings of their streams.

    Latency: 3 cycles. Throughput: one beat per cycle. Reset: empty. Errors: none. ``o.payload`` is
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
        The block holds beats; may be low for up to 3 cycles while a beat moves to the next step.
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
        # At most half of the queue's capacity can be on the way when ``half`` falls.
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

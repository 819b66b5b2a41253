"""Takes in packets, and adds the settings of its stream to each beat."""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..lib.stream import Beat, Store

__all__ = ["Intake", "KnownBeat", "LlpBeat", "LlpSettings"]


class LlpBeat(data.StructLayout):
    """One beat of in-order octets of one stream.

    Parameters
    ----------
    width : int
    bits : int
        Bits of ``stream``.

    Members
    -------
    beat : Beat(width)
    stream : bits
        DDP Stream, the same on all beats of a packet.
    sequence : 32
        LLP sequence number of the packet's first octet; read on the first beat.
    """

    def __init__(self, width, bits=16):
        super().__init__({"beat": Beat(width), "stream": bits, "sequence": 32})


class LlpSettings(data.StructLayout):
    """Settings of a stream's LLP: ``crc`` (1) and ``markers`` (1) are in use."""

    def __init__(self):
        super().__init__({"crc": 1, "markers": 1})


class KnownBeat(data.StructLayout):
    """A beat with its stream's settings: ``llp``, an LlpBeat, and ``settings``, LlpSettings.

    Its stream has one bit more than the number of a stream needs: the bit is 1 if there is no such
    stream.
    """

    def __init__(self, config):
        super().__init__({
            "llp": LlpBeat(config.width, config.stream_bits + 1), "settings": LlpSettings()})


class Intake(wiring.Component):
    """Takes in packets, and looks up the settings of their streams.

    Latency: 3 cycles. Throughput: one beat per cycle. Reset: empty. Errors: none. ``o.payload`` is
    combinational, read from distributed RAM.

    Parameters
    ----------
    config : RnicConfig

    Members
    -------
    i : In(stream.Signature(LlpBeat(width)))
    stream : Out(stream_bits), settings : In(LlpSettings())
        Look-up of a stream's settings, answered after 2 cycles.
    o : Out(stream.Signature(KnownBeat(config)))
    busy : Out(1)
        The block holds beats; may be low for up to 3 cycles while a beat moves to the next step.
    """

    def __init__(self, config):
        self.config = config
        super().__init__({
            "i": In(stream.Signature(LlpBeat(config.width))),
            "stream": Out(config.stream_bits),
            "settings": In(LlpSettings()),
            "o": Out(stream.Signature(KnownBeat(config))),
            "busy": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        bits = self.config.stream_bits
        m.submodules.queue = queue = Store(KnownBeat(self.config), depth=16)
        valid = Signal(2)
        beats = [
            Signal(LlpBeat(self.config.width, width), name=f"beat{k}")
            for k, width in enumerate((16, bits + 1))
        ]
        number = beats[0].stream
        wiring.connect(m, queue.o, wiring.flipped(self.o))
        # At most half of the queue's capacity can be on the way when ``half`` falls.
        m.d.sync += [
            self.i.ready.eq(queue.half),
            valid.eq(Cat(self.i.valid & self.i.ready, valid)),
            beats[0].eq(self.i.payload),
            beats[1].beat.eq(beats[0].beat),
            beats[1].sequence.eq(beats[0].sequence),
            beats[1].stream.eq(Cat(number[:bits], number[bits:].any())),
        ]
        m.d.comb += [
            self.stream.eq(self.i.payload.stream),
            queue.i.valid.eq(valid[1]),
            queue.i.payload.llp.eq(beats[1]),
            queue.i.payload.settings.eq(self.settings),
            self.busy.eq(self.i.valid | valid.any() | queue.o.valid),
        ]
        return m

"""Tests that frames as words and as beats again are unchanged, and how long that takes."""

import random

import pytest
from amaranth import *
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from ddp_rnic.hdl.lib.stream import Beat
from ddp_rnic.hdl.lib.testing import beats_of, octets_of, send, simulate
from ddp_rnic.hdl.tcp.width import Gather, Split

WIDTHS = (64, 128, 256, 512)


class Both(wiring.Component):
    """Converts beats to words, and the raw words to beats again."""

    def __init__(self, width):
        self.width = width
        super().__init__({
            "i": In(stream.Signature(Beat(width))), "go": In(1),
            "o": Out(stream.Signature(Beat(width))),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.split = self.split = split = Split(self.width)
        m.submodules.gather = gather = Gather(self.width)
        wiring.connect(m, wiring.flipped(self.i), split.i)
        wiring.connect(m, gather.o, wiring.flipped(self.o))
        word = split.o.payload
        m.d.comb += [
            gather.i.valid.eq(split.o.valid & self.go & word.there),
            gather.i.payload.eq(word.raw),
            split.o.ready.eq(self.go & (gather.i.ready | ~word.there)),
        ]
        return m


def play(width, frames, *, stall, errors=()):
    """Returns the output frames, their moved words, and the cycles of words and beats."""
    dut, rng = Both(width), random.Random(width)
    octets = width // 8
    came, moved, cycles = [], [], []

    async def source(ctx):
        for number, frame in enumerate(frames):
            beats = [beat | {"data": beat["data"] | rng.getrandbits(width) << 8 * beat["count"]}
                     for beat in beats_of(frame, octets, error=number in errors)]
            await send(ctx, dut.i, beats, idle=stall, rng=rng)
        await ctx.tick().repeat(1000 if stall else 20)

    async def sink(ctx):
        frame, words, cycle = bytearray(), [], 0
        while True:
            ctx.set(dut.go, rng.random() >= stall)
            ctx.set(dut.o.ready, rng.random() >= stall)
            word = dut.split.o
            _, _, got, payload, valid, ready, beat = await ctx.tick().sample(
                word.valid & word.ready, word.payload, dut.o.valid, dut.o.ready, dut.o.payload)
            cycle += 1
            if got:
                cycles.append(cycle)
                last = payload.moved.last
                words.append(payload.moved.data.to_bytes(4, "little")[
                    :payload.moved.ends + 1 if last else 4])
                if last:
                    moved.append((b"".join(words), bool(payload.error)))
                    words = []
            if valid and ready:
                frame += octets_of(beat, octets)
                if beat.last:
                    came.append(bytes(frame))
                    frame = bytearray()

    simulate(dut, source, background=[sink])
    return came, moved, cycles


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("stall", [0, 0.5])
def test_frames_come_whole_and_moved_up(width, stall):
    rng = random.Random(1)
    lengths = [*range(1, 2 * width // 8 + 2), 60, 61, 62, 63, 300]
    frames = [rng.randbytes(length) for length in lengths]
    errors = set(rng.sample(range(len(frames)), len(frames) // 3))
    came, moved, _ = play(width, frames, stall=stall, errors=errors)
    assert came == frames
    assert moved == [(bytes(2) + frame, number in errors) for number, frame in enumerate(frames)]


@pytest.mark.parametrize("width", WIDTHS)
def test_a_word_moves_in_each_cycle(width):
    frames = [bytes(length) for length in (64, 61, 128, 1, 2, 3, 4, 1000)]
    _, _, cycles = play(width, frames, stall=0)
    assert len(cycles) == sum(-(-(len(frame) + 2) // 4) for frame in frames)
    assert cycles[-1] - cycles[0] == len(cycles) - 1

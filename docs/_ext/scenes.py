"""Timing pictures: each scene simulates a block of the gateware and records some of its signals.

The pictures are the gateware's own behaviour, so that they change when it does.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from amaranth.hdl import Value
from ddp_rnic.hdl.bus.memory import PlacementMemory
from ddp_rnic.hdl.ddp.tagged import TaggedCheck
from ddp_rnic.hdl.dma.placement import PlacementDma
from ddp_rnic.hdl.eth.receive import FrameReceive
from ddp_rnic.hdl.host.uart import UartBridge
from ddp_rnic.hdl.lib.crc32c import Crc32cStream
from ddp_rnic.hdl.lib.stream import Queue
from ddp_rnic.hdl.lib.testing import simulate
from ddp_rnic.hdl.mpa.walker import MpaWalker
from ddp_rnic.hdl.sctp.walker import Kind, SctpWalker
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.sim.model.ddp import DataSource
from ddp_rnic.sim.model.mpa import MpaSender

SCENES: dict[str, Callable[[], Trace]] = {}


@dataclass
class Lane:
    """A signal in a picture: its name, its value, and how a value is written.

    Where ``valid`` is given, the value is drawn only while ``valid`` is 1.
    """

    name: str
    value: Any
    text: Callable[[int], str] | None = None
    valid: Any = None


@dataclass
class Trace:
    """The values that lanes had in each cycle."""

    caption: str
    lanes: list[Lane]
    first: int = 0  #: the cycle with which the picture begins
    cycles: list[list[tuple[int, int]]] = field(default_factory=list)

    def drawing(self) -> dict[str, Any]:
        """Returns the picture in WaveDrom's own form."""
        cycles = self.cycles[self.first :]
        clock = "p" + "." * (len(cycles) - 1)
        signals: list[dict[str, Any]] = [{"name": "clk", "wave": clock}]
        for at, lane in enumerate(self.lanes):
            wave, data, before = "", [], ""
            for cycle in cycles:
                value, valid = cycle[at]
                if not valid:
                    state, label = "x", ""
                elif lane.text is None:
                    state, label = str(value), ""
                else:
                    state, label = "=", lane.text(value)
                same = state + label == before
                before = state + label
                wave += "." if same else state
                if state == "=" and not same:
                    data.append(label)
            signals.append({"name": lane.name, "wave": wave, "data": data})
        return {"signal": signals, "head": {"tick": self.first}, "config": {"hscale": 1}}


def beats_of(octets: bytes, width: int = 8) -> list[tuple[int, int, bool]]:
    """Cuts a packet into beats: the octets as a number, how many there are, and if it ends."""
    return [
        (int.from_bytes(part, "little"), len(part), at + width >= len(octets))
        for at in range(0, len(octets), width)
        for part in [octets[at : at + width]]
    ]


def scene(function: Callable[[], Trace]) -> Callable[[], Trace]:
    """Makes a function a scene of its name."""
    SCENES[function.__name__] = function
    return function


def record(dut: Any, drive: Callable[[Any], Any], cycles: int, trace: Trace) -> Trace:
    """Simulates ``dut`` with the testbench ``drive`` and fills the trace."""

    async def watch(ctx: Any) -> None:
        values = [
            signal if signal is None else Value.cast(signal)
            for lane in trace.lanes
            for signal in (lane.value, lane.valid)
        ]
        asked = [signal for signal in values if signal is not None]
        for _ in range(cycles):
            _, _, *read = await ctx.tick().sample(*asked)
            found = iter(read)
            trace.cycles.append(
                [
                    (int(next(found)), 1 if lane.valid is None else int(next(found)))
                    for lane in trace.lanes
                ]
            )

    simulate(dut, watch, background=[drive])
    return trace


@scene
def queue() -> Trace:
    """Three items through a queue whose reader waits."""
    dut = Queue(8, depth=4)

    async def drive(ctx: Any) -> None:
        for cycle in range(12):
            # A block is not ready in the first cycle after a reset.
            ctx.set(dut.i.valid, 1 <= cycle <= 3)
            ctx.set(dut.i.payload, 0xA0 + cycle - 1)
            ctx.set(dut.o.ready, cycle in (5, 8, 9))
            await ctx.tick()

    lanes = [
        Lane("i.valid", dut.i.valid),
        Lane("i.ready", dut.i.ready),
        Lane("i.payload", dut.i.payload, lambda item: f"{item:02x}", dut.i.valid),
        Lane("o.valid", dut.o.valid),
        Lane("o.ready", dut.o.ready),
        Lane("o.payload", dut.o.payload, lambda item: f"{item:02x}", dut.o.valid),
    ]
    caption = "Queue: an item moves in each cycle in which valid and ready are both 1."
    return record(dut, drive, 12, Trace(caption, lanes))


@scene
def crc32c() -> Trace:
    """A packet of 20 octets through the checksum."""
    dut = Crc32cStream(64)

    async def drive(ctx: Any) -> None:
        for octets, count, last in beats_of(b"123456789 abcdefghij"):
            ctx.set(dut.i.valid, 1)
            ctx.set(dut.i.payload, {"data": octets, "count": count, "last": last})
            await ctx.tick()
        ctx.set(dut.i.valid, 0)

    i, o = dut.i, dut.o
    lanes = [
        Lane("i.valid", i.valid),
        Lane("i.count", i.payload.count, str, i.valid),
        Lane("i.last", i.payload.last, None, i.valid),
        Lane("o.valid", o.valid),
        Lane("o.crc[16:]", o.payload.crc, lambda crc: f"{crc >> 16:04x}", o.valid),
    ]
    caption = "Crc32cStream at 64 bits: a packet of 20 octets, and the upper half of its checksum."
    return record(dut, drive, dut.latency + 5, Trace(caption, lanes))


@scene
def walker() -> Trace:
    """Two FPDUs in one packet."""
    config = RnicConfig()
    dut = MpaWalker(config)
    source, sender = DataSource(1000), MpaSender(crc=True, markers=False)
    segments = source.tagged(0x700, 0, b"first") + source.tagged(0x700, 5, b"second message")
    packet = b"".join(sender.send(segment) for segment in segments)

    async def drive(ctx: Any) -> None:
        ctx.set(dut.go, 1)
        for octets, count, last in beats_of(packet):
            beat = {"data": octets, "count": count, "last": last}
            ctx.set(dut.i.payload, {"llp": {"beat": beat}, "settings": {"crc": 1}})
            ctx.set(dut.i.valid, 1)
            while not (await ctx.tick().sample(dut.i.ready))[2]:
                pass
        ctx.set(dut.i.valid, 0)

    segment = dut.segments.payload
    lanes = [
        Lane("i.valid", dut.i.valid),
        Lane("i.ready", dut.i.ready),
        Lane("i.count", dut.i.payload.llp.beat.count, str, dut.i.valid),
        Lane("store.valid", dut.store.valid),
        Lane("slices.valid", dut.slices.valid),
        Lane("slices.close", dut.slices.payload.close, None, dut.slices.valid),
        Lane("segments.valid", dut.segments.valid),
        Lane("segments.start", segment.start, str, dut.segments.valid),
    ]
    caption = (
        f"MpaWalker at 64 bits: a packet of {len(packet)} octets with two FPDUs. Each segment "
        "comes out with the word in the packet buffer where its FPDU begins."
    )
    return record(dut, drive, 24, Trace(caption, lanes))


@scene
def tagged() -> Trace:
    """A segment that fits its region, and one that ends an octet after it."""
    dut = TaggedCheck(64)
    header = {"tagged": 1, "last": 1, "version": 1, "stag": 0x700, "length": 100}

    async def drive(ctx: Any) -> None:
        ctx.set(
            dut.entry,
            {"valid": 1, "remote_write": 1, "owner": 1, "length": 1000, "address": 0x10_0000},
        )
        ctx.set(dut.rights, {"stream": 3, "pd": 1, "enable": 1})
        for to in (0, 901):
            ctx.set(dut.i.payload, header | {"to": to})
            ctx.set(dut.i.valid, 1)
            await ctx.tick()
        ctx.set(dut.i.valid, 0)

    i, o = dut.i.payload, dut.o.payload
    lanes = [
        Lane("i.valid", dut.i.valid),
        Lane("i.to", i.to, str, dut.i.valid),
        Lane("i.length", i.length, str, dut.i.valid),
        Lane("o.valid", dut.o.valid),
        Lane("o.error", o.error, None, dut.o.valid),
        Lane("o.code", o.code, lambda code: f"{code:02x}", dut.o.valid),
    ]
    caption = (
        "TaggedCheck: two segments of 100 octets for a region of 1000. The second one would end an "
        "octet after the region: Base or bounds violation."
    )
    return record(dut, drive, TaggedCheck.LATENCY + 4, Trace(caption, lanes))


@scene
def placement() -> Trace:
    """20 octets to an address that is no multiple of 8."""
    config = RnicConfig()
    dut = PlacementDma(config)

    async def drive(ctx: Any) -> None:
        for channel in (dut.bus.aw, dut.bus.w, dut.exceptions, dut.done):
            ctx.set(channel.ready, 1)
        while not (await ctx.tick().sample(dut.ready))[2]:
            pass
        ctx.set(dut.i.payload, {"start": 0, "length": 20, "address": 0x1003, "last": 1})
        ctx.set(dut.i.valid, 1)
        await ctx.tick()
        ctx.set(dut.i.valid, 0)
        while True:
            _, _, valid, last = await ctx.tick().sample(dut.bus.w.valid, dut.bus.w.payload.last)
            if valid and last:
                break
        ctx.set(dut.bus.b.valid, 1)
        await ctx.tick()
        ctx.set(dut.bus.b.valid, 0)

    bus = dut.bus
    lanes = [
        Lane("i.valid", dut.i.valid),
        Lane("aw.valid", bus.aw.valid),
        Lane("aw.addr", bus.aw.payload.addr, lambda at: f"{at:x}", bus.aw.valid),
        Lane("w.valid", bus.w.valid),
        Lane("w.strb", bus.w.payload.strb, lambda strb: f"{strb:02x}", bus.w.valid),
        Lane("w.last", bus.w.payload.last, None, bus.w.valid),
        Lane("b.valid", bus.b.valid),
        Lane("done.valid", dut.done.valid),
    ]
    caption = "PlacementDma at 64 bits: 20 octets to address 0x1003, and the bus's response."
    return record(dut, drive, 28, Trace(caption, lanes, first=1))


@scene
def frame() -> Trace:
    """The end of a frame of 64 octets."""
    dut = FrameReceive()
    text = bytes(range(60))
    wire = b"\x55" * 7 + b"\xd5" + text + zlib.crc32(text).to_bytes(4, "little")

    async def drive(ctx: Any) -> None:
        for octet in wire:
            ctx.set(dut.i, {"data": octet, "valid": 1})
            await ctx.tick()
        ctx.set(dut.i, {"valid": 0})

    beat = dut.o.payload
    lanes = [
        Lane("i.valid", dut.i.valid),
        Lane("i.data", dut.i.data, lambda octet: f"{octet:02x}", dut.i.valid),
        Lane("o.valid", dut.o.valid),
        Lane("o.count", beat.count, str, dut.o.valid),
        Lane("o.last", beat.last, None, dut.o.valid),
        Lane("good", dut.good),
    ]
    caption = "FrameReceive: the end of a frame of 64 octets. The last four are its FCS."
    return record(dut, drive, len(wire) + 6, Trace(caption, lanes, first=len(wire) - 14))


@scene
def chunks() -> Trace:
    """An SCTP packet with one DDP Segment Chunk."""
    dut = SctpWalker(RnicConfig(sctp=True))
    (segment,) = DataSource(1000).tagged(0x700, 0, b"placed octets")
    user = (1).to_bytes(2, "big") + segment
    # An unordered DATA chunk that is a whole message, PPID 16, between headers of zeros.
    data = struct.pack(">BBHIHHI", 0, 7, 16 + len(user), 1, 0, 0, 16) + user
    data += bytes(-len(data) % 4)
    packet = bytes(12) + data
    beats = beats_of(bytes(2 + 14 + 20) + packet)

    async def drive(ctx: Any) -> None:
        ctx.set(dut.go, 1)
        for at, (octets, count, last) in enumerate(beats):
            beat = {"data": octets, "used": (1 << (count + 3) // 4) - 1, "first": at == 0}
            beat |= {"last": last, "ends": (count - 1) % 4 if last else 0}
            # The common header begins in word 9: word 1 of beat 4.
            beat |= {"sctp": 2, "octets": len(packet)} if at == 4 else {}
            ctx.set(dut.i.payload, beat)
            ctx.set(dut.i.valid, 1)
            while not (await ctx.tick().sample(dut.i.ready))[2]:
                pass
        ctx.set(dut.i.valid, 0)

    i, o = dut.i, dut.segments
    lanes = [
        Lane("i.valid", i.valid),
        Lane("i.sctp", i.payload.sctp, lambda words: f"{words:02b}", i.valid),
        Lane("i.last", i.payload.last, None, i.valid),
        Lane("store.valid", dut.store.valid),
        Lane("slices.valid", dut.slices.valid),
        Lane("segments.valid", o.valid),
        Lane("segments.kind", o.payload.kind, lambda kind: Kind(kind).name, o.valid),
    ]
    caption = (
        "SctpWalker at 64 bits: a frame with one DDP Segment Chunk gives two items, the segment "
        "and the end of the frame."
    )
    return record(dut, drive, len(beats) + 14, Trace(caption, lanes))


@scene
def command() -> Trace:
    """A host writes a word over the UART."""
    dut = UartBridge(patience=100)
    octets = bytes([1, 1]) + (0x1C // 4).to_bytes(4, "big") + (0x5A7E).to_bytes(4, "big")

    async def drive(ctx: Any) -> None:
        ctx.set(dut.bus.aw.ready, 1)
        ctx.set(dut.bus.w.ready, 1)
        ctx.set(dut.bus.b.valid, 1)
        await ctx.tick()
        for octet in octets:
            ctx.set(dut.i.payload, octet)
            ctx.set(dut.i.valid, 1)
            await ctx.tick()
        ctx.set(dut.i.valid, 0)

    aw, w = dut.bus.aw, dut.bus.w
    lanes = [
        Lane("i.valid", dut.i.valid),
        Lane("i.payload", dut.i.payload, lambda octet: f"{octet:02x}", dut.i.valid),
        Lane("aw.valid", aw.valid),
        Lane("aw.addr", aw.payload.addr, lambda at: f"{at:x}", aw.valid),
        Lane("w.valid", w.valid),
        Lane("w.data", w.payload.data, lambda word: f"{word:04x}", w.valid),
    ]
    caption = "UartBridge: the octets of a command that writes 0x5a7e to address 0x1c."
    return record(dut, drive, 18, Trace(caption, lanes))


@scene
def memory() -> Trace:
    """A burst of two beats into placement memory."""
    dut = PlacementMemory(64, 1024)
    bus = dut.bus

    async def drive(ctx: Any) -> None:
        ctx.set(bus.aw.payload, {"addr": 0x40, "len": 1})
        ctx.set(bus.aw.valid, 1)
        ctx.set(bus.b.ready, 1)
        ctx.set(bus.w.valid, 1)
        ctx.set(bus.w.payload, {"data": 0x1111, "strb": 0xFF})
        await ctx.tick()
        ctx.set(bus.aw.valid, 0)
        while not (await ctx.tick().sample(bus.w.ready))[2]:
            pass
        ctx.set(bus.w.payload, {"data": 0x2222, "strb": 0x0F, "last": 1})
        while not (await ctx.tick().sample(bus.w.ready))[2]:
            pass
        ctx.set(bus.w.valid, 0)

    lanes = [
        Lane("aw.valid", bus.aw.valid),
        Lane("aw.ready", bus.aw.ready),
        Lane("aw.addr", bus.aw.payload.addr, lambda at: f"{at:x}", bus.aw.valid),
        Lane("w.valid", bus.w.valid),
        Lane("w.ready", bus.w.ready),
        Lane("w.strb", bus.w.payload.strb, lambda strb: f"{strb:02x}", bus.w.valid),
        Lane("w.last", bus.w.payload.last, None, bus.w.valid),
        Lane("b.valid", bus.b.valid),
    ]
    caption = "PlacementMemory: a burst of two beats; the second one writes its lower half only."
    return record(dut, drive, 8, Trace(caption, lanes))

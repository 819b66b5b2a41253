"""Timing pictures: each scene simulates a block of the gateware and records some of its signals.

The pictures are the gateware's own behaviour, so that they change when it does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from amaranth.sim import Simulator
from ddp_rnic.hdl.lib.crc32c import Crc32cStream

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
    cycles: list[list[tuple[int, int]]] = field(default_factory=list)

    def drawing(self) -> dict[str, Any]:
        """Returns the picture in WaveDrom's own form."""
        signals: list[dict[str, Any]] = [
            {"name": "clk", "wave": "p" + "." * (len(self.cycles) - 1)}
        ]
        for at, lane in enumerate(self.lanes):
            wave, data, before = "", [], ""
            for cycle in self.cycles:
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
        return {"signal": signals, "head": {"tick": 0}, "config": {"hscale": 2, "skin": "default"}}


def scene(function: Callable[[], Trace]) -> Callable[[], Trace]:
    """Makes a function a scene of its name."""
    SCENES[function.__name__] = function
    return function


def record(dut: Any, drive: Callable[[Any], Any], cycles: int, trace: Trace) -> Trace:
    """Simulates ``dut`` with the testbench ``drive`` and fills the trace."""

    async def watch(ctx: Any) -> None:
        values = [signal for lane in trace.lanes for signal in (lane.value, lane.valid)]
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

    simulator = Simulator(dut)
    simulator.add_clock(1e-8)
    simulator.add_testbench(watch)
    simulator.add_testbench(drive, background=True)
    simulator.run()
    return trace


@scene
def crc32c() -> Trace:
    """A packet of 20 octets through the checksum, 64 bits wide."""
    dut = Crc32cStream(64)
    packet = b"123456789 abcdefghij"

    async def drive(ctx: Any) -> None:
        for at in range(0, len(packet), 8):
            chunk = packet[at : at + 8]
            ctx.set(dut.i.valid, 1)
            ctx.set(
                dut.i.payload,
                {
                    "data": int.from_bytes(chunk, "little"),
                    "count": len(chunk),
                    "last": at + 8 >= len(packet),
                },
            )
            await ctx.tick()
        ctx.set(dut.i.valid, 0)

    i, o = dut.i, dut.o
    lanes = [
        Lane("i.valid", i.valid),
        Lane("i.payload.count", i.payload.count, str, i.valid),
        Lane("i.payload.last", i.payload.last, None, i.valid),
        Lane("o.valid", o.valid),
        Lane("o.payload.crc", o.payload.crc, lambda crc: f"{crc:08x}", o.valid),
    ]
    return record(dut, drive, dut.latency + 5, Trace("A packet of 20 octets, 64 bits wide.", lanes))

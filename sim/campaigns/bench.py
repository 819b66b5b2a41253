"""Measures the numbers of ``rnic bench``: cycles, latency, speed of simulation, area and clock.

Segments of one size follow each other, each in a packet of its own, to a region that they reach at
one alignment. All belong to one message, which does not end, because completions use another port.
The least number of cycles that a segment can take is the number of its beats, in the packet or on
the bus, whichever is more.

Over SCTP a packet has one segment, or as many as fit. There each segment is a message, so that the
ring gets two entries for each segment, and one for its packet.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...flow import pnr as pnr_flow
from ...flow import xilinx as xilinx_flow
from ...hdl.spec.config import WIDTHS, RnicConfig
from ..engines.choice import load
from ..engines.engine import Engine
from ..engines.verilator import verilog
from ..replay.load import Load, SctpLoad
from ..replay.send_load import ResponseLoad, SendLoad
from .others import Peer

__all__ = [
    "BLOCKS",
    "MTUS",
    "PAYLOADS",
    "SCTP_PAYLOADS",
    "SENDER",
    "line_rate",
    "run_bench",
]

#: The blocks that are placed and routed.
BLOCKS = ("crc32c", "tagged_check", "placement_dma", "framer", "scheduler", "top")
#: The name of the whole device that sends and answers RDMA Reads, too.
SENDER = "sending top"
#: Octets of payload of a segment.
PAYLOADS = (1, 16, 64, 256, 1024, 1440, 4096, 8900)
#: Payloads whose latency is measured.
LATENCY_PAYLOADS = (1, 64, 1440, 8900)
#: Payloads over SCTP, where small ones matter most; and the longest packets, where 0 stands for one
#: segment per packet.
SCTP_PAYLOADS = (1, 4, 8, 12, 16, 24, 32, 48, 64, 128, 256, 512, 1024, 1440, 4096, 8900)
MTUS = (0, 1500, 9000)
#: Approximate cycles of a measurement of one size. In the first half queues may fill.
_CYCLES = 40_000
#: Messages that are sent: octets, octets after a beat's first lane (None: inline), streams, and the
#: memory's latency in cycles.
_SENT = (
    (64, None, 16, 10), (64, 0, 16, 10), (64, 3, 16, 10), (64, 0, 1, 10), (1024, 3, 16, 10),
    (7900, 3, 1, 10), (7900, 3, 16, 10), (7900, 3, 16, 40), (7900, 3, 16, 200),
)  # fmt: skip
#: The rate counts as line rate if the cycles exceed the least number by no more than this part.
_TOLERANCE = 0.002
#: Payload and cycles of the measurement of simulation speed.
_SPEED_PAYLOAD, _SPEED_CYCLES = 1440, 1_000_000

Rows = list[dict[str, Any]]
Results = dict[str, Rows]
#: Only one thread at a time generates Verilog.
_ELABORATION = threading.Lock()
#: Called with the number of steps done, the number of all steps, and the name of the current step.
Progress = Callable[[int, int, str], None]


def measure_cycles(engine: Engine, load: Load) -> dict[str, Any]:
    """Measures the cycles per segment of segments back to back, once the pipeline is full."""
    count = load.count(_CYCLES)
    outcome = load.run(engine, load.packets(count), count)
    first = outcome.writes["cycle"][:: load.beats_out * load.chunks]  # first write of each packet
    begin = len(first) // 2
    cycles = int(first[-1] - first[begin]) / (len(first) - 1 - begin) / load.chunks
    return {
        "width": load.config.width,
        "payload": load.payload,
        "offset": load.offset,
        "beats_in": round(load.beats_in, 3),
        "beats_out": load.beats_out,
        "limit": round(load.limit, 3),
        "cycles": round(cycles, 3),
    }


def measure_latency(engine: Engine, load: Load) -> dict[str, Any]:
    """Measures the cycles from the last beat in to the address on the bus, for single segments."""
    count = 8
    outcome = load.run(engine, load.packets(count, drained=True), count)
    bursts = outcome.bursts["cycle"]
    first = bursts[np.searchsorted(bursts, outcome.taken["last"])]
    return {
        "width": load.config.width,
        "payload": load.payload,
        "cycles": int((first - outcome.taken["last"]).max()),
    }


def measure_simulation(engine: Engine, load: Load) -> dict[str, Any]:
    """Measures how many cycles are simulated per second of processor time, with segments
    back to back.
    """
    count = load.count(_SPEED_CYCLES)
    operations = load.packets(count)
    began = time.process_time()
    outcome = load.run(engine, operations, count)
    seconds = time.process_time() - began
    return {
        "width": load.config.width,
        "engine": engine.name,
        "cycles": outcome.cycles,
        "seconds": round(seconds, 3),
        "kcycles_per_second": round(outcome.cycles / seconds / 1000, 1),
    }


def _text(block: str, config: RnicConfig) -> tuple[str, str]:
    """Returns the Verilog of a block, and the name of its top module."""
    # Amaranth is imported here, because simulation uses cached Verilog.
    from ...hdl.ddp.tagged import TaggedCheck
    from ...hdl.dma.placement import PlacementDma
    from ...hdl.lib.crc32c import Crc32c
    from ...hdl.mpa.framer import Framer
    from ...hdl.send.scheduler import Scheduler

    if block in ("top", SENDER):
        return verilog(_sender(config) if block == SENDER else config), "rnic"
    component = {
        "crc32c": lambda: Crc32c(config.width),
        "tagged_check": lambda: TaggedCheck(config.stags),
        "placement_dma": lambda: PlacementDma(config),
        "framer": lambda: Framer(config.width),
        "scheduler": lambda: Scheduler(config.streams, config.buffer_octets),
    }[block]()
    return pnr_flow.component_verilog(component, block), block


def _of_block(measure: Callable[..., Rows], block: str, config: RnicConfig) -> Rows:
    with _ELABORATION:
        text, top = _text(block, config)
    return measure(text, top, block=block, width=config.width)


def of_peer(measure: Callable[..., Rows], peer: Peer) -> Rows:
    return measure(
        peer.verilog, peer.top, block=peer.name, width=None, parameters=peer.parameters,
        systemverilog=peer.systemverilog,
    )  # fmt: skip


def _cycles(engine: Engine, config: RnicConfig) -> Rows:
    loads = [Load(config, size, at) for size in PAYLOADS for at in (0, config.octets - 1)]
    return [{"llp": "mpa"} | measure_cycles(engine, load) for load in loads]


def _sctp_cycles(engine: Engine, config: RnicConfig) -> Rows:
    loads = [SctpLoad(config, size, mtu=mtu) for mtu in MTUS for size in SCTP_PAYLOADS]
    return [
        {"llp": "sctp", "mtu": load.mtu, "chunks": load.chunks} | measure_cycles(engine, load)
        for load in loads
        if load.chunks > 1 or not load.mtu
    ]


def _sender(config: RnicConfig) -> RnicConfig:
    return replace(config, transmit=True, responder=True)


def _sending(engine: Engine, config: RnicConfig) -> Rows:
    """Measures messages back to back, the latency of a single one, and that of a response where the
    device has a responder.
    """
    rows: Rows = []
    for payload, offset, streams, latency in _SENT:
        load = SendLoad(config, payload, offset, streams=streams, latency=latency)
        count = max(_CYCLES // int(load.limit), 8 * streams)
        rows.append({"kind": "rate"} | load.row(load.cycles(engine, count)))
    for offset in (None, 0):
        load = SendLoad(config, 64, offset, streams=1)
        rows.append({"kind": "latency"} | load.row(load.delay(engine)))
    rows.append({"kind": "read"} | load.row(load.rest(engine)))
    if config.responder:
        answer = ResponseLoad(config, 64)
        rows.append({"kind": "response"} | answer.row(answer.delay(engine)))
    return rows


def _latency(engine: Engine, config: RnicConfig) -> Rows:
    return [measure_latency(engine, Load(config, size)) for size in LATENCY_PAYLOADS]


def _simulation(engine: Engine, config: RnicConfig) -> Rows:
    return [measure_simulation(engine, Load(config, _SPEED_PAYLOAD))]


class _Step(NamedTuple):
    """A measurement: its list of rows, its name for the user, and the function that makes rows."""

    kind: str
    what: str
    measure: Callable[[], Rows]


def _simulations(
    engine: Engine, configs: Iterable[RnicConfig], *, sctp: bool, send: bool
) -> Iterator[_Step]:
    for config in configs:
        bits = f"at {config.width} bits"
        yield _Step("cycles", f"cycles {bits}", partial(_cycles, engine, config))
        yield _Step("latency", f"latency {bits}", partial(_latency, engine, config))
        yield _Step("simulation", f"simulation {bits}", partial(_simulation, engine, config))
        if send:
            yield _Step("sending", f"sending {bits}", partial(_sending, engine, _sender(config)))
        if sctp:
            measure = partial(_sctp_cycles, engine, replace(config, sctp=True))
            yield _Step("cycles", f"cycles over SCTP {bits}", measure)
        if sctp and send:
            over = replace(config, transmit=True, mpa=False, sctp=True)
            yield _Step("sending", f"sending over SCTP {bits}", partial(_sending, engine, over))


def _builds(
    configs: Iterable[RnicConfig],
    peers: Iterable[Peer],
    *,
    blocks: Sequence[str],
    pnr: bool,
    seeds: tuple[int, ...],
    xilinx: str | None,
) -> Iterator[_Step]:
    place = ("pnr", partial(pnr_flow.measure, seeds=seeds))
    flows, peer_flows = [place] * pnr, [place]
    if xilinx is not None:
        synthesize = ("xilinx", partial(xilinx_flow.measure, family=xilinx))
        flows, peer_flows = [*flows, synthesize], [*peer_flows, synthesize]
    for config in configs:
        for kind, flow in flows:
            for block in blocks:
                measure = partial(_of_block, flow, block, config)
                yield _Step(kind, f"{block} at {config.width} bits", measure)
    for peer in peers:
        for kind, flow in peer_flows:
            yield _Step(kind, peer.name, partial(of_peer, flow, peer))


def run_bench(
    widths: Iterable[int] = WIDTHS,
    *,
    sctp: bool = False,
    send: bool = False,
    pnr: bool = False,
    peers: Iterable[Peer] = (),
    seeds: Iterable[int] = (1,),
    xilinx: str | None = None,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> Results:
    """Measures, and returns lists of rows: ``cycles``, ``latency``, ``simulation``,
    ``sending``, ``pnr``, ``xilinx``.

    Parameters
    ----------
    widths
        Datapath widths in bits.
    sctp
        Also measure the cycles of DDP over SCTP; building its simulator takes minutes, once.
    send
        Also measure a device that sends; with ``pnr`` or ``xilinx``, its area, too.
    pnr
        Also place and route the blocks, one per processor at a time. The top of a width takes
        minutes.
    peers
        Also place and route these modules.
    seeds
        The seeds of nextpnr; each gives a row.
    xilinx
        Also measure the area of the blocks, and of the peers, on a device of this family.
    engine
        The engine; None: the compiled engine.
    progress
        Called before each step.

    Raises
    ------
    ToolError
        A tool is missing or failed.
    DeviceError
        The gateware failed.
    """
    engine = engine or load("compiled")
    configs = [RnicConfig(width=width) for width in widths]
    steps = list(_simulations(engine, configs, sctp=sctp, send=send))
    blocks = (*BLOCKS, SENDER) if send else BLOCKS
    built = list(_builds(configs, peers, blocks=blocks, pnr=pnr, seeds=tuple(seeds), xilinx=xilinx))
    if built:
        pnr_flow.check_tools()
    results: Results = {
        kind: [] for kind in ("cycles", "latency", "simulation", "sending", "pnr", "xilinx")
    }
    tell = progress or (lambda done, total, what: None)
    total = len(steps) + len(built)
    for done, step in enumerate(steps):
        tell(done, total, step.what)
        results[step.kind] += step.measure()
    # No further step is timed. The longest ones come first.
    pool = ThreadPoolExecutor(os.cpu_count())
    try:
        running = [(step, pool.submit(step.measure)) for step in reversed(built)]
        for done, (step, future) in enumerate(running, len(steps)):
            tell(done, total, step.what)
            results[step.kind][:0] = future.result()
    finally:
        pool.shutdown(cancel_futures=True)
    return results


def line_rate(rows: Rows) -> int | None:
    """Returns the smallest payload from which on all payloads keep line rate, or None."""
    slow = [row["payload"] for row in rows if row["cycles"] > row["limit"] * (1 + _TOLERANCE)]
    return min(
        (row["payload"] for row in rows if row["payload"] > max(slow, default=0)), default=None
    )

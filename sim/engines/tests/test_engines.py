"""Tests of the engines: their behaviour with a device that breaks rules, and their builds."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ddp_rnic.flow import tools
from ddp_rnic.flow.tools import ToolError
from ddp_rnic.hdl.lib.tests.long import long
from ddp_rnic.hdl.spec import commands, regs
from ddp_rnic.hdl.spec.completion import OCTETS, Kind, decode, phase
from ddp_rnic.hdl.spec.config import WIDTHS, RnicConfig
from ddp_rnic.hdl.spec.ddp import QUEUE_OVERRUN
from ddp_rnic.hdl.spec.net import insert, internet_sum
from ddp_rnic.hdl.spec.sctp import Diversion, State
from ddp_rnic.hdl.spec.sctp import Function as Told
from ddp_rnic.hdl.spec.stag import Access
from ddp_rnic.sim.capture import layers, pcap
from ddp_rnic.sim.engines import verilator
from ddp_rnic.sim.engines.choice import ENGINES, load
from ddp_rnic.sim.engines.engine import (
    UNSTALLED,
    Await,
    DeviceError,
    Drain,
    ExceptionPacket,
    Frame,
    Operation,
    Outcome,
    Packet,
    Pause,
    Poll,
    Resume,
    Ring,
    Stalls,
    Wait,
    WriteRegister,
    completion,
    operations_of,
    until,
)
from ddp_rnic.sim.engines.tests import standin
from ddp_rnic.sim.engines.tests.fake_engine import FakeEngine
from ddp_rnic.sim.engines.waves import Waves
from ddp_rnic.sim.model.ddp import DataSource
from ddp_rnic.sim.model.header import TaggedHeader
from ddp_rnic.sim.model.mpa import MpaSender
from ddp_rnic.sim.model.sctp import DataChunk, Function, SegmentReceived, Session
from ddp_rnic.sim.model.sctp import Packet as SctpPacket
from ddp_rnic.sim.replay.load import KEY, TSN, SctpLoad
from ddp_rnic.sim.replay.load import frame as load_frame


def engines(names: str, first: tuple[Any, ...], *others: tuple[Any, ...]) -> pytest.MarkDecorator:
    """Parametrizes with each engine, and values of more arguments.

    A run of cocotb takes a second to start, so it takes only the ``first`` values without --long.
    """
    return pytest.mark.parametrize(
        f"engine, {names}",
        [
            *(("compiled", *each) for each in (first, *others)),
            ("cocotb", *first),
            *long(*(("cocotb", *each) for each in others)),
        ],
    )


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verilator, "verilog", standin.verilog)


def run(
    engine: str, mode: int, *, stalls: Stalls = UNSTALLED, faults: tuple[range, ...] = ()
) -> tuple[Outcome, np.ndarray]:
    memory = np.full(96, 0xEE, np.uint8)
    operations = [WriteRegister(standin.MODE, mode)]
    outcome = load(engine).run(RnicConfig(), operations, memory, stalls=stalls, faults=faults)
    return outcome, memory


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("engine", ENGINES)
def test_a_burst_goes_where_its_strobes_say(engine: str) -> None:
    outcome, memory = run(engine, standin.GOOD)
    assert memory.tolist() == [0xEE] * 69 + [1] * 3 + [2] * 8 + [3] * 8 + [4] * 8
    assert outcome.writes["address"].tolist() == [64, 72, 80, 88]
    assert np.all(np.diff(outcome.writes["cycle"].astype(int)) > 0)
    assert outcome.bursts[["address", "beats"]].tolist() == [(64, 4)]
    assert outcome.exceptions == [ExceptionPacket(9, 77, bytes.fromhex("112233"), 0x203)]
    assert outcome.stray == [] and outcome.events == [] and outcome.completions == []
    assert len(outcome.responses) == 1 and outcome.responses[0] > outcome.writes["cycle"][-1]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("engine", ENGINES)
def test_a_faulty_address_stores_nothing_in_its_beat(engine: str) -> None:
    _, memory = run(engine, standin.GOOD, faults=(range(79, 80), range(64, 69)))
    assert memory.tolist() == [0xEE] * 69 + [1] * 3 + [0xEE] * 8 + [3] * 8 + [4] * 8


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("engine", ENGINES)
def test_writes_outside_of_memory_are_reported(engine: str) -> None:
    memory = np.full(84, 0xEE, np.uint8)
    outcome = load(engine).run(RnicConfig(), [WriteRegister(standin.MODE, standin.GOOD)], memory)
    assert [int(each["address"]) for each in outcome.stray] == [80, 88]
    assert memory.tolist() == [0xEE] * 69 + [1] * 3 + [2] * 8 + [3] * 4


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("engine", ENGINES)
def test_memory_begins_at_its_base(engine: str) -> None:
    """The first octets of the device's burst at 0x45 lie below the base of memory."""
    memory = np.full(4, 0xEE, np.uint8)
    mode = WriteRegister(standin.MODE, standin.GOOD)
    outcome = load(engine).run(RnicConfig(), [mode], memory, base=80)
    assert [int(each["address"]) for each in outcome.stray] == [64, 72, 80, 88]
    assert memory.tolist() == [3] * 4


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(
    ("mode", "message"),
    [
        (standin.CROSSES_A_PAGE, "32 octets at 0xff0 crosses a 4 KiB boundary"),
        (standin.ENDS_EARLY, "WLAST is 1 but 1 beats of the burst are left, at 0x50"),
        (standin.CHANGES_ITS_ADDRESS, "m_axi_aw: payload changes before READY came"),
        (standin.TAKES_DATA_BACK, "m_axi_w: VALID falls before READY came"),
        (standin.NEVER_IDLE, "everything is sent, but the RNIC is not idle"),
        (standin.LEAVES_A_HOLE, "exception stream: TKEEP is 0x5"),
        (standin.REFUSES_READS, "the read of register 0x018 got response 2"),
        (
            standin.ANNOUNCES_ON,
            "m_axi_aw: 65 bursts wait for their response, but the configuration",
        ),
    ],
)
def test_a_broken_rule_is_reported(mode: int, message: str) -> None:
    with pytest.raises(DeviceError, match=message) as caught:
        run("compiled", mode, stalls=Stalls(write=0.9))
    assert str(caught.value).startswith("cycle ")


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(
    "mode",
    [standin.NEVER_IDLE, standin.REFUSES_READS, *long(standin.CROSSES_A_PAGE, standin.ENDS_EARLY)],
)
def test_cocotb_gives_up_too(mode: int) -> None:
    with pytest.raises(DeviceError, match="run_operations"):
        run("cocotb", mode)


# -- completions ----------------------------------------------------------------------------------

RING = Ring(4096, 3)
EVERY_STALL = Stalls(0.3, 0.3, 0.3, 0.3, 0.3, seed=3)


def complete(
    engine: str,
    *operations: Operation,
    mode: int = standin.GOOD,
    ring: Ring = RING,
    interrupts: bool = False,
    stalls: Stalls = UNSTALLED,
    faults: tuple[range, ...] = (),
) -> tuple[Outcome, np.ndarray]:
    """Runs the stand-in with a ring that it gets; memory is painted."""
    memory = np.full(1 << 13, 0xEE, np.uint8)
    start = WriteRegister(standin.MODE, mode)
    outcome = load(engine).run(
        RnicConfig(), [start, *ring.program(interrupts=interrupts), *operations], memory,
        ring=ring, stalls=stalls, faults=faults,
    )  # fmt: skip
    return outcome, memory


def produce(count: int) -> WriteRegister:
    return WriteRegister(standin.PRODUCE, count)


@pytest.mark.usefixtures("device")
@engines(
    "size, stalls",
    (2, EVERY_STALL),
    *((size, EVERY_STALL) for size in (1, 3, 5)),
    *((size, UNSTALLED) for size in (1, 2, 3, 5)),
)
def test_completions_are_taken_in_order(engine: str, size: int, stalls: Stalls) -> None:
    ring = Ring(4096 + 32 * 3, size)
    outcome, memory = complete(engine, produce(37), ring=ring, stalls=stalls)
    assert [each.cookie for each in outcome.completions] == [*range(37)]
    assert [each.phase for each in outcome.completions] == [phase(n, size) for n in range(37)]
    assert len(outcome.delivered) == 37 and np.all(np.diff(outcome.delivered.astype(int)) > 3)
    # The completions are in the ring, and nothing else was touched there; the other port's lists
    # are empty.
    outside = np.delete(memory, np.r_[64:96, ring.octets.start : ring.octets.stop])
    assert np.all(outside == 0xEE)
    assert outcome.bursts["address"].tolist() == [64] and len(outcome.responses) == 1


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("engine", ENGINES)
def test_a_drain_gives_back_what_waits_for_room(engine: str) -> None:
    # More than the ring holds, and not a multiple of the quarter at which the host gives back.
    outcome, _ = complete(engine, produce(13), Drain(), produce(3), Drain(), produce(1))
    assert [each.cookie for each in outcome.completions] == [*range(17)]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("engine", ENGINES)
def test_a_host_that_pauses_lets_the_ring_run_full(engine: str) -> None:
    outcome, _ = complete(
        engine,
        produce(3),
        Await(3),
        Pause(),
        produce(20),
        Drain(),
        Wait(500),
        Poll(standin.MODE, 0),
        Resume(),
        Await(23),
        Wait(500),
        produce(2),
    )
    assert [each.cookie for each in outcome.completions] == [*range(25)]
    # Eight went into the ring before the pause ended, the others after it.
    (resumed,) = outcome.polled
    assert outcome.delivered[10] + 500 < resumed < outcome.delivered[11]
    assert outcome.delivered[22] + 500 < outcome.delivered[23]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("engine", ENGINES)
def test_a_run_ends_with_every_completion_taken(engine: str) -> None:
    outcome, _ = complete(engine, Pause(), produce(20))
    assert len(outcome.completions) == 20


@pytest.mark.usefixtures("device")
@engines(
    "paused, stalls",
    (True, EVERY_STALL),
    (False, EVERY_STALL),
    (True, UNSTALLED),
    (False, UNSTALLED),
)
def test_interrupts_of_completions_and_events_are_distinguished(
    engine: str, paused: bool, stalls: Stalls
) -> None:
    pause = [Pause()] if paused else []
    outcome, _ = complete(
        engine,
        *pause,
        produce(30),
        WriteRegister(standin.RAISE, 1),
        WriteRegister(standin.RAISE, 1),
        Drain(),
        Resume(),
        Wait(400),
        produce(1),
        Wait(400),
        interrupts=True,
        stalls=stalls,
    )
    assert [each.cookie for each in outcome.completions] == [*range(31)]
    # The stand-in's event registers read as their addresses.
    assert [each.stream for each in outcome.events] == [regs.address("EVENT_STREAM")] * 2
    # The last completion came alone, with one interrupt, which was answered.
    assert np.sum(outcome.interrupts > outcome.delivered[-1]) == 1


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("engine", ENGINES)
def test_masked_completions_do_not_interrupt(engine: str) -> None:
    outcome, _ = complete(engine, produce(30), WriteRegister(standin.RAISE, 1))
    assert len(outcome.completions) == 30 and len(outcome.events) == 1
    assert len(outcome.interrupts) == 1


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("engine", ENGINES)
def test_a_register_is_polled(engine: str) -> None:
    outcome, _ = complete(
        engine,
        Poll(standin.MODE, 0xFF0, standin.MODE & 0xFF0),
        WriteRegister(regs.address("REVOKE_STAG"), 1),
        *operations_of([commands.REVOKED]),
        Wait(0),
    )
    before, after = outcome.polled.astype(int)
    assert 40 < after - before < 150


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("engine", ENGINES)
def test_a_faulty_ring_keeps_its_old_entry(engine: str) -> None:
    # The host waits at the entry that was not written.
    entry = range(RING.address + 2 * OCTETS, RING.address + 3 * OCTETS)
    outcome, memory = complete(engine, produce(4), faults=(entry,))
    assert [each.cookie for each in outcome.completions] == [0, 1]
    assert np.all(memory[entry.start : entry.stop] == 0)


@pytest.mark.usefixtures("device")
@engines(
    "mode, message",
    (standin.OVERWRITES, "m_axi_cq_w: completion 8 overwrites one that the host has not given"),
    (standin.KEEPS_THE_PHASE, "m_axi_cq_w: completion 8 has the wrong phase"),
    (
        standin.SKIPS_AN_ENTRY,
        "m_axi_cq_w: completion 1 is written to 0x1040, but its entry is at 0x1020",
    ),
    (standin.LEAVES_OUT_AN_OCTET, "m_axi_cq_w: completion 0 is incomplete"),
    (standin.IDLE_TOO_SOON, "m_axi_cq_w: data comes although STATUS said nothing is in"),
)
def test_a_completion_that_is_not_right_is_reported(engine: str, mode: int, message: str) -> None:
    pause = [Pause()] if mode == standin.OVERWRITES else []
    with pytest.raises(DeviceError, match=message):
        complete(engine, *pause, produce(20), Drain(), mode=mode)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("engine", ENGINES)
def test_entries_of_every_kind_are_taken(engine: str) -> None:
    outcome, _ = complete(engine, produce(len(Kind)), Await(len(Kind)), mode=standin.COUNTS_KINDS)
    assert [each.kind for each in outcome.completions] == [*Kind]
    with pytest.raises(DeviceError, match="the completion .* is not valid: Kind .* does not exist"):
        complete(engine, produce(len(Kind) + 1), mode=standin.COUNTS_KINDS)


@pytest.mark.parametrize(("octet", "bit"), [(0, 2), (22, 0), (26, 1), (31, 1)])
def test_a_bit_of_no_field_is_0_in_a_completion(octet: int, bit: int) -> None:
    entry = bytearray(OCTETS)
    assert completion(bytes(entry)).tag == 0
    entry[octet] = 1 << bit
    with pytest.raises(DeviceError, match="not valid: a bit that belongs to no field is 1"):
        completion(bytes(entry))


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("engine", ENGINES)
def test_a_completion_without_a_ring_is_reported(engine: str) -> None:
    memory = np.zeros(1 << 13, np.uint8)
    operations = [WriteRegister(standin.MODE, standin.GOOD), *RING.program(), produce(1)]
    with pytest.raises(DeviceError, match="is written to 0x1000, but there is no ring"):
        load(engine).run(RnicConfig(), operations, memory)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("engine", ENGINES)
def test_placement_into_the_ring_is_reported(engine: str) -> None:
    with pytest.raises(DeviceError, match="m_axi_w: the write .* touches the completion ring"):
        complete(engine, ring=Ring(64, 1))


@pytest.mark.usefixtures("device")
def test_a_completion_that_changes_is_reported() -> None:
    with pytest.raises(DeviceError, match="m_axi_cq_w: payload changes before READY came"):
        complete(
            "compiled", produce(8), mode=standin.CHANGES_A_COMPLETION, stalls=Stalls(write=0.9)
        )


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(
    ("operations", "message"),
    [
        ([Await(1)], "operation 13 of 13, the completions that the host waits for do not come"),
        ([Pause(), produce(1), Await(1)], "the host waits for completions that it does not take"),
        ([Poll(standin.MODE, 1, 1)], "the register that the host polls does not change"),
    ],
)
def test_what_never_comes_is_reported(operations: list[Operation], message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        complete("compiled", *operations)


# -- frames ---------------------------------------------------------------------------------------

SCTP = RnicConfig(sctp=True)


def echo(
    engine: str, *operations: Operation, stalls: Stalls = UNSTALLED, width: int = 64
) -> tuple[Outcome, list[ExceptionPacket]]:
    """Runs a stand-in that has both ports and echoes; returns the required echoes, too."""
    expected = []
    mark = 0
    for operation in operations:
        match operation:
            case WriteRegister(standin.MARK, mark):
                pass
            case Packet(stream, sequence, octets):
                expected.append(ExceptionPacket(stream, sequence, octets, mark))
            case Frame(octets):
                expected.append(ExceptionPacket(standin.FRAME, 0, octets, mark))
    start = WriteRegister(standin.MODE, standin.ECHOES)
    memory = np.zeros(96, np.uint8)
    config = replace(SCTP, width=width)
    outcome = load(engine).run(config, [start, *operations], memory, stalls=stalls)
    return outcome, expected


def counting(first: int, count: int) -> bytes:
    return bytes((first + k) & 0xFF for k in range(count))


#: How frames arrive in each run.
USUAL = [
    ("compiled", 64, EVERY_STALL),
    ("compiled", 512, UNSTALLED),
    ("cocotb", 64, UNSTALLED),
]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(
    "engine, width, stalls",
    [
        *USUAL,
        *long(
            *(
                each
                for each in product(ENGINES, WIDTHS, (UNSTALLED, EVERY_STALL))
                if each not in USUAL
            )
        ),
    ],
)
def test_frames_of_every_length_arrive_as_they_are(engine: str, width: int, stalls: Stalls) -> None:
    lengths = [*range(1, width // 4 + 2), 1518, 9018]
    frames = [Frame(counting(length, length), error=length % 3 == 0) for length in lengths]
    outcome, expected = echo(engine, *frames, stalls=stalls, width=width)
    assert outcome.exceptions == expected
    # The stand-in reports 32: later ones overwrite the first ones.
    damaged = {number % 32: frame.error for number, frame in enumerate(frames)}
    counted = dict.fromkeys(regs.SCTP_COUNTERS, 0) | {
        "FRAMES": len(frames),
        "FRAMES_DROPPED": sum(error << number for number, error in damaged.items()),
    }
    assert {name: outcome.counters[name] for name in regs.SCTP_COUNTERS} == counted
    beats = [-(-8 * length // width) for length in lengths]
    took = outcome.taken["last"].astype(int) - outcome.taken["first"].astype(int) + 1
    assert len(took) == len(frames) and np.all(took >= beats)
    if stalls is UNSTALLED:
        assert took.tolist() == beats


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("engine", ENGINES)
def test_the_source_stalls_frames_too(engine: str) -> None:
    outcome, expected = echo(engine, Frame(bytes(8 * 400)), stalls=Stalls(source=0.75))
    assert outcome.exceptions == expected
    ((first, last),) = outcome.taken.tolist()
    assert 1300 < last - first < 1900


@pytest.mark.usefixtures("device")
@engines("stalls", (EVERY_STALL,), (UNSTALLED,))
def test_frames_packets_and_writes_keep_their_order(engine: str, stalls: Stalls) -> None:
    operations: list[Operation] = []
    waits: list[Operation] = [Drain(), Wait(3), Poll(standin.MODE, 0)]
    for k in range(24):
        frame, packet = Frame(counting(k, 5 * k + 1)), Packet(k, 1000 * k, counting(k, 3 * k + 2))
        mark = WriteRegister(standin.MARK, 100 + k)
        # Every two of them are consecutive.
        operations += [frame, packet, frame, frame, mark, frame, mark, packet, packet]
        operations += waits[k % 4 :][:1]
    outcome, expected = echo(engine, *operations, stalls=stalls)
    assert outcome.exceptions == expected
    assert outcome.counters["FRAMES"] == 24 * 4 and not outcome.counters["FRAMES_DIVERTED"]
    assert len(outcome.taken) == len(expected)
    assert np.all(outcome.taken["first"] <= outcome.taken["last"])
    assert np.all(outcome.taken["last"][:-1] < outcome.taken["first"][1:])
    assert len(outcome.polled) == 6


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("engine", ENGINES)
def test_a_port_for_frames_without_frames_changes_nothing(engine: str) -> None:
    operations = [WriteRegister(standin.MODE, standin.GOOD)]
    stalls = replace(EVERY_STALL, response=0.0)
    with_port, without = (
        load(engine).run(config, operations, np.zeros(96, np.uint8), stalls=stalls)
        for config in (SCTP, RnicConfig())
    )
    assert without.writes.tolist() == with_port.writes.tolist()
    assert set(with_port.counters) - set(without.counters) == set(regs.SCTP_COUNTERS)


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("compiled", "operation 2 of 2, the RNIC takes no beat of the frame"),
        *long(("cocotb", "nothing moved")),
    ],
)
def test_a_frame_that_nobody_takes_is_reported(
    monkeypatch: pytest.MonkeyPatch, engine: str, message: str
) -> None:
    ready = "s_axis_eth_tready = "
    text = standin.verilog(SCTP).replace(ready, f"{ready}0 & ")
    monkeypatch.setattr(verilator, "verilog", lambda config: text)
    operations: list[Operation] = [WriteRegister(standin.MODE, standin.GOOD), Frame(b"x")]
    with pytest.raises(DeviceError, match=message):
        load(engine).run(SCTP, operations, np.zeros(96, np.uint8))


@pytest.mark.parametrize(("payload", "mtu"), [(1, 0), (2, 0), (3, 0), (4, 0), (1440, 0), (5, 112)])
def test_a_load_over_sctp_is_what_the_model_takes(payload: int, mtu: int) -> None:
    sctp = SctpLoad(SCTP, payload, mtu=mtu)
    host = Session(0)
    host.control(Function.INITIATE)
    frames = [each for each in sctp.packets(6, drained=True) if isinstance(each, Frame)]
    (accept,) = (each for each in sctp.setup() if isinstance(each, Frame))
    segments = []
    tsns = []
    for number, frame in enumerate([accept, *frames]):
        ip = layers.ip_packet(pcap.Frame(number, 0.0, 1, frame.octets))
        assert ip is not None and internet_sum(frame.octets[14:34]) == 0xFFFF
        chunks = SctpPacket.parse(ip.payload).chunks
        if number:
            beats = -(-len(frame.octets) // SCTP.octets)
            assert (len(chunks), beats) == (2 if mtu else 1, sctp.chunks * sctp.beats_in)
        for chunk in chunks:
            assert isinstance(chunk, DataChunk)
            tsns.append(chunk.tsn)
            events = host.receive(chunk.ppid, chunk.payload)
            segments += [each.segment for each in events if isinstance(each, SegmentReceived)]
    assert tsns == list(range(1000, 1007))
    headers = [TaggedHeader.decode(segment) for segment in segments]
    assert [header.to for header in headers] == [sctp.beats_out * 8 * k for k in range(6)]
    assert {len(segment) for segment in segments} == {14 + payload}


def test_a_ring_lies_in_memory() -> None:
    for address in (-32, 16):
        with pytest.raises(ValueError, match="a ring's address must be a multiple of 32, not"):
            Ring(address, 3)
    for size in (0, 16):
        with pytest.raises(ValueError, match="a ring's size must be from 1 to 15, not"):
            Ring(0, size)
    memory = np.zeros(128, np.uint8)
    with pytest.raises(
        ValueError, match="must lie in memory, from 0x0 to 0x80, not from 0x60 to 0xa0"
    ):
        load("compiled").run(RnicConfig(), [], memory, ring=Ring(96, 1))
    with pytest.raises(ValueError, match="waiting for completions needs a ring"):
        load("compiled").run(RnicConfig(), [Await(1)], memory)


@pytest.mark.parametrize("engine", ENGINES)
def test_arguments_that_cannot_be_are_refused(engine: str) -> None:
    memory = np.zeros(8, np.uint8)
    with pytest.raises(ValueError, match="a packet must have at least one octet"):
        load(engine).run(RnicConfig(), [Packet(0, 0, b"")], memory)
    with pytest.raises(ValueError, match="a frame must have at least one octet"):
        load(engine).run(SCTP, [Frame(b"")], memory)
    with pytest.raises(ValueError, match="a frame needs a configuration with sctp"):
        load(engine).run(RnicConfig(), [Frame(b"x")], memory)
    with pytest.raises(TypeError, match="contiguous array of octets"):
        load(engine).run(RnicConfig(), [], memory[::2])
    with pytest.raises(ValueError, match="engine must be one of compiled, cocotb, not 'fast'"):
        load("fast")
    with pytest.raises(ValueError, match="write must be a probability"):
        Stalls(write=1)
    with pytest.raises(ValueError, match="completions must be a probability"):
        Stalls(completions=1)


@pytest.mark.usefixtures("device")
def test_waves_are_written(tmp_path: Path) -> None:
    waves = Waves(tmp_path / "waves.fst")
    memory = np.zeros(96, np.uint8)
    operations = [WriteRegister(standin.MODE, standin.GOOD)]
    load("compiled").run(RnicConfig(), operations, memory, waves=waves)
    assert waves.path.stat().st_size


# -- the gateware --------------------------------------------------------------------------------

STREAM, PD = 3, 7
STAG, REGION = 0x0001_2305, range(0x103, 0x2103)
BUFFERS, BUFFER = 0x2800, 300  # address of the untagged buffers, and octets of one
GATEWARE_RING = Ring(0x7FC0, 4)


class Peer:
    """The sending end of a stream, and the host's calls for it."""

    def __init__(self, number: int = STREAM, mulpdu: int = 500) -> None:
        self.number = number
        self.source = DataSource(mulpdu)
        self.sender = MpaSender(crc=True)
        self.posted = 0

    def enable(self) -> list[Operation]:
        return [
            *operations_of(commands.set_stream(self.number, pd=PD, crc=True)),
            *operations_of(commands.open_queue(self.number, 1)),
        ]

    def post(self, count: int) -> list[Operation]:
        """Posts further buffers of its queue 1."""
        operations: list[Operation] = []
        for _ in range(count):
            address = BUFFERS + (self.number << 12) + self.posted * (BUFFER + 1)
            self.posted += 1
            operations += operations_of(
                commands.post(
                    self.number, 1, self.posted, address=address, length=BUFFER,
                    slot=64 * self.number + self.posted % 64,
                    cookie=1000 * self.number + self.posted,
                )
            )  # fmt: skip
        return operations

    def tagged(self, offset: int, message: bytes, stag: int = STAG) -> list[Operation]:
        return self._packets(self.source.tagged(stag, offset, message, rsvdulp=0x81))

    def untagged(self, message: bytes, qn: int = 1) -> list[Operation]:
        return self._packets(self.source.untagged(qn, message, rsvdulp=0x81_22_33_44_55))

    def _packets(self, segments: list[bytes]) -> list[Operation]:
        return [
            Packet(self.number, self.sender.position, self.sender.send(segment))
            for segment in segments
        ]


def register_region() -> list[Operation]:
    command = commands.set_stag(
        STAG, Access.REMOTE_WRITE, pd=PD, to=0, length=len(REGION), address=REGION.start
    )
    return [*operations_of(command)]


def drive(
    engine: str,
    operations: list[Operation],
    *,
    ring: Ring = GATEWARE_RING,
    stalls: Stalls = UNSTALLED,
    faults: tuple[range, ...] = (),
) -> tuple[Outcome, np.ndarray]:
    """Runs the gateware, or the stand-in in Python; memory is painted."""
    memory = np.full(1 << 16, 0xEE, np.uint8)
    runner = FakeEngine() if engine == "fake" else load(engine)
    outcome = runner.run(RnicConfig(), operations, memory, ring=ring, stalls=stalls, faults=faults)
    return outcome, memory


def everything() -> list[Operation]:
    """Makes messages of both kinds on two streams, a host that pauses, errors and revocations."""
    one, two = Peer(), Peer(4)
    return [
        *GATEWARE_RING.program(),
        *register_region(),
        *one.enable(), *one.post(4), *two.enable(), *two.post(2),
        *one.tagged(5, bytes(range(200)) * 5), *one.untagged(b"first"),
        *two.tagged(2000, b""), *two.untagged(b""), *one.untagged(b"x" * BUFFER),
        Await(3),
        *one.post(4),
        Pause(),
        *(each for k in range(6) for each in (*one.tagged(3000 + 70 * k, bytes([k]) * 66),)),
        *one.untagged(b"while nobody takes it"),
        Drain(),
        Resume(),
        *two.untagged(b"y" * BUFFER),
        # The stream without a buffer fails and is silent; the other stream is not affected.
        *two.untagged(b"one too many"), *two.tagged(0, b"silence"), *one.untagged(b"goes on"),
        Drain(),
        *operations_of(commands.revoke_stag(STAG)),
        *one.tagged(0, b"revoked"),
        Drain(),
        *register_region(),
        *operations_of(commands.set_stream(4, pd=PD, crc=True)),
        *two.tagged(600, b"anew"),
        Drain(),
        *operations_of(commands.revoke_stream(4)),
        *two.tagged(0, b"disabled"),
        Drain(),
    ]  # fmt: skip


@engines("stalls", (EVERY_STALL,), (UNSTALLED,))
def test_the_gateware_does_what_the_stand_in_does(engine: str, stalls: Stalls) -> None:
    want, expected = drive("fake", everything())
    got, memory = drive(engine, everything(), stalls=stalls)
    ring = slice(GATEWARE_RING.octets.start, GATEWARE_RING.octets.stop)
    entries = memory[ring].reshape(-1, OCTETS).copy()
    memory[ring] = 0
    assert np.array_equal(memory, expected)
    assert got.completions == want.completions
    assert [each.reason for each in got.exceptions] == [0x202, 0x100]
    assert got.exceptions == want.exceptions
    assert [replace(each, header=b"") for each in got.events] == [
        replace(each, header=b"") for each in want.events
    ]
    assert {name: got.counters[name] for name in want.counters} == want.counters
    # At the end the ring holds its last completions.
    count = len(want.completions)
    for number in range(max(0, count - len(entries)), count):
        assert decode(entries[number % len(entries)].tobytes()) == want.completions[number]


@pytest.mark.parametrize("engine", ["compiled", *long("cocotb")])
def test_frames_are_placed_as_fast_as_they_come(engine: str) -> None:
    sctp, count = SctpLoad(SCTP, 61), 60
    # The guidance that the host may give its peer (RFC 5041 appendix A).
    guide: list[Operation] = [
        WriteRegister(regs.address("SESSION_STREAM"), 1),
        Poll(regs.address("GUIDE_NEXT"), 0xFFFFFFFF, count + 1),
        Poll(regs.address("SESSION_PENDING"), 0xFFFFFFFF, 0),
    ]
    outcome = sctp.run(load(engine), [*sctp.packets(count), Drain(), *guide], count)
    # One packet and chunk more: the Accept, which has a further entry. Each chunk ends its packet.
    kinds = [each.kind for each in outcome.completions]
    assert [kinds.count(kind) for kind in Kind] == [count, count + 1, 0, 1, 0, 0]
    assert sum(each.ends for each in outcome.completions) == count + 1
    assert outcome.counters["FRAMES"] == count + 1 == len(outcome.taken)
    (accept,) = outcome.exceptions
    assert accept.reason == Diversion.CONTROL and accept.stream == outcome.completions[0].stream
    first = outcome.writes["cycle"][count // 4 * sctp.beats_out :: sctp.beats_out].astype(int)
    assert first[-1] - first[0] == (len(first) - 1) * sctp.limit


@pytest.mark.parametrize("engine", ["fake", "compiled", *long("cocotb")])
def test_no_association_reaches_past_the_last_stream(engine: str) -> None:
    """A chunk for a stream that the device does not have is one of no DDP Stream: it has no effect
    on the stream of another association whose number is the lower part of that sum."""
    config, first, other = RnicConfig(sctp=True), RnicConfig.streams - 2, 2
    (move,) = insert({}, KEY, config.associations)
    sids = 1, 2, 2 + other, 65536 - first + other  # all but the first are beyond the last stream

    def tell(stream: int, function: Told, **taken: bool) -> list[WriteRegister | Poll]:
        return operations_of(commands.tell_session(stream, function, TSN - 1, **taken))

    def state(stream: int, state: State) -> list[WriteRegister | Poll]:
        answer = regs.pack("SESSION_ANSWER", state=state, taken=1)
        mask = regs.pack("SESSION_ANSWER", state=7, taken=1, busy=1)
        return [*tell(stream, Told.PAST), Poll(regs.address("SESSION_ANSWER"), mask, answer)]

    junk = [DataChunk(TSN + k, sid, 77, b"\0\5bad") for k, sid in enumerate(sids)]
    memory = np.full(1 << 17, 0xEE, np.uint8)
    ring = Ring(1 << 15, 10, config.completion_queues)
    runner = FakeEngine() if engine == "fake" else load(engine)
    outcome = runner.run(
        config,
        [
            *ring.program(),
            *operations_of(commands.set_association(move, first=first, count=0xFFFF, number=5)),
            Drain(),
            *tell(other, Told.FORGET, taken=True),
            *tell(other, Told.INITIATE, taken=True),
            *(load_frame((each,)) for each in junk),
            Drain(),
            # Nor has a command for a stream that does not exist an effect on that stream.
            *tell(config.streams + other, Told.ABORT),
            *state(other, State.INITIATE_SENT),
            *state(first + 1, State.ABORTED),
        ],
        memory, ring=ring,
    )  # fmt: skip
    sessions = [each.stream for each in outcome.completions if each.kind is Kind.SESSION]
    chunks = [each.stream for each in outcome.completions if each.kind is Kind.CHUNK]
    assert sessions == chunks == [first + 1]
    assert [each.kind for each in outcome.completions].count(Kind.PACKET) == len(sids) - 1
    assert [(each.reason, each.stream, each.sequence) for each in outcome.exceptions] == [
        (Diversion.DATA, 5, each.tsn) for each in junk
    ]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_completion_comes_after_the_responses_of_its_writes(engine: str) -> None:
    peer = Peer()
    lengths = [1, 300, 64, 2500, 9]
    offsets = [sum(lengths[:k]) + 64 * k for k in range(len(lengths))]
    operations = [*GATEWARE_RING.program(), *register_region(), *peer.enable()]
    for offset, length in zip(offsets, lengths, strict=True):
        operations += peer.tagged(offset, bytes(length))
    outcome, _ = drive(engine, operations, stalls=Stalls(response=0.8, response_latency=100))
    assert len(outcome.delivered) == len(lengths) and len(outcome.responses) == len(outcome.bursts)
    # The bursts of a message precede its end, and those of the next message follow it.
    ends = [REGION.start + offset + length for offset, length in zip(offsets, lengths, strict=True)]
    for end, cycle in zip(ends, outcome.delivered, strict=True):
        assert cycle > outcome.responses[outcome.bursts["address"] < end].max()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_full_ring_ends_the_stream_and_nothing_else(engine: str) -> None:
    peer, other = Peer(), Peer(4)
    entries = GATEWARE_RING.entries
    operations = [*GATEWARE_RING.program(), *register_region(), *peer.enable(), *other.enable()]
    operations.append(Pause())
    for k in range(40):
        operations += peer.tagged(100 * k, bytes([k]) * 100)
    operations += [Drain(), until(idle=1), Resume(), Await(entries), Wait(300)]
    outcome, _ = drive(engine, [*operations, *other.tagged(4000, b"goes on")])
    (resumed,) = outcome.polled
    # What the host has taken by then is in order; the stream has no more, and says so once.
    assert [each.cookie for each in outcome.completions] == [
        *(100 * k for k in range(entries)), 4000
    ]  # fmt: skip
    assert np.sum(outcome.delivered < resumed) == entries
    (event,) = outcome.events
    assert (event.stream, event.type, event.code) == (peer.number, *QUEUE_OVERRUN)
    assert outcome.counters["DELIVERED"] == entries + 1
    assert outcome.counters["PLACED_SEGMENTS"] + outcome.counters["DROPPED"] == 41


@pytest.mark.parametrize("engine", ENGINES)
def test_a_ring_that_the_bus_refuses_is_reported(engine: str) -> None:
    peer = Peer()
    operations = [*GATEWARE_RING.program(), *register_region(), *peer.enable()]
    for k in range(4):
        operations += [*peer.tagged(k, b"x"), Drain()]
    entry = range(GATEWARE_RING.address + 2 * OCTETS, GATEWARE_RING.address + 2 * OCTETS + 1)
    outcome, memory = drive(engine, [*operations, until(queue_error=1)], faults=(entry,))
    assert len(outcome.completions) == 2 and outcome.counters["DELIVERED"] == 2
    assert outcome.counters["PLACED_SEGMENTS"] == 4
    assert bytes(memory[REGION.start : REGION.start + 5]) == b"xxxx\xee"


@pytest.mark.parametrize("engine", ENGINES)
def test_interrupts_are_moderated_by_count(engine: str) -> None:
    ring, peer = replace(GATEWARE_RING, size=6), Peer()
    operations = [*ring.program(interrupts=True, coalesce=4, timeout=10_000), *register_region()]
    operations += peer.enable()
    for k in range(8):
        operations += [*peer.tagged(k, b"x"), Wait(200)]
    outcome, _ = drive(engine, operations, ring=ring)
    assert len(outcome.delivered) == 8 and len(outcome.interrupts) == 2
    for interrupt, count in zip(outcome.interrupts.astype(int), (3, 7), strict=True):
        assert 0 < interrupt - int(outcome.delivered[count]) < 100


@pytest.mark.parametrize("engine", ENGINES)
def test_interrupts_are_moderated_by_time(engine: str) -> None:
    peer = Peer()
    operations = [*GATEWARE_RING.program(interrupts=True, coalesce=100, timeout=300)]
    operations += [*register_region(), *peer.enable(), *peer.tagged(0, b"x"), Wait(1000)]
    outcome, _ = drive(engine, operations)
    (interrupt,) = outcome.interrupts.astype(int)
    assert 300 <= interrupt - int(outcome.delivered[0]) < 400


@pytest.mark.parametrize("latency", [8, 400])
def test_a_host_that_is_ahead_of_the_producer_is_not_called(latency: int) -> None:
    # The host sees a completion in memory, and gives it back, before the RNIC has the bus's
    # response.
    ring, peer = replace(GATEWARE_RING, size=2), Peer()
    operations = [*ring.program(interrupts=True, coalesce=3, timeout=10_000), *register_region()]
    operations += peer.enable()
    for k in range(30):
        operations += [*peer.tagged(k, b"x"), Wait(50)]
    outcome, _ = drive("compiled", operations, ring=ring, stalls=Stalls(response_latency=latency))
    assert len(outcome.completions) == 30
    assert not len(outcome.interrupts)


@pytest.mark.parametrize("wait", range(0, 2400, 300))
def test_once_a_revocation_is_done_nothing_is_written(wait: int) -> None:
    peer = Peer(mulpdu=8000)
    operations = [*GATEWARE_RING.program(), *register_region(), *peer.enable()]
    operations += [*peer.tagged(0, bytes(7000)), *peer.tagged(1000, bytes(300))]
    operations += [Wait(wait), *operations_of(commands.revoke_stag(STAG))]
    outcome, _ = drive("compiled", operations, stalls=Stalls(response_latency=100))
    (done,) = outcome.polled
    for cycles in (outcome.writes["cycle"], outcome.responses):
        assert not len(cycles) or cycles.max() < done


# -- building -------------------------------------------------------------------------------------


def hide(monkeypatch: pytest.MonkeyPatch, *programs: str, ziglang: bool) -> None:
    found = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name in programs else found(name))
    spec = object() if ziglang else None
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)


def test_the_compiler_is_the_machines_or_the_one_of_pypi(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "g++", "clang++", ziglang=True)
    assert tools.compiler()[1:] == ["-m", "ziglang", "c++"]
    hide(monkeypatch, "g++", "clang++", ziglang=False)
    with pytest.raises(ToolError, match="a C.. compiler is missing: .*'ddp-rnic.compiler.'"):
        tools.compiler()


def test_a_build_is_made_once_and_kept_while_it_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    builds = tmp_path / "ddp-rnic" / "builds"
    for name in ("old", "new"):
        (builds / name).mkdir(parents=True)
    os.utime(builds / "old", (0, 0))
    harness = Path(verilator.__file__).with_name("harness.cpp")

    def make(command: Sequence[str], **environment: str) -> None:
        """Makes the files that a tool would make."""
        if "--Mdir" in command:
            generated = Path(command[command.index("--Mdir") + 1])
            generated.mkdir()
            (generated / "Vtop.cpp").touch()
        else:
            Path(command[command.index("-o") + 1]).touch()

    monkeypatch.setattr(verilator, "call", make)
    first = verilator.build_library(standin.verilog(RnicConfig()), harness)
    made = first.stat().st_mtime_ns
    objects = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.o")}
    assert verilator.build_library(standin.verilog(RnicConfig()), harness) == first
    assert first.stat().st_mtime_ns == made
    # Another design has another place in the cache; the objects of Verilator's runtime are
    # unchanged.
    other = verilator.build_library(standin.verilog(RnicConfig()) + "// another\n", harness)
    assert other != first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.o")} == objects
    assert len(objects) == 2
    # Builds that were not used for long are deleted.
    assert not (builds / "old").exists() and (builds / "new").exists()


def test_what_a_tool_complains_of_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    harness = Path(verilator.__file__).with_name("harness.cpp")
    with pytest.raises(ToolError, match="the Verilog has no module 'rnic'"):
        verilator.build_library("module other(); endmodule\n", harness)
    with pytest.raises(ToolError, match="(?s)verilator_bin failed .*nonsense"):
        verilator.build_library(standin.verilog(RnicConfig()) + "nonsense\n", harness)

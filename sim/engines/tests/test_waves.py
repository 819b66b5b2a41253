"""Tests of waveforms, which the library of GTKWave reads."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pylibfst
import pytest
from ddp_rnic.flow.tools import ToolError
from ddp_rnic.hdl.flat import FlatRnic
from ddp_rnic.hdl.spec import regs
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.sim.engines import verilator
from ddp_rnic.sim.engines.choice import load
from ddp_rnic.sim.engines.engine import Drain, Operation, Packet, WriteRegister
from ddp_rnic.sim.engines.tests import standin
from ddp_rnic.sim.engines.waves import (
    CYCLE,
    Recorder,
    Waves,
    check_parts,
    edge,
    enumerations,
    known_parts,
)

OCTETS = bytes(range(7, 107))
OPERATIONS: list[Operation] = [
    WriteRegister(regs.address("SCRATCH"), 0x1234_5678),
    Packet(5, 0x99, OCTETS),
    Drain(),
]


def record(path: Path, *parts: str, cycles: range | None = None) -> None:
    memory = np.zeros(64, np.uint8)
    load("compiled").run(RnicConfig(), OPERATIONS, memory, waves=Waves(path, parts, cycles))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("waves") / "all.fst"
    record(path)
    return path


class Read:
    """A waveform: the handle of each signal, and the changes of some."""

    def __init__(self, path: Path) -> None:
        self.reader = pylibfst.lib.fstReaderOpen(str(path).encode())
        scopes, found = pylibfst.get_scopes_signals2(self.reader)
        self.scopes = set(scopes)
        self.signals = {name.split(" ")[0]: each for name, each in found.by_name.items()}

    def changes(self, *names: str) -> dict[str, list[tuple[int, int]]]:
        """Returns times and values of signals."""
        handles = {self.signals[name].handle: name for name in names}
        pylibfst.lib.fstReaderClrFacProcessMaskAll(self.reader)
        for handle in handles:
            pylibfst.lib.fstReaderSetFacProcessMask(self.reader, handle)
        changes: dict[str, list[tuple[int, int]]] = defaultdict(list)

        def note(_: object, time: int, handle: int, value: Any) -> None:
            changes[handles[handle]].append((time, int(pylibfst.string(value), 2)))

        pylibfst.fstReaderIterBlocks(self.reader, note)
        return changes

    def at(self, time: int, *names: str) -> list[int]:
        """Returns the values just before a time."""
        changes = self.changes(*names)
        return [[value for when, value in changes[name] if when < time][-1] for name in names]

    @property
    def tables(self) -> set[str]:
        """The enumerations that the file declares: name, names of values, bits of values."""
        lib, found = pylibfst.lib, set()
        lib.fstReaderIterateHierRewind(self.reader)
        while (each := lib.fstReaderIterateHier(self.reader)) != pylibfst.ffi.NULL:
            if each.htyp == lib.FST_HT_ATTRBEGIN and each.u.attr.subtype == lib.FST_MT_ENUMTABLE:
                found.add(pylibfst.string(each.u.attr.name))
        return found


def test_the_beats_of_a_packet_are_shown_at_their_clock_edges(whole: Path) -> None:
    read = Read(whole)
    names = ["rnic.s_axis_t" + name for name in ("valid", "ready", "data", "keep", "last", "tid")]
    names[-1] = "rnic.s_axis_tid"
    end = pylibfst.lib.fstReaderGetEndTime(read.reader)
    changes = read.changes(*names)
    values, octets, last = dict.fromkeys(names, 0), b"", False
    pending = sorted((time, name, value) for name, each in changes.items() for time, value in each)
    for cycle in range(end // CYCLE):
        while pending and pending[0][0] < edge(cycle):
            _, name, value = pending.pop(0)
            values[name] = value
        valid, ready, data, keep, now_last, stream = (values[name] for name in names)
        if valid and ready:
            assert stream == 5 and not last
            octets += data.to_bytes(8, "little")[: keep.bit_count()]
            last = bool(now_last)
    assert octets == OCTETS and last


def test_fields_replace_their_payload_and_copies_are_left_out(whole: Path) -> None:
    signals = Read(whole).signals
    assert signals["rnic.commit.o__payload.placement.address"].length == 64
    assert not {"rnic.commit.o__payload", "rnic.commit.o__payload.placement"} & signals.keys()
    assert not [name for name in signals if re.search(r"\$\d|_step\d|bench", name)]


def test_values_of_enumerations_and_states_have_names(whole: Path) -> None:
    tables = Read(whole).tables
    assert any(re.match(r"Outcome 3 GOOD DIGEST FRAMING 00 01 10$", each) for each in tables)
    found = enumerations(verilator.verilog(RnicConfig()))
    _, states = found["rnic.rnic.commit.pause", "fsm_state"]
    assert len(states) > 1 and all(re.fullmatch("[01]+", bits) for bits, _ in states)
    assert any(
        each.startswith("fsm_state ") and " ".join(name for _, name in states) in each
        for each in tables
    )


def test_parts_and_cycles_alone_are_shown(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "some.fst"
    record(path, "walker", "delivery.queues", cycles=range(40, 60))
    read = Read(path)
    parts = {".".join(scope.split(".")[1:3]) for scope in read.scopes}
    inside = {part for part in parts if part.startswith("walker")}
    assert inside and parts - inside <= {"", "delivery", "delivery.queues"}
    assert "rnic.clk" in read.signals and "rnic.delivery.o__valid" not in read.signals
    times = [time for time, _ in read.changes("rnic.clk")["rnic.clk"]]
    assert edge(39) <= min(times) + CYCLE and max(times) <= edge(60)
    # The values are those of the whole waveform.
    name = "rnic.walker.i__valid"
    assert read.at(edge(55), name) == Read(whole).at(edge(55), name)
    assert path.stat().st_size < whole.stat().st_size / 2


def test_a_part_that_does_not_exist_is_named_with_similar_ones() -> None:
    text = verilator.verilog(RnicConfig())
    check_parts(["walker", "delivery.queues.restart"], text)
    assert {"walker", "commit", "dma.align"} <= set(known_parts(text))
    with pytest.raises(ValueError, match="the RNIC has no part 'walkr': use walker or "):
        check_parts(["walkr"], text)
    with pytest.raises(ValueError, match="no part 'zzzzzz': use buffers, commit, "):
        check_parts(["zzzzzz"], text)


def test_a_simulator_that_never_begins_does_not_hold_the_recorder(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "none.fst", "")
    with pytest.raises(ToolError, match="cannot write the waveform .*: it has no signals"):
        recorder.close()


def test_a_file_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    path = tmp_path / "none" / "x.fst"
    with pytest.raises(ToolError, match=f"cannot write the waveform {path}: the file cannot"):
        record(path)


@pytest.mark.parametrize("engine", ["compiled", "cocotb"])
def test_a_design_of_one_module_is_shown_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    monkeypatch.setattr(verilator, "verilog", standin.verilog)
    path = tmp_path / "one.fst"
    operations = [WriteRegister(standin.MODE, standin.GOOD)]
    load(engine).run(RnicConfig(), operations, np.zeros(96, np.uint8), waves=Waves(path))
    read = Read(path)
    assert read.scopes == {"rnic"} and {"rnic.clk", "rnic.s_axil_wdata"} < read.signals.keys()
    # Not its ports alone.
    assert read.signals.keys() - {f"rnic.{name}" for name in FlatRnic.ports(RnicConfig())} > {
        "rnic.clk", "rnic.rst",
    }  # fmt: skip


@pytest.mark.skipif(not shutil.which("fst2vcd"), reason="needs GTKWave's fst2vcd")
def test_gtkwave_reads_the_same_values(whole: Path) -> None:
    text = subprocess.run(["fst2vcd", whole], capture_output=True, text=True, check=True).stdout
    (code,) = re.findall(r"^\$var wire 64 (\S+) s_axis_tdata ", text, re.MULTILINE)
    values = [int(bits, 2) for bits in re.findall(rf"^b([01]+) {re.escape(code)}$", text, re.M)]
    read = Read(whole).changes("rnic.s_axis_tdata")["rnic.s_axis_tdata"]
    assert values == [value for _, value in read]

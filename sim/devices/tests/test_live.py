"""Tests of the live simulation: writes to addresses without memory, and its use."""

from __future__ import annotations

from pathlib import Path

import pytest
from ddp_rnic.hdl.spec import regs
from ddp_rnic.sim.devices.live import Peer, SimTransport
from ddp_rnic.sim.engines import verilator
from ddp_rnic.sim.engines.engine import DeviceError, Stalls
from ddp_rnic.sim.engines.tests import standin
from ddp_rnic.sim.engines.waves import Waves
from ddp_rnic.sw_driver import CQ, PD, Device, Stream, TransportError


def test_registers_answer_as_the_bus_does() -> None:
    with SimTransport() as sim:
        begun = sim.cycle
        assert sim.read(regs.address("ID")) == regs.ID
        assert 0 < sim.cycle - begun < 20
        sim.write(regs.address("SCRATCH"), 0xFFFFFFFF)
        assert sim.read(regs.address("SCRATCH")) == 0xFFFFFFFF
        with pytest.raises(TransportError, match="read of register 0xffc was answered with DECERR"):
            sim.read(0xFFC)
        with pytest.raises(TransportError, match="write of register 0x000 was .* SLVERR"):
            sim.write(0, 1)
        assert sim.read(regs.address("SCRATCH")) == 0xFFFFFFFF
    with pytest.raises(TransportError, match="the simulation is closed"):
        sim.read(0)
    sim.close()


def test_registers_are_written_in_their_order_until_a_write_fails() -> None:
    scratch = regs.address("SCRATCH")
    with SimTransport() as sim:
        sim.write_all([])
        sim.write_all([(scratch, 1), (scratch, 2)])
        assert sim.read(scratch) == 2
        with pytest.raises(TransportError, match="write of register 0xffc was .* DECERR"):
            sim.write_all([(scratch, 3), (0xFFC, 4), (scratch, 5)])
            sim.read(scratch)
        assert sim.read(scratch) == 3
    with pytest.raises(TransportError, match="the simulation is closed"):
        sim.write_all([(scratch, 1)])


def test_what_is_written_where_no_memory_is_ends_the_simulation() -> None:
    with SimTransport() as sim:
        context = Device(sim).open()
        stream = Stream(pd := PD(context), CQ(context))
        region = pd.register(bytearray(100))
        (extent,) = region.mapping.memory.extents
        # As if the driver freed memory without a revocation.
        region.mapping.memory.close()
        Peer(sim, stream.number).write(region.stag, 8, b"x")
        with pytest.raises(TransportError) as caught:
            sim.run(1000)
        assert f"octet at {extent.address + 8:#x}, where the host has" in str(caught.value)
        assert isinstance(caught.value.__cause__, DeviceError)
        for call in (lambda: sim.read(0), lambda: sim.wait(0), context.close):
            with pytest.raises(TransportError, match="the simulated device is broken"):
                call()


@pytest.mark.parametrize("page", [2048, 4097, 1 << 22])
def test_pages_that_the_device_does_not_know_are_refused(page: int) -> None:
    with pytest.raises(ValueError, match=f"page must be a power of two .*, not {page}"):
        SimTransport(page=page)


def test_an_empty_packet_is_refused() -> None:
    with SimTransport() as sim, pytest.raises(ValueError, match="at least one octet"):
        sim.send(0, 0, b"")


@pytest.mark.parametrize("page", [4096, 8192, 1 << 21])
def test_pinned_memory_has_the_pages_that_were_asked_for(page: int) -> None:
    with SimTransport(page=page) as sim:
        memory = sim.pin(memoryview(bytearray(3 * page)))
        starts = [extent.address for extent in memory.extents]
        assert sum(extent.length for extent in memory.extents) == 3 * page
        assert all(start % page == 0 for start in starts[1:])
        assert all(sum(extent) % page == 0 for extent in memory.extents[:-1])
        # No two are adjacent, so that none can be mistaken for another.
        assert not {sum(extent) for extent in memory.extents} & set(starts)
        memory.close()


def test_stalls_slow_the_device_down_and_change_nothing() -> None:
    cycles = []
    for stalls in (Stalls(), Stalls(0.5, 0.8, 0.5, 0.5, response_latency=100, seed=2)):
        with SimTransport(stalls=stalls) as sim, Device(sim).open() as context:
            pd, cq, array = PD(context), CQ(context), bytearray(10_000)
            stream, region = Stream(pd, cq), pd.register(array)
            begun = sim.cycle
            Peer(sim, stream.number).write(region.stag, 0, bytes(range(250)) * 40)
            cq.wait(10)
            cycles.append(sim.cycle - begun)
            assert array == bytes(range(250)) * 40
    assert cycles[1] > 1.5 * cycles[0]


@pytest.mark.parametrize("recorded", [False, True])
def test_activity_is_kept_only_if_it_is_recorded(recorded: bool) -> None:
    with SimTransport(recorded=recorded) as sim, Device(sim).open() as context:
        pd, cq, array = PD(context), CQ(context), bytearray(1000)
        stream, region = Stream(pd, cq), pd.register(array)
        Peer(sim, stream.number).write(region.stag, 0, bytes(range(250)) * 4)
        cq.wait(10)
        assert array == bytes(range(250)) * 4
        kept = {name: bool(len(cycles)) for name, cycles in sim.cycles().items()}
        once = kept.pop("taken")  # the device needs to know the packet that comes in
        assert once and set(kept.values()) == {recorded}, kept


def test_packets_come_in_while_registers_are_read() -> None:
    with SimTransport() as sim, Device(sim).open() as context:
        stream = Stream(pd := PD(context), CQ(context))
        region, peer = pd.register(bytearray(1000)), Peer(sim, stream.number)
        placed = regs.address("PLACED_SEGMENTS")
        for turn in range(1, 200):
            peer.write(region.stag, turn, b"0123456789")
            assert turn - 20 < sim.read(placed) <= turn
        while sim.read(placed) < 199:
            pass


def test_waves_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verilator, "verilog", standin.verilog)
    waves = Waves(tmp_path / "run.fst")
    with SimTransport(waves=waves) as sim:
        sim.run(10)
    assert waves.path.stat().st_size

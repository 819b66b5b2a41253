"""Tests the blocks that read segments and rings on somebody else's AXI memory: that of
cocotbext-axi.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from amaranth import Module, Signal
from amaranth.back import verilog
from amaranth.hdl import Value
from amaranth.lib import data
from ddp_rnic.cocotb_tests import fetch_tests, read_dma_tests
from ddp_rnic.hdl.dma.read import ReadDma
from ddp_rnic.hdl.lib.tests.long import long
from ddp_rnic.hdl.send.fetch import Fetch
from ddp_rnic.sim.engines.cocotb_engine import run_tests_on


class Flat:
    """A block with a port for each member of its streams, and the usual names of AXI.

    ``taken`` and ``given`` name the streams that go into the block and that come out of it.
    """

    def __init__(self, dut: Any, width: int, *, taken: list[str], given: list[str]) -> None:
        self.ports: list[Signal] = []
        self.module = m = Module()
        m.submodules.dut = dut
        size, burst = Signal(3, name="m_axi_arsize"), Signal(2, name="m_axi_arburst")
        m.d.comb += [size.eq((width // 8).bit_length() - 1), burst.eq(1)]
        self.ports += [size, burst]
        self._stream(m, "m_axi_ar", dut.bus.ar, out=True)
        self._stream(m, "m_axi_r", dut.bus.r, out=False)
        for name in taken:
            self._stream(m, f"{name}_", getattr(dut, name), out=False)
        for name in given:
            self._stream(m, f"{name}_", getattr(dut, name), out=True)

    def _stream(self, m: Module, prefix: str, stream: Any, *, out: bool) -> None:
        payload, shape = stream.payload, stream.payload.shape()
        members = {"payload": payload}
        if isinstance(shape, data.StructLayout):
            members = {name: payload[name] for name, _ in shape}
        for name, value, outward in (
            ("valid", stream.valid, out),
            ("ready", stream.ready, not out),
            *((name, value, out) for name, value in members.items()),
        ):
            value = Value.cast(value)
            # A bus with one ID has no bits for it, but a port.
            port = Signal(max(1, len(value)), name=prefix + name)
            m.d.comb += port.eq(value) if outward else value.eq(port)
            self.ports.append(port)

    def verilog(self) -> str:
        """Returns the Verilog of the block, as a module ``rnic``."""
        return verilog.convert(self.module, name="rnic", ports=self.ports)


@pytest.mark.parametrize("width", [64, *long(512)])
def test_segments_are_read_from_a_late_memory_with_faults(width: int, tmp_path: Path) -> None:
    flat = Flat(ReadDma(width, reads=16), width, taken=["segments", "pieces"], given=["heads", "o"])
    run_tests_on(flat.verilog(), read_dma_tests.__name__, tmp_path, read_dma_tests.COUNT)


@pytest.mark.parametrize("width", long(64, 512))
def test_rings_are_read_from_a_late_memory_with_faults(width: int, tmp_path: Path) -> None:
    flat = Flat(Fetch(width, 16), width, taken=["windows"], given=["o", "fail"])
    run_tests_on(flat.verilog(), fetch_tests.__name__, tmp_path, fetch_tests.COUNT)

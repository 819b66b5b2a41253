"""Tests the estimate of area against runs of yosys, and the verdicts on devices."""

from __future__ import annotations

import pytest
from ddp_rnic.export import estimate as module
from ddp_rnic.export.estimate import (
    Area,
    Estimate,
    Model,
    changed,
    clocks,
    devices,
    estimate,
    measure,
    model,
    untried,
)
from ddp_rnic.export.resources import block_rams, count
from ddp_rnic.flow.ecp5 import CAPACITY
from ddp_rnic.hdl.spec.config import RnicConfig

#: A small configuration that ``areas.json`` does not have.
SMALL = RnicConfig(
    streams=8, stags=64, pages=16, buffers=64, queue_depth=4, buffer_octets=4096, outstanding=16,
    backlog=64, completion_queues=4, exception_octets=4096,
)  # fmt: skip


@pytest.mark.long
def test_a_fresh_run_of_yosys_is_within_the_error_of_the_estimate() -> None:
    run, estimated = measure(SMALL), estimate(SMALL)
    assert run["set"] == changed(SMALL)
    assert all(run["set"] != each["set"] for each in module._data()["runs"])
    for kind, cells in run["area"].items():
        assert estimated.least(kind) <= cells <= estimated.most(kind), kind


def test_the_factors_are_positive_and_the_errors_are_small() -> None:
    fitted = model()
    assert all((factors > 0).all() for factors in fitted.factors.values())
    assert fitted.errors["lut4"] < 0.1 and fitted.errors["ff"] < 0.05
    assert fitted.errors["dp16kd"] < 0.02
    assert all(set(run["set"]) <= set(vars(SMALL)) for run in module._data()["runs"])


def test_other_runs_give_other_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    before, data = model(), module._data()
    for run in data["runs"]:
        run["area"]["ff"] *= 2
    monkeypatch.setattr(module, "_data", lambda: data)
    doubled = module.model.__wrapped__()
    assert doubled.factors["ff"] == pytest.approx(2 * before.factors["ff"])
    assert doubled.factors["lut4"] == pytest.approx(before.factors["lut4"])


def test_a_switch_that_no_run_had_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    data = {"runs": [{"set": {}}, {"set": {"width": 512, "transmit": True}}]}
    monkeypatch.setattr(module, "_data", lambda: data)
    assert untried(RnicConfig(transmit=True, streams=256)) == ""
    assert untried(RnicConfig(width=256, sctp=True)) == "width = 256, sctp = true"


@pytest.mark.parametrize(
    ("depth", "read", "blocks"),
    [
        (512, [True] * 36, 1),
        (512, [True] * 37, 2),
        (1024, [True] * 18, 1),
        (1025, [True] * 18, 2),
        (16384, [True], 1),
        (16, [True] + [False] * 71, 1),
        (16, [True] + [False] * 35 + [True] + [False] * 35, 2),
        (16, [False] * 36, 0),
    ],
)
def test_block_rams_are_counted_as_yosys_maps_them(
    depth: int, read: list[bool], blocks: int
) -> None:
    assert block_rams(depth, read) == blocks


@pytest.mark.long
def test_larger_tables_and_more_ports_take_more() -> None:
    small = count(SMALL)
    more = count(RnicConfig(**changed(SMALL) | {"stags": 2048}))
    assert more.block_ram > small.block_ram and more.registers < 1.05 * small.registers
    sends = count(RnicConfig(**changed(SMALL) | {"transmit": True, "streams": 16}))
    assert sends.registers > small.registers and sends.carries > small.carries


def test_a_device_fits_only_if_the_error_leaves_room() -> None:
    fitted = Model({}, {"lut4": 0.1, "ff": 0, "dp16kd": 0}, 9, "")
    luts, memories = CAPACITY["25F"]
    for area, fits in (
        (Area(luts // 2, luts, memories), True),
        (Area(luts, luts, memories), None),
        (Area(int(1.05 * luts), luts, memories), None),
        (Area(luts * 2, luts, memories), False),
        (Area(1, 1, memories + 1), False),
    ):
        (found,) = (each for each in devices(Estimate(area, fitted)) if each.device[-3:] == "25F")
        assert found.fits is fits
        assert found.shares["lut4"] == area.lut4 / luts


def test_the_clocks_are_of_configurations_that_exist() -> None:
    for each in clocks():
        assert changed(RnicConfig(**each.set)) == each.set
        assert min(each.mhz) <= each.median <= max(each.mhz)

"""Runs the cocotb tests of the assembled datapath at every width."""

from __future__ import annotations

from pathlib import Path

import pytest
from ddp_rnic.hdl.spec.config import WIDTHS, RnicConfig
from ddp_rnic.sim.cocotb_engine import run_tests


@pytest.mark.parametrize("width", WIDTHS)
def test_datapath(width: int, tmp_path: Path) -> None:
    # Imported there, not here: cocotb's decorators want a simulator around them.
    count = 29
    run_tests(RnicConfig(width=width), "ddp_rnic.cocotb_tests.datapath_tests", tmp_path, count)

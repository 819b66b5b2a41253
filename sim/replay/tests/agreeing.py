"""Runs plans on the stand-in for the gateware."""

from __future__ import annotations

import numpy as np
from ddp_rnic.sim.engines.tests.fake_engine import FakeEngine
from ddp_rnic.sim.replay.differences import find_differences
from ddp_rnic.sim.replay.plan import Plan


def run(planned: Plan) -> np.ndarray:
    """Returns host memory after a run that must agree."""
    memory = planned.memory.copy()
    outcome = FakeEngine().run(planned.config, planned.operations, memory, ring=planned.ring)
    assert find_differences(planned, outcome, memory) == []
    return memory

"""Tests the assembled datapath with cocotb: errors one by one, and random traffic with stalls."""

from __future__ import annotations

from typing import Any

import cocotb

from ..sim.engines.cocotb_bench import RnicBench
from ..sim.engines.engine import UNSTALLED, Stalls
from .errors import CASES, scenario_of
from .scenario import Scenario, random_scenario

#: Number of tests in this module, in all their variants.
COUNT = len(CASES) + 4


async def play(dut: Any, scenario: Scenario, stalls: Stalls = UNSTALLED) -> RnicBench:
    """Plays a scenario and checks the outcome."""
    memory = scenario.memory.copy()
    bench = RnicBench(dut, memory, stalls=stalls, ring=scenario.ring)
    await bench.start()
    await bench.run(scenario.operations)
    scenario.check(await bench.outcome(), memory)
    return bench


@cocotb.test()
@cocotb.parametrize(case=list(CASES))
async def errors_have_their_number_and_write_nothing(dut: Any, case: str) -> None:
    scenario = scenario_of(case)
    bench = await play(dut, scenario)
    assert [(event.type, event.code) for event in bench.events] == [CASES[case][0]]
    assert bench.bursts == [] and bench.writes == [] and bench.completions == []


@cocotb.test()
@cocotb.parametrize(seed=[1, 2], stalled=[False, True])
async def random_traffic_agrees_with_the_model(dut: Any, seed: int, stalled: bool) -> None:
    stalls = Stalls(0.3, 0.3, 0.3, 0.3, seed=seed) if stalled else UNSTALLED
    await play(dut, random_scenario(seed, 40), stalls)

"""The cocotb test of the cocotb engine: runs the operations that it finds in a file."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import cocotb
import numpy as np

from .cocotb_bench import RnicBench

#: The environment variable with the directory of the files below.
DIRECTORY = "DDP_RNIC_RUN"
PLAN, MEMORY, OUTCOME = "plan.pickle", "memory.bin", "outcome.pickle"


@cocotb.test()
async def run_operations(dut: Any) -> None:
    """Runs the plan, and writes host memory and the outcome to files."""
    directory = Path(os.environ[DIRECTORY])
    operations, ring, stalls, faults, base = pickle.loads((directory / PLAN).read_bytes())
    memory = np.memmap(directory / MEMORY, np.uint8, "r+")
    bench = RnicBench(dut, memory, ring=ring, stalls=stalls, faults=faults, base=base)
    await bench.start()
    await bench.run(operations)
    (directory / OUTCOME).write_bytes(pickle.dumps(await bench.outcome()))
    memory.flush()

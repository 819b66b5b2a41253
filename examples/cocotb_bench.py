"""A cocotb testbench of a design with an RNIC: the golden model says what memory must hold.

Beside this file lies the design, which is rnic.v of ``rnic export`` here.
"""

import random
import sys
from typing import Any

import cocotb
import numpy as np
from cocotb_tools.runner import get_results, get_runner
from ddp_rnic.hdl.spec import commands, regs
from ddp_rnic.hdl.spec.stag import Access
from ddp_rnic.sim.engines.cocotb_bench import RnicBench
from ddp_rnic.sim.engines.engine import Packet, Ring
from ddp_rnic.sim.model import DataSink, DataSource, Delivered, Memory, MpaSender, Region

STAG, LENGTH, ADDRESS = 0x511, 4000, 0x1000


@cocotb.test()
async def memory_holds_what_the_model_places(dut: Any) -> None:
    """Sends Writes to random places until one reaches past the region's end."""
    ring = Ring(address=0, size=4)
    bench = RnicBench(dut, np.zeros(0x2000, np.uint8), ring=ring)
    await bench.start()
    for step in (
        *ring.command(),
        *commands.set_stag(STAG, Access.REMOTE_WRITE, pd=7, to=0, length=LENGTH, address=ADDRESS),
        *commands.set_stream(1, pd=7, crc=True),
    ):
        if isinstance(step, commands.Write):
            await bench.write(regs.address(step.register), step.value)
        else:
            await bench.poll(regs.address(step.register), step.mask, step.value)

    memory = Memory()
    memory.register(Region(stag=STAG, to=0, length=LENGTH, pd=7))
    source, sink, mpa = DataSource(mulpdu=300), DataSink(memory, stream=1, pd=7), MpaSender()
    delivered = 0
    while sink.error is None:
        to, payload = random.randrange(LENGTH), random.randbytes(random.randrange(600))
        for segment in source.tagged(STAG, to, payload):
            delivered += any(isinstance(event, Delivered) for event in sink.receive(segment))
            await bench.send(Packet(1, mpa.position, mpa.send(segment)))
    await bench.drain()

    assert bench.memory[ADDRESS : ADDRESS + LENGTH].tobytes() == memory.octets(STAG)
    (event,), number = bench.events, sink.error.number
    assert (event.type, event.code) == (number.type, number.code)
    assert len(bench.completions) == delivered
    print(f"{delivered} Writes as in the model, then {number}")


if __name__ == "__main__":
    runner = get_runner("icarus")
    runner.build(sources=["rnic.v"], hdl_toplevel="rnic", timescale=("1ns", "1ps"))
    results = runner.test(hdl_toplevel="rnic", test_module="cocotb_bench", seed=6)
    sys.exit(get_results(results)[1])  # how many tests failed

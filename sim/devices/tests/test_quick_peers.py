"""A peer that asks for another RDMA Read as soon as a response has left finds its request taken."""

from __future__ import annotations

import random

import pytest
from ddp_rnic.hdl.lib.tests.long import long
from ddp_rnic.hdl.spec import commands
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.sim.devices.tests.sound_streams import IRD, Host, Sound
from ddp_rnic.sim.engines.engine import Stalls

READS = 40


@pytest.mark.parametrize("width", [64, *long(512)])
@pytest.mark.parametrize("mulpdu", [128, 160, *long(200, 300)])
@pytest.mark.parametrize("length", [2000, 4000])
@pytest.mark.parametrize("stalled", [False, True])
# Cycles from a response to the next request; 200 are a microsecond at 200 MHz.
@pytest.mark.parametrize("away", [50, *long(10, 200)])
def test_as_many_reads_as_ird_may_be_outstanding_all_the_time(
    width: int, mulpdu: int, length: int, stalled: bool, away: int
) -> None:
    """RFC 5040 section 6.1: "The RDMAP layer MUST provide the maximum number of outstanding,
    inbound RDMA Read Requests per RDMAP Stream direction that were negotiated".
    """
    stalls = Stalls(exceptions=0.4, response=0.2, response_latency=100) if stalled else Stalls()
    host = Host(RnicConfig(width=width, transmit=True, responder=True), stalls)
    try:
        host.open_cq(0)
        stream, other = (
            Sound(host, number, 0, random.Random(number), repeats=False) for number in (2, 3)
        )
        for each in (stream, other):
            host.do(
                commands.set_mulpdu(each.stream, mulpdu),
                commands.set_limit(each.stream, each.position + (1 << 30)),
            )
        for _ in range(40 if stalled else 0):
            other.post()

        def answered() -> bool:
            host.sim.run(away)
            stream.absorb()
            while stream.requested < READS and stream.requested - stream.answered < IRD:
                stream.request(stream.requested, length)
                stream.flush()
            return stream.answered == READS

        host.until(answered, "the responses")
    finally:
        host.close()

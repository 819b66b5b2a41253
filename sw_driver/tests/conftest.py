"""Fixtures of the driver's tests: the real gateware, with an open device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from ddp_rnic.sim.devices.live import Peer, SimTransport
from ddp_rnic.sw_driver import CQ, PD, Context, Device, Stream, TransportError
from ddp_rnic.sw_driver.transports.pins import Pins


@dataclass
class Bench:
    """An open device with a protection domain, a completion queue and a stream."""

    sim: SimTransport
    context: Context
    pd: PD
    cq: CQ
    stream: Stream
    peer: Peer


def begin(sim: SimTransport) -> Bench:
    context = Device(sim).open()
    pd, cq = PD(context), CQ(context)
    stream = Stream(pd, cq)
    return Bench(sim, context, pd, cq, stream, Peer(sim, stream.number))


@pytest.fixture
def bench() -> Iterator[Bench]:
    with SimTransport() as sim:
        started = begin(sim)
        with started.context:
            yield started


@pytest.fixture(params=[None, 4096, 1 << 16], ids=["contiguous", "4 KiB", "64 KiB"])
def scattered(request: pytest.FixtureRequest) -> Iterator[Bench]:
    with SimTransport(page=request.param) as sim:
        started = begin(sim)
        with started.context:
            yield started


@pytest.fixture
def pins() -> Iterator[Pins]:
    """Pins pages through the kernel; skips the test where this process may not."""
    try:
        made = Pins()
    except TransportError as error:
        pytest.skip(str(error))
    yield made
    made.close()

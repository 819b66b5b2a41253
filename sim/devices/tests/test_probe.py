"""Tests of the probe: transfers of streams inside the gateware."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ddp_rnic.sim.devices.live import Peer, SimTransport
from ddp_rnic.sim.devices.probe import probe
from ddp_rnic.sw_driver import CQ, PD, Device, Stream


@pytest.fixture(scope="module")
def sim() -> Iterator[SimTransport]:
    with SimTransport(probed=True) as sim:
        yield sim


def test_transfers_have_their_cycles_and_fields(sim: SimTransport) -> None:
    with Device(sim).open() as context, PD(context) as pd, CQ(context) as cq:
        stream, buffer = Stream(pd, cq), bytearray(100)
        region, peer = pd.register(buffer), Peer(sim, stream.number)
        with probe(sim, "commit", "judge") as first:
            begun = sim.cycle
            with pytest.raises(ValueError, match="after the block of probe"):
                _ = first["commit.o"]
            peer.write(region.stag, 8, b"hello world")
            sim.run(300)
            ended = sim.cycle
        (address,) = region.mapping.memory.extents
        (placement,) = first["commit.o"]
        assert placement["placement.address"] == address.address + 8
        assert placement["placement.length"] == 11
        assert begun < int(placement["cycle"]) < ended
        (judged,) = first["judge.o"]
        assert judged["outcome"] == "GOOD"
        beats = first["m_axi_w"]
        shown = b"".join(
            bytes(
                octet
                for lane, octet in enumerate(int(beat["data"]).to_bytes(8, "little"))
                if int(beat["strb"]) >> lane & 1
            )
            for beat in beats
        )
        assert shown == b"hello world" == bytes(buffer[8:19])
        assert len(first["s_axis"]) == len(range(0, 2 + 14 + 11 + 1 + 4, 8))

        # Another block shows what happens then, and this alone.
        with probe(sim, "commit") as second:
            peer.write(region.stag, 20, b"x")
            peer.write(region.stag, 21, b"y")
            sim.run(300)
        assert [each["placement.length"] for each in second["commit.o"]] == [1, 1]
        with pytest.raises(KeyError, match="there is no stream 'commit.x': commit has .*moves"):
            _ = second["commit.x"]
        with pytest.raises(KeyError, match="the device has .*m_axi_w, .*s_axis"):
            _ = second["none"]


def test_a_transport_must_be_made_for_it(sim: SimTransport) -> None:
    with pytest.raises(ValueError, match="the RNIC has no part 'comit': use commit"):
        with probe(sim, "comit"):
            pass
    with SimTransport() as plain, pytest.raises(ValueError, match="with probed=True"):
        with probe(plain):
            pass

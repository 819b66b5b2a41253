"""The loads of a device that sends: what leaves, and how long it takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ddp_rnic.hdl.lib.tests.long import long
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.sim.engines.choice import load
from ddp_rnic.sim.model.header import TaggedHeader
from ddp_rnic.sim.model.mpa import Fpdu, MpaReceiver
from ddp_rnic.sim.model.rdmap import Opcode, rsvdulp
from ddp_rnic.sim.replay.send_load import ResponseLoad, SendLoad

CONFIG = RnicConfig(transmit=True, responder=True)
WIDTHS = pytest.mark.parametrize("width", [64, *long(512)])


@WIDTHS
@pytest.mark.parametrize("payload", [0, 64, 9000])
def test_a_response_has_the_octets_that_were_asked_for(width: int, payload: int) -> None:
    """RFC 5040 section 4.5: to the STag and from the offset that the request names."""
    outcome = ResponseLoad(replace(CONFIG, width=width), payload).run(load("compiled"))
    octets = b"".join(fpdu.octets for fpdu in outcome.fpdus)
    fpdus = MpaReceiver(crc=True).receive(octets)
    control = rsvdulp(Opcode.READ_RESPONSE, tagged=True)
    whole = bytes(at % 256 for at in range(payload))
    got, messages = b"", 0
    for fpdu in fpdus:
        assert isinstance(fpdu, Fpdu)
        header = TaggedHeader.decode(fpdu.ulpdu)
        assert (header.stag, header.to, header.rsvdulp) == (0x1001, len(got), control)
        got += fpdu.ulpdu[header.size :]
        if header.last:
            assert got == whole
            got, messages = b"", messages + 1
    assert messages == 8 and not got


@WIDTHS
def test_a_message_and_a_response_wait_for_two_reads(width: int) -> None:
    """The device reads the ring or the slot, then the octets; nothing else waits for memory."""
    config = replace(CONFIG, width=width)
    for kind in (lambda latency: SendLoad(config, 64, streams=1, latency=latency),
                 lambda latency: ResponseLoad(config, 64, latency=latency)):  # fmt: skip
        near, far = (kind(latency).delay(load("compiled")) for latency in (10, 110))
        assert far - near == 2 * 100
        assert near <= 200


@pytest.mark.long
@pytest.mark.parametrize("streams", [1, 16])
@pytest.mark.parametrize("offset", [None, 0, 3])
def test_a_message_over_sctp_takes_the_three_beats_of_its_frame(
    offset: int | None, streams: int
) -> None:
    """At 200 MHz that is 66 million messages of 64 octets each second."""
    config = RnicConfig(width=512, transmit=True, mpa=False, sctp=True)
    sent = SendLoad(config, 64, offset, streams=streams)
    assert sent.limit == 3 and sent.cycles(load("compiled"), 8000) <= 3.03

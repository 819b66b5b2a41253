"""The driver's start-up frames and FPDUs, judged by the golden model, which has its own code."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from ddp_rnic.sim.model.ddp import decode_segment
from ddp_rnic.sim.model.header import TaggedHeader, UntaggedHeader
from ddp_rnic.sim.model.mpa import Enhanced as ModelEnhanced
from ddp_rnic.sim.model.mpa import Fpdu, MpaReceiver, MpaSender
from ddp_rnic.sim.model.mpa import StartupFrame as ModelFrame
from ddp_rnic.sw_driver.cm import Enhanced, InvalidStartup, MpaSource, Rtr, StartupFrame
from ddp_rnic.sw_driver.cm.framing import Cutter, mulpdu_of
from hypothesis import given
from hypothesis import strategies as st

LIMITS = st.integers(0, 0x3FFF)
ENHANCED = st.builds(
    lambda ird, ord, rtr: Enhanced(ird, ord, bool(rtr), rtr),
    LIMITS, LIMITS, st.sampled_from([Rtr(value) for value in range(8)]),
)  # fmt: skip


@st.composite
def frames(draw: Any) -> StartupFrame:
    revision, reply = draw(st.sampled_from([1, 2])), draw(st.booleans())
    return StartupFrame(
        reply=reply, revision=revision, crc=draw(st.booleans()),
        markers=draw(st.booleans()), reject=reply and draw(st.booleans()),
        enhanced=draw(st.none() | ENHANCED) if revision == 2 else None,
        private_data=draw(st.binary(max_size=508)),
    )  # fmt: skip


def as_the_model_has_it(frame: StartupFrame) -> ModelFrame:
    enhanced = None
    if (ours := frame.enhanced) is not None:
        enhanced = ModelEnhanced(
            ird=ours.ird, ord=ours.ord, peer_to_peer=ours.peer_to_peer,
            rtr_fpdu=Rtr.SEND in ours.rtr, rtr_write=Rtr.WRITE in ours.rtr,
            rtr_read=Rtr.READ in ours.rtr,
        )  # fmt: skip
    return ModelFrame(
        kind="reply" if frame.reply else "request", revision=frame.revision,
        markers=frame.markers, crc=frame.crc, reject=frame.reject, enhanced=enhanced,
        private_data=frame.private_data,
    )  # fmt: skip


@given(frames())
def test_start_up_frames_are_those_of_the_model(frame: StartupFrame) -> None:
    """RFC 5044 section 7.1.1 and RFC 6581 section 9."""
    octets = frame.encode()
    assert octets == as_the_model_has_it(frame).encode()
    assert StartupFrame.parse(octets + b"more") == (frame, len(octets))
    for cut in range(len(octets)):
        assert StartupFrame.parse(octets[:cut]) is None


@given(st.binary(max_size=60) | st.binary(max_size=9).map(lambda tail: b"MPA ID Req Frame" + tail))
def test_other_octets_are_refused_where_the_model_refuses_them(octets: bytes) -> None:
    def outcome(parse: Any) -> object:
        try:
            parsed = parse(octets)
        except Exception:
            return "refused"
        return parsed and parsed[1]

    assert outcome(StartupFrame.parse) == outcome(ModelFrame.parse)


def test_flags_of_messages_are_ignored_without_peer_to_peer() -> None:
    """RFC 6581 section 9.1: "if Control Flag A is set to 0, then Control Flags B, C, and D MUST be
    ignored".
    """
    assert Enhanced.decode(bytes.fromhex("4001 c001")) == Enhanced(1, 1)
    octets = b"MPA ID Rep Frame\x10\x02\x00\x03abc"
    with pytest.raises(InvalidStartup, match="must hold the four octets of IRD and ORD"):
        StartupFrame.parse(octets)
    assert dataclasses.replace(StartupFrame(), revision=2).enhanced is None


MESSAGES = st.lists(
    st.tuples(st.booleans(), st.integers(0, (1 << 32) - 1), st.integers(0, 3000)),
    min_size=1, max_size=8,
)  # fmt: skip


@given(MESSAGES, st.integers(128, 2000), st.booleans(), st.booleans(), st.randoms())
def test_fpdus_are_those_of_the_model(
    messages: list[tuple[bool, int, int]], mulpdu: int, crc: bool, markers: bool, rng: Any
) -> None:
    """RFC 5044 sections 4.1 to 4.4, RFC 5041 section 4: the model reads what the driver frames."""
    source = MpaSource(mulpdu, crc=crc, markers=markers)
    sender = MpaSender(crc=crc, markers=markers)
    judge, cutter = MpaReceiver(crc=crc, markers=markers), Cutter(markers=markers)
    for tagged, number, length in messages:
        message = rng.randbytes(length)
        if tagged:
            fpdus = source.tagged(number, 5, message, rsvdulp=0x40)
        else:
            fpdus = source.untagged(number % 3, message, rsvdulp=number << 8 | 0x43)
        got = b""
        for octets in fpdus:
            (fpdu,) = judge.receive(octets)
            assert isinstance(fpdu, Fpdu) and len(fpdu.ulpdu) <= mulpdu
            assert octets == sender.send(fpdu.ulpdu)
            header, payload = decode_segment(fpdu.ulpdu)
            at = header.to - 5 if isinstance(header, TaggedHeader) else header.mo
            assert (at, header.last) == (len(got), octets is fpdus[-1])
            if isinstance(header, TaggedHeader):
                assert (header.stag, header.rsvdulp) == (number, 0x40)
            else:
                assert isinstance(header, UntaggedHeader)
                assert (header.qn, header.rsvdulp) == (number % 3, number << 8 | 0x43)
            got += payload
        assert got == message
        # The driver's cutter finds the same FPDUs in pieces of any size.
        octets, cut = b"".join(fpdus), []
        while octets:
            size = rng.randrange(1, len(octets) + 1)
            cut += [fpdu.octets for fpdu in cutter.receive(octets[:size])]
            octets = octets[size:]
        assert cut == fpdus and not cutter.within


@given(st.integers(140, 9000), st.booleans())
def test_the_longest_fpdu_fills_a_tcp_segment(mss: int, markers: bool) -> None:
    """RFC 5044 section 4.5: "MULPDU = EMSS - (6 + EMSS mod 4)", and with markers "4 *
    Ceiling(EMSS / 512)" less.
    """
    mulpdu = mulpdu_of(mss, markers=markers)
    source = MpaSource(mulpdu, crc=True, markers=markers)
    fpdus = source.untagged(0, bytes(20 * mss), rsvdulp=0)
    assert all(len(fpdu) <= mss for fpdu in fpdus)
    if not markers:
        assert len(fpdus[0]) > mss - 4
    assert mulpdu_of(1460, markers=False) == 1454 and mulpdu_of(1448, markers=False) == 1442

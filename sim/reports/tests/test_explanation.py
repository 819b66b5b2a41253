"""Tests of explanations: the check that decides is that of the golden model, and fields have their
octets.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Iterable, Iterator
from pathlib import Path

import ddp_rnic
import pytest
from ddp_rnic.hdl.spec import ddp
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.hdl.spec.stag import Access
from ddp_rnic.sim.capture.capture import Capture, CaptureError, capture_of, read_capture
from ddp_rnic.sim.capture.pcap import Frame, read_frames
from ddp_rnic.sim.capture.tests.associations import Peers
from ddp_rnic.sim.capture.tests.frames import (
    B,
    ethernet,
    first_octet,
    frames,
    handshake,
    tcp_packet,
)
from ddp_rnic.sim.capture.traffic import traffic_of, with_sctp
from ddp_rnic.sim.model.checks import TAGGED, UNTAGGED
from ddp_rnic.sim.model.header import TaggedHeader, UntaggedHeader
from ddp_rnic.sim.model.mpa import MpaSender, StartupFrame
from ddp_rnic.sim.model.sctp import Ppid
from ddp_rnic.sim.replay.plan import plan
from ddp_rnic.sim.replay.regions import Queue, Region
from ddp_rnic.sim.replay.sctp_regions import derive_all
from ddp_rnic.sim.reports import errors
from ddp_rnic.sim.reports.explanation import SENTENCES, Explainer, Explanation, Result
from ddp_rnic.sw_driver.rdmap.wire import ERRORS, Layer

ROOT = Path(ddp_rnic.__file__).parent
SHIPPED = ROOT / "sim" / "data" / "workload.pcap"
SHARED = ROOT.parent / "shared"
#: Captures that lie beside the checkout, where they are there.
CAPTURES = [
    path
    for folder in ("captures", "cases")
    for path in sorted((SHARED / folder).rglob("*"))
    if path.is_file() and "truth" not in path.parts and path.suffix not in (".md", ".txt", ".log")
]


def explainer_of(
    capture: Capture,
    again: Iterable[Frame],
    regions: list[Region] | None = None,
    queues: Iterable[Queue] = (),
) -> Explainer:
    config = RnicConfig()
    traffic = with_sctp(traffic_of(capture), capture.sctp, config)
    derived = derive_all(traffic, config.stags)
    plans, _ = plan(
        traffic, derived.regions if regions is None else regions, config, derived.ends, queues
    )
    explainer = Explainer(capture, traffic, plans)
    explainer.read(again)
    return explainer


def explained(explainer: Explainer) -> Iterator[Explanation]:
    """Yields all explanations, after checks that each of them has to pass."""
    for judged in explainer.judged.values():
        found = explainer.explain(judged)
        decided = found.decided
        assert (None if decided is None else decided.number) == judged.error
        assert (decided is not None) == (judged.error is not None or judged.dropped)
        assert (found.terminate is not None) == (found.meaning is not None)
        assert (found.terminate is not None) == (judged.error is not None)
        results = [step.result for step in found.steps]
        if decided is not None:
            after = found.steps[found.steps.index(decided) + 1 :]
            assert {step.result for step in after} <= {Result.NOT_REACHED}
        else:
            assert Result.NOT_REACHED not in results
        assert all(step.sum for step in found.steps if step.result is not Result.NOT_REACHED)
        shown = {each.number: each.octets for each in found.shown}
        for layer in found.layers:
            for each in layer.fields:
                octets = b"".join(shown[s.frame][s.start : s.stop] for s in each.spans)
                assert octets and len(octets) == sum(s.stop - s.start for s in each.spans)
                if each.name == "ULP Payload" and found.placement is not None:
                    assert found.placement.payload.endswith(octets)
                if each.name == "STag":
                    assert int.from_bytes(octets, "big") == int(each.value, 16)
        yield found


def test_each_error_of_the_shipped_capture_is_decided_by_its_check() -> None:
    found = list(explained(explainer_of(read_capture(SHIPPED), read_frames(SHIPPED))))
    decided = {each.judged.error for each in found if each.judged.error is not None}
    assert decided == {
        ddp.INVALID_STAG, ddp.LLP_CRC, ddp.BASE_OR_BOUNDS, ddp.TAGGED_VERSION, ddp.INVALID_QN,
        ddp.NO_BUFFER, ddp.MSN_RANGE, ddp.INVALID_MO, ddp.MESSAGE_TOO_LONG,
    }  # fmt: skip
    assert any(each.judged.dropped for each in found)
    assert sum(each.judged.error is None and not each.judged.dropped for each in found) > 200
    # Some segments lie in more than one frame, and some have markers in their fields.
    assert any(len(each.shown) > 1 for each in found)
    split = [
        field
        for each in found
        for layer in each.layers
        if layer.name.startswith("DDP")
        for field in layer.fields
        if len(field.spans) > 1
    ]
    assert split


@pytest.mark.skipif(not CAPTURES, reason="needs the captures beside the project: shared/")
def test_each_error_of_every_capture_is_decided_by_its_check() -> None:
    played = 0
    for path in CAPTURES:
        try:
            capture = read_capture(path)
        except CaptureError:
            continue
        played += sum(1 for _ in explained(explainer_of(capture, read_frames(path))))
    assert played > 3000


REGION = Region(B[0], 0x00ABCD07, 0x1000, 0x200)
READ_ONLY = Region(B[0], 0x00ABCE07, 0x1000, 0x200, access=Access.NONE)
TOP = Region(B[0], 0x00ABCF07, 2**64 - 64, 64)
BOUND = Region(B[0], 0x00ABD007, 0, 64, stream=1)
REGIONS = [REGION, READ_ONLY, TOP, BOUND]


def random_segment(draw: random.Random) -> bytes:
    """Returns a segment at the edge of a region, queue or buffer, or with another defect."""
    length = draw.choice((0, 1, 40, 64, 65, 0x200, 0x201))
    version = draw.choice((1, 1, 1, 1, 0))
    if draw.random() < 0.6:
        region = draw.choice(REGIONS)
        to = draw.choice(
            (region.to - 1, region.to, region.to + 1, region.to + region.length - length,
             region.to + region.length - 1, region.to + region.length)
        )  # fmt: skip
        stag = region.stag ^ draw.choice((0, 0, 0, 1, 0x100, 0x10000000))
        header = TaggedHeader(stag, to % (1 << 64), True, 0x40, version).encode()
    else:
        msn = draw.choice((1, 1, 1, 0, 2, 3, 0xFFFFFFFF))
        mo = draw.choice((0, 0, 1, 64, 65))
        header = UntaggedHeader(
            draw.choice((0, 0, 0, 3, 4)), msn, mo, True, 0x43 << 32, version
        ).encode()
    segment = header + draw.randbytes(length)
    return segment if draw.random() < 0.95 else segment[: draw.randrange(len(header))]


def test_random_segments_are_decided_by_their_checks() -> None:
    draw, found = random.Random(5041), list[Explanation]()
    for _ in range(4):
        packets: list[bytes] = []
        for number in range(100):
            a = f"10.7.1.{number + 1}", 1000
            packets += handshake(a)
            sender = MpaSender()
            octets = b"".join(sender.send(random_segment(draw)) for _ in range(2))
            if draw.random() < 0.1:
                octets = octets[:-1] + bytes([octets[-1] ^ 1])
            packets.append(tcp_packet(a, B, first_octet(1000), octets))
        captured = frames(packets)
        queues = [Queue(B[0], 0, 2, 64), Queue(B[0], 3, 0, 64)]
        explainer = explainer_of(capture_of(captured, Path("random")), captured, REGIONS, queues)
        found += explained(explainer)
    decided = {each.judged.error for each in found} - {None}
    assert decided >= {check.number for check in TAGGED + UNTAGGED} | {ddp.LLP_FRAMING, ddp.LLP_CRC}
    checks = {each.judged.validation.failed for each in found if each.judged.validation}
    assert checks == {None, *range(len(TAGGED))}
    assert any(step.result is Result.NOT_ASKED for each in found for step in each.steps)


def test_fields_are_found_below_tags_and_tunnels() -> None:
    segment = TaggedHeader(REGION.stag, REGION.to, True, 0x40).encode() + b"octets"
    packets = handshake()
    packets.append(tcp_packet(("10.7.0.1", 40000), B, first_octet(1000), MpaSender().send(segment)))
    outer = b"\x45\0" + (24 + len(packets[-1])).to_bytes(2, "big") + bytes(5) + b"\x2f"
    gre = outer + bytes(2) + bytes(8) + b"\0\0\x08\0" + packets[-1]
    plain = frames(packets[:-1])
    for octets, first in (
        (ethernet(packets[-1], b"\x81\0\0\x05"), "Ethernet"),
        (ethernet(gre), "Link layer and tunnels"),
    ):
        captured = [*plain, Frame(len(packets), 1.0, 1, octets)]
        (found,) = explained(explainer_of(capture_of(captured, Path("made")), captured, [REGION]))
        names = [layer.name for layer in found.layers]
        assert names[0] == first and ("VLAN tag" in names) == (first == "Ethernet")
        ddp_layers = ["DDP Control Field", "RDMAP header", "DDP tagged header", "Payload"]
        assert names[-7:] == ["IPv4", "TCP", "MPA", *ddp_layers]


def test_a_startup_without_crc_asks_for_none() -> None:
    startups = (StartupFrame(kind=kind, crc=False).encode() for kind in ("request", "reply"))
    request, reply = startups
    sender = MpaSender(crc=False)
    segment = TaggedHeader(REGION.stag, REGION.to, True, 0x40).encode() + b"octets"
    packets = handshake(request=request, reply=reply)
    packets.append(
        tcp_packet(("10.7.0.1", 40000), B, first_octet(1000, request), sender.send(segment))
    )
    captured = frames(packets)
    (found,) = explained(explainer_of(capture_of(captured, Path("made")), captured, [REGION]))
    (digest,) = (step for step in found.steps if step.number == ddp.LLP_CRC)
    assert digest.result is Result.NOT_ASKED and "no CRC" in digest.sum


# Errors.


def quoted() -> dict[str, str]:
    with open(ROOT / "docs" / "sentences.csv", newline="", encoding="utf-8") as file:
        return {row["id"]: row["sentence"] for row in csv.DictReader(file)}


def test_every_quoted_sentence_is_that_of_the_rfc() -> None:
    sentences = quoted()
    for name, sentence in SENTENCES.items():
        assert sentence.text == sentences[name]
        number, _, section = name.rpartition("-")[0].partition("-")
        assert sentence.section == f"RFC {number} section {section}"
    assert TAGGED[0].text == UNTAGGED[0].text == sentences["5041-4.1-9"]
    for row in errors._table().values():
        if "sentence" in row:
            assert row["sentence"] == sentences[row["requirement"]]
            number, _, section = row["requirement"].rpartition("-")[0].partition("-")
            assert row["section"] == f"RFC {number} section {section}"


def test_every_error_of_a_terminate_has_a_meaning() -> None:
    for layer, known in ERRORS.items():
        for (kind, code), name in known.items():
            meaning = errors.meaning_of(layer, kind, code)
            assert meaning is not None and meaning.name == name
            assert meaning.sentences and meaning.advice
    for number in ddp.ERROR_TEXT:
        assert errors.meanings(f"{number.type:#x}/{number.code:#x}")


def test_the_advice_for_a_segment_over_sctp_does_not_name_mpa() -> None:
    peers = Peers()
    peers.set_up()
    peers.open(0)
    peers.send(peers.ends[0], peers.data(peers.ends[0], 0, Ppid.SEGMENT, b"\x41"))
    explainer = explainer_of(capture_of(peers.frames, Path("test")), peers.frames)
    (found,) = (each for each in explained(explainer) if each.meaning is not None)
    assert found.meaning is not None and "DATA chunk" in found.meaning.advice
    assert "MPA" not in found.meaning.advice


def test_an_error_is_named_with_and_without_its_layer() -> None:
    both = errors.meanings("0x1/0x03")
    assert [(each.layer, each.name) for each in both] == [
        (Layer.RDMA, "STag not associated with RDMAP Stream"),
        (Layer.DDP, "TO wrap"),
    ]
    for text in ("DDP 0x1/0x03", "ddp/1/3", "1/0x1/3", "DDP: 1 / 3"):
        assert errors.meanings(text) == both[1:]
    assert errors.meanings("RDMAP/0x1/0x03") == both[:1]
    assert errors.meanings("3/2") == errors.meanings("LLP/0/2") == errors.meanings("mpa 0/2")
    assert errors.meanings("RDMA 0/0x77")[0].name == "Local Catastrophic"
    for text, says in (
        ("", "TYPE/CODE"), ("1", "TYPE/CODE"), ("TCP/1/3", "one of RDMA"), ("9/1/3", "one of RDMA"),
        ("7/7", "no layer has the error 0x7/0x07"), ("DDP/9/9", "DDP does not have"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=says):
            errors.meanings(text)

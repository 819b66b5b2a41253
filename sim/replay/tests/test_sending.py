"""The golden model sends what captures' senders sent. Kernels are the judges, where captures of
theirs lie beside the project; the generated workload has senders that err on purpose.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import google_crc32c
import pytest
from ddp_rnic.cli import app, outcome
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.sim.capture.capture import capture_of, read_capture
from ddp_rnic.sim.capture.pcap import write_pcap
from ddp_rnic.sim.capture.streams import Arrival
from ddp_rnic.sim.capture.tests import frames
from ddp_rnic.sim.capture.tests.associations import A, Peers
from ddp_rnic.sim.capture.tests.streams import SEND, WRITE, Conversation
from ddp_rnic.sim.capture.traffic import Traffic, traffic_of, with_sctp
from ddp_rnic.sim.model.ddp import DataSource, decode_segment
from ddp_rnic.sim.model.header import Header, TaggedHeader, UntaggedHeader
from ddp_rnic.sim.model.mpa import MpaSender
from ddp_rnic.sim.model.sctp import DataChunk, Ppid
from ddp_rnic.sim.replay import sending
from ddp_rnic.sim.replay.sending import Post, Sent, send, send_in_parts
from typer.testing import CliRunner

WORKLOAD = Path(__file__).resolve().parents[2] / "data" / "workload.pcap"
SHARED = Path(__file__).resolve().parents[3].parent / "shared" / "captures"
KERNELS = sorted([*SHARED.glob("iwarp/*/*.pcap"), *SHARED.glob("interop/*.pcap"),
                  *SHARED.glob("sctp/*.pcap"), *SHARED.glob("synthetic/*.pcap")])  # fmt: skip
KERNELS_SCTP = sorted(SHARED.glob("sctp/*.pcap"))
PUBLIC = sorted([*SHARED.glob("public/*/iwarp_rdma/*"), *SHARED.glob("public/*/iwarp_send_recv/*"),
                 *SHARED.glob("public/SoftUiWarp/*.pcap")])  # fmt: skip


def traffic(path: Path) -> Traffic:
    captured = read_capture(path)
    return with_sctp(traffic_of(captured), captured.sctp, RnicConfig())


def over_sctp(peers: Peers) -> Traffic:
    captured = capture_of(peers.frames, Path("test"))
    return with_sctp(traffic_of(captured), captured.sctp)


def differences(results: list[Sent]) -> list[str]:
    return [
        f"{difference.what}, {difference.where}"
        for each in results
        for difference in each.differences
    ]


@pytest.mark.skipif(not KERNELS, reason="needs the captures of real stacks beside the project")
@pytest.mark.parametrize("path", KERNELS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_kernels_sent_is_what_the_model_sends(path: Path) -> None:
    results = send(traffic(path))
    assert sum(each.segments for each in results) > 0
    assert not differences(results) and not any(each.left_out for each in results)
    # Their MTU never changed, so one MULPDU explains where they cut their messages.
    assert not any(each.falls for each in results)


#: How many segments of public captures differ, because their senders do not conform. The first one
#: sends DV 0, where RFC 5041 section 4.1 says: "This field MUST be set to one to indicate the
#: version of the specification". The others number the messages of all queues together, where
#: section 4.3 says of each queue: "The initial value for MSN MUST be one." The last one has its
#: markers elsewhere than "at every 512th octet of the TCP octet stream" (RFC 5044 section 4.3).
NOT_CONFORMING = {"uiwarp-8cdd2a5": 1, "read": 2, "read_write_long_run": 21,
                  "read_write_long_run_mrkr": 37}  # fmt: skip


@pytest.mark.skipif(not PUBLIC, reason="needs the captures of real stacks beside the project")
@pytest.mark.parametrize("path", PUBLIC, ids=lambda path: path.stem)
def test_what_others_sent_is_what_the_model_sends_unless_they_err(path: Path) -> None:
    results = send(traffic(path))
    assert sum(each.segments for each in results) > 0
    assert len(differences(results)) == NOT_CONFORMING.get(path.stem, 0)


def test_a_sender_that_errs_differs_where_it_errs() -> None:
    """Every segment that is sound by the workload's own list agrees."""
    found = traffic(WORKLOAD)
    results = send(found)
    bad = set(differences(results))
    assert sum(each.segments for each in results) + sum(each.left_out for each in results) == len(
        found.arrivals
    )
    assert 0 < len(bad) < 10
    for arrival in found.arrivals:
        at = [where for where in bad if f"frame {arrival.frame}," in where]
        if not arrival.digest_is_good:
            assert at, arrival


def within(header: Header, tagged: bool) -> bool:
    """Decides whether a segment has another one beside it in its message."""
    if isinstance(header, TaggedHeader):
        return tagged and not header.last
    return not tagged and header.mo > 0


@pytest.mark.parametrize(
    ("tagged", "octet", "bit"),
    [(True, 2, 1), (True, 2, 0x10), (True, 15, 4), (False, 2, 2), (False, 15, 1), (False, 19, 8)],
    ids=["version", "reserved", "TO", "untagged version", "MSN", "MO"],
)
def test_a_changed_bit_within_a_message_is_found(tagged: bool, octet: int, bit: int) -> None:
    """The FPDU's CRC is right for the changed octets: its sender has sent it like that."""
    found = traffic(WORKLOAD)
    found = replace(found, arrivals=tuple(found.arrivals))
    arrival = next(
        each
        for each in found.arrivals
        if not each.stream.markers and each.stream.crc and each.digest_is_good
        and within(decode_segment(each.ulpdu)[0], tagged)
    )  # fmt: skip
    raw = bytearray(arrival.raw)
    raw[octet] ^= bit
    raw[-4:] = google_crc32c.value(bytes(raw[:-4])).to_bytes(4, "little")
    changed = replace(arrival, raw=bytes(raw))
    arrivals = tuple(changed if each is arrival else each for each in found.arrivals)
    before, after = send(found), send(replace(found, arrivals=arrivals))
    left_out = [sum(each.left_out for each in results) for results in (before, after)]
    assert differences(after) != differences(before) or left_out[1] > left_out[0]


@pytest.mark.parametrize("crc", [True, False])
@pytest.mark.parametrize("octets", range(500, 510))
def test_a_pad_is_the_senders_choice_wherever_markers_stand(crc: bool, octets: int) -> None:
    """With 503 to 505 octets the marker at 512 stands between PAD and CRC."""
    stream = replace(traffic(WORKLOAD).streams[0], crc=crc, markers=True, position=0, msns=())
    segment = DataSource(1000).untagged(0, bytes(range(256)) * 2)[0][:octets]
    raw = bytearray(MpaSender(crc=crc, markers=True).send(segment))
    content = [at for at in range(len(raw)) if at % 512 >= 4]
    pad = content[2 + octets : -4]

    def send_raw() -> Sent:
        if crc:
            raw[-4:] = google_crc32c.value(bytes(raw[:-4])).to_bytes(4, "little")
        arrival = Arrival(stream, 1, 1, 0, bytes(raw))
        (result,) = send(Traffic((stream,), (arrival,)))
        return result

    assert (send_raw().chosen, differences([send_raw()])) == (0, [])
    for at in pad:
        raw[at] = 0x55
    assert (send_raw().chosen, differences([send_raw()])) == (int(bool(pad)), [])
    raw[0] ^= 1  # a marker, before the header
    assert send_raw().chosen == 0 and len(differences([send_raw()])) == 1


@pytest.mark.parametrize("markers", [True, False])
@pytest.mark.parametrize("octets", range(500, 510))
def test_a_crc_field_is_the_senders_choice_if_no_crc_is_in_use(octets: int, markers: bool) -> None:
    """RFC 5044 section 4.1: "When CRCs are not enabled, this field is still present, may contain
    any value, and MUST NOT be checked."
    """
    talk = Conversation(crc=False, markers=markers)
    sound = talk.untagged("10.7.0.2", SEND, bytes(octets))

    def send_raw(raw: bytes, at: int = 0) -> Sent:
        arrival = replace(sound, raw=raw, position=sound.position + at)
        (result,) = send(replace(talk.traffic(), arrivals=(arrival,)))
        return result

    other = sound.raw[:-4] + bytes.fromhex("deadbeef")
    assert (send_raw(sound.raw).chosen, differences([send_raw(sound.raw)])) == (0, [])
    assert (send_raw(other).chosen, differences([send_raw(other)])) == (1, [])
    # Another octet, and another place in the stream, are no choice of the sender.
    changed = bytearray(other)
    changed[6 if markers else 2] ^= 0x10  # a reserved bit of the DDP header
    for result in (send_raw(bytes(changed)), send_raw(other, at=512)):
        assert (result.chosen, result.differing) == (0, 1)


@pytest.mark.parametrize("markers", [True, False])
@pytest.mark.parametrize("octets", [64768, 64769, 65535])
def test_a_ulpdu_that_is_too_long_for_mpa_differs(octets: int, markers: bool) -> None:
    """RFC 5044 section 3: "The sending DDP MUST NOT post a ULPDU larger than 64768 octets to MPA."
    With markers the model cannot frame the longest one: FPDUPTR has 16 bits.
    """
    stream = replace(traffic(WORKLOAD).streams[0], crc=True, markers=markers, position=0, msns=())
    (segment,) = DataSource(octets).untagged(0, bytes(octets - 18))
    raw = MpaSender().send(segment)
    if markers:  # without FPDUPTR if the ULPDU is too long
        raw = b"".join(bytes(4) + raw[at : at + 508] for at in range(0, len(raw), 508))
        if octets == 64768:
            raw = MpaSender(markers=True).send(segment)
    source = DataSource(1000)
    source.set_msn(0, 2)
    then = MpaSender(markers=markers, position=len(raw)).send(source.untagged(0, b"next")[0])
    arrivals = Arrival(stream, 1, 1, 0, raw), Arrival(stream, 2, 2, len(raw), then)
    (result,) = send(Traffic((stream,), arrivals))
    assert result.segments == 2
    assert [(each.what, each.where, each.expected, each.got) for each in result.differences] == [
        ("an FPDU", "frame 1", "a ULPDU of at most 64768 octets", f"one of {octets}")
    ] * (octets > 64768)  # fmt: skip


@pytest.mark.parametrize("octets", [3, 4, 5])
def test_an_empty_send_follows_a_write_of_any_length(octets: int) -> None:
    """With 4 octets the segment of the Write is as long as the header of the Send."""
    talk = Conversation()
    talk.write("10.7.0.2", 0x511, 0x1000, bytes(octets))
    talk.untagged("10.7.0.2", SEND)
    (result,) = send(talk.traffic())
    assert result.segments == 2 and not differences([result])


#: The octets of each segment of a message, one of which is empty.
WITH_EMPTY = [(b"first", b""), (b"", b"last"), (b"first", b"", b"last")]


def segments(payloads: Sequence[bytes], *, tagged: bool) -> Iterator[bytes]:
    """Yields the segments of a message, the first one of its queue."""
    offset, last = 0, len(payloads) - 1
    for number, payload in enumerate(payloads):
        header = (
            TaggedHeader(0x511, 0x1000 + offset, number == last, WRITE)
            if tagged
            else UntaggedHeader(0, 1, offset, number == last, SEND << 32)
        )
        yield header.encode() + payload
        offset += len(payload)


@pytest.mark.parametrize("payloads", WITH_EMPTY)
@pytest.mark.parametrize("tagged", [True, False])
def test_a_message_with_an_empty_segment_beside_others_is_left_out(
    payloads: tuple[bytes, ...], tagged: bool
) -> None:
    """RFC 5041 does not forbid such a segment. The next message has its place and its MSN."""
    talk = Conversation()
    for segment in segments(payloads, tagged=tagged):
        talk.segment("10.7.0.2", segment)
    talk.untagged("10.7.0.2", SEND, b"next", msn=1 if tagged else 2)
    (result,) = send(talk.traffic())
    assert (result.messages, result.segments, result.empty) == (1, 1, len(payloads))
    assert result.taken == 1 + len(payloads) and not differences([result])


@pytest.mark.parametrize("payloads", WITH_EMPTY)
def test_a_message_with_an_empty_segment_is_left_out_over_sctp(
    payloads: tuple[bytes, ...],
) -> None:
    peers = Peers()
    peers.set_up()
    peers.open(0)
    for segment in segments(payloads, tagged=False):
        peers.send(A, peers.data(A, 0, Ppid.SEGMENT, segment))
    peers.send(A, peers.message(A, 0, b"next", msn=2))
    capture = capture_of(peers.frames, Path("test"))
    result, _ = send(with_sctp(traffic_of(capture), capture.sctp))
    assert (result.messages, result.segments, result.empty) == (1, 1, len(payloads))
    assert result.controls == 1 and not differences([result])


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("tagged", [True, False])
def test_a_message_without_octets_in_several_segments_differs(tagged: bool, count: int) -> None:
    """RFC 5041 section 5.2: "A zero-length DDP Message is allowed and MUST consume exactly one DDP
    Segment."
    """
    talk = Conversation()
    for segment in segments([b""] * count, tagged=tagged):
        talk.segment("10.7.0.2", segment)
    talk.untagged("10.7.0.2", SEND, b"next", msn=1 if tagged else 2)
    (result,) = send(talk.traffic())
    assert differences([result]) == ["an FPDU, frame 1, octet 2"]
    assert (result.segments, result.empty, result.taken) == (2, count - 1, count + 1)


def test_a_message_without_its_end_and_one_that_is_too_long_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sending, "LONGEST", 150)
    talk = Conversation()
    talk.message("10.7.0.2", SEND, bytes(100), bytes(100), bytes(100))
    talk.message("10.7.0.2", SEND, bytes(100), bytes(50))
    talk.untagged("10.7.0.2", SEND, bytes(100), last=False)
    (result,) = send(talk.traffic())
    assert (result.messages, result.segments, result.long, result.left_out) == (1, 2, 3, 1)
    assert result.taken == 6 and not differences([result])


#: The indexes of chunks that the capture lacks, of twelve. Numbers 4 to 6 are one message, and
#: numbers 7 to 9 are one tagged message.
HOLES = [{0}, {0, 1}, {3}, {2, 3}, {4}, {5}, {6}, {4, 5, 6}, {6, 7}, {7}, {8}, {9}, {11},
         {1, 5, 10}]  # fmt: skip


def twelve_chunks(peers: Peers, sid: int) -> list[DataChunk]:
    """Returns messages on two queues, and a tagged one, in chunks of one sender."""
    source = DataSource(118)
    segments = [source.untagged(qn, bytes(50))[0] for qn in (0, 3, 0, 0)]
    segments += source.untagged(0, bytes(250))
    segments += source.tagged(0x100, 0, bytes(250))
    segments += source.untagged(3, b"") + source.untagged(0, bytes(70))
    return [peers.data(A, sid, Ppid.SEGMENT, segment) for segment in segments]


@pytest.mark.parametrize("lost", HOLES, ids=str)
@pytest.mark.parametrize("wraps", [False, True], ids=["", "TSNs wrap"])
def test_a_sender_does_not_differ_where_the_capture_lacks_chunks(
    lost: set[int], wraps: bool
) -> None:
    peers = Peers(tsns=((1 << 32) - 6 if wraps else 1000, 5000))
    peers.set_up()
    peers.open(0)
    peers.open(1)
    for sid in range(2):
        for at, chunk in enumerate(twelve_chunks(peers, sid)):
            if sid or at not in lost:
                peers.send(A, chunk)
    peers.close(0)
    peers.close(1)
    results = send(over_sctp(peers))
    assert not differences(results)
    (one,) = (each for each in results if each.stream.number == 2 and each.segments)
    partly = sum(len(lost & group) for group in ({4, 5, 6}, {7, 8, 9}))
    assert one.segments + one.left_out == 12 - len(lost) and bool(one.left_out) <= bool(partly)
    assert sum(each.segments for each in results) == 12 + one.segments


@pytest.mark.parametrize("what", ["DDP-SSN", "MSN"])
@pytest.mark.parametrize("lost", [0, 1], ids=["nothing lost", "one lost"])
def test_a_number_that_no_missing_chunk_explains_differs(what: str, lost: int) -> None:
    """The capture lacks the first message, or nothing. The sender then skips one number more."""
    peers = Peers()
    peers.set_up()
    peers.open(0)
    first = peers.message(A, 0, b"first")
    peers.send(A, peers.message(A, 0, b"second") if lost else first)
    if what == "MSN":
        peers.send(A, peers.message(A, 0, b"third", msn=3 + lost))
    else:
        peers._ssn[A, 0] += 1
        peers.send(A, peers.message(A, 0, b"third"))
    assert len(differences(send(over_sctp(peers)))) == 1


def test_the_first_differences_of_a_sender_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "_TOLD", 2)
    talk = Conversation()
    for _ in range(5):
        talk.segment("10.7.0.2", DataSource(1000).untagged(0, b"octets")[0], spoil=True)
    (result,) = send(talk.traffic())
    assert len(result.differences) == 2 and result.differing == 5
    assert result.told()[2].expected == "3 further differences of this sender"


def test_parts_have_the_results_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    for path in [WORKLOAD, *KERNELS_SCTP]:
        found = traffic(path)
        whole, posts = send(found), dict[int, list[Post]]()
        monkeypatch.setattr(sending, "_SEGMENTS", 7)
        for results in send_in_parts(found):
            for each in results:
                posts.setdefault(each.stream.number, []).extend(each.posts)
            assert sum(len(post.sent) for each in results for post in each.posts) <= 40
        assert len(results) == len(whole)
        for each, other in zip(results, whole, strict=True):
            assert posts[each.stream.number] == other.posts
            assert replace(each, posts=[]) == replace(other, posts=[])


def test_the_command_says_what_differs_and_refuses_what_it_would_not_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = CliRunner().invoke(app.app, ["sim", str(WORKLOAD), "--send"])
    assert run.exit_code == outcome.DIFFERS, run.output
    assert "difference in an FPDU at frame" in run.stdout
    assert "differ: golden model and senders on 235 segments, RTL on 234 of them" in run.stdout
    assert "1 segment (the RTL has 4 untagged queues)" in run.stdout
    # Each part of the capture is sent by a device of its own.
    listed = [line for line in run.stdout.splitlines() if line.startswith("difference")]
    monkeypatch.setattr(sending, "_SEGMENTS", 40)
    parts = CliRunner().invoke(app.app, ["sim", str(WORKLOAD), "--send"])
    assert [line for line in parts.stdout.splitlines() if line.startswith("difference")] == listed
    assert "differ: golden model and senders on 235 segments, RTL on 234 of them" in parts.stdout
    run = CliRunner().invoke(app.app, ["sim", str(WORKLOAD), "--send", "--out", str(tmp_path)])
    assert run.exit_code == outcome.BAD_INPUT, run.output
    assert "--send takes no --regions, --out, --frame" in run.stderr


def test_the_command_counts_what_a_sender_may_do_and_the_device_does_not(tmp_path: Path) -> None:
    talk = Conversation()
    talk.message("10.7.0.2", SEND, b"octets", b"")
    talk.untagged("10.7.0.2", SEND, bytes(40_000))
    talk.untagged("10.7.0.2", SEND, b"next")
    octets, start = b"".join(each.raw for each in talk.traffic().arrivals), frames.first_octet(1000)
    packets = frames.handshake()
    for at in range(0, len(octets), 1400):
        part = octets[at : at + 1400]
        packets.append(frames.tcp_packet(frames.A, frames.B, start + at, part))
    write_pcap(frames.frames(packets), path := tmp_path / "choices.pcap")
    run = CliRunner().invoke(app.app, ["sim", str(path), "--send"])
    assert run.exit_code == 0, run.output
    assert "agree: golden model and senders on 2 segments, RTL on 1 of them" in run.stdout
    assert run.stdout.rstrip().endswith(
        "left out: 2 segments (golden model and RTL send no empty segment beside others of its"
        " message), 1 segment (the RTL sends segments of at most 32768 octets over MPA)"
    )

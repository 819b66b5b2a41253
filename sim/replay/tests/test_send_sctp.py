"""The RTL sends over SCTP (RFC 5043). A second RNIC has no part in it: the golden model's session
takes what leaves, Wireshark judges the frames, and the sentences of the RFC are the rules.
"""

from __future__ import annotations

import random
import struct
from pathlib import Path

import numpy as np
import pytest
from ddp_rnic.hdl.spec import commands, regs
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.hdl.spec.sctp import LONGEST_BODY, MOST_PRIVATE
from ddp_rnic.hdl.spec.send import ENTRY, Flag, Kind, Message, Piece, Record
from ddp_rnic.hdl.spec.stag import Access
from ddp_rnic.sim.engines.engine import (
    Drain,
    Fpdu,
    Operation,
    Outcome,
    Poll,
    Wait,
)
from ddp_rnic.sim.model.sctp import (
    ACCEPTS,
    INITIATES,
    DataChunk,
    Function,
    Packet,
    Ppid,
    SctpEvent,
    SegmentReceived,
    Session,
    SessionControl,
)
from ddp_rnic.sim.model.tests.test_tshark import TSHARK, tshark
from ddp_rnic.sim.replay.paths import example_path
from ddp_rnic.sim.replay.tests.test_send_plan import OTHER, RINGS, SIZE, STAG, STALLS
from ddp_rnic.sim.replay.tests.test_send_plan import Device as Rings

#: The simulator of 512 bits takes two minutes to build.
ORDINARY = (64, pytest.param(512, marks=pytest.mark.long))
#: Base-2 logarithm of the entries of a ring.
ENTRIES = 8
#: The streams of the tests: their association and their SCTP stream.
STREAMS = {1: (0, 7), 2: (0, 0xFFFF), 3: (1, 7)}
TSNS = (0xFFFF_FFFD, 100)


class Device(Rings):
    """Streams 1 and 2 are on one association, stream 3 on another one; each has a ring."""

    def __init__(self, width: int = 64, *, limits: dict[int, int] | None = None) -> None:
        self.config = RnicConfig(width=width, transmit=True, responder=True, mpa=False, sctp=True)
        octets = random.Random(1).randbytes(RINGS + 4 * (ENTRY << ENTRIES))
        self.memory = np.frombuffer(octets, np.uint8).copy()
        self.operations: list[Operation] = []
        self.producer, self.entries = [0] * 4, ENTRIES
        for association, tsn in enumerate(TSNS):
            first, count = ((1, 2), (3, 1))[association]
            self.do(
                commands.set_path(
                    association, example_path(7 - association), tsn=tsn, first=first, count=count
                ),
                commands.set_path_limit(association, tsn + (1 << 30), 1 << 30),
            )
        for stag, address, pd in ((STAG, 0, 1), (OTHER, SIZE, 2)):
            region = {"to": 0x5000, "length": SIZE, "address": address, "pd": pd}
            self.do(commands.set_stag(stag, Access.LOCAL_READ, **region))
        for stream, (association, sid) in STREAMS.items():
            limit = (limits or {}).get(stream)
            if limit is not None:
                self.do(commands.set_limit(stream, limit))
            self.do(
                commands.set_stream(stream, pd=1 if stream == 1 else 2),
                commands.set_mulpdu(stream, 1000),
                commands.set_sending_sctp(
                    stream, association=association, sid=sid, limited=limit is not None
                ),
                *(commands.set_sent_msn(stream, qn, 1) for qn in range(4)),
                commands.set_send_ring(stream, self.ring(stream), ENTRIES),
            )

    def post(self, stream: int, *messages: Message) -> None:
        for message in messages:
            self.store(stream, message.encode())
        self.do(commands.ring_send(stream, self.producer[stream]))

    def octets(self, stream: int, to: int, length: int) -> bytes:
        at = to - 0x5000 + (stream != 1) * SIZE
        return self.memory[at : at + length].tobytes()


def control(function: int, private: bytes = b"") -> Message:
    return Message(Kind.CONTROL, Flag.INLINE, octets=private, rsvdulp=function << 24)


def write(stag: int = STAG, length: int = 2500, to: int = 0x5003) -> Message:
    return Message(Kind.TAGGED, pieces=(Piece(stag, length, to),), stag=0xABC)


def chunk_of(frame: Fpdu) -> DataChunk:
    """Returns the chunk of a frame, whose packet must have a right CRC32C and one chunk."""
    stream = frame.stream
    path = example_path(7 - STREAMS[stream][0])
    assert frame.octets[:12] == path.headers[:12]
    packet = Packet.parse(frame.octets[len(path.headers) :])
    assert (packet.source, packet.destination) == (path.source_port, path.destination_port)
    (chunk,) = packet.chunks
    assert isinstance(chunk, DataChunk)
    assert (packet.tag, chunk.tsn, chunk.stream) == (
        path.tag, frame.sequence, STREAMS[stream][1],
    )  # fmt: skip
    return chunk


def chunks(outcome: Outcome, stream: int) -> list[DataChunk]:
    """Returns the chunks of a stream, which has DDP-SSNs without a gap.

    RFC 5043 section 6: "The DDP-SSNs assigned to the Data Chunks for a session MUST NOT have any
    gaps." Section 10: "The adaptation layer MUST use the Unordered option on all Data Chunks".
    """
    found = [chunk_of(each) for each in outcome.frames if each.stream == stream]
    ssns = [int.from_bytes(each.payload[:2], "big") for each in found]
    assert ssns == list(range(len(found)))
    assert all(each.unordered and each.beginning and each.ending for each in found)
    return found


def payload(outcome: Outcome, stream: int) -> bytes:
    """Returns the payload of a stream's tagged segments."""
    return b"".join(each.payload[16:] for each in chunks(outcome, stream))


def tsns(outcome: Outcome, association: int) -> list[int]:
    """Returns the TSNs of an association's chunks, as they left."""
    return [each.sequence for each in outcome.frames if STREAMS[each.stream][0] == association]


@pytest.mark.parametrize("enhanced", [False, True])
@pytest.mark.parametrize("width", ORDINARY)
def test_a_session_of_the_device_is_legal_for_the_golden_model(width: int, enhanced: bool) -> None:
    """RFC 5043 section 5.2.3: "ULP-supplied Private Data MUST be included for DDP Stream Session
    Initiate"; section 6.1: "The DDP-SSN is reset to zero at the beginning of each DDP Stream
    Session." RFC 6581 section 7: an enhanced session "follows the same rules".
    """
    initiate, accept = INITIATES[enhanced], ACCEPTS[enhanced]
    device, private = Device(width), bytes(range(256)) * 2
    device.post(1, control(initiate, private))
    device.post(1, write(), Message(Kind.UNTAGGED, Flag.INLINE, octets=b"a Send", qn=0))
    device.post(1, write(length=0), control(Function.TERMINATE))
    outcome = device.run(STALLS)
    session, peer = Session(7), Session(7)
    session.control(initiate, private)
    events: list[SctpEvent] = []
    for each in chunks(outcome, 1):
        if each.ppid == Ppid.SEGMENT and not peer.silent and len(events) == 1:
            peer.control(accept, bytes(4 * enhanced))
        events += peer.receive(each.ppid, each.payload)
    opened, *segments, ended = events
    assert isinstance(opened, SessionControl) and opened.function is initiate
    assert opened.private_data == private
    assert isinstance(ended, SessionControl) and ended.function is Function.TERMINATE
    assert all(isinstance(each, SegmentReceived) for each in segments) and len(segments) == 5
    assert outcome.counters["SENT"] == 7


@pytest.mark.parametrize("width", ORDINARY)
def test_tsns_follow_one_another_over_all_streams_of_an_association(width: int) -> None:
    """RFC 9260 section 3.3.1: a TSN counts DATA chunks of the association, and wraps."""
    device = Device(width)
    for _ in range(6):
        for stream in STREAMS:
            device.post(stream, write(STAG if stream == 1 else OTHER))
    outcome = device.run(STALLS)
    for association, first in enumerate(TSNS):
        found = tsns(outcome, association)
        assert found == [(first + k) % (1 << 32) for k in range(len(found))]
    assert {len(chunks(outcome, stream)) for stream in STREAMS} == {18}
    for stream in STREAMS:
        assert payload(outcome, stream) == 6 * device.octets(stream, 0x5003, 2500)


@pytest.mark.parametrize(
    "erring",
    {
        "an STag that is not known": write(0x9900),
        "more Private Data than 512 octets": control(Function.INITIATE, bytes(MOST_PRIVATE + 1)),
    }.items(),
    ids=lambda item: item[0],
)
def test_a_message_that_errs_ends_its_stream_and_leaves_its_association_alone(
    erring: tuple[str, Message],
) -> None:
    """RFC 5043 section 11.3: "termination of a DDP Stream does not mandate termination of the
    Association." A chunk that does not leave takes no TSN.
    """
    name, message = erring
    device = Device()
    for _ in range(3):
        device.post(1, write())
        device.post(2, write(OTHER))
    device.post(1, message, write())
    for _ in range(3):
        device.post(2, write(OTHER))
    device.operations.append(Drain())
    for stream in (1, 2):
        state = regs.pack("SEND_STATE", failed=int(stream == 1), open=int(stream != 1))
        device.do((commands.Write("SEND_STREAM", stream),))
        device.operations.append(Poll(regs.address("SEND_STATE"), 3, state))
    outcome = device.run(STALLS)
    assert len(chunks(outcome, 1)) == 9, name
    assert payload(outcome, 2) == 6 * device.octets(2, 0x5003, 2500)
    found = tsns(outcome, 0)
    assert found == [(TSNS[0] + k) % (1 << 32) for k in range(len(found))]


def test_a_read_that_the_bus_refuses_takes_no_tsn() -> None:
    device = Device()
    device.post(2, write(OTHER))
    device.post(1, write(length=900), write(to=0x7000, length=64), write())
    device.post(2, write(OTHER))
    outcome = device.run(STALLS, faults=[range(0x2020, 0x2021)])
    assert payload(outcome, 1) == device.octets(1, 0x5003, 900)
    assert payload(outcome, 2) == 2 * device.octets(2, 0x5003, 2500)
    found = tsns(outcome, 0)
    assert found == [(TSNS[0] + k) % (1 << 32) for k in range(7)]


@pytest.mark.parametrize("octets", [LONGEST_BODY - 14, LONGEST_BODY - 13])
def test_a_chunk_is_as_long_as_the_device_keeps_octets_and_no_longer(octets: int) -> None:
    device = Device()
    device.do(commands.set_mulpdu(1, 1 << 15))
    device.post(1, write(length=octets), write())
    device.post(2, write(OTHER))
    outcome = device.run()
    whole = device.octets(1, 0x5003, octets) + device.octets(1, 0x5003, 2500)
    assert payload(outcome, 1) == (whole if octets == LONGEST_BODY - 14 else b"")
    assert payload(outcome, 2) == device.octets(2, 0x5003, 2500)


@pytest.mark.parametrize("width", ORDINARY)
def test_no_chunk_leaves_that_has_no_credit(width: int) -> None:
    """RFC 5043 section 10: "the sending DDP must simply refrain from sending more than 32767 Data
    Chunks for a single stream without acknowledgment." The limit is moved step by step.
    """
    device, steps = Device(width, limits={1: 0}), (0, 1, 1, 3, 4, 9, 30)
    for _ in range(6):
        device.post(1, control(Function.INITIATE, b"x"), write())
        device.post(2, write(OTHER))
    for limit in steps:
        device.do(commands.set_limit(1, limit))
        device.operations.append(Wait(3000))
    outcome = device.run(STALLS)
    assert len(chunks(outcome, 1)) == 24 and len(chunks(outcome, 2)) == 18
    sent = [each.first for each in outcome.frames if each.stream == 1]
    pauses = [at for at in range(1, 24) if sent[at] - sent[at - 1] > 2000]
    assert pauses == [1, 3, 4, 9]


@pytest.mark.parametrize("width", ORDINARY)
def test_a_chunk_leaves_again_with_its_tsn_and_its_ddp_ssn(width: int) -> None:
    """RFC 9260 section 6.2 calls it a retransmission: the same TSN, and the same octets."""
    device = Device(width)
    device.post(1, control(Function.INITIATE, b"hello"), write())
    device.post(2, write(OTHER))
    device.operations.append(Drain())
    first = device.run()
    wanted = [each for each in first.frames if each.stream == 1]
    for each in (*reversed(wanted), wanted[1]):
        chunk, record = chunk_of(each), Record.decode(each.record)
        device.do(
            commands.repeat(
                1, chunk.tsn, entry=record.entry, entries=record.entries, offset=record.offset,
                length=len(chunk.payload) - 2, ssn=int.from_bytes(chunk.payload[:2], "big"),
            )
        )  # fmt: skip
    device.operations.append(Drain())
    device.post(1, write())
    outcome = device.run(STALLS)
    again = [each for each in outcome.frames if Record.decode(each.record).repeat]
    assert [each.octets for each in again] == [
        each.octets for each in (*reversed(wanted), wanted[1])]  # fmt: skip
    found = [each.sequence for each in outcome.frames if not Record.decode(each.record).repeat]
    assert found == [(TSNS[0] + k) % (1 << 32) for k in range(10)]


@pytest.mark.parametrize("width", ORDINARY)
@pytest.mark.parametrize("number", [0, 5])
def test_a_frame_takes_its_beats_on_the_port(width: int, number: int) -> None:
    """Budget: as many cycles as the frame has beats, and one more if it does not begin with the
    first lane of a row. The bus also reads the ring: 1 % are for that.
    """
    device, path, octets = Device(width), example_path(number), width // 8
    device.do(commands.set_path(0, path, tsn=0), commands.set_mulpdu(1, 994))
    device.post(1, write(length=49_000))
    frames = device.run().frames
    assert len(frames) == 50
    cycles = -(-len(frames[0].octets) // octets) + (4 * path.first % octets > 0)
    assert frames[-1].last - frames[0].last <= 1.01 * 49 * cycles


@pytest.mark.skipif(not TSHARK, reason="tshark is not installed")
def test_wireshark_finds_no_error_in_the_frames(tmp_path: Path) -> None:
    """Over IPv4 and IPv6, in UDP and not, with VLAN tags and without; all checksums on."""
    frames = []
    for base in range(0, 8, 2):
        device = Device()
        for association in range(2):
            device.do(commands.set_path(association, example_path(base + association), tsn=1 << 20))
        device.post(1, control(Function.INITIATE, b"abc"), write(), control(Function.TERMINATE))
        device.post(3, control(Function.ACCEPT), write(OTHER, 777))
        frames += [each.octets for each in device.run(STALLS).frames]
    assert len(frames) == 4 * 7
    path = tmp_path / "sent.pcap"
    header = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 1 << 16, 1)
    path.write_bytes(header + b"".join(
        struct.pack("<IIII", at, 0, len(each), len(each)) + each
        for at, each in enumerate(frames)))  # fmt: skip
    options = [
        item
        for name in ("sctp.checksum:CRC-32C", "ip.check_checksum:TRUE", "udp.check_checksum:TRUE",
                     "udp.ignore_ipv6_zero_checksum:FALSE")
        for item in ("-o", name)
    ]  # fmt: skip
    bad = tshark(
        path, *options, "-Y",
        "_ws.malformed || sctp.checksum.status == 0 || sctp.checksum.status == 2"
        " || ip.checksum.status == 0 || udp.checksum.status == 0"
        " || _ws.expert.severity >= 0x600000",
    )  # fmt: skip
    assert bad == ""
    seen = tshark(
        path, *options, "-Y", "sctp.chunk_type == 0", "-T", "fields", "-e", "sctp.checksum.status",
        "-e", "sctp.data_payload_proto_id",
    )  # fmt: skip
    assert sorted(line.split()[1] for line in seen.splitlines()) == ["16"] * 16 + ["17"] * 12
    assert {line.split()[0] for line in seen.splitlines()} == {"1"}

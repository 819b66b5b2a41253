"""Tests of DDP over SCTP: the view of its ends, the host's actions, and the RNIC's required
results.
"""

from __future__ import annotations

import ipaddress
import random
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from ddp_rnic.hdl.lib.tests.long import first
from ddp_rnic.hdl.spec import regs
from ddp_rnic.hdl.spec.completion import ChunkStatus, Kind
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.hdl.spec.ddp import (
    INVALID_MO,
    INVALID_STAG,
    LOCAL_CATASTROPHIC,
    MSN_RANGE,
    NO_BUFFER,
    WAITING,
)
from ddp_rnic.hdl.spec.sctp import Diversion, Reason
from ddp_rnic.hdl.spec.sctp import State as RnicState
from ddp_rnic.sim.capture.capture import Assumption, Capture, capture_of
from ddp_rnic.sim.capture.layers import ip_packet
from ddp_rnic.sim.capture.pcap import Frame
from ddp_rnic.sim.capture.sctp_frames import sctp_frame
from ddp_rnic.sim.capture.sctp_traffic import (
    Abort,
    Control,
    Enter,
    Fate,
    Illegal,
    Incoming,
    Item,
    Leave,
    SctpTraffic,
    Tell,
)
from ddp_rnic.sim.capture.tests.associations import (
    PORTS,
    READ_REQUEST,
    SEND,
    SEND_INVALIDATE,
    A,
    B,
    Peers,
    numbered,
    sctp_in_ip,
)
from ddp_rnic.sim.capture.tests.frames import ethernet
from ddp_rnic.sim.capture.traffic import Traffic, traffic_of, with_sctp
from ddp_rnic.sim.capture.unplayed import unplayed_sctp
from ddp_rnic.sim.engines.choice import load
from ddp_rnic.sim.engines.engine import Drain, Operation, Outcome, Poll, WriteRegister
from ddp_rnic.sim.engines.engine import Frame as FrameIn
from ddp_rnic.sim.engines.tests.fake_engine import FakeEngine
from ddp_rnic.sim.model.header import TaggedHeader, UntaggedHeader
from ddp_rnic.sim.model.sctp import (
    ACCEPTS,
    INITIATES,
    AnyChunk,
    Association,
    Chunk,
    ChunkType,
    DataChunk,
    Function,
    Packet,
    Ppid,
    SctpEvent,
    SegmentReceived,
    SessionIllegal,
    State,
    checksum,
)
from ddp_rnic.sim.replay.differences import Difference, find_differences
from ddp_rnic.sim.replay.expectation import Expected, Record
from ddp_rnic.sim.replay.plan import Plan, plan
from ddp_rnic.sim.replay.regions import Region, RegionError
from ddp_rnic.sim.replay.sctp_expectation import SctpGolden
from ddp_rnic.sim.replay.sctp_regions import derive_all, of_sessions
from ddp_rnic.sim.replay.sending import send
from ddp_rnic.sim.replay.tests.agreeing import run

T = 1  # the flag of an ABORT or SHUTDOWN COMPLETE with the sender's own Verification Tag
STAG = 0x1234500
TERMINATE = Function.TERMINATE
#: IRD and ORD (RFC 6581 section 9).
LIMITS = bytes.fromhex("0004 0002")
#: The answers that fit an Initiate, and those that fit an Enhanced Initiate.
ANSWERS = (
    (Function.ACCEPT, Function.REJECT, TERMINATE),
    (Function.ENHANCED_ACCEPT, Function.ENHANCED_REJECT, Function.REJECT, TERMINATE),
)


def traffic(frames: Iterable[Frame]) -> Traffic:
    capture = capture_of(frames, Path("test"))
    return with_sctp(traffic_of(capture), capture.sctp)


def sctp(frames: Iterable[Frame]) -> SctpTraffic:
    found = traffic(frames).sctp
    assert found is not None
    return found


def left_out(frames: Iterable[Frame]) -> list[str]:
    capture = capture_of(frames, Path("test"))
    found = with_sctp(traffic_of(capture), capture.sctp)
    return [str(each) for each in unplayed_sctp(capture.sctp, found.sctp)]


def plans_of(frames: Iterable[Frame], regions: list[Region] | None = None) -> list[Plan]:
    """Returns plans with which the stand-in agrees."""
    played = traffic(frames)
    if regions is None:
        derived = derive_all(played)
        plans, _ = plan(played, derived.regions, RnicConfig(), derived.ends)
    else:
        plans, _ = plan(played, of_sessions(regions, played), RnicConfig())
    for each in plans:
        run(each)
    return plans


def plan_of(frames: Iterable[Frame], regions: list[Region] | None = None) -> Plan:
    (only,) = plans_of(frames, regions)
    return only


def golden(planned: Plan) -> SctpGolden:
    assert isinstance(planned.golden, SctpGolden)
    return planned.golden


def octets_of(planned: Plan, stag: int, session: tuple[int, int] | None = None) -> bytes:
    memory = run(planned)
    found = next(
        each
        for each in planned.allotments
        if each.region.stag == stag and (session is None or each.region.session == session)
    )
    return memory[found.address : found.end].tobytes()


def items(found: SctpTraffic, host: str = B) -> list[Item]:
    """Returns the DATA chunks that arrive."""
    return [
        item
        for step in found.steps
        if isinstance(step, Incoming) and step.host == host
        for item in step.items
        if item.stream is not None
    ]


def statuses(frames: Iterable[Frame], host: str = B) -> list[str]:
    return [item.status.name for item in items(sctp(frames), host) if item.status is not None]


def told(found: SctpTraffic, host: str) -> list[str]:
    return [
        step.function.name for step in found.steps if isinstance(step, Tell) and step.host == host
    ]


def records(planned: Plan, kind: Kind) -> list[Expected]:
    return [
        entry
        for entries in golden(planned).sequences().values()
        for entry in entries
        if entry.completion.kind is kind
    ]


def session_events(planned: Plan) -> list[tuple[Reason, int]]:
    return [
        (Reason(each.completion.status), each.completion.tag)
        for each in records(planned, Kind.SESSION)
    ]


def opened(**options: Any) -> Peers:
    """Returns an association with a session on SCTP stream 0."""
    peers = Peers(**options)
    peers.set_up()
    peers.open(0)
    return peers


# -- associations --


@pytest.mark.parametrize("ends", [(A, B), ("2001:db8::1", "2001:db8::2")], ids=["v4", "v6"])
@pytest.mark.parametrize("udp", [False, True], ids=["alone", "udp"])
def test_an_association_is_entered_by_both_ends(ends: tuple[str, str], udp: bool) -> None:
    a, b = ends
    peers = opened(a=a, b=b, udp=udp)
    peers.send(a, peers.write(a, 0, STAG, 100, b"to b"))
    peers.send(b, peers.write(b, 0, STAG << 1, 200, b"to a"))
    peers.close(0)
    found = sctp(peers.frames)
    assert [step.host for step in found.steps if isinstance(step, Enter)] == [a, b]
    fates = [(step.host, step.fate) for step in found.steps if isinstance(step, Incoming)]
    # INIT and INIT ACK precede it; the COOKIE ECHO belongs to the association.
    assert fates[:3] == [(b, Fate.DIVERTED), (a, Fate.DIVERTED), (b, Fate.TAKEN)]
    assert {fate for _, fate in fates[2:]} == {Fate.TAKEN}
    assert told(found, a) == ["INITIATE", "TERMINATE"]
    assert told(found, b) == ["ACCEPT", "TERMINATE"]
    planned = plan_of(peers.frames)
    assert octets_of(planned, STAG) == b"to b" and octets_of(planned, STAG << 1) == b"to a"
    (first, *_) = golden(planned).exceptions
    assert first.reason == Diversion.FRAME and first.octets == peers.frames[0].octets


def test_entries_and_commands_come_before_the_frames_that_need_them() -> None:
    peers = opened()
    peers.send(A, peers.write(A, 0, STAG, 0, b"1"))
    operations = plan_of(peers.frames).operations
    names = {register.address: register.name for register in regs.REGISTERS}

    def at(name: str, value: int | None = None) -> list[int]:
        return [
            number
            for number, each in enumerate(operations)
            if isinstance(each, WriteRegister)
            and names[each.address] == name
            and value in (None, each.value)
        ]

    frames = [number for number, each in enumerate(operations) if isinstance(each, FrameIn)]
    entered, commands = at("ASSOC_COMMIT"), at("SESSION_COMMAND")
    # The active end is set up once it has the INIT ACK, the passive end before the COOKIE ECHO.
    assert frames[1] < entered[0] < entered[1] < frames[2]
    forget_a, forget_b, initiate, accept = commands
    assert entered[0] < forget_a < entered[1] < forget_b < frames[2]
    assert frames[3] < initiate < frames[4] < accept < frames[5]
    written = [operations[number] for number in at("SESSION_TSN")]
    tsns = [each.value for each in written if isinstance(each, WriteRegister)]
    assert tsns == [4999, 999, 4999]  # the past of B and A; A has received nothing yet
    for number in commands:
        assert isinstance(operations[number + 1], Poll)
        assert isinstance(_before(operations, number), Drain | FrameIn | Poll)
    # The stream is set up before the session is asked for, and accepted.
    set_up = at("STREAM_COMMIT")
    assert frames[3] < set_up[0] < initiate and frames[4] < set_up[1] < accept
    assert set_up[1] < at("STAG_COMMIT")[0] < accept


def _before(operations: list[Operation], number: int) -> Operation:
    """Returns the operations before those that write these registers."""
    while isinstance(operations[number], WriteRegister):
        number -= 1
    return operations[number]


def test_data_may_come_with_the_cookie_echo() -> None:
    peers = Peers()
    peers.set_up(peers.control(A, 0, Function.INITIATE, b"private"))
    peers.send(B, peers.control(B, 0, Function.ACCEPT))
    assert statuses(peers.frames) == statuses(peers.frames, A) == ["TAKEN"]
    plan_of(peers.frames, [])


@pytest.mark.parametrize("adaptations", [(None, 1), (1, None), (1, 2)])
def test_without_the_indication_there_is_no_ddp(adaptations: tuple[int | None, int | None]) -> None:
    peers = opened(adaptations=adaptations)
    found = traffic(peers.frames)
    assert found.sctp is None
    assert all("Adaptation Indication" in note for note in found.notes) and found.notes


def test_without_the_handshake_there_is_no_ddp() -> None:
    peers = opened()
    found = traffic(peers.frames[4:])
    (note,) = found.notes
    assert found.sctp is None and "set-up is not in the capture" in note


@pytest.mark.parametrize(
    "how",
    [
        *("abort", "abort without association"),
        *("shutdown", "shutdown without association", "restart"),
    ],
)
def test_an_association_may_follow_another_one(how: str) -> None:
    peers = opened()
    peers.send(A, peers.write(A, 0, STAG, 0, b"first"))
    if how == "abort":
        peers.send(B, Chunk(ChunkType.ABORT))
    elif how == "abort without association":
        peers.send(B, Chunk(ChunkType.ABORT, T), tag=peers.tags[B])
    elif how != "restart":
        peers.send(A, Chunk(ChunkType.SHUTDOWN, 0, bytes(4)))
        peers.send(B, Chunk(ChunkType.SHUTDOWN_ACK))
        reflected = how == "shutdown without association"
        tag = peers.tags[A if reflected else B]
        peers.send(A, Chunk(ChunkType.SHUTDOWN_COMPLETE, T * reflected), tag=tag)
    ended = peers.frames[-1].number
    again = Peers(tags=(7, 8), tsns=(1, 0xFFFFFFFF), frames=peers.frames)
    again.set_up()
    again.open(0)
    again.send(A, again.write(A, 0, STAG, 0, b"other"))
    late = peers.send(A, peers.write(A, 0, STAG, 0, b"late!"))
    found = sctp(peers.frames)
    left = [step.frame for step in found.steps if isinstance(step, Leave)]
    # At a restart, one end leaves with its INIT, and the other one with the COOKIE ECHO.
    assert left == ([ended + 1, ended + 3] if how == "restart" else [ended, ended])
    by_frame = {step.frame: step for step in found.steps if isinstance(step, Incoming)}
    assert by_frame[late.number].fate is Fate.DIVERTED
    planned = plan_of(peers.frames)
    assert octets_of(planned, STAG, (0, 0)) == b"first"
    assert octets_of(planned, STAG, (0, 1)) == b"other"


def bundled_init(peers: Peers) -> None:
    other = Peers(tags=(7, 8), frames=peers.frames)
    other.send(A, other.inits[A], Chunk(ChunkType.HEARTBEAT), tag=0)


def init_alone(peers: Peers) -> None:
    other = Peers(tags=(7, 8), frames=peers.frames)
    other.send(A, other.inits[A], tag=0)
    other.send(B, replace(other.inits[B], acknowledges=True))


@pytest.mark.parametrize(
    "act",
    [
        # RFC 9260 section 8.5.1 C: "An endpoint MUST ignore the SHUTDOWN COMPLETE chunk if it is
        # not in the SHUTDOWN-ACK-SENT state."
        lambda peers: peers.send(A, Chunk(ChunkType.SHUTDOWN_COMPLETE)),
        lambda peers: peers.send(A, Chunk(ChunkType.SHUTDOWN_COMPLETE, T), tag=peers.tags[A]),
        # B: the T bit belongs to the sender's own tag.
        lambda peers: peers.send(A, Chunk(ChunkType.ABORT), tag=peers.tags[A]),
        lambda peers: peers.send(A, Chunk(ChunkType.ABORT, T)),
        # Section 3: an INIT "MUST NOT be bundled with any other chunk"; section 8.5.1 A: its tag is
        # 0.
        bundled_init,
        lambda peers: peers.send(A, replace(peers.inits[A], tag=7)),
        # Section 5.2.2: after the answer to an INIT "the existing association, including its
        # current state, and the corresponding TCB MUST NOT be changed".
        init_alone,
    ],
)
def test_what_ends_no_association_changes_nothing(act: Callable[[Peers], object]) -> None:
    peers = opened()
    peers.send(A, peers.write(A, 0, STAG, 0, b"one"))
    act(peers)
    peers.send(A, peers.write(A, 0, STAG, 3, b"two"))
    peers.send(B, peers.write(B, 0, STAG, 0, b"back"))
    peers.close(0)
    found = sctp(peers.frames)
    assert not any(isinstance(step, Leave) for step in found.steps)
    assert statuses(peers.frames, A) == ["TAKEN"] * 3 and told(found, A)[-1] == "TERMINATE"
    assert statuses(peers.frames, B) == ["TAKEN"] * 4 and told(found, B)[-1] == "TERMINATE"
    assert left_out(peers.frames) == []


def test_chunks_after_the_end_of_an_association_are_named_so() -> None:
    peers = opened()
    peers.send(B, Chunk(ChunkType.ABORT))
    peers.send(A, peers.write(A, 0, STAG, 0, b"late"))
    (left,) = left_out(peers.frames)
    assert "before the set-up of its association was complete, or after its end: frame 8" in left


@pytest.mark.parametrize("end", [A, B])
@pytest.mark.parametrize("limit", [{"inbound": 2}, {"outbound": 2}], ids=str)
def test_an_association_has_the_streams_that_both_ends_allow(
    end: str, limit: dict[str, Any]
) -> None:
    # RFC 9260 section 5.1.1: "the valid outbound stream identifier range for either endpoint MUST
    # be 0 to min(local OS, remote MIS) - 1."
    peers = Peers()
    peers.inits[end] = replace(peers.inits[end], **limit)
    peers.set_up()
    for sid in (1, 2):
        peers.open(sid)
        peers.send(A, peers.write(A, sid, STAG, sid, b"x"))
    found = sctp(peers.frames)
    assert {each.sid for each in found.streams} == {0, 1}
    assert [str(each.stream)[-1] for each in found.arrivals] == ["1"]
    (left,) = left_out(peers.frames)
    assert left.startswith("3 DATA chunks (on an SCTP stream that is not among those")


def test_a_chunk_on_a_stream_that_no_end_offers_takes_no_places() -> None:
    """The window is as large as the streams of the INITs allow (RFC 9260 section 5.1.1)."""
    peers = opened()
    peers.send(A, peers.message(A, 16000, b"odd"))
    peers.message(A, 0, b"lost")
    for _ in range(5):
        peers.send(A, peers.message(A, 0, b"ahead"))
    assert not any("ahead of a missing one" in note for note in sctp(peers.frames).notes)
    (left, *_) = left_out(peers.frames)
    assert left.startswith("1 DATA chunk (on an SCTP stream that is not among those")


@pytest.mark.parametrize("known", ["of the INIT", "added", "none"])
def test_a_second_path_is_of_the_association_that_has_its_addresses(known: str) -> None:
    """RFC 9260 section 5.1.2: an INIT lists the addresses of its sender beside that of its packet.
    RFC 5061 section 4.2.1: an ASCONF chunk adds one.
    """
    peers = Peers()
    others = {end: bytes([10, 8, 0, number]) for number, end in enumerate((A, B), 1)}
    if known == "of the INIT":
        for end, octets in others.items():
            own = peers.inits[end]
            peers.inits[end] = replace(own, parameters=(*own.parameters, (5, octets)))
    peers.set_up()
    peers.open(0)
    if known == "added":
        for end, octets in others.items():
            address = struct.pack(">HH", 5, 8) + octets
            add = struct.pack(">IHHI", 1, 0xC001, 16, 7) + address
            peers.send(end, Chunk(0xC1, 0, bytes(4) + address + add[4:]))
    frame = peers.send(A, peers.write(A, 0, STAG, 0, b"path"))
    packet = frame.octets[34 : 34 + 12 + 16 + 2 + 14 + 4]
    other = ethernet(sctp_in_ip("10.8.0.1", "10.8.0.2", packet + bytes(-len(packet) % 4)))
    peers.frames[-1] = replace(frame, octets=other)
    if known == "none":
        assert not sctp(peers.frames).arrivals
        (left,) = (each for each in left_out(peers.frames) if "DDP" in each)
        assert left.startswith("1 DDP chunk (from or to an address that its association does not")
        return
    planned = plan_of(peers.frames)
    assert planned.endpoints == (A, B) and octets_of(planned, STAG) == b"path"


HOMES = {A: "10.8.0.1", B: "10.8.0.2"}


def moved(frame: Frame, source: str, destination: str) -> Frame:
    """Returns a frame with other addresses of its ends."""
    packet = sctp_in_ip(source, destination, frame.octets[34 : 14 + frame_length(frame)])
    return replace(frame, octets=ethernet(packet))


def frame_length(frame: Frame) -> int:
    return int.from_bytes(frame.octets[16:18], "big")


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("step", [1, 2, 3], ids=["INIT ACK", "COOKIE ECHO", "COOKIE ACK"])
def test_a_handshake_may_use_any_address_that_its_ends_declare(step: int, declared: bool) -> None:
    """RFC 9260 section 5.1.2: an endpoint's addresses are those in its INIT or INIT ACK."""
    peers = Peers()
    for end, other in HOMES.items() if declared else ():
        own = peers.inits[end]
        listed = [(5, ipaddress.ip_address(each).packed) for each in (end, other)]
        peers.inits[end] = replace(own, parameters=(*own.parameters, *listed))
    peers.set_up()
    frame, sender = peers.frames[step], (A, B)[step % 2]
    other = peers.other(sender)
    there = other if step == 1 else HOMES[other]  # an INIT ACK answers the address of the INIT
    peers.frames[step] = moved(frame, HOMES[sender], there)
    peers.open(0)
    peers.send(A, peers.message(A, 0, b"text"))
    found = traffic(peers.frames).sctp
    assert len(found.arrivals if found else ()) == (declared or step == 3)
    assert not declared or left_out(peers.frames) == []


def collisions() -> Iterator[tuple[str, ...]]:
    """Yields the orders in which two ends may set an association up at the same time.

    A step is I for INIT, A for INIT ACK, E for COOKIE ECHO or K for COOKIE ACK, and the sender.
    """
    needs = {"A1": "I0", "A0": "I1", "E0": "A1", "E1": "A0", "K1": "E0", "K0": "E1"}
    for steps in ("I0 I1 A0 A1 E0 K1", "I0 I1 A0 A1 E0 E1 K0 K1", "I0 I1 A1 E0 K1"):
        for order in permutations(steps.split()):
            if all(order.index(needs.get(step, step)) <= at for at, step in enumerate(order)):
                yield order
                yield tuple(step[0] + "10"[int(step[1])] for step in order)


def test_two_ends_may_set_their_association_up_at_the_same_time() -> None:
    """RFC 9260 section 5.2.1: an end that has sent an INIT, and gets one, answers with an INIT ACK
    that has the tag of its INIT.
    """
    orders = {*collisions()}
    assert ("I0", "I1", "A0", "A1", "E0", "K1") in orders
    for order in orders:
        peers = Peers()
        for step in order:
            end = peers.ends[int(step[1])]
            chunks: dict[str, AnyChunk] = {
                "I": peers.inits[end],
                "A": replace(peers.inits[end], acknowledges=True),
                "E": Chunk(ChunkType.COOKIE_ECHO, 0, b"cookie"),
                "K": Chunk(ChunkType.COOKIE_ACK),
            }
            peers.send(end, chunks[step[0]], tag=0 if step[0] == "I" else None)
        peers.open(0)
        for end in peers.ends:
            peers.send(end, peers.message(end, 0, b"text"))
        found = sctp(peers.frames)
        assert (len(found.ends), len(found.arrivals)) == (2, 2), order


def test_other_hosts_may_use_the_same_ports_and_tags() -> None:
    """RFC 9260 section 1.4: "An association can be uniquely identified by the transport addresses
    used by the endpoints in the association."
    """
    peers = opened()
    others = Peers("10.9.0.1", "10.9.0.2", frames=peers.frames)
    others.set_up()
    others.open(0)
    for each, end in ((peers, A), (others, "10.9.0.1")):
        each.send(end, each.write(end, 0, STAG, 0, end.encode()))
    found = sctp(peers.frames)
    assert [end.paths for end in found.ends if end.streams[0] in {
        arrival.stream for arrival in found.arrivals
    }] == [((A, B),), (("10.9.0.1", "10.9.0.2"),)]  # fmt: skip
    assert len(found.arrivals) == 2


# -- frames --


def test_a_packet_without_padding_is_not_called_damaged() -> None:
    """RFC 9260 section 3.2: "If the length of the chunk is not a multiple of 4 bytes, the sender
    MUST pad the chunk with all zero bytes"; the CRC32c of this packet is right.
    """
    peers = opened()
    body = Packet(PORTS[A], PORTS[B], peers.tags[B], (peers.message(A, 0, b"three"),)).encode()[:-3]
    body = body[:8] + checksum(body) + body[12:]
    packet = sctp_in_ip(A, B, body)
    number = len(peers.frames) + 1
    peers.frames.append(Frame(number, number * 1e-3, 1, ethernet(packet)))
    (left,) = left_out(peers.frames)
    sentence = "its length is not a multiple of 4, RFC 9260 section 3.2"
    assert left == f"1 SCTP packet ({sentence}: frame {number})"


def test_ddp_in_chunks_that_no_rnic_takes_is_left_out() -> None:
    """RFC 8260 section 2.1: only the first fragment of a message has its PPID."""
    peers = opened()
    segment = peers.message(A, 0, b"interleaved").encode()
    for flags, mid, ppid in ((2, 0, Ppid.SEGMENT), (0, 0, 1), (1, 0, 2), (3, 1, 99), (7, 0, 99)):
        fields = struct.pack(">IHHII", 2000 + flags, 0, 0, mid, ppid)
        peers.send(A, Chunk(64, flags, fields + segment[16:]))
    peers.send(A, Chunk(194, 0, bytes(4)))
    peers.send(A, Chunk(192, 0, bytes(4)))
    first = len(peers.frames) - 6
    i_data, skips, older = left_out(peers.frames)
    assert i_data == (
        "3 I-DATA chunks (no RNIC takes this chunk, RFC 8260; RFC 5043 has DDP in DATA chunks:"
        f" frames {first}, {first + 1}, {first + 2})"
    )
    assert skips.startswith("1 I-FORWARD-TSN chunk (") and older.startswith("1 FORWARD TSN chunk (")


@pytest.mark.parametrize("kind", [0x0F, 0x40, 0x82, 0xC1, 1, 2, 14])
def test_a_chunk_may_end_its_packet(kind: int) -> None:
    """RFC 9260 section 3.2, the highest bits of a type that is not recognized.

    00 and 01: "discard the unrecognized chunk and all further chunks". 10 and 11: "Skip this chunk
    and continue processing."

    Section 12.3: "The receiver of an INIT chunk MUST silently discard the INIT chunk and all
    further chunks if the INIT chunk is bundled with other chunks or the packet has a non-zero
    Verification Tag." Section 3: "INIT, INIT ACK, and SHUTDOWN COMPLETE chunks MUST NOT be bundled
    with any other chunk into an SCTP packet."
    """
    peers = opened()
    before, after = (peers.message(A, 0, text) for text in (b"before", b"behind"))
    odd = b"odd" if kind > 14 else struct.pack(">IIHHI", 99, 1 << 16, 9, 9, 1)
    peers.send(A, before, Chunk(kind, 0, odd), after)
    skipped = kind >= 0x80
    if not skipped:
        left = [each for each in left_out(peers.frames) if "ends its packet" in each]
        assert len(left) == 1 and left[0].startswith("1 DATA chunk")
        peers.send(A, after)  # it was not acknowledged
    peers.send(A, peers.message(A, 0, b"next"))
    planned = plan_of(peers.frames)
    reasons = [each.reason for each in golden(planned).exceptions]
    start = next(n for n, each in enumerate(golden(planned).exceptions) if each.octets[0] == kind)
    assert reasons[start:] == [Diversion.CHUNK] * (1 if skipped else 2)
    assert [each.completion.length for each in golden(planned).deliveries] == [6, 6, 4]
    memory = planned.memory.copy()
    outcome = load("compiled").run(planned.config, planned.operations, memory, ring=planned.ring)
    assert find_differences(planned, outcome, memory) == []


def test_messages_after_one_too_many_waits_are_not_placed() -> None:
    peers = opened()
    peers.send(A, peers.data(A, 0, Ppid.SEGMENT, TaggedHeader(STAG, 0, last=False).encode()))
    for _ in range(WAITING + 4):
        peers.send(A, peers.message(A, 0, b"hello"))
    planned = plan_of(peers.frames)
    assert [each.number for each in golden(planned).errors] == [LOCAL_CATASTROPHIC]
    memory = planned.memory.copy()
    outcome = load("compiled").run(planned.config, planned.operations, memory, ring=planned.ring)
    assert find_differences(planned, outcome, memory) == []


def test_what_is_no_data_goes_to_the_host() -> None:
    peers = opened(streams=64)
    peers.send(A, peers.message(A, 0, b"text"), Chunk(ChunkType.HEARTBEAT, 0, b"alive"))
    peers.send(A, peers.data(A, 40, 0, b"another protocol"))
    peers.send(A, Chunk(0xC0, 0, b"odd"))
    planned = plan_of(peers.frames, [])
    left = [(each.reason, each.stream) for each in golden(planned).exceptions]
    assert left[-3:] == [(Diversion.CHUNK, 1), (Diversion.DATA, 1), (Diversion.CHUNK, 1)]
    assert golden(planned).exceptions[-1].octets == bytes([0xC0, 0, 0, 7]) + b"odd"
    packets = records(planned, Kind.PACKET)
    assert [each.completion.length for each in packets[-3:]] == [2, 1, 1]
    assert all(each.completion.cookie >> 16 in (0, 1) for each in packets)
    assert not records(planned, Kind.CHUNK)[-1].completion.ends


def test_the_record_of_a_last_chunk_ends_its_packet() -> None:
    peers = opened()
    packets = len(records(plan_of(peers.frames, []), Kind.PACKET))
    peers.send(A, Chunk(ChunkType.HEARTBEAT, 0, b"alive"), *(
        peers.message(A, 0, b"text") for _ in range(3)
    ))  # fmt: skip
    planned = plan_of(peers.frames, [])
    ends = [each.completion.ends for each in records(planned, Kind.CHUNK)[-3:]]
    assert ends == [False, False, True]
    assert len(records(planned, Kind.PACKET)) == packets


def test_a_damaged_packet_is_dropped_and_comes_again() -> None:
    peers = opened()
    good = peers.send(A, peers.write(A, 0, STAG, 0, b"whole"))
    octets = bytearray(good.octets)
    octets[-20] ^= 1
    peers.frames.insert(-1, replace(good, octets=bytes(octets)))
    planned = plan_of(numbered(peers.frames))
    counts = golden(planned).counters()
    assert counts["FRAMES_DROPPED"] == 1 and octets_of(planned, STAG) == b"whole"


def test_checksums_that_were_left_to_the_card_are_filled_in() -> None:
    peers = opened()
    peers.send(A, peers.write(A, 0, STAG, 0, b"there"))
    frames = [
        replace(each, octets=each.octets[:42] + bytes(4) + each.octets[46:])
        if each.octets[26:30] == bytes([10, 7, 0, 1])
        else each
        for each in peers.frames
    ]
    found = traffic(frames)
    (note,) = found.notes
    assert note.startswith("no SCTP packet from 10.7.0.1 has its checksum")
    planned = plan_of(frames)
    assert octets_of(planned, STAG) == b"there"
    sent = [each for each in planned.operations if isinstance(each, FrameIn)]
    assert [each.octets for each in sent] == [each.octets for each in peers.frames]


def test_a_frame_cut_short_is_reported_and_given_to_the_host() -> None:
    peers = opened()
    whole = peers.send(A, peers.write(A, 0, STAG, 0, bytes(100)))
    peers.frames[-1] = replace(whole, octets=whole.octets[:96])
    found = traffic(peers.frames)
    assert any("incomplete: 1 SCTP packet (" in note for note in found.notes)
    assert found.sctp is not None
    (last,) = [s for s in found.sctp.steps if isinstance(s, Incoming) and s.frame == whole.number]
    assert last.fate is Fate.DIVERTED


def test_broken_framing_goes_to_the_host_whole() -> None:
    peers = opened()
    frame = peers.send(A, Chunk(ChunkType.HEARTBEAT, 0, bytes(4)))
    packet = bytearray(frame.octets[34 : 34 + 20])
    packet[15] = 100
    packet[8:12] = checksum(bytes(packet))
    octets = frame.octets[:34] + bytes(packet) + frame.octets[54:]
    peers.frames[-1] = replace(frame, octets=octets)
    planned = plan_of(peers.frames, [])
    last = golden(planned).exceptions[-1]
    assert last.reason == Diversion.FRAME and last.octets == octets


# -- sessions --


def test_a_session_follows_another_one_with_memory_of_its_own() -> None:
    peers = opened()
    first = peers.send(A, peers.write(A, 0, STAG, 0, b"first"), peers.message(A, 0, b"one"))
    peers.close(0)
    peers.open(0)
    peers.send(A, peers.write(A, 0, STAG | 1, 0, b"2"), peers.message(A, 0, b"two"))
    peers.again(first)  # as late as possible
    planned = plan_of(peers.frames)
    assert octets_of(planned, STAG, (0, 0)) == b"first"
    assert octets_of(planned, STAG | 1, (0, 1)) == b"2"
    assert [(each.session, each.msn) for each in planned.buffers] == [(0, 1), (1, 1)]
    counts = golden(planned).counts[1]
    assert (counts.sessions, counts.duplicates, counts.delivered) == (2, 2, 4)


def test_the_same_stag_of_two_sessions_is_two_regions() -> None:
    peers = opened()
    peers.send(A, peers.write(A, 0, STAG, 0, b"first"))
    peers.close(0)
    peers.open(0)
    peers.send(A, peers.write(A, 0, STAG, 0, b"again"))
    regions = derive_all(traffic(peers.frames)).regions
    assert [(each.stag, each.session) for each in regions] == [(STAG, (0, 0)), (STAG, (0, 1))]
    planned = plan_of(peers.frames)
    assert octets_of(planned, STAG, (0, 0)) == b"first"
    assert octets_of(planned, STAG, (0, 1)) == b"again"


def test_a_stag_that_sessions_share_is_a_region_of_the_host() -> None:
    peers = opened()
    peers.open(3)
    peers.send(A, peers.write(A, 0, STAG, 0, b"zero"), peers.write(A, 3, STAG, 4, b"three"))
    (region,) = derive_all(traffic(peers.frames)).regions
    assert region.session is None and region.length == 9
    assert octets_of(plan_of(peers.frames), STAG) == b"zerothree"


def test_a_control_message_is_reported_once() -> None:
    peers = Peers()
    peers.set_up()
    initiate = peers.send(A, peers.control(A, 0, Function.INITIATE))
    peers.again(initiate)
    accept = peers.send(B, peers.control(B, 0, Function.ACCEPT))
    peers.again(initiate)
    peers.again(accept)
    found = sctp(peers.frames)
    assert told(found, A) == ["INITIATE"] and told(found, B) == ["ACCEPT"]
    assert statuses(peers.frames) == ["TAKEN", "DUPLICATE", "DUPLICATE"]
    assert statuses(peers.frames, A) == ["TAKEN", "DUPLICATE"]
    plan_of(peers.frames, [])


def overtaken(answer: Function) -> tuple[Peers, list[DataChunk]]:
    """Returns two chunks of B that were sent before its answer to an Initiate; and all three."""
    peers = Peers()
    peers.set_up()
    peers.send(A, peers.control(A, 0, Function.INITIATE))
    first = peers.control(B, 0, answer)
    first = replace(first, payload=bytes(2) + first.payload[2:])
    write, text = peers.write(B, 0, STAG, 0, b"placed"), peers.message(B, 0, b"text")
    peers._next[B] = first.tsn + 3
    return peers, [first, replace(write, payload=b"\0\1" + write.payload[2:]), replace(
        text, payload=b"\0\2" + text.payload[2:])]  # fmt: skip


def test_a_segment_that_overtakes_the_accept_is_handed_back_after_it() -> None:
    """RFC 5043 section 6.2: "Passive side sends a DDP Stream Session Accept message. Each side may
    then send zero or more DDP Segments".
    """
    peers, (accept, write, text) = overtaken(Function.ACCEPT)
    peers.send(B, text)
    peers.again(peers.send(B, write))
    early = [*peers.frames]
    peers.send(B, accept)
    assert statuses(peers.frames, A) == ["HELD"] * 3 + ["TAKEN"] * 3
    planned = plan_of(peers.frames)
    came = [each.completion for each in golden(planned).ring if each.completion.stream == 0]
    turns = [each.kind.name for each in came if each.kind in (Kind.CONTROL, Kind.MESSAGE)]
    assert turns == ["CONTROL", "MESSAGE", "MESSAGE"]
    assert [each.completion.length for each in records(planned, Kind.CHUNK)][1:] == [
        0, 0, 0, 0, 4, 6,
    ]  # fmt: skip
    left = [each for each in golden(planned).exceptions if each.reason == Diversion.EARLY]
    assert [each.sequence for each in left] == [text.tsn, write.tsn, write.tsn]
    assert octets_of(planned, STAG) == b"placed"
    # Without the Accept nothing is placed.
    planned = plan_of(early)
    assert golden(planned).deliveries == [] and golden(planned).counts[0].placed == 0


@pytest.mark.parametrize("answer", [Function.REJECT, Function.TERMINATE])
@pytest.mark.parametrize("early", [False, True])
def test_nothing_of_a_refused_session_is_placed(answer: Function, early: bool) -> None:
    """RFC 5043 section 6.3: "Active side sends a DDP Stream Session Initiate message. Passive side
    sends a DDP Stream Session Reject message.", and nothing else.
    """
    peers, (refusal, write, text) = overtaken(answer)
    for chunk in (write, text, refusal) if early else (refusal, write, text):
        peers.send(B, chunk)
    expected = ["HELD", "HELD"] if early else []
    assert statuses(peers.frames, A) == [*expected, "TAKEN", "ILLEGAL", "SILENT"]
    planned = plan_of(peers.frames)
    assert session_events(planned) == [(Reason.SEQUENCE, RnicState.CLOSED)]
    assert golden(planned).counts[0].placed == 0 and golden(planned).deliveries == []


def test_what_is_held_for_a_session_that_is_aborted_is_not_handed_back() -> None:
    peers, (accept, write, _) = overtaken(Function.ACCEPT)
    peers.send(B, write)
    peers.send(B, replace(accept, unordered=False))
    peers.send(B, replace(accept, tsn=accept.tsn + 3))
    assert statuses(peers.frames, A) == ["HELD", "ILLEGAL", "SILENT"]
    plan_of(peers.frames)


def first_of_its_side(answer: DataChunk) -> DataChunk:
    return replace(answer, payload=bytes(2) + answer.payload[2:])


@pytest.mark.parametrize("enhanced", [False, True])
@pytest.mark.parametrize("function", Function)
def test_an_answer_that_does_not_fit_ends_the_session(function: Function, enhanced: bool) -> None:
    """RFC 6581 section 7: "as with Section 6.2 of [RFC5043], but with the extended opcodes as
    defined in this document", and likewise sections 6.3 and 6.4.
    """
    peers = Peers()
    peers.set_up()
    initiate = INITIATES[enhanced]
    peers.send(A, peers.control(A, 0, initiate, LIMITS * enhanced))
    limits = LIMITS if function is Function.ENHANCED_ACCEPT else b""
    peers.send(B, first_of_its_side(peers.control(B, 0, function, limits)))
    fits = function in ANSWERS[enhanced]
    assert statuses(peers.frames, A) == ["TAKEN" if fits else "ILLEGAL"]
    planned = plan_of(peers.frames, [])
    events = [] if fits else [(Reason.SEQUENCE, RnicState.INITIATE_SENT)]
    assert session_events(planned) == events
    found = sctp(peers.frames)
    assert told(found, A) == [initiate.name] and told(found, B) == [function.name] * fits
    assert len(found.undelivered) == (not fits)


def test_an_enhanced_session_is_played_and_named() -> None:
    """RFC 6581 section 7: "Received Extended DDP Stream Session Control messages SHOULD be reported
    to the ULP. If reported, any supplied Private Data MUST be available for the ULP to examine."
    """
    peers = Peers()
    peers.set_up()
    peers.open(0, enhanced=True)
    peers.send(A, peers.write(A, 0, STAG, 0, b"to b"))
    peers.close(0)
    planned = plan_of(peers.frames)
    assert octets_of(planned, STAG) == b"to b"
    control = [each.reason for each in golden(planned).exceptions].index(Diversion.CONTROL)
    assert golden(planned).exceptions[control].octets.endswith(bytes.fromhex("0005 00000000"))
    names = [str(entry) for entry in records(planned, Kind.CONTROL)]
    assert any("Enhanced Initiate" in name for name in names), names


@pytest.mark.parametrize(
    ("function", "enhanced"),
    [(answer, enhanced) for enhanced in (0, 1) for answer in ANSWERS[enhanced][1:]],
)
def test_a_session_may_be_refused(function: Function, enhanced: int) -> None:
    peers = Peers()
    peers.set_up()
    peers.send(A, peers.control(A, 0, INITIATES[enhanced], LIMITS * enhanced))
    peers.send(B, first_of_its_side(peers.control(B, 0, function)))
    peers.open(0)
    peers.send(A, peers.message(A, 0, b"text"))
    found = sctp(peers.frames)
    assert told(found, B) == [function.name, "ACCEPT"]
    assert [(each.number, each.since is None) for each in found.sessions if each.partner] == [
        (0, False),
        (0, True),
        (1, False),
        (1, False),
    ]
    planned = plan_of(peers.frames)
    (buffer,) = planned.buffers
    assert buffer.session == 1


def test_disorder_is_delivered_in_order() -> None:
    peers = opened()
    chunks: list[AnyChunk] = []
    for number in range(8):
        chunks.append(peers.write(A, 0, STAG, 8 * number, bytes([number]) * 8))
        chunks.append(peers.message(A, 0, bytes(number)))
    for at in (15, 3, 0, 7, 7, 1, 2, 3, 14, 4, 6, 5, 12, 10, 8, 13, 9, 11):
        peers.send(A, chunks[at])
    peers.send(A, peers.control(A, 0, TERMINATE))
    found = traffic(peers.frames)
    assert found.sctp is not None and found.sctp.needs.ahead == 15
    assert found.sctp.needs.messages == 7
    planned = plan_of(peers.frames)
    assert planned.config == RnicConfig(sctp=True)
    lengths = [
        each.completion.length for each in golden(planned).deliveries if not each.completion.tagged
    ]
    assert lengths == list(range(8))
    assert octets_of(planned, STAG) == b"".join(bytes([number]) * 8 for number in range(8))
    assert statuses(peers.frames).count("DUPLICATE") == 2


@pytest.mark.parametrize("lost", [{0}, {1}, {3}, {0, 1, 2}, {1, 3}], ids=str)
def test_the_segments_of_a_message_with_holes_are_placed_and_not_delivered(lost: set[int]) -> None:
    """RFC 5041 section 5.3 allows placement in any order, and section 5.4 no delivery."""
    peers = opened()
    peers.send(A, peers.message(A, 0, b"first"))
    for at in set(range(4)) - lost:
        segment = UntaggedHeader(0, 2, 300 * at, at == 3, SEND << 32).encode() + bytes([at]) * 300
        peers._ssn[A, 0] = 2 + at
        peers.send(A, peers.data(A, 0, Ppid.SEGMENT, segment))
    played = golden(plan_of(peers.frames))
    assert not played.errors and played.counts[1].delivered == 1
    assert (played.counts[1].placed, played.counts[1].octets) == (
        5 - len(lost), 5 + 300 * (4 - len(lost)),
    )  # fmt: skip


@pytest.mark.parametrize("order", ["sent", "reversed"])
@pytest.mark.parametrize(
    "lost", [{0}, {0, 1}, {1}, {2, 3}, {3, 6}, {11}, {1, 4, 5, 9, 10}], ids=str
)
def test_messages_after_a_missing_one_are_placed_and_not_delivered(
    lost: set[int], order: str
) -> None:
    """Messages of three queues, and tagged ones between them, have one order."""
    peers = opened()
    chunks: list[AnyChunk] = []
    for at in range(12):
        if at % 4 == 3:
            chunks.append(peers.write(A, 0, STAG, 8 * at, b"octets"))
        else:
            chunks.append(peers.message(A, 0, bytes(100 * at), qn=(0, 3, 0)[at % 4]))
    kept = sorted(set(range(12)) - lost, reverse=order == "reversed")
    for at in kept:
        peers.send(A, chunks[at])
    peers.close(0)
    played = golden(plan_of(peers.frames))
    assert not played.errors and played.counts[1].placed == len(kept)
    assert played.counts[1].delivered == min(lost)


def test_a_number_or_an_offset_that_no_missing_segment_explains_is_refused() -> None:
    """Three segments are missing: MSN 5 may be right, MSN 6 and an offset of 2^31 are not."""
    for msn, mo, error in ((5, 0, None), (6, 0, NO_BUFFER), (5, 1 << 31, INVALID_MO)):
        peers = opened()
        peers.send(A, peers.message(A, 0, b"first"))
        peers._ssn[A, 0] = 5
        segment = UntaggedHeader(0, msn, mo, True, SEND << 32).encode() + b"octets"
        peers.send(A, peers.data(A, 0, Ppid.SEGMENT, segment))
        found = golden(plan_of(peers.frames)).errors
        assert [each.number for each in found] == ([] if error is None else [error])


def test_the_table_grows_with_what_waits() -> None:
    peers = Peers(streams=40)
    peers.set_up()
    for sid in range(40):
        peers.send(A, peers.control(A, sid, Function.INITIATE))
    for sid in range(40):
        peers.send(B, peers.control(B, sid, Function.ACCEPT))
    chunks: list[AnyChunk] = [peers.message(A, 39, b"") for _ in range(400)]
    for at in range(1, 400, 20):
        peers.send(A, *chunks[at : at + 20])
    peers.send(A, chunks[0])
    played = traffic(peers.frames)
    (planned,), notes = plan(played, derive_all(played).regions, RnicConfig())
    run(planned)
    config = planned.config
    assert config.streams == 128 and config.initiates == 64 and config.window == 512
    assert config.queue_depth >= 800 and len(notes) == 4
    assert golden(planned).counts[79].delivered == 400


def test_chunks_ahead_of_the_largest_window_are_outside_and_named() -> None:
    peers = opened()
    late = peers.message(A, 0, b"late")
    for _ in range(4):
        peers.send(A, *(peers.message(A, 0, b"") for _ in range(300)))
    peers.send(A, late)
    found = traffic(peers.frames)
    assert any("177 chunks on" in note and "1024 or more" in note for note in found.notes)
    assert statuses(peers.frames).count("OUTSIDE") == 177
    planned = plan_of(peers.frames, [])
    assert planned.config.window == 1024 and golden(planned).counters()["CHUNKS_OUTSIDE"] == 177


@pytest.mark.long
def test_a_session_with_the_largest_window_is_waited_for() -> None:
    """The device opens and closes it in a cycle for each slot, in which no port shows anything."""
    peers = opened()
    peers.send(A, peers.message(A, 0, b"octets"))
    config = RnicConfig(
        mpa=False, sctp=True, streams=4, window=1 << 14, stags=16, pages=16, buffers=16,
        queue_depth=4, associations=2,
    )  # fmt: skip
    (planned,), _ = plan(traffic(peers.frames), [], config)
    assert planned.config == config
    memory = planned.memory.copy()
    outcome = load("compiled").run(config, planned.operations, memory, ring=planned.ring)
    assert find_differences(planned, outcome, memory) == []
    assert outcome.cycles > 4 * config.window


def test_a_frame_far_ahead_of_what_is_under_way_waits_for_it() -> None:
    """A burst in order may not be delivered yet when a gap comes: the window begins with it."""
    peers = opened()
    peers.send(A, *(peers.message(A, 0, b"") for _ in range(50)))
    late = peers.message(A, 0, b"late")
    peers.send(A, peers.message(A, 0, b"ahead"))
    peers.send(A, late)
    found = sctp(peers.frames)
    assert (found.needs.ahead, found.needs.reach) == (1, 52)
    assert items(found)[-2].ahead == 52
    planned = plan_of(peers.frames)
    assert planned.config.window == RnicConfig.window
    *_, before, _, last = planned.operations[:-1]
    assert isinstance(before, Drain) and isinstance(last, FrameIn)


# -- illegal chunks --


def test_what_is_no_ddp_message_aborts_the_session() -> None:
    for bad in ("ordered", "piece", "ordered piece", "ppid", "function", "long"):
        peers = opened()
        if bad == "ordered":
            chunk = replace(peers.message(A, 0, b""), unordered=False)
        elif bad == "piece":
            chunk = replace(peers.data(A, 0, 18, b"what"), ending=False)
        elif bad == "ordered piece":
            chunk = replace(peers.message(A, 0, b""), unordered=False, ending=False)
        elif bad == "ppid":
            chunk = peers.data(A, 0, 18, b"what")
        elif bad == "function":
            chunk = peers.data(A, 0, 17, struct.pack(">H", 9))
        else:
            chunk = peers.data(A, 0, 17, struct.pack(">H", 2) + bytes(513))
        peers.send(A, chunk, peers.message(A, 0, b"dropped"))
        planned = plan_of(peers.frames)
        assert session_events(planned) == [(Reason.MALFORMED, RnicState.ESTABLISHED)], bad
        assert statuses(peers.frames) == ["TAKEN", "ILLEGAL", "SILENT"]
        assert golden(planned).exceptions[-1].reason == Diversion.DATA
        assert golden(planned).counters()["CHUNKS_REFUSED"] == 2
        assert golden(planned).deliveries == []


def test_what_fits_no_sequence_aborts_the_session() -> None:
    def again(peers: Peers) -> DataChunk:
        return replace(peers.data(A, 0, 17, struct.pack(">H", Function.INITIATE)))

    peers = opened()
    peers.send(A, again(peers))
    planned = plan_of(peers.frames, [])
    assert session_events(planned) == [(Reason.SEQUENCE, RnicState.ESTABLISHED)]

    peers = Peers()
    peers.set_up()
    peers.send(A, peers.message(A, 0, b"unasked"))
    planned = plan_of(peers.frames)
    assert session_events(planned) == [(Reason.SEQUENCE, RnicState.CLOSED)]

    peers = opened()
    peers.send(A, peers.data(A, 0, 17, struct.pack(">H", Function.ACCEPT)))
    assert session_events(plan_of(peers.frames, [])) == [(Reason.SEQUENCE, RnicState.ESTABLISHED)]


@pytest.mark.parametrize("gap", [False, True])
@pytest.mark.parametrize("first", ["terminate", "segment"])
def test_nothing_follows_a_terminate_in_whatever_order_they_come(gap: bool, first: str) -> None:
    """RFC 5043 section 6.2: "The final User Data Chunk for each side MAY be a DDP Stream
    Terminate."
    """
    peers = opened()
    text = peers.write(A, 0, STAG, 0, b"text")
    terminate, behind = peers.control(A, 0, TERMINATE), peers.write(A, 0, STAG, 4, b"behind")
    order = [terminate, behind] if first == "terminate" else [behind, terminate]
    for chunk in [*order, text] if gap else [text, *order]:
        peers.send(A, chunk)
    planned = plan_of(peers.frames)
    ended = first == "terminate" and not gap
    state = RnicState.TERMINATE_RECEIVED if ended else RnicState.ESTABLISHED
    assert session_events(planned) == [(Reason.SEQUENCE, state)]
    assert golden(planned).counts[1].placed == (not gap) + (first == "segment")
    assert golden(planned).counts[1].delivered == (not gap)
    assert any("ends the session" in note for note in traffic(peers.frames).notes)


def test_an_initiate_inside_a_session_ends_it() -> None:
    """RFC 5043 section 6.1: it "conforms to none of the enumerated legal patterns"."""
    peers = opened()
    initiate = peers.send(A, peers.control(A, 0, Function.INITIATE))
    peers.again(initiate)
    peers.send(A, peers.message(A, 0, b"text"))
    # A repetition by the network opens nothing either.
    assert statuses(peers.frames) == ["TAKEN", "ILLEGAL", "DUPLICATE", "SILENT"]
    planned = plan_of(peers.frames, [])
    assert session_events(planned) == [(Reason.SEQUENCE, RnicState.ESTABLISHED)]
    assert golden(planned).counts[1].sessions == 1


def test_an_initiate_opens_nothing_while_the_last_session_has_a_gap() -> None:
    """RFC 5043 section 6.6: not "while any Data Chunk from a prior session might be
    outstanding".
    """
    peers = opened()
    peers.message(A, 0, b"lost")
    peers.send(A, peers.message(A, 0, b"text"))
    peers.send(B, peers.control(B, 0, TERMINATE))
    peers.send(A, peers.control(A, 0, Function.INITIATE))
    assert statuses(peers.frames) == ["TAKEN", "TAKEN", "ILLEGAL"]
    assert session_events(plan_of(peers.frames)) == [(Reason.SEQUENCE, RnicState.TERMINATE_SENT)]


@pytest.mark.parametrize("between", [0, 20])
def test_another_chunk_with_a_used_ddp_ssn_ends_the_session(between: int) -> None:
    """RFC 5043 section 6.2: "with increasing DDP-SSNs".

    The RNIC knows the TSNs of as many items as its window has; the host knows those of earlier
    items.
    """
    peers = opened()
    first = peers.message(A, 0, b"text")
    peers.send(A, first)
    for _ in range(between):
        peers.send(A, peers.message(A, 0, b""))
    peers.send(A, first, replace(first, tsn=first.tsn + 500))
    peers.send(A, peers.message(A, 0, b"behind"))
    last = statuses(peers.frames)[-3:]
    planned = plan_of(peers.frames)
    assert golden(planned).counts[1].delivered == 1 + between
    if between:
        assert last == ["DUPLICATE", "DUPLICATE", "SILENT"] and session_events(planned) == []
        (abort,) = [step for step in sctp(peers.frames).steps if isinstance(step, Abort)]
        assert abort.stream.sid == 0
    else:
        assert last == ["DUPLICATE", "ILLEGAL", "SILENT"]
        assert session_events(planned) == [(Reason.SEQUENCE, RnicState.ESTABLISHED)]


def test_another_terminate_with_a_used_ddp_ssn_is_illegal_at_once() -> None:
    """RFC 5043 section 6.2: "The final User Data Chunk for each side MAY be a DDP Stream
    Terminate."
    """
    peers = opened()
    chunks = [peers.message(A, 0, b"") for _ in range(40)]
    peers.send(A, *chunks)
    payload = chunks[0].payload[:2] + struct.pack(">H", TERMINATE)
    peers.send(A, replace(chunks[0], tsn=chunks[0].tsn + 500, ppid=17, payload=payload))
    assert statuses(peers.frames)[-1] == "ILLEGAL"
    plan_of(peers.frames)


@pytest.mark.long
def test_a_terminate_may_be_the_message_with_ddp_ssn_0_once_more() -> None:
    """RFC 5043 section 5.2.1: the DDP-SSN has 16 bits, and wraps in a long session."""
    peers = opened()
    for start in range(1, 1 << 16, 300):
        numbers = range(start, min(start + 300, 1 << 16))
        peers.send(A, *(peers.data(A, 0, 16, bytes(1)) for _ in numbers))
    terminate = peers.control(A, 0, TERMINATE)
    peers.again(peers.send(A, terminate))
    last = items(sctp(peers.frames))[-2:]
    assert [(each.ssn, each.status) for each in last] == [
        (0, ChunkStatus.TAKEN), (0, ChunkStatus.DUPLICATE),
    ]  # fmt: skip


def test_a_larger_window_distinguishes_more_ddp_ssns() -> None:
    peers = opened()
    chunks = [peers.message(A, 0, b"") for _ in range(40)]
    peers.send(A, chunks[0])
    for chunk in (*chunks[20:], *chunks[1:20]):
        peers.send(A, chunk)
    peers.send(A, replace(chunks[0], tsn=chunks[0].tsn + 500))
    found = sctp(peers.frames)
    assert found.window == 64 and statuses(peers.frames)[-1] == "ILLEGAL"
    assert plan_of(peers.frames).config.window == 64


def test_a_chunk_of_an_earlier_session_ends_the_one_that_came_too_early() -> None:
    """RFC 5043 section 6: "Data Chunks from one DDP Stream Session are never carried over to the
    next session."
    """
    peers = opened()
    late = peers.message(A, 0, b"late")
    peers.send(A, peers.data(A, 0, 18, b"what"))
    peers.open(0)
    peers.send(A, late)
    peers.send(A, late)
    planned = plan_of(peers.frames)
    assert statuses(peers.frames)[-2:] == ["DUPLICATE"] * 2
    assert [type(step) for step in sctp(peers.frames).steps].count(Abort) == 1
    assert golden(planned).deliveries == []


def test_segments_without_a_session_are_illegal_and_then_silent() -> None:
    peers = Peers()
    peers.set_up()
    for number in range(3):
        peers.send(A, peers.write(A, 0, STAG, number, b"x"))
    assert statuses(peers.frames) == ["ILLEGAL", "SILENT", "SILENT"]
    planned = plan_of(peers.frames)
    assert session_events(planned) == [(Reason.SEQUENCE, RnicState.CLOSED)]


# -- fragments --


def pieces(chunk: DataChunk, size: int) -> list[DataChunk]:
    """Returns the chunk in fragments, with consecutive TSNs from its own on."""
    starts = range(0, len(chunk.payload), size)
    return [
        replace(
            chunk,
            tsn=chunk.tsn + number,
            payload=chunk.payload[start : start + size],
            beginning=number == 0,
            ending=number == len(starts) - 1,
        )
        for number, start in enumerate(starts)
    ]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_fragments_are_put_together_and_handed_back(order: tuple[int, ...]) -> None:
    """RFC 5043 section 9: "SCTP data chunk fragmentation MUST NOT be used unless the alternative is
    IP fragmentation": so it is legal.
    """
    peers = opened()
    parts = pieces(peers.write(A, 0, STAG, 0, b"in three fragments"), 12)
    peers._next[A] += 2
    after = peers.message(A, 0, b"after")
    peers.send(A, parts[order[0]])
    peers.send(A, after)
    peers.again(peers.send(A, *(parts[number] for number in order[1:])))
    assert statuses(peers.frames)[1:] == ["HELD", "TAKEN", "HELD", "HELD", "TAKEN", "HELD", "HELD"]
    planned = plan_of(peers.frames)
    assert octets_of(planned, STAG) == b"in three fragments"
    left = [each for each in golden(planned).exceptions if each.reason == Diversion.FRAGMENT]
    assert len(left) == 5 and left[0].octets == parts[order[0]].encode()[: len(left[0].octets)]
    assert golden(planned).counts[1].delivered == 2
    assert session_events(planned) == []


def test_control_messages_may_come_in_fragments() -> None:
    peers = Peers()
    peers.set_up()
    parts = pieces(peers.control(A, 0, Function.INITIATE, bytes(512)), 300)
    peers._next[A] += 1
    for part in parts:
        peers.send(A, part)
    peers.send(B, peers.control(B, 0, Function.ACCEPT))
    parts = pieces(peers.control(A, 0, TERMINATE), 3)
    peers._next[A] += 1
    for part in reversed(parts):
        peers.send(A, part)
    assert statuses(peers.frames) == ["HELD", "HELD", "TAKEN"] * 2
    planned = plan_of(peers.frames, [])
    functions = [each.completion.tag for each in records(planned, Kind.CONTROL)]
    assert sorted(functions) == [Function.INITIATE, Function.ACCEPT, TERMINATE]


def test_fragments_that_overtake_the_accept_are_held_twice() -> None:
    peers, (accept, write, _) = overtaken(Function.ACCEPT)
    for part in pieces(replace(write, tsn=write.tsn + 10), 9):
        peers.send(B, part)
    peers.send(B, accept)
    assert statuses(peers.frames, A) == ["HELD"] * 4 + ["TAKEN"] * 2
    assert octets_of(plan_of(peers.frames), STAG) == b"placed"


def test_a_message_that_no_packet_can_hold_ends_its_session() -> None:
    peers = opened()
    parts = pieces(peers.write(A, 0, STAG, 0, bytes(65_490)), 1400)
    for part in parts:
        peers.send(A, part)
    peers.send(A, replace(peers.message(A, 0, b"text"), tsn=parts[-1].tsn + 1))
    found = traffic(peers.frames)
    assert any("at most 65484 octets" in note for note in found.notes)
    assert statuses(peers.frames)[-2:] == ["HELD", "SILENT"]
    plan_of(peers.frames, [])


# -- frames that are not played --


def of_stream(end: str) -> str:
    other = B if end == A else A
    return f"{other}:{PORTS[other]} > {end}:{PORTS[end]} SCTP stream 0"


@pytest.mark.parametrize("answer", [None, Function.REJECT, Function.TERMINATE, Function.ACCEPT])
def test_held_segments_that_no_session_takes_are_left_out(answer: Function | None) -> None:
    peers, (refusal, write, text) = overtaken(answer or Function.ACCEPT)
    for chunk in (write, text, *((refusal,) if answer else ())):
        peers.send(B, chunk)
    found = left_out(peers.frames)
    held = f"held until an answer on {of_stream(A)} opens a session, which none did"
    if answer is Function.ACCEPT:
        assert found == []
    elif answer is None:
        assert found == [f"2 DATA chunks ({held}: frames 6, 7)"]
    else:
        ends, after = found
        assert ends.startswith(f"1 DATA chunk (it ends the session of {of_stream(A)}, ")
        assert ends.endswith(": frame 6)")
        assert after == f"1 DATA chunk (after the session of {of_stream(A)} was ended: frame 7)"


@pytest.mark.parametrize("missing", [None, 0, 1, 2])
def test_fragments_of_a_message_that_is_not_whole_are_left_out(missing: int | None) -> None:
    peers = opened()
    parts = pieces(peers.write(A, 0, STAG, 0, b"in three fragments"), 12)
    came = [part for number, part in enumerate(parts) if number != missing]
    for part in [*came, came[0]]:
        peers.send(A, part)
    first = len(peers.frames) - len(came)
    why = f"a fragment of a message on {of_stream(B)} that did not come whole"
    named = [] if missing is None else [f"2 DATA chunks ({why}: frames {first}, {first + 1})"]
    assert left_out(peers.frames) == named


def test_fragments_of_a_message_that_ends_the_session_are_left_out() -> None:
    peers = opened()
    peers.send(A, peers.control(A, 0, TERMINATE))
    for part in pieces(peers.write(A, 0, STAG, 0, b"behind the Terminate"), 20):
        peers.send(A, part)
    (found,) = left_out(peers.frames)
    assert found.startswith(f"2 DATA chunks (it ends the session of {of_stream(B)}, number 2 must")


def test_the_frame_for_which_the_host_ends_a_session_is_named() -> None:
    peers = opened()
    first = peers.message(A, 0, b"text")
    peers.send(A, first)
    for _ in range(20):
        peers.send(A, peers.message(A, 0, b""))
    peers.send(A, replace(first, tsn=first.tsn + 500))
    why = f"TSN {first.tsn + 500} is new, and DDP-SSN 1 was used before"
    last = len(peers.frames)
    assert left_out(peers.frames) == [
        f"1 DATA chunk (refused on {of_stream(B)}, {why}: frame {last})"
    ]
    assert f"frame {last} ends the session on {of_stream(B)}: {why}" in traffic(peers.frames).notes


def test_a_segment_that_is_not_delivered_is_left_out() -> None:
    peers = opened()
    peers.write(A, 0, STAG, 0, b"lost")
    peers.send(A, peers.write(A, 0, STAG, 4, b"came"))
    assert left_out(peers.frames) == [
        f"1 DATA chunk (taken, but not delivered, because DDP-SSN 1 of {of_stream(B)} did not come)"
    ]


# -- sessions that stood before the capture began --


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 3, 0, 2)])
@pytest.mark.parametrize("first", [7, 65_534])
def test_a_session_that_stood_before_the_capture_is_played(
    first: int, order: tuple[int, ...]
) -> None:
    """RFC 5043 section 10: DDP-SSNs are in the order of submission, which continues past 65535."""
    peers = Peers()
    peers._ssn[A, 0] = first
    chunks = [peers.write(A, 0, STAG, 4 * at, b"octe") for at in range(3)]
    chunks.append(peers.control(A, 0, TERMINATE))
    for at in order:
        peers.send(A, chunks[at])
    assert statuses(peers.frames)[1:] == ["TAKEN"] * 4 and left_out(peers.frames) == []
    assert octets_of(plan_of(peers.frames), STAG) == b"octe" * 3


def stood(frames: Iterable[Frame]) -> tuple[Capture, Traffic]:
    """Returns a capture that lacks the set-up of its association, and its traffic."""
    capture = capture_of(frames, Path("test"), assumptions=[Assumption(sctp=True)])
    return capture, with_sctp(traffic_of(capture), capture.sctp)


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4, 5, 6), (5, 3, 0, 2, 6, 1, 4)])
@pytest.mark.parametrize("first", [1, 7, 0xFFFFFFFF])
@pytest.mark.parametrize("lost", [set(), {2}, {0, 3}], ids=str)
def test_the_messages_of_a_session_that_stood_before_the_capture_are_placed(
    first: int, order: tuple[int, ...], lost: set[int]
) -> None:
    """The first captured message of each queue is the next one. MSNs wrap to 0 (RFC 5041 section
    4.3), and those of a later session begin with 1.
    """
    peers = Peers()
    peers._ssn[A, 0], peers._ssn[B, 0] = 65_533, 70
    chunks = [
        peers.message(A, 0, bytes(100 * at), qn=qn, msn=(first + msn) % (1 << 32))
        for at, (qn, msn) in enumerate(((0, 0), (0, 1), (3, 90), (0, 2), (3, 91), (0, 3), (3, 92)))
    ]
    captured = [at for at in order if at not in lost]
    for at in captured:
        peers.send(A, chunks[at])
    peers.send(B, peers.message(B, 0, b"back", msn=50))
    if not lost:
        peers.close(0)
        peers.open(0)
        peers.send(A, peers.message(A, 0, b"later"))
    capture, played = stood(peers.frames)
    derived = derive_all(played)
    (planned,), _ = plan(played, derived.regions, RnicConfig(), derived.ends)
    run(planned)
    found = golden(planned)
    assert not found.errors and found.counts[0].delivered == 1
    assert found.counts[1].placed == len(captured) + (not lost)
    # Delivery stops at the first hole; before the first captured chunk none is known.
    ends = {frozenset(): 8, frozenset({2}): 2, frozenset({0, 3}): 2}
    assert found.counts[1].delivered == ends[frozenset(lost)]
    assert not any(each.differences for each in send(played))
    msn = (first + (0 in lost)) % (1 << 32)
    note = f"the first message on Queue Number 0 in the capture, with MSN {msn}, is assumed"
    assert any(note in each for each in capture.notes) == (msn != 1)
    assert played.sctp is not None and played.sctp.needs.messages < 8


@pytest.mark.parametrize("msn", [1, 5])
def test_a_message_that_began_before_the_capture_is_placed(msn: int) -> None:
    peers = Peers()
    peers._ssn[A, 0] = 9
    for mo, last in ((3000, False), (4000, True)):
        segment = UntaggedHeader(0, msn, mo, last, SEND << 32).encode() + bytes(1000)
        peers.send(A, peers.data(A, 0, Ppid.SEGMENT, segment))
    peers.send(A, peers.message(A, 0, b"next", msn=msn + 1))
    _, played = stood(peers.frames)
    (planned,), _ = plan(played, [], RnicConfig())
    run(planned)
    assert not golden(planned).errors and golden(planned).counts[1].delivered == 2


@pytest.mark.parametrize("missing", [A, B])
@pytest.mark.parametrize("function", [Function.ENHANCED_ACCEPT, Function.ENHANCED_REJECT])
def test_what_is_assumed_for_an_enhanced_session_fits_it(missing: str, function: Function) -> None:
    """RFC 6581 section 7: an Enhanced Initiate has an enhanced answer, and no other one has."""
    peers = Peers()
    if missing == B:
        peers.send(A, peers.control(A, 0, Function.ENHANCED_INITIATE, LIMITS))
        peers.send(A, peers.write(A, 0, STAG, 0, b"octets"))
    else:
        limits = LIMITS if function is Function.ENHANCED_ACCEPT else b""
        peers.send(B, first_of_its_side(peers.control(B, 0, function, limits)))
        if function is Function.ENHANCED_ACCEPT:
            peers.send(B, peers.write(B, 0, STAG, 0, b"octets"))
    found = sctp(peers.frames)
    initiate, answer = (told(found, end)[0] for end in (A, B))
    assert initiate == "ENHANCED_INITIATE"
    assert answer == ("ENHANCED_ACCEPT" if missing == B else function.name)
    assert left_out(peers.frames) == [] and found.undelivered == []
    plans_of(peers.frames)


@pytest.mark.parametrize("stood", [False, True])
def test_sessions_after_the_one_that_stood_before_the_capture_are_played(stood: bool) -> None:
    """RFC 5043 section 6.1: "The DDP-SSN is reset to zero at the beginning of each DDP Stream
    Session."
    """
    peers = Peers()
    peers._ssn[A, 0] = 7
    for at in range(3):
        if at or not stood:
            peers.send(A, peers.control(A, 0, Function.INITIATE))
        peers.send(A, peers.write(A, 0, STAG + 256 * at, 0, b"octets"))
        peers.send(A, peers.control(A, 0, TERMINATE))
    assert set(statuses(peers.frames)) == {"TAKEN"} and left_out(peers.frames) == []
    planned = plan_of(peers.frames)
    assert [octets_of(planned, STAG + 256 * at) for at in range(3)] == [b"octets"] * 3


def test_an_aborted_stream_takes_the_next_session() -> None:
    peers = opened()
    peers.send(A, peers.data(A, 0, 18, b"what"))
    peers.send(B, peers.control(B, 0, TERMINATE))
    peers.open(0)
    peers.send(A, peers.message(A, 0, b"text"))
    assert golden(plan_of(peers.frames)).counts[1].delivered == 1


def test_a_control_message_that_may_not_be_sent_is_left_out() -> None:
    peers = Peers()
    peers.set_up()
    peers.send(B, peers.control(B, 0, Function.ACCEPT))
    found = traffic(peers.frames)
    assert found.sctp is not None
    (left,) = found.sctp.undelivered
    assert left.count == 1 and "Accept must not be sent" in str(left)
    plan_of(peers.frames, [])


def test_an_event_beside_a_terminate_may_tell_of_the_state_before() -> None:
    peers = opened()
    peers.send(A, peers.control(A, 0, Function.TERMINATE), peers.message(A, 0, b"behind it"))
    (event,) = records(plan_of(peers.frames, []), Kind.SESSION)
    assert isinstance(event, Record) and event.state is RnicState.ESTABLISHED
    assert event.completion.tag == RnicState.TERMINATE_RECEIVED


# -- segments that DDP refuses --


def test_a_refused_segment_leaves_as_its_chunk() -> None:
    peers = opened()
    bad = peers.write(A, 0, STAG, 0, b"nowhere")
    peers.send(A, peers.message(A, 0, b"text"), bad, peers.message(A, 0, b"dropped"))
    planned = plan_of(peers.frames, [])
    (error,) = golden(planned).errors
    assert error.number == INVALID_STAG and error.arrival.position == bad.tsn
    assert error.header == struct.pack(">H", 14 + 7) + bad.payload[2:16]
    last = golden(planned).exceptions[-1]
    assert (last.stream, last.sequence, last.reason) == (1, bad.tsn, 0x100)
    assert last.octets == bad.encode()[: 16 + 2 + 14 + 7]
    found = [each.completion.status for each in records(planned, Kind.CHUNK)]
    assert found[-3:] == [ChunkStatus.TAKEN, ChunkStatus.DROPPED, ChunkStatus.DROPPED]
    assert golden(planned).counters()["DROPPED"] == 1


def test_a_wrong_number_shows_at_its_turn() -> None:
    peers = opened()
    first = peers.message(A, 0, b"one")
    wrong = peers.message(A, 0, b"three", msn=3)
    peers.send(A, wrong)
    peers.send(A, first)
    peers.send(A, peers.message(A, 0, b"four"))
    tables = of_sessions([], traffic(peers.frames))
    planned = plan_of(peers.frames, tables)
    (error,) = golden(planned).errors
    assert error.number == MSN_RANGE and error.arrival.position == wrong.tsn
    assert error.header == bytes(2) and error.length == 0
    assert golden(planned).counts[1].placed == 2 and golden(planned).counts[1].dropped == 1
    assert not [each for each in golden(planned).exceptions if each.reason < Diversion.FRAME]


def test_a_send_with_invalidate_revokes_in_its_turn() -> None:
    peers = opened()
    write = peers.write(A, 0, STAG, 0, b"before")
    invalidate = peers.message(A, 0, b"", opcode=SEND_INVALIDATE, stag=STAG)
    peers.send(A, invalidate)
    peers.send(A, write)
    peers.send(A, peers.write(A, 0, STAG, 0, b"behind"))
    region = Region(B, STAG, 0, 6, session=(0, 0))
    planned = plan_of(peers.frames, [region])
    assert octets_of(planned, STAG) == b"before"
    assert [error.number for error in golden(planned).errors] == [INVALID_STAG]


def test_the_sink_of_a_read_is_a_region_of_the_reader() -> None:
    peers = opened()
    request = struct.pack(">IQIIQ", STAG, 64, 10, 1, 0)
    peers.send(A, peers.message(A, 0, request, opcode=READ_REQUEST, qn=1))
    peers.send(B, peers.write(B, 0, STAG, 64, b"0123"))
    (region,) = derive_all(traffic(peers.frames)).regions
    assert (region.endpoint, region.to, region.length) == (A, 64, 10)
    assert region.session == (0, 0)
    assert octets_of(plan_of(peers.frames), STAG) == b"0123" + bytes(6)


# -- regions that are given --


def test_a_region_of_a_session_is_registered_with_it() -> None:
    peers = opened()
    peers.send(A, peers.write(A, 0, STAG, 0, b"first"))
    peers.close(0)
    peers.open(0)
    peers.send(A, peers.write(A, 0, STAG | 1, 0, b"again"))
    regions = [Region(B, STAG | number, 0, 8, 0xEE, session=(0, number)) for number in range(3)]
    planned = plan_of(peers.frames, regions)
    assert octets_of(planned, STAG) == b"first\xee\xee\xee"
    assert octets_of(planned, STAG | 1) == b"again\xee\xee\xee"
    assert octets_of(planned, STAG | 2) == b"\xee" * 8  # there is no such session
    assert [each.region.periods for each in planned.allotments] == [((0, 1),), ((1, None),), ()]


def test_regions_that_collide_are_refused() -> None:
    peers = opened()
    peers.open(1)
    peers.send(A, peers.write(A, 0, STAG, 0, b"first"))
    regions = [Region(B, STAG | sid, 0, 8, session=(sid, 0)) for sid in range(2)]
    with pytest.raises(RegionError, match="need the same entry"):
        plan_of(peers.frames, regions)


# -- reports of differences --


def differences(spoil: Callable[[Outcome], object]) -> list[Difference]:
    peers = opened()
    peers.send(A, peers.write(A, 0, STAG, 0, b"first"), peers.message(A, 0, b"text"))
    peers.send(B, peers.data(B, 0, 18, b"what"), Chunk(ChunkType.HEARTBEAT, 0, b"alive"))
    planned = plan_of(peers.frames)
    memory = planned.memory.copy()
    outcome = FakeEngine().run(planned.config, planned.operations, memory, ring=planned.ring)
    spoil(outcome)
    return find_differences(planned, outcome, memory)


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.SENT])
def test_a_wrong_or_missing_entry_is_reported(kind: Kind) -> None:
    def numbers(outcome: Outcome) -> list[int]:
        return [n for n, each in enumerate(outcome.completions) if each.kind is kind]

    def wrong(outcome: Outcome) -> None:
        number = numbers(outcome)[-1]
        each = outcome.completions[number]
        outcome.completions[number] = each._replace(tag=each.tag ^ 1)

    (one,) = differences(wrong)
    assert one.what.startswith("tag of a ")

    def missing(outcome: Outcome) -> None:
        del outcome.completions[numbers(outcome)[-1]]

    assert any(each.got == "none" for each in differences(missing))


def test_the_order_of_streams_does_not_matter_but_that_of_chunks() -> None:
    def deliver_later(outcome: Outcome) -> None:
        entries = outcome.completions
        phases = [each.phase for each in entries]
        late = [each for each in entries if each.kind is Kind.MESSAGE]
        order = [each for each in entries if each.kind is not Kind.MESSAGE] + late
        outcome.completions[:] = [
            each._replace(phase=phase) for each, phase in zip(order, phases, strict=True)
        ]

    assert differences(deliver_later) == []

    def swap(outcome: Outcome) -> None:
        entries = outcome.completions
        one, two = [n for n, each in enumerate(entries) if each.kind is Kind.CHUNK][-3:-1]
        entries[one], entries[two] = entries[two], entries[one]

    assert len(differences(swap)) > 1


def test_counters_of_sctp_are_compared() -> None:
    for name in regs.SCTP_COUNTERS:

        def spoil(outcome: Outcome, name: str = name) -> None:
            outcome.counters[name] = 99

        found = differences(spoil)
        assert [(each.what, each.where) for each in found] == [("counter", name)]


class Watched(Peers):
    """Peers whose frames the model sees; ``events`` are those of end B."""

    def __init__(self) -> None:
        super().__init__()
        self.model = {A: Association(), B: Association()}
        self.events: list[SctpEvent] = []

    def send(self, source: str, *chunks: AnyChunk, tag: int | None = None) -> Frame:
        frame = super().send(source, *chunks, tag=tag)
        ip = ip_packet(frame)
        assert ip is not None
        packet = sctp_frame(frame, ip)
        assert packet is not None
        self.model[source].observe(packet.packet)
        events = self.model[self.other(source)].receive(packet.packet)
        self.events += events if source == A else []
        return frame


def hostile(seed: int) -> Watched:
    """Makes sessions that A opens and then breaks in one of many ways, or not; B accepts some.

    B also opens some, which A answers rightly or wrongly, and ends some. There is one chunk per
    packet.
    """
    rng = random.Random(seed)
    peers = Watched()
    peers.set_up()
    sent: list[DataChunk] = []

    def send(chunk: DataChunk) -> None:
        sent.append(chunk)
        parts = [chunk]
        if rng.random() < 0.15 and len(chunk.payload) > 2:
            parts = pieces(chunk, rng.randrange(2, len(chunk.payload)))
            peers._next[A] += len(parts) - 1
        waiting.extend(parts)

    for _ in range(12):
        waiting: list[DataChunk] = []
        sid = rng.randrange(2)
        enhanced = rng.random() < 0.5
        session = peers.model[B].session(sid)
        if rng.random() < 0.3 and session.reusable:
            peers.send(B, peers.control(B, sid, INITIATES[enhanced], LIMITS * enhanced))
            answer = rng.choice((*[ACCEPTS[enhanced]] * 10, *Function))
            peers.send(A, first_of_its_side(peers.control(A, sid, answer)))
        else:
            peers.send(A, peers.control(A, sid, INITIATES[enhanced], LIMITS * enhanced))
        session = peers.model[B].session(sid)
        if rng.random() < 0.9 and session.state is State.INITIATE_RECEIVED:
            accept = ACCEPTS[session.enhanced]
            peers.send(B, peers.control(B, sid, accept, LIMITS))
        for _ in range(rng.randrange(9)):
            chunk = peers.message(A, sid, rng.randbytes(rng.randrange(9)))
            kind = rng.random()
            if kind < 0.08:
                old = rng.choice(sent or [chunk])
                chunk = replace(chunk, stream=old.stream, payload=old.payload)
            elif kind < 0.12:
                function = struct.pack(">H", rng.randrange(1, 9))
                chunk = replace(chunk, ppid=17, payload=chunk.payload[:2] + function)
            elif kind < 0.16:
                chunk = replace(chunk, unordered=False)
            elif kind < 0.2:
                ssn = rng.choice((rng.randrange(40), rng.randrange(33000, 65536)))
                chunk = replace(chunk, payload=struct.pack(">H", ssn) + chunk.payload[2:])
            send(chunk)
        if rng.random() < 0.5:
            send(peers.control(A, sid, TERMINATE))
        waiting += rng.sample(waiting, min(2, len(waiting)))
        if rng.random() < 0.7:
            rng.shuffle(waiting)
        for chunk in waiting:
            if rng.random() < 0.95:
                peers.send(A, chunk)
        ends = (State.ESTABLISHED, State.TERMINATE_RECEIVED, State.ABORTED)
        if rng.random() < 0.5 and session.state in ends:
            peers.send(B, peers.control(B, sid, TERMINATE))
    return peers


@pytest.mark.parametrize("seeds", first(range(4)))
def test_the_rnic_ends_the_sessions_that_the_model_ends(seeds: int) -> None:
    """The RNIC may do some things later, or leave them to its host; this changes neither the
    sessions that end nor the deliveries.
    """
    for seed in range(20 * seeds, 20 * (seeds + 1)):
        peers = hostile(seed)
        ended, received = set(), {}
        for event in peers.events:
            if isinstance(event, SessionIllegal):
                ended.add((event.stream, event.session))
            elif isinstance(event, SegmentReceived):
                key = event.stream, event.session, event.order
                assert key not in received
                received[key] = event.segment
        aborted, placed, current = set(), {}, dict.fromkeys(range(2), -1)
        for step in sctp(peers.frames).steps:
            if isinstance(step, Abort):
                aborted.add((step.stream.sid, current[step.stream.sid]))
            if isinstance(step, Tell) and step.host == B and step.function in INITIATES:
                current[step.stream.sid] += 1
            if not isinstance(step, Incoming) or step.host != B:
                continue
            for item in step.items:
                if item.stream is None:
                    continue
                sid = item.stream.sid
                for each in item.outcome:
                    if isinstance(each, Control) and each.function in INITIATES:
                        current[sid] += 1
                    elif isinstance(each, Illegal):
                        aborted.add((sid, current[sid]))
                if item.segment is not None:
                    placed[sid, item.segment.session, item.segment.sequence] = item.segment.ulpdu
        assert aborted == ended, f"seed {seed}"
        assert placed == received, f"seed {seed}"
        plans_of(peers.frames)


@pytest.mark.parametrize("seed", range(12))
def test_loss_disorder_and_repetition_agree(seed: int) -> None:
    """Frames arrive late, twice or never, also those of the handshake and of control messages."""
    rng = random.Random(seed)
    peers = Peers()
    peers.set_up()
    for _ in range(2):
        for sid in range(4):
            peers.open(sid, enhanced=rng.random() < 0.5)
        for number in range(60):
            end, sid = rng.choice(peers.ends), rng.randrange(4)
            to = 16 * number + 4096 * sid
            chunk = (
                peers.message(end, sid, rng.randbytes(rng.randrange(20)))
                if rng.random() < 0.5
                else peers.write(end, sid, STAG + (sid << 8), to, rng.randbytes(16))
            )
            peers.send(end, chunk)
        for sid in range(4):
            peers.close(sid)
    far = rng.choice((2, 6, 40))
    late = {frame.number: frame.number + rng.random() * far for frame in peers.frames[4:]}
    frames = sorted(peers.frames, key=lambda frame: late.get(frame.number, -100 + frame.number))
    frames = [frame for frame in frames if frame.number <= 4 or rng.random() > 0.02]
    for _ in range(10):
        at = rng.randrange(4, len(frames))
        frames.insert(rng.randrange(at, len(frames)), frames[at])
    plans = plans_of(numbered(frames))
    assert sum(golden(each).packets for each in plans) > len(frames) - 4
    assert not any(golden(each).errors for each in plans)  # both peers conform

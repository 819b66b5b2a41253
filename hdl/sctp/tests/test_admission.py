"""Tests the action for each item of SCTP (RFC 5043 sections 5.2 and 6), and the host's part."""

import random
import struct

import pytest
from amaranth.hdl import Value
from ddp_rnic.hdl.ddp.item import Action, Verdict
from ddp_rnic.hdl.ddp.segment import IN_FLIGHT
from ddp_rnic.hdl.lib.testing import decoded, shared, simulate
from ddp_rnic.hdl.sctp.admission import Admission
from ddp_rnic.hdl.sctp.receiver import Fate
from ddp_rnic.hdl.sctp.walker import Kind
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.hdl.spec.sctp import INITIATES, Diversion, Function

CONFIG = RnicConfig(sctp=True, streams=8, associations=4, window=16)
LATENCY = 18
TICKET = ("stream", "ssn", "final", "fills")


def item(kind, *, tsn=0, ssn=0, fate=Fate.TAKEN, function=None, private=0, ddp=1, **more):
    body = bytes(18)
    if function is not None:
        body = struct.pack(">HH", 2 + private, function)
    return {
        "kind": kind, "fate": fate, "association": 3, "stream": 5, "ddp": ddp, "ssn": ssn,
        "tsn": tsn, "start": 100, "payload": 105, "length": 70, "chunks": 0,
        "header": int.from_bytes(body, "little"), **more,
    }  # fmt: skip


def run(items, *, left=1.0, seed=0):
    """Runs items, and integers, which are commands for stream 5; None waits until all is idle.

    Returns the admitted items, with the cycles of both. Every admitted item comes back complete in
    the same cycle."""
    dut = shared(Admission, CONFIG)
    rng = random.Random(seed)
    given, admitted, records, events = [], [], [], []

    async def main(ctx):
        ctx.set(dut.records.ready, 1)
        ctx.set(dut.events.ready, 1)
        waiting, inside, undone = list(reversed(items)), 0, []
        cycle = quiet = leave = 0
        while waiting or quiet < 60:
            step = waiting[-1] if waiting else None
            if waiting and step is None and quiet > 40:
                waiting.pop()
            told = isinstance(step, int)
            ctx.set(dut.command.valid, told and quiet > 40)
            if told:
                ctx.set(dut.command.payload, {"stream": 5, "function": step, "tsn": 0})
            sends = isinstance(step, dict) and bool(leave & 4)
            ctx.set(dut.items.valid, sends)
            if sends:
                ctx.set(dut.items.payload, waiting.pop())
                given.append(cycle)
            gone = inside > 0 and rng.random() < left
            inside -= gone
            ctx.set(dut.left, gone)
            ctx.set(dut.done.valid, bool(undone))
            if undone:
                ctx.set(dut.done.payload, undone[0])
            (
                *_, busy, go, valid, payload, taken, done, some, record, happens, event,
            ) = await ctx.tick().sample(
                dut.busy, dut.go, dut.o.valid, Value.cast(dut.o.payload), dut.command.ready,
                dut.done.ready, dut.records.valid, Value.cast(dut.records.payload),
                dut.events.valid, Value.cast(dut.events.payload),
            )  # fmt: skip
            leave = leave << 1 & 7 | go
            if told and quiet > 40 and taken:
                waiting.pop()
            if undone and done:
                undone.pop(0)
            if valid:
                payload = decoded(dut.o, payload)
                admitted.append((cycle, payload))
                inside += 1
                assert inside <= IN_FLIGHT
                if payload.report and not payload.packet and payload.status == Verdict.FRESH:
                    ticket = {name: getattr(payload.ticket, name) for name in TICKET}
                    undone.append({"ticket": ticket, "record": {"cookie": payload.sequence}})
            if some:
                records.append(decoded(dut.records, record).cookie)
            if happens:
                events.append(decoded(dut.events, event).reason)
            quiet = 0 if busy or sends or undone else quiet + 1
            cycle += 1

    simulate(dut, main, limit=20_000)
    return given, admitted, records, events


OPEN = [
    Function.INITIATE.value, item(Kind.CONTROL, tsn=1, function=Function.ACCEPT, private=9), None
]  # fmt: skip


def test_each_kind_goes_its_way():
    items = [
        *OPEN,
        item(Kind.SEGMENT, tsn=3, ssn=2),
        item(Kind.SEGMENT, tsn=2, ssn=1),
        item(Kind.SEGMENT, tsn=2, ssn=1),
        item(Kind.SEGMENT, tsn=90, ssn=400),
        item(Kind.FRAGMENT, tsn=91, ssn=7),
        item(Kind.CHUNK),
        item(Kind.SEGMENT, tsn=4, ddp=0),
        item(Kind.FRAGMENT, tsn=92, ddp=0),
        item(Kind.REFUSED, tsn=5, ddp=0),
        item(Kind.FRAME, chunks=8, payload=140, length=2),
        item(Kind.SEGMENT, tsn=6, fate=Fate.EXCEPTION),
        item(Kind.FRAME, fate=Fate.EXCEPTION, payload=140, length=2),
        item(Kind.SEGMENT, tsn=7, fate=Fate.DROPPED),
        item(Kind.FRAME, fate=Fate.DROPPED, payload=140, length=2),
        item(Kind.REFUSED, tsn=8),
        item(Kind.SEGMENT, tsn=9, ssn=3),
    ]
    given, admitted, records, events = run(items)
    fresh, illegal = Verdict.FRESH, Verdict.ILLEGAL
    skip, place, divert = Action.SKIP, Action.PLACE, Action.PASS
    expected = [  # action, reason, sequence, octets, release; status of a chunk with a record
        (divert, Diversion.CONTROL, 1, 70, 100, fresh),
        (place, None, 3, 70, 100, fresh),
        (place, None, 2, 70, 100, fresh),
        (skip, None, 2, 70, 100, Verdict.DUPLICATE),
        (skip, None, 90, 70, 100, Verdict.OUTSIDE),
        (divert, Diversion.FRAGMENT, 91, 70, 100, Verdict.HELD),
        (divert, Diversion.CHUNK, 0, 70, 100, None),
        (divert, Diversion.DATA, 4, 70, 100, None),
        (divert, Diversion.DATA, 92, 70, 100, None),
        (divert, Diversion.DATA, 5, 70, 100, None),
        (skip, None, 8, 157, 140, None),  # 40 words, less two octets before and one after
        (divert, Diversion.FRAME, 0, 157, 140, None),
        (skip, None, 0, 157, 140, None),
        (divert, Diversion.DATA, 8, 70, 100, illegal),
        (skip, None, 9, 70, 100, Verdict.SILENT),
    ]
    assert len(admitted) == len(expected)
    packets = []
    for (_, got), (action, reason, sequence, octets, release, status) in zip(
        admitted, expected, strict=True
    ):
        where = f"sequence {sequence}"
        assert (got.action, got.sequence) == (action, sequence), where
        assert (got.octets, got.release, got.start) == (octets, release, 100), where
        assert (got.stream, got.association) == (5, 3), where
        assert action is not divert or got.reason == reason, where
        assert bool(got.report and not got.packet) == (status is not None), where
        assert status is None or got.status == status, where
        packets.append(bool(got.report and got.packet))
    assert packets == [False] * 10 + [True] + [False] * 4
    # An item that waits when the session is aborted need not be delivered.
    assert records in ([1, 2], [1, 2, 3]) and len(events) == 1
    assert given and admitted[1][0] - given[1] == LATENCY


def test_a_last_chunk_gives_back_the_whole_frame_and_its_record_ends_the_packet():
    last = {"last": 1, "end": 140}
    frame = item(Kind.FRAME, payload=140)
    items = [
        *OPEN, item(Kind.SEGMENT, tsn=2, ssn=1, **last), frame,
        item(Kind.SEGMENT, tsn=3, ssn=2), item(Kind.CHUNK, **last), frame,
        item(Kind.SEGMENT, tsn=3, ssn=2, **last), frame,
        frame,
    ]
    _, admitted, _, _ = run(items)
    place, skip, divert, none = Action.PLACE, Action.SKIP, Action.PASS, Action.NONE
    assert [(got.action, got.release, got.report, got.ends) for _, got in admitted[1:]] == [
        (place, 140, 1, 1), (none, 140, 0, 0),
        (place, 100, 1, 0), (divert, 140, 0, 0), (none, 140, 1, 0),
        (skip, 140, 1, 1), (none, 140, 0, 0),  # a duplicate
        (skip, 140, 1, 0),  # no chunks
    ]


@pytest.mark.parametrize(
    ("function", "private", "legal"),
    [
        (4, 0, True), (4, 1, False), (4, -1, False), (4, -2, False), (2, 0, False), (0, 0, False),
        (5, 4, False), (6, 4, False), (7, 0, False), (8, 0, False), (0x104, 0, False),
    ],
)
def test_control_messages_are_checked(function, private, legal):
    """RFC 5043 section 5.2.3, RFC 6581 section 7: "Private Data MUST NOT be included in the DDP
    Stream Session TERM message." An Accept in the middle of a session is never legal."""
    one = item(Kind.CONTROL, tsn=2, ssn=1, function=function, private=private)
    _, admitted, records, events = run([*OPEN, one])
    last = admitted[-1][1]
    assert (last.status == Verdict.FRESH) == legal
    assert records == [1, 2][: 1 + legal] and len(events) == (not legal)
    invalid = function not in range(1, 8) or (function == 4 and private)
    assert last.action == (Action.PASS if legal or invalid else Action.SKIP)
    assert not invalid or last.reason == Diversion.DATA


@pytest.mark.parametrize("function", INITIATES)
@pytest.mark.parametrize(
    ("private", "legal"),
    [(0, True), (3, True), (512, True), (513, False), (65000, False), (-1, False)],
)
def test_private_data_has_at_most_512_octets(private, legal, function):
    """RFC 5043 section 5.2.3: "Private Data length MUST NOT exceed 512 bytes in any message."
    RFC 6581 section 7: "including enhanced RDMA connection establishment data"."""
    one = item(Kind.CONTROL, tsn=1, function=function, private=private)
    _, admitted, _, events = run([one])
    assert (admitted[0][1].status == Verdict.FRESH) == legal and len(events) == (not legal)


@pytest.mark.parametrize("answer", [Function.ENHANCED_ACCEPT, Function.ENHANCED_REJECT])
def test_an_enhanced_message_is_forwarded_to_the_host_with_its_private_data(answer):
    """RFC 6581 section 7: "Received Extended DDP Stream Session Control messages SHOULD be reported
    to the ULP. If reported, any supplied Private Data MUST be available for the ULP to examine."
    """
    one = item(Kind.CONTROL, tsn=1, function=answer, private=9)
    _, admitted, records, events = run([Function.ENHANCED_INITIATE.value, one, None])
    (_, got), = admitted
    assert (got.action, got.reason, got.status) == (Action.PASS, Diversion.CONTROL, Verdict.FRESH)
    assert (got.control, got.report, got.octets) == (1, 1, one["length"])
    assert records == [1] and not events


@pytest.mark.parametrize("left", (1.0, 0.2))
def test_one_item_per_cycle(left):
    items = [*OPEN, *(item(Kind.SEGMENT, tsn=2 + k, ssn=1 + k) for k in range(200))]
    given, admitted, *_ = run(items, left=left)
    assert [got.sequence for _, got in admitted] == [1, *range(2, 202)]
    if left == 1.0:
        assert given[-1] - given[1] == 199
        # Without the Accept, which opens the session.
        pairs = zip(given[1:], admitted[1:], strict=True)
        assert {out - into for into, (out, _) in pairs} == {LATENCY}

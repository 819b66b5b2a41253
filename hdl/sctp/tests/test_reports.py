"""Tests the ring entries of due records, of records in order, and of sessions."""

import random

import pytest
from amaranth.lib import data, stream
from ddp_rnic.hdl.ddp.item import Ticket, Verdict
from ddp_rnic.hdl.ddp.message_order import OrderedRecord
from ddp_rnic.hdl.lib.testing import simulate
from ddp_rnic.hdl.sctp.reports import Reports
from ddp_rnic.hdl.spec.completion import ChunkStatus, Kind, decode
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.hdl.spec.sctp import Reason, State

CONFIG = RnicConfig(sctp=True, streams=8, associations=4)
DONE = stream.Signature(
    data.StructLayout({"ticket": Ticket(CONFIG.streams), "record": OrderedRecord()}))
LATENCY = 3


def run(due, ordered=(), events=(), *, give=1.0, take=1.0, seed=0):
    """Inputs due records, ordered records and events.

    Returns the entries, each with its cycle, the records sent to Order, and the cycles in which a
    record was input."""
    dut = Reports(CONFIG, DONE)
    rng = random.Random(seed)
    entries, done, given = [], [], []

    async def main(ctx):
        waiting = [list(each) for each in (due, ordered, events)]
        cycle = quiet = 0
        offered = [False] * 3
        while any(waiting) or quiet < 40:
            for k, port in enumerate((dut.due, dut.ordered, dut.events)):
                offered[k] = bool(waiting[k]) and (offered[k] or rng.random() < give)
                ctx.set(port.valid, offered[k])
                if offered[k]:
                    ctx.set(port.payload, waiting[k][0])
            ctx.set(dut.entries.ready, rng.random() < take)
            ctx.set(dut.done.ready, rng.random() < take)
            ctx.set(dut.advanced.ready, 1)
            ctx.set(dut.disordered.ready, 1)
            (
                *_, a, b, c, out, ready, entry, goes, accepted, one, busy,
            ) = await ctx.tick().sample(
                dut.due.ready, dut.ordered.ready, dut.events.ready, dut.entries.valid,
                dut.entries.ready, dut.entries.payload, dut.done.valid, dut.done.ready,
                dut.done.payload, dut.busy,
            )  # fmt: skip
            for k, took in enumerate((a, b, c)):
                if offered[k] and took:
                    waiting[k].pop(0)
                    offered[k] = False
                    if not k:
                        given.append(cycle)
            if out and ready:
                octets = entry.entry.as_bits()
                entries.append((cycle, decode(int(octets).to_bytes(32, "little"))))
            if goes and accepted:
                done.append(one.record.cookie)
            quiet = quiet + 1 if not (out or busy) else 0
            cycle += 1

    simulate(dut, main, limit=20_000)
    return entries, done, given


def chunk(number, status=Verdict.FRESH, *, placed=1, octets=100, **more):
    return {
        "sctp": 1, "status": status, "ticket": {"ssn": number}, "sequence": 7000 + number,
        "association": 2, "stream": 5, "placed": placed, "octets": octets, "cookie": number, **more,
    }  # fmt: skip


def test_entries_say_what_became_of_chunks_and_packets():
    due = [
        chunk(1),
        chunk(2, Verdict.DUPLICATE, placed=0, octets=0),
        chunk(3, Verdict.OUTSIDE, placed=0, octets=0),
        chunk(4, Verdict.ILLEGAL, placed=0, octets=0),
        chunk(5, Verdict.SILENT, placed=0, octets=0),
        chunk(6, placed=0, octets=0),
        chunk(7, failed=1),
        chunk(8, placed=0, octets=0, control=1),
        {"sctp": 1, "packet": 1, "sequence": 8, "association": 2, "stream": 9},
        {"sctp": 0, "tagged": 0, "stream": 3, "qn": 2, "tag": 8, "length": 9, "cookie": 10,
         "rsvdulp": 11, "failed": 1, "complete": 1},
    ]  # fmt: skip
    entries, done, given = run(due)
    got = [entry for _, entry in entries]
    assert [entry.kind for entry in got] == [Kind.CHUNK] * 8 + [Kind.PACKET, Kind.MESSAGE]
    assert [entry.status for entry in got[:8]] == [
        ChunkStatus.TAKEN, ChunkStatus.DUPLICATE, ChunkStatus.OUTSIDE, ChunkStatus.ILLEGAL,
        ChunkStatus.SILENT, ChunkStatus.DROPPED, ChunkStatus.NOT_PLACED, ChunkStatus.TAKEN,
    ]  # fmt: skip
    for number, entry in enumerate(got[:8], 1):
        assert (entry.stream, entry.tag) == (5, 7000 + number)
        assert entry.length == (100 if number in (1, 7) else 0)
        assert entry.cookie == number | 2 << 16
    assert (got[8].length, got[8].cookie, got[8].stream, got[8].tag) == (8, 2 << 16, 0, 0)
    assert (got[9].stream, got[9].qn, got[9].tag, got[9].length) == (3, 2, 8, 9)
    assert (got[9].cookie, got[9].status) == (10, 1)
    # Only items that were taken are delivered in order.
    assert done == [1, 6, 7, 8]
    assert {out - into for into, (out, _) in zip(given, entries, strict=True)} == {LATENCY}


@pytest.mark.parametrize("give, take", [(1.0, 1.0), (0.6, 0.4)])
def test_all_sources_get_through(give, take):
    due = [chunk(number) for number in range(200)]
    ordered = [
        {"placed": 1, "complete": number % 2 == 0, "tagged": 1, "stream": 1, "tag": number}
        for number in range(100)
    ]  # fmt: skip
    ordered.insert(50, {"control": 1, "stream": 4, "tag": 2})
    events = [{"reason": Reason.LIMIT, "stream": n % 8, "state": State.CLOSED} for n in range(20)]
    entries, done, _ = run(due, ordered, events, give=give, take=take, seed=3)
    by = {kind: [entry for _, entry in entries if entry.kind == kind] for kind in Kind}
    assert [entry.tag for entry in by[Kind.CHUNK]] == [7000 + number for number in range(200)]
    assert [entry.tag for entry in by[Kind.MESSAGE]] == list(range(0, 100, 2))
    assert [(entry.stream, entry.tag) for entry in by[Kind.CONTROL]] == [(4, 2)]
    assert [(e.stream, e.tag, e.status) for e in by[Kind.SESSION]] == [
        (n % 8, State.CLOSED, Reason.LIMIT) for n in range(20)
    ]  # fmt: skip
    assert done == list(range(200))
    if take == 1.0:
        assert entries[-1][0] - entries[0][0] <= len(entries) + 4

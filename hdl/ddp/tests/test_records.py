"""Tests which records of segments reach Delivery, and the spans of tagged messages."""

import pytest
from ddp_rnic.hdl.ddp.records import RecordFilter
from ddp_rnic.hdl.lib.testing import simulate
from ddp_rnic.hdl.spec.config import RnicConfig


def passed(records, *, unordered=False):
    """Returns the records that pass, of ``records`` or numbers of streams to clear."""
    dut = RecordFilter(RnicConfig(width=64, streams=4, sctp=unordered), unordered=unordered)
    found = []

    async def testbench(ctx):
        for record in records:
            if isinstance(record, int):
                ctx.set(dut.clear.payload, record)
                ctx.set(dut.clear.valid, 1)
                await ctx.tick()
                ctx.set(dut.clear.valid, 0)
                await ctx.tick()
                continue
            ctx.set(dut.i.payload, record)
            ctx.set(dut.i.valid, 1)
            await ctx.tick()
        ctx.set(dut.i.valid, 0)
        await ctx.tick().repeat(RecordFilter.LATENCY + 1)
        assert not ctx.get(dut.busy)

    async def monitor(ctx):
        async for *_, valid, record in ctx.tick().sample(dut.o.valid, dut.o.payload):
            if valid:
                found.append(record)

    simulate(dut, testbench, background=[monitor])
    return found


def tagged(number, *, to=0, length=8, tag=1, last=False):
    return {"stream": 1, "tagged": 1, "tag": tag, "cookie": to, "length": length,
            "complete": last, "count": number}


def test_the_last_segment_of_a_message_passes_with_the_messages_span():
    found = passed([
        tagged(1, to=100, length=8), tagged(2, to=108, length=4),
        tagged(3, to=112, length=2, last=True)])
    assert [record.count for record in found] == [3]
    assert (found[0].cookie, found[0].length, found[0].found.over) == (100, 14, 0)


def test_a_segment_that_overtakes_passes_with_the_message_that_it_overtakes():
    found = passed([tagged(1, tag=7), tagged(2, tag=8), tagged(3, tag=8, last=True)])
    assert [(record.count, record.found.over) for record in found] == [(2, 1), (3, 0)]
    assert found[0].found.earlier.tag == 7


def test_the_first_segment_of_a_cleared_stream_passes():
    found = passed([tagged(1), tagged(2), 1, tagged(3), tagged(4)])
    assert [(record.count, record.found.first) for record in found] == [(3, 1)]


@pytest.mark.parametrize("last", (False, True))
def test_a_record_of_an_item_passes_as_it_is(last):
    item = {**tagged(2, to=5, length=3, tag=8, last=last), "sctp": 1}
    found = passed([tagged(1, tag=7), item, tagged(3, tag=7)], unordered=True)
    assert [record.count for record in found] == [2]
    assert (found[0].cookie, found[0].length) == (5, 3)

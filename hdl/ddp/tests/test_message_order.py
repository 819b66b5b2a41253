"""Tests delivery in order: the MSNs of a queue, and silence after a missing message."""

import random

import pytest
from ddp_rnic.hdl.ddp.message_order import MessageOrder
from ddp_rnic.hdl.lib.testing import Sinks, shared, simulate
from ddp_rnic.hdl.lib.tests.long import long

STREAMS, LATENCY = 4, 8
MSN = 1 << 32
OUTPUTS = ("o", "advanced", "disordered")


class Reference:
    """Computes the outcome of records (RFC 5041 sections 4.3, 5.4 and 7.1)."""

    def __init__(self):
        self.dead = set()
        self.following = dict.fromkeys(((s, q) for s in range(STREAMS) for q in range(4)), 0)
        self.o, self.advanced, self.disordered = [], [], []

    def take(self, record):
        stream, queue = record["stream"], (record["stream"], record["qn"])
        if record["control"]:
            self.o.append(record["sequence"])
            return
        untagged = record["placed"] and not record["tagged"]
        wrong = untagged and record["tag"] != self.following[queue]
        if untagged and record["complete"]:
            self.following[queue] = (record["tag"] + 1) % MSN
        if wrong and stream not in self.dead:
            self.disordered.append((stream, record["sequence"]))
        if wrong or not record["placed"]:
            self.dead.add(stream)
        elif record["complete"] and stream not in self.dead:
            self.o.append(record["sequence"])
            if untagged:
                self.advanced.append((*queue, record["tag"]))


def run(steps, *, give=1.0, take=1.0, seed=0):
    """Runs records, ``("clear", stream)`` and ``("state", stream, qn, msn)`` in their order;
    returns the outputs, and the cycles of records and of their outputs."""
    dut = shared(MessageOrder, streams=STREAMS)
    rng = random.Random(seed)
    got = {name: [] for name in OUTPUTS}
    given, came = [], []
    sinks = Sinks({name: getattr(dut, name) for name in OUTPUTS},
                  stalls=dict.fromkeys(OUTPUTS, 1 - take), rng=rng)

    def keep(cycle, name, payload):
        if name != "o":
            fields = ("stream", "qn", "msn") if name == "advanced" else ("stream", "sequence")
            got[name].append(tuple(payload[each] for each in fields))
        elif payload.item.complete or payload.item.control:
            got["o"].append(payload.item.sequence)
            came.append(cycle)

    async def main(ctx):
        waiting = list(reversed(steps))
        cycle = quiet = 0
        while waiting or quiet < 40:
            for port in (dut.i, dut.clear, dut.state):
                ctx.set(port.valid, 0)
            step = waiting[-1] if waiting and rng.random() < give else None
            if isinstance(step, tuple):
                # The host acts only when no record of the stream is on its way.
                if step[0] == "clear":
                    ctx.set(dut.clear.payload, step[1])
                    ctx.set(dut.clear.valid, 1)
                else:
                    ctx.set(dut.state.payload, dict(zip(
                        ("stream", "qn", "msn"), step[1:], strict=True)))  # fmt: skip
                    ctx.set(dut.state.valid, 1)
                waiting.pop()
            elif step is not None:
                ctx.set(dut.i.payload, step)
                ctx.set(dut.i.valid, 1)
            sinks.set_ready(ctx)
            _, _, ready, *values = await ctx.tick().sample(dut.i.ready, *sinks.signals)
            for seen in sinks.look(values):
                if seen.taken:
                    keep(cycle, seen.name, seen.payload)
            if isinstance(step, dict) and ready:
                given.append(cycle)
                waiting.pop()
            cycle += 1
            quiet = 0 if waiting or any(values[::2]) else quiet + 1

    simulate(dut, main, limit=100_000)
    return got, given, came


def record(
    number, *, stream=1, qn=0, tag=0, tagged=False, complete=True, placed=True, control=False
):
    return {
        "stream": stream, "qn": 0 if tagged else qn, "tag": tag, "tagged": tagged,
        "complete": complete and placed, "placed": placed, "control": control,
        "cookie": number, "sequence": number,
    }  # fmt: skip


def test_one_record_per_cycle_in_one_queue():
    steps = [record(number, tag=number) for number in range(64)]
    got, given, came = run(steps)
    assert got["o"] == list(range(64)) and not got["disordered"]
    assert got["advanced"] == [(1, 0, number) for number in range(64)]
    assert [out - into for into, out in zip(given, came, strict=True)] == [LATENCY] * 64
    assert given[-1] - given[0] == 63


@pytest.mark.parametrize("behind", range(1, 6))
def test_nothing_is_delivered_after_a_message_out_of_turn(behind):
    """RFC 5041 section 4.3: the MSN is increased by one with each message."""
    steps = [record(0, tag=0), record(1, tag=2)]
    steps += [record(2, stream=2, qn=1, tag=k) for k in range(behind - 1)]
    steps += [record(3, tag=1), record(4, tag=3), record(5, tagged=True)]
    steps += [("clear", 1), ("state", 1, 0, 7), record(6, tag=7)]
    got, *_ = run(steps)
    assert got["disordered"] == [(1, 1)]
    assert got["o"] == [0, *[2] * (behind - 1), 6]


@pytest.mark.parametrize("give, take", [(1.0, 1.0), (0.7, 0.7), *long((0.5, 1.0), (1.0, 0.3))])
def test_records_of_all_kinds(give, take):
    seed = random.getrandbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    reference, steps = Reference(), []
    for number in range(1500):
        stream, qn = rng.randrange(STREAMS), rng.randrange(4)
        if rng.random() < 0.02:
            steps.append(("clear", stream))
            reference.dead.discard(stream)
            continue
        if rng.random() < 0.01:
            # Only while no records of the queue are on their way.
            steps += [record(number, stream=(stream + 1) % STREAMS, tagged=True)] * 4
            for each in steps[-4:]:
                reference.take(each)
            msn = rng.choice((0, 5, MSN - 1))
            steps.append(("state", stream, qn, msn))
            reference.following[stream, qn] = msn
            continue
        following = reference.following[stream, qn]
        kind = rng.random()
        one = record(
            number, stream=stream, qn=qn, tagged=kind < 0.3, control=kind > 0.95,
            tag=following if rng.random() < 0.98 else rng.choice((following + 1, 7)) % MSN,
            complete=rng.random() < 0.7, placed=rng.random() < 0.99 and kind <= 0.95,
        )  # fmt: skip
        reference.take(one)
        steps.append(one)
    got, *_ = run(steps, give=give, take=take, seed=seed)
    for name in OUTPUTS:
        assert got[name] == getattr(reference, name), name
    assert len(reference.disordered) > 3 and len(reference.o) > 300

"""Tests the host link: octets on a line, and the protocol on top, with noise."""

import random

import pytest
from amaranth import Module
from amaranth.lib import wiring
from ddp_rnic.hdl.host.uart import UartBridge, UartReceive, UartTransmit
from ddp_rnic.hdl.lib.testing import send, shared, simulate
from ddp_rnic.hdl.lib.tests.long import long
from ddp_rnic.hdl.lib.tests.refused import refused
from ddp_rnic.hdl.spec import board

PATIENCE = 200


class Loop(wiring.Component):
    """Connects a transmitter and a receiver by one line."""

    def __init__(self, *, clock, baud, skew=1.0):
        super().__init__({})
        self.transmit = UartTransmit(clock=clock, baud=round(baud * skew))
        self.receive = UartReceive(clock=clock, baud=baud)

    def elaborate(self, platform):
        m = Module()
        m.submodules.transmit, m.submodules.receive = self.transmit, self.receive
        m.d.comb += self.receive.line.eq(self.transmit.line)
        return m


@pytest.mark.parametrize(("clock", "baud"), [(62_500_000, 1_000_000), (900, 100), (1007, 100)])
@pytest.mark.parametrize("skew", [0.97, 1.0, 1.03])
def test_octets_pass_at_rates_that_differ(clock, baud, skew):
    dut = shared(Loop, clock=clock, baud=baud, skew=skew)
    octets = bytes([0, 255, 0x55, 0xAA]) + random.Random(1).randbytes(12)
    seen = []

    async def source(ctx):
        await send(ctx, dut.transmit.i, octets)
        await ctx.tick().until(dut.transmit.i.ready)
        await ctx.tick().repeat(2 * clock // baud)

    async def watch(ctx):
        async for *_, valid, octet, broken in ctx.tick().sample(
                dut.receive.o.valid, dut.receive.o.payload, dut.receive.broken):
            assert not broken
            if valid:
                seen.append(octet)

    simulate(dut, source, background=[watch])
    assert bytes(seen) == octets


def test_a_spike_is_no_octet_and_a_break_is_broken():
    dut = UartReceive(clock=1600, baud=100)
    seen, breaks = [], 0

    async def line(ctx):
        for level, cycles in ((0, 3), (1, 40), (0, 200), (1, 20)):
            ctx.set(dut.line, level)
            await ctx.tick().repeat(cycles)
        for level in (0, *(0x5A >> bit & 1 for bit in range(8)), 1, 1):
            ctx.set(dut.line, level)
            await ctx.tick().repeat(16)

    async def watch(ctx):
        nonlocal breaks
        async for *_, valid, octet, broken in ctx.tick().sample(
                dut.o.valid, dut.o.payload, dut.broken):
            breaks += broken
            if valid:
                seen.append(octet)

    simulate(dut, line, background=[watch])
    assert (seen, breaks) == ([0x5A], 1)


@pytest.mark.parametrize(("clock", "baud", "text"), [
    (0, 100, "UART clock must be a positive integer, not 0"),
    (800, 101, "UART baud rate must be at most an eighth of 800, not 101"),
])
def test_rates_that_cannot_be_are_refused(clock, baud, text):
    refused(text, UartReceive, clock=clock, baud=baud)


class Link:
    """Connects a bridge to a memory. Words at 0x8000_0000 and up are refused."""

    def __init__(self, ctx, dut, state):
        self.ctx, self.dut, self.state = ctx, dut, state

    async def send(self, octets, *, gap=4):
        for octet in octets:
            self.ctx.set(self.dut.i.payload, octet)
            self.ctx.set(self.dut.i.valid, 1)
            await self.ctx.tick()
            self.ctx.set(self.dut.i.valid, 0)
            await self.ctx.tick().repeat(gap)

    async def write(self, address, *words, opcode=1):
        await self.send(bytes([opcode, len(words)]) + (address // 4).to_bytes(4, "big")
                        + b"".join(word.to_bytes(4, "big") for word in words))
        await self.ctx.tick().repeat(20)

    async def read(self, address, count=1, opcode=2):
        self.state["answer"] = b""
        await self.send(bytes([opcode, count]) + (address // 4).to_bytes(4, "big"))
        await self.ctx.tick().repeat(40 * count)
        answer = self.state["answer"]
        assert len(answer) == 4 * count
        return [int.from_bytes(answer[at:at + 4], "big") for at in range(0, len(answer), 4)]

    async def silence(self):
        await self.ctx.tick().repeat(PATIENCE + 10)


def run(script, *, stalled=0.0, seed=1):
    """Runs ``script(link)``; returns the memory by octet address, accesses and errors."""
    dut = shared(UartBridge, patience=PATIENCE)
    rng = random.Random(seed)
    state = {"answer": b"", "errors": 0, "memory": {}, "accesses": []}

    async def main(ctx):
        await ctx.tick().repeat(4)  # after a reset, a line is quiet for longer
        await script(Link(ctx, dut, state))
        await ctx.tick().repeat(10)

    async def bus(ctx):
        while True:
            await ctx.tick()
            if ctx.get(dut.bus.aw.valid) and ctx.get(dut.bus.w.valid):
                while rng.random() < stalled:
                    await ctx.tick()
                at, word = ctx.get(dut.bus.aw.payload.addr), ctx.get(dut.bus.w.payload.data)
                assert ctx.get(dut.bus.w.payload.strb) == 15
                for ready in (dut.bus.aw.ready, dut.bus.w.ready):
                    ctx.set(ready, 1)
                    if rng.random() < stalled:  # one after the other
                        await ctx.tick()
                        ctx.set(ready, 0)
                await ctx.tick()
                ctx.set(dut.bus.aw.ready, 0)
                ctx.set(dut.bus.w.ready, 0)
                refused = at >= 1 << 31
                if not refused:
                    state["memory"][at] = word
                state["accesses"].append(("write", at))
                ctx.set(dut.bus.b.payload.resp, 3 if refused else 0)
                ctx.set(dut.bus.b.valid, 1)
                await ctx.tick().until(dut.bus.b.ready)
                ctx.set(dut.bus.b.valid, 0)
            elif ctx.get(dut.bus.ar.valid):
                at = ctx.get(dut.bus.ar.payload.addr)
                ctx.set(dut.bus.ar.ready, 1)
                await ctx.tick()
                ctx.set(dut.bus.ar.ready, 0)
                while rng.random() < stalled:
                    await ctx.tick()
                state["accesses"].append(("read", at))
                refused = at >= 1 << 31
                ctx.set(dut.bus.r.payload, {
                    "data": state["memory"].get(at, 0), "resp": 3 if refused else 0})
                ctx.set(dut.bus.r.valid, 1)
                await ctx.tick().until(dut.bus.r.ready)
                ctx.set(dut.bus.r.valid, 0)

    async def answers(ctx):
        async for *_, valid, ready, octet, error in ctx.tick().sample(
                dut.o.valid, dut.o.ready, dut.o.payload, dut.error):
            if valid and ready:
                state["answer"] += bytes([octet])
            state["errors"] += error
            ctx.set(dut.o.ready, rng.random() >= stalled)

    simulate(dut, main, background=[bus, answers])
    return state


@pytest.mark.parametrize("stalled", [0.0, 0.6])
def test_words_are_written_and_read(stalled):
    words = [0x01020304, 0xFFFFFFFF, 0, 0x80000001]

    async def script(link):
        await link.write(0x1000, *words)
        assert await link.read(0x1000, 4) == words
        assert await link.read(0x1004) == words[1:2]

    state = run(script, stalled=stalled)
    assert state["memory"] == {0x1000 + 4 * k: word for k, word in enumerate(words)}
    assert state["errors"] == 0


def test_fixed_bursts_stay_at_their_address():
    async def script(link):
        await link.write(0x20, 1, 2, 3, opcode=3)
        assert await link.read(0x20, 2, opcode=4) == [3, 3]

    state = run(script)
    assert state["memory"] == {0x20: 3}
    assert state["accesses"] == [("write", 0x20)] * 3 + [("read", 0x20)] * 2


def test_the_longest_burst_is_of_255_words():
    async def script(link):
        await link.write(0, *range(255))
        assert await link.read(0, 255) == list(range(255))

    assert run(script)["errors"] == 0


def test_an_access_that_the_bus_refuses_is_counted_and_reads_as_nothing():
    async def script(link):
        assert await link.read(0x8000_0000) == [board.NOTHING]
        await link.write(0x8000_0000, 1)
        await link.write(0x10, 7)
        assert await link.read(0x10) == [7]

    assert run(script)["errors"] == 2


@pytest.mark.parametrize("noise", [b"\x00", b"\x05\xff\x80", b"\x01\x00", b"\x02\x00\x02\x00"])
def test_what_is_no_command_is_skipped_and_counted(noise):
    async def script(link):
        await link.send(noise)
        await link.write(4, 9)
        assert await link.read(4) == [9]

    state = run(script)
    assert state["memory"] == {4: 9}
    assert state["errors"] == len(noise) // (2 if noise[0] in (1, 2) else 1)


@pytest.mark.parametrize("cut", range(1, 13))
def test_a_command_broken_off_is_forgotten_after_a_silence(cut):
    command = bytes([1, 2, 0, 0, 0, 1]) + bytes(8)

    async def script(link):
        await link.send(command[:cut])
        await link.silence()
        await link.write(0x40, 5)
        assert await link.read(0x40) == [5]

    state = run(script)
    assert state["errors"] == 1
    assert state["memory"] == ({4: 0, 0x40: 5} if cut >= 10 else {0x40: 5})


def test_a_break_ends_a_command_at_once():
    async def script(link):
        await link.send(bytes([1, 4, 0]))
        link.ctx.set(link.dut.broken, 1)
        await link.ctx.tick()
        link.ctx.set(link.dut.broken, 0)
        await link.ctx.tick().repeat(3)
        await link.write(0x40, 5)

    state = run(script)
    assert (state["memory"], state["errors"]) == ({0x40: 5}, 1)


def test_a_slow_command_is_no_broken_one():
    async def script(link):
        await link.send(bytes([1, 1, 0, 0, 0, 3, 0, 0, 0, 8]), gap=PATIENCE - 20)
        assert await link.read(12) == [8]

    assert run(script)["errors"] == 0


@pytest.mark.parametrize("seed", [0, *long(1, 2, 3)])
def test_after_any_noise_and_a_silence_commands_are_understood(seed):
    rng = random.Random(seed)
    noise = rng.randbytes(rng.randrange(1, 40))

    async def script(link):
        await link.send(noise, gap=60)
        for _ in range(3):
            await link.silence()
            await link.ctx.tick().repeat(4000)  # an answer of 255 words
        await link.write(0x1234_5678, 0xABCD)
        assert await link.read(0x1234_5678) == [0xABCD]

    run(script, seed=seed)


def test_commands_that_come_during_an_answer_wait():
    async def script(link):
        command = bytes([2, 1, 0, 0, 0, 1])
        await link.write(4, 0x11223344)
        link.state["answer"] = b""
        await link.send(command * 3, gap=2)
        await link.ctx.tick().repeat(200)
        assert link.state["answer"] == bytes.fromhex("11223344") * 3

    assert run(script)["errors"] == 0

"""Tests the doorbell pages: of one table, of the register decoder, and of all registers."""

import random

import pytest
from amaranth import ResetInserter, Signal
from ddp_rnic.hdl.bus.csr import Registers
from ddp_rnic.hdl.bus.pages import PageFence
from ddp_rnic.hdl.bus.tests.lite import manager
from ddp_rnic.hdl.control import Control
from ddp_rnic.hdl.lib.testing import shared, simulate
from ddp_rnic.hdl.spec import commands, regs
from ddp_rnic.hdl.spec.commands import Write
from ddp_rnic.hdl.spec.config import RnicConfig

OKAY, DECERR = 0, 3
CONFIG = RnicConfig(
    stags=16, streams=16, buffer_octets=4096, outstanding=8, queue_depth=4, buffers=16, pages=16,
    backlog=64, completion_queues=4, transmit=True, sctp=True,
)
QUEUES = CONFIG.completion_queues + 1  # that of SCTP's owner too
#: The longest that an access through a page takes, from address and data to its response.
CYCLES = 5


@pytest.mark.parametrize("items", [5, 16, 128])
def test_only_an_items_own_page_is_allowed(items):
    dut = PageFence(items)
    rng = random.Random(items)
    pages = [rng.randrange(4) for _ in range(items)]
    asked = [(rng.randrange(2 * items), rng.randrange(4)) for _ in range(400)]
    asked += [(items | 1 << 15, page) for page in range(4)]
    allowed = []

    async def main(ctx):
        ctx.set(dut.set.valid, 1)
        for index, page in enumerate(pages):
            ctx.set(dut.set.payload, {"index": index, "page": page})
            await ctx.tick()
        ctx.set(dut.set.valid, 0)
        late = [0, 0]
        for index, page in [*asked, (0, 0), (0, 0), (0, 0)]:
            ctx.set(dut.index, index)
            ctx.set(dut.page, late[0])
            late = [late[1], page]
            allowed.append(ctx.get(dut.allows))
            await ctx.tick()

    simulate(dut, main)
    assert allowed[3:] == [
        0 < page == (pages[index] if index < items else 0) for index, page in asked]


def test_a_page_has_two_words_and_nothing_else():
    dut = Registers(RnicConfig(sctp=True, transmit=True, responder=True))
    offsets = [*range(0, 0x300, 4), 0x800, 0xFFC]
    doorbells = [regs.address(name) for name in regs.DOORBELLS]
    came = []
    written = [getattr(dut, register.name.lower()) for register in dut.registers
               if register.access != "ro"]

    async def main(ctx):
        write, read = manager(ctx, dut.bus)
        for page in (1, 16):
            for offset in offsets:
                address = page * regs.PAGE_SIZE + offset
                assert await write(address, address ^ 0xA5A5_A5A5) == OKAY
                assert await read(address) == (0, OKAY)
            for offset in doorbells:
                for strobes in range(15):
                    assert await write(page * regs.PAGE_SIZE + offset, 0, strobes) == OKAY
        for page in (17, 24, 31):
            for offset in doorbells:
                assert await write(page * regs.PAGE_SIZE + offset, 1) == DECERR
                assert (await read(page * regs.PAGE_SIZE + offset))[1] == DECERR
        await ctx.tick().repeat(4)

    async def listen(ctx):
        async for *_, rings, strays, word, page, own, sent in ctx.tick().sample(
                dut.page_rings, dut.page_strays, dut.word, dut.page, dut.rings, dut.send_rings):
            assert not own and not sent
            if rings or strays:
                came.append((rings, strays, page, word))

    async def still(ctx):
        async for _, _, *values in ctx.tick().sample(*written):
            assert not any(values), "a page wrote a register"

    simulate(dut, main, background=(listen, still), limit=60_000)
    expected = []
    for page in (1, 16):
        for offset in offsets:
            word = page * regs.PAGE_SIZE + offset ^ 0xA5A5_A5A5
            ring = sum(1 << bit for bit, at in enumerate(doorbells) if at == offset)
            expected.append((ring, int(not ring), page, word))
        expected += [(0, 1, page, 0)] * 30
    assert came == expected


class Host:
    """Gives the registers of a device commands, and notes the doorbells that ring."""

    def __init__(self):
        self.dut = shared(Control, CONFIG)
        self.sent, self.taken, self.commands = [], [], []
        self.ignored = 0  #: writes to pages that must have had no effect
        self.strays = None  #: how many of these came through each page, if a test says so

    def play(self, script, *, background=(), limit=60_000):
        """Runs ``script(host)``, beside what runs in the ``background``."""
        dut = self.dut

        async def main(ctx):
            self.ctx = ctx
            self.write, self.read = manager(ctx, dut.bus)
            for name in ("set", "opens", "limits", "ring", "msns", "doorbell", "released"):
                ctx.set(getattr(dut.send, name).ready, 1)
            ctx.set(dut.clear.ready, 1)
            before = [await self.count(page) for page in range(1, regs.PAGES + 1)]
            await script(self)
            await ctx.tick().repeat(8)
            assert await self.count() == self.ignored
            pages = [await self.count(page) for page in range(1, regs.PAGES + 1)]
            counts = [after - first for first, after in zip(before, pages, strict=True)]
            assert sum(counts) == self.ignored
            if self.strays is not None:
                assert counts == self.strays

        async def listen(ctx):
            doorbell, bell = dut.send.doorbell, dut.queues.doorbell
            async for *_, sends, sent, takes, taken in ctx.tick().sample(
                    doorbell.valid & doorbell.ready, doorbell.payload, bell.valid, bell.payload):
                if sends:
                    self.sent.append((sent.stream, sent.producer))
                if takes:
                    self.taken.append((taken.queue, taken.consumer, taken.arm))

        simulate(dut, main, background=(listen, *background), limit=limit)

    async def do(self, *steps):
        """Carries out the writes of commands."""
        for step in steps:
            if isinstance(step, Write):
                assert await self.write(step.address, step.value) == OKAY

    async def count(self, page=None):
        """Returns the counter of ignored doorbells, or that of a page."""
        if page is not None:
            await self.do(Write("DOORBELL_PAGE", page))
        name = "DOORBELLS_IGNORED" if page is None else "PAGE_IGNORED"
        value, _ = await self.read(regs.address(name))
        return value

    async def give(self, stream, page):
        """Gives a stream a ring, and a page."""
        await self.do(*commands.set_send_ring(stream, 0x1000 * stream, 4, page=page))

    async def give_queue(self, queue, page):
        """Gives a page a completion queue."""
        await self.do(*commands.set_cq(0x1000, 4, queue=queue, page=page))


def test_a_doorbell_in_a_page_reaches_the_streams_and_queues_of_that_page_alone():
    # "A stream or queue of another page is ignored and counted" (DESIGN.md, Data Source).
    host, rng = Host(), random.Random(5041)
    of_stream = [rng.randrange(regs.PAGES + 1) for _ in range(CONFIG.streams)]
    of_queue = [rng.randrange(4) for _ in range(QUEUES)]
    sent, taken = [], []
    host.strays = [0] * regs.PAGES

    async def script(host):
        for stream, page in enumerate(of_stream):
            await host.give(stream, page)
        for queue, page in enumerate(of_queue):
            await host.give_queue(queue, page)
        for page in range(1, regs.PAGES + 1):
            # One number after the last too, and the largest that the word has.
            for stream in (*range(CONFIG.streams + 1), 0xFFFF):
                index = rng.getrandbits(16)
                await host.do(*commands.ring_send(stream, index, page=page))
                if stream < CONFIG.streams and of_stream[stream] == page:
                    sent.append((stream, index))
                else:
                    host.ignored += 1
                    host.strays[page - 1] += 1
            for queue in (*range(QUEUES + 1), 0xFF):
                arm = rng.getrandbits(1)
                await host.do(*commands.take(7 * page, queue=queue, arm=arm, page=page))
                if queue < QUEUES and of_queue[queue] == page:
                    taken.append((queue, 7 * page, arm))
                else:
                    host.ignored += 1
                    host.strays[page - 1] += 1
        # The owner of the whole device rings all of them, through the registers.
        for stream in range(CONFIG.streams):
            await host.do(*commands.ring_send(stream, stream))
            sent.append((stream, stream))
        for queue in range(QUEUES):
            await host.do(*commands.take(queue, queue=queue))
            taken.append((queue, queue, 0))

    host.play(script)
    assert len(sent) > CONFIG.streams and len(taken) > QUEUES
    assert (host.sent, host.taken) == (sent, taken)


def test_a_page_that_was_given_to_another_client_rings_the_streams_of_that_client_alone():
    host = Host()

    async def script(host):
        await host.give(3, 5)
        await host.give_queue(1, 5)
        await host.do(*commands.ring_send(3, 1, page=5), *commands.take(1, queue=1, page=5))
        # The client goes: its ring is closed, and its queue disabled. Another one gets the page.
        await host.do(
            Write("SEND_STREAM", 3), Write("SEND_RING_SIZE", 0), Write("SEND_RING_COMMIT", 1))
        await host.do(*commands.disable_cq(1))
        await host.give(4, 5)
        await host.do(
            *commands.ring_send(3, 2, page=5), *commands.take(2, queue=1, page=5),
            *commands.ring_send(4, 9, page=5))
        host.ignored = 2
        # The stream of the first client has another page then.
        await host.give(3, 6)
        await host.do(*commands.ring_send(3, 3, page=5), *commands.ring_send(3, 4, page=6))
        host.ignored += 1

    host.play(script)
    assert host.sent == [(3, 1), (4, 9), (3, 4)] and host.taken == [(1, 1, 0)]


def test_a_page_is_taken_from_a_stream_that_may_be_sending_and_its_ring_stays():
    host, rings = Host(), []

    async def script(host):
        await host.give(3, 5)
        await host.give(4, 5)
        await host.do(*commands.ring_send(3, 1, page=5), *commands.set_send_page(3))
        await host.do(*commands.ring_send(3, 2, page=5), *commands.ring_send(4, 3, page=5))
        host.ignored = 1
        # The owner of the device rings the stream as before, and may give it another page.
        await host.do(*commands.ring_send(3, 4), *commands.set_send_page(3, 6))
        await host.do(*commands.ring_send(3, 5, page=6), *commands.ring_send(3, 6, page=5))
        host.ignored += 1
        # A stream that does not exist leaves those that do as they are.
        await host.do(*commands.set_send_page(3 + CONFIG.streams, 5))
        await host.do(*commands.ring_send(3, 7, page=6))

    async def listen(ctx):
        ring = host.dut.send.ring
        async for *_, valid, ready in ctx.tick().sample(ring.valid, ring.ready):
            if valid and ready:
                rings.append(None)

    host.play(script, background=(listen,))
    assert host.sent == [(3, 1), (4, 3), (3, 4), (3, 5), (3, 7)]
    assert len(rings) == 2, "only the two rings that were given were set"


def test_who_takes_the_device_over_takes_all_pages_back():
    host = Host()

    async def script(host):
        for stream in range(CONFIG.streams):
            await host.give(stream, 1)
        for queue in range(QUEUES):
            await host.give_queue(queue, 1)
        await host.do(*commands.clear_tables(stags=0, streams=CONFIG.streams, sends=True))
        for queue in range(QUEUES):
            await host.do(*commands.disable_cq(queue))
        for stream in range(CONFIG.streams):
            await host.do(*commands.ring_send(stream, 1, page=1))
        for queue in range(QUEUES):
            await host.do(*commands.take(1, queue=queue, page=1))
        host.ignored = CONFIG.streams + QUEUES

    host.play(script)
    assert host.sent == host.taken == []


def test_a_reset_leaves_pages_and_begins_the_count_anew():
    """The tables stay as the rings do: who opens the device takes all of them over."""
    dut, came = ResetInserter(reset := Signal())(control := Control(CONFIG)), []

    async def main(ctx):
        ctx.set(control.send.ring.ready, 1)
        ctx.set(control.send.doorbell.ready, 1)
        write, read = manager(ctx, control.bus)
        for step in (*commands.set_send_ring(3, 0x1000, 4, page=5),
                     *commands.ring_send(4, 1, page=5)):
            assert await write(step.address, step.value) == OKAY
        assert await read(regs.address("DOORBELLS_IGNORED")) == (1, OKAY)
        ctx.set(reset, 1)
        await ctx.tick().repeat(2)
        ctx.set(reset, 0)
        for stream in (3, 4):
            for step in commands.ring_send(stream, 8, page=5):
                assert await write(step.address, step.value) == OKAY
        assert await read(regs.address("DOORBELLS_IGNORED")) == (1, OKAY)

    async def listen(ctx):
        doorbell = control.send.doorbell
        async for *_, valid, rung in ctx.tick().sample(doorbell.valid, doorbell.payload):
            if valid:
                came.append((rung.stream, rung.producer))

    simulate(dut, main, background=(listen,))
    assert came == [(3, 8)]


def test_nothing_has_a_page_at_first():
    host = Host()

    async def script(host):
        assert await host.read(regs.address("CAP_DOORBELLS")) == (regs.PAGES, OKAY)
        for page in (1, 15, 16):
            for stream in range(CONFIG.streams):
                await host.do(*commands.ring_send(stream, 1, page=page))
            await host.do(*commands.take(1, page=page))
        host.ignored = 3 * (CONFIG.streams + 1)

    host.play(script)
    assert host.sent == host.taken == []


@pytest.mark.parametrize("page", [0, 2, 3], ids=["registers", "own page", "foreign page"])
def test_a_flood_on_one_page_delays_others_by_one_access(page):
    """Every write, through a page or not, has its response after the same few cycles."""
    host = Host()

    async def script(host):
        dut, ctx = host.dut, host.ctx
        await host.give(1, 2)
        ctx.set(dut.bus.b.ready, 1)
        ctx.set(dut.bus.aw.payload.addr, commands.ring_send(1, 0, page=page)[0].address)
        ctx.set(dut.bus.aw.valid, 1)
        ctx.set(dut.bus.w.valid, 1)
        cycles, answered = 0, []
        while len(answered) < 20:
            ctx.set(dut.bus.w.payload, {"data": 1 << 16 | len(answered), "strb": 15})
            _, _, done = await ctx.tick().sample(dut.bus.b.valid)
            cycles += 1
            if done:
                answered.append(cycles)
        ctx.set(dut.bus.aw.valid, 0)
        ctx.set(dut.bus.w.valid, 0)
        await ctx.tick().repeat(CYCLES + 1)
        ctx.set(dut.bus.b.ready, 0)
        gaps = {after - before for before, after in zip(answered, answered[1:], strict=False)}
        assert answered[0] == CYCLES and gaps == {CYCLES}
        host.ignored = 20 if page == 3 else 0

    host.play(script)
    assert len(host.sent) == (0 if page == 3 else 20)

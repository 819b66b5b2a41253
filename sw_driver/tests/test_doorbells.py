"""Tests of the clients' doorbell pages, direct queues and send rings, on the real gateware.

Sentences of RFC 5042 are quoted in the tests that hold them.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import random
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, cast

import pytest
from ddp_rnic.hdl.spec import commands, regs
from ddp_rnic.hdl.spec.commands import Write, ring_send, take
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.hdl.spec.send import ENTRY, MESSAGE, Kind, Piece
from ddp_rnic.sim.devices.live import Peer, SimTransport
from ddp_rnic.sim.model.mpa import Fpdu, MpaReceiver
from ddp_rnic.sw_driver import (
    CQ,
    PD,
    WC,
    Access,
    Device,
    InvalidRequest,
    ResourceExhausted,
    RnicError,
    RnicTimeout,
    StateError,
    Stream,
    StreamError,
    StreamState,
    Transport,
    UnsupportedDevice,
    WcStatus,
)
from ddp_rnic.sw_driver.prm import DirectCQ, Limits, Policy, SendRing, connect, protocol
from ddp_rnic.sw_driver.prm.client import ClientContext, ClientCQ, ClientStream
from ddp_rnic.sw_driver.tests.managed import Managed, managed, served, until
from ddp_rnic.sw_driver.transports.mapped import MappedPage
from ddp_rnic.sw_driver.verbs.sending import Part

SENDS = RnicConfig(transmit=True, responder=True)
BOTH = Access.REMOTE_WRITE | Access.LOCAL_READ
#: Where the doorbells are among the words of a page, and a value that none has at first.
WORDS = [regs.address(name) // 4 for name in regs.DOORBELLS]
UNRUNG = 0xFFFFFFFF


class PagedSim(SimTransport):
    """The simulated device with files of its first doorbell pages, as a kernel makes them for a
    real one.

    A doorbell in a file is rung when the device is reached next, if its value is another one. Of
    two values in between, the device gets the second.
    """

    def __init__(self, folder: Path, count: int) -> None:
        super().__init__(SENDS)
        self.page_files = []
        self._pages = []
        for number in range(1, count + 1):
            path = folder / f"page{number}"
            path.write_bytes(UNRUNG.to_bytes(4, "little") * (regs.PAGE_SIZE // 4))
            with path.open("r+b") as file:
                self._pages.append(memoryview(mmap.mmap(file.fileno(), 0)).cast("I"))
            self.page_files.append(MappedPage(path, None))
        self._rung = [[UNRUNG] * len(WORDS) for _ in range(count)]

    def close(self) -> None:
        super().close()
        for page, file in zip(self._pages, self.page_files, strict=True):
            page.release()
            file.close()
        self._pages, self._rung, self.page_files = [], [], []

    def _caught_up(self) -> Any:
        for number, (page, rung) in enumerate(zip(self._pages, self._rung, strict=True), 1):
            for at, word in enumerate(WORDS):
                if (value := page[word]) != rung[at]:
                    rung[at] = value
                    self._posted.append((number * regs.PAGE_SIZE + 4 * word, value))
        return super()._caught_up()


@pytest.fixture(params=["forwarded", "mapped"])
def prm(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Managed]:
    """A manager whose clients ring through it, or map their pages."""
    policy = Policy(per_user=8)
    if request.param == "forwarded":
        with managed(tmp_path, policy, config=SENDS) as running:
            yield running
        return
    with PagedSim(tmp_path, 8) as sim, Device(sim).open() as context:
        with served(context, tmp_path / "rnic.sock", policy) as running:
            running.sim = sim
            yield running


class Client:
    """A client with a stream whose completions and send ring are its own."""

    def __init__(self, prm: Managed) -> None:
        self.prm, self.context = prm, connect(prm.path)
        self.pd = PD(self.context)
        self.queue = DirectCQ(self.context, 16)
        self.buffer = self.context.allocate(1 << 14)
        self.region = self.pd.register(self.buffer, BOTH)
        self.open()

    def open(self) -> None:
        self.stream = Stream(self.pd, self.queue)
        self.ring = SendRing(self.stream, self.queue, entries=8)
        self.peer, self._received = Peer(self.prm.sim, self.stream.number), MpaReceiver()

    def take(self, count: int) -> list[WC]:
        taken: list[WC] = []
        while len(taken) < count:
            taken += self.queue.wait(10)
        return taken

    def arrived(self) -> list[bytes]:
        """Returns the DDP Segments that the peer gets."""
        return segments(self._received, self.ring.fpdus())

    def works(self) -> None:
        """Sends and receives a message each."""
        number = random.randrange(1 << 32).to_bytes(4, "little")
        self.stream.post_recv(buffer := bytearray(8), wr_id="received")
        self.peer.send(number)
        self.ring.post(Kind.UNTAGGED, number * 2, wr_id="sent", qn=1)
        taken = self.take(2)
        assert {(each.wr_id, each.status) for each in taken} == {
            ("received", WcStatus.SUCCESS), ("sent", WcStatus.SUCCESS)}  # fmt: skip
        assert bytes(buffer[:4]) == number and self.arrived()[-1].endswith(number * 2)

    def ring_raw(self, *writes: Write) -> None:
        """Rings anything through this client's page."""
        for write in writes:
            try:
                self.context.doorbells().ring((write,))
            except InvalidRequest as error:
                assert "is not on this client's doorbell page" in str(error)

    def page(self) -> int:
        return self.context.doorbells().number

    def die(self) -> None:
        """Ends as a dead process does: without a word, and its mappings are gone."""
        page = self.context.doorbells()
        self.context.link.close()
        page.close()


@pytest.fixture
def clients(prm: Managed) -> Iterator[Callable[[], Client]]:
    """Makes clients; afterwards all of them leave, and nothing is left of them."""
    made: list[Client] = []

    def make() -> Client:
        made.append(Client(prm))
        return made[-1]

    yield make
    for each in made:
        each.context.close()
    assert prm.all_gone()


def segments(receiver: MpaReceiver, fpdus: list[bytes]) -> list[bytes]:
    """Returns the DDP Segments of FPDUs, which have good CRCs and lengths."""
    found = [each for fpdu in fpdus for each in receiver.receive(fpdu)]
    assert all(isinstance(each, Fpdu) for each in found)
    return [each.ulpdu for each in found if isinstance(each, Fpdu)]


def ignored(prm: Managed, page: int) -> int:
    """Returns how many doorbells of a page the device has ignored."""
    with prm.context.lock:
        prm.context.registers.write("DOORBELL_PAGE", page)
        return prm.context.registers.read("PAGE_IGNORED")


def took(queue: DirectCQ, taken: list[WC]) -> list[WC]:
    """Adds the completions that are present to ``taken``, and returns that."""
    taken += queue.poll()
    return taken


def noting(asked: list[protocol.Request], ask: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that does as ``ask`` does, and adds the request to ``asked``."""

    def note(request: protocol.Request) -> Any:
        asked.append(request)
        return ask(request)

    return note


def counted(prm: Managed, client: Client, count: int) -> None:
    """Waits until the device has ignored ``count`` doorbells of a client's page."""
    until(lambda: ignored(prm, client.page()) == count, f"{count} doorbells ignored")


def test_a_client_receives_and_sends_without_the_manager(
    prm: Managed, clients: Callable[[], Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    # RFC 5042 section 2.2.6: "Some implementations may allow this queue to be manipulated directly
    # by both Non-Privileged and Privileged ULPs."
    one = clients()
    mapped = one.context.doorbells().mapped
    one.buffer[:5000] = bytes(random.Random(5042).randbytes(5000))
    one.stream.post_recv(one.region, 2, wr_id="in it", offset=6000, length=100)
    one.stream.post_recv(outside := bytearray(50), wr_id="outside")
    one.peer.send(b"in", 2, rsvdulp=7)
    one.peer.write(one.region.stag, 7000, b"tagged")
    one.peer.send(b"out", 0)
    asked: list[protocol.Request] = []
    with monkeypatch.context() as patch:
        link, ask = one.context.link, one.context.link.ask
        patch.setattr(link, "ask", noting(asked, ask))
        taken: list[WC] = []
        until(lambda: len(took(one.queue, taken)) == 3, "what came")
        one.ring.post(Kind.UNTAGGED, b"inline", wr_id="inline", qn=3, rsvdulp=9)
        one.ring.post(Kind.TAGGED, Part(one.region, 100, 4000), wr_id="long", stag=8, to=1 << 40)
        until(lambda: len(took(one.queue, taken)) == 5, "all completions")
    # The manager frees the copy of the buffer outside; else it only rings, if it has to.
    kinds = {type(each) for each in asked}
    assert kinds == {protocol.Close} | (set() if mapped else {protocol.Bell})
    received = [(each.opcode.name, each.wr_id, each.byte_len, each.qn) for each in taken]
    assert sorted(received[:3]) == [
        ("RECV", "in it", 2, 2), ("RECV", "outside", 3, 0), ("TAGGED", None, 6, 0)]  # fmt: skip
    assert received[3:] == [("SENT", "inline", 6, 0), ("SENT", "long", 4000, 0)]
    assert bytes(one.buffer[6000:6002]) == b"in" and bytes(one.buffer[7000:7006]) == b"tagged"
    assert outside[:3] == b"out" and taken[0].rsvdulp == 7 and taken[1].mr is one.region
    first, *others = one.arrived()
    assert first.endswith(b"inline") and len(others) == 3
    assert b"".join(each[14:] for each in others) == bytes(one.buffer[100:4100])


def test_completions_are_awaited_and_come_in_more_laps_than_the_ring_has_entries(
    prm: Managed, clients: Callable[[], Client]
) -> None:
    one, rng = clients(), random.Random(1)
    for turn in range(30):
        posted = set()
        for n in range(rng.randrange(1, 4)):
            one.ring.post(Kind.UNTAGGED, b"x" * rng.randrange(30), wr_id=(turn, n, "sent"), qn=0)
            one.stream.post_recv(bytearray(10), wr_id=(turn, n, "received"))
            one.peer.send(b"y" * rng.randrange(10))
            posted |= {(turn, n, "sent"), (turn, n, "received")}
        assert {each.wr_id for each in one.take(len(posted))} == posted
        one.ring.fpdus()
    one.works()


def test_completions_are_awaited_by_asyncio_too(
    prm: Managed, clients: Callable[[], Client]
) -> None:
    one = clients()

    async def main() -> None:
        waits = asyncio.create_task(one.queue.wait_async(10))
        await asyncio.sleep(0.05)
        one.stream.post_recv(bytearray(8), wr_id="came")
        one.stream.post_recv(bytearray(8), wr_id="flushed")
        one.peer.send(b"later")
        assert [each.wr_id for each in await waits] == ["came"]
        one.stream.close()
        assert [each.wr_id for each in await one.queue.wait_async(10)] == ["flushed"]
        with pytest.raises(RnicTimeout):
            await one.queue.wait_async(0.05)

    asyncio.run(main())


def test_a_stream_that_is_closed_gives_back_all_that_was_posted(
    prm: Managed, clients: Callable[[], Client]
) -> None:
    one = clients()
    for n in range(3):
        one.stream.post_recv(bytearray(10), wr_id=n)
    one.peer.send(b"one comes")
    one.ring.post(Kind.TAGGED, Part(one.region, 0, 9), wr_id="sent", stag=1, to=0)
    until(lambda: one.ring.fpdus(), "the FPDU")
    one.stream.close()
    ended = {(each.wr_id, each.status) for each in one.queue.poll(10)}
    assert ended == {
        (0, WcStatus.SUCCESS), (1, WcStatus.FLUSHED), (2, WcStatus.FLUSHED),
        ("sent", WcStatus.SUCCESS)}  # fmt: skip
    with pytest.raises(StateError, match="is closed"):
        one.ring.post(Kind.UNTAGGED, b"late", qn=0)
    for _ in range(3):
        one.open()
        one.works()
        one.stream.close()
    one.region.revoke()
    one.context.free(one.buffer)


def test_an_error_of_the_peer_is_raised_and_stops_its_stream_alone(
    prm: Managed, clients: Callable[[], Client]
) -> None:
    one, other = clients(), clients()
    one.peer.send(b"nobody waits for this")
    with pytest.raises(StreamError):
        one.queue.wait(10)
    assert one.stream.state is StreamState.ERROR
    one.stream.close()
    one.open()
    one.works()
    other.works()


def test_who_rings_what_is_anothers_changes_nothing_is_counted_and_is_named(
    prm: Managed, clients: Callable[[], Client]
) -> None:
    # RFC 5042 section 3: "All Non-Privileged ULP interactions with the RNIC Engine that could
    # affect other ULPs MUST be done using the Privileged Resource Manager as a proxy." Section
    # 2.1: "The Privileged Resource Manager implements countermeasures to ensure that, if the
    # Non-Privileged ULP launches an attack, it can prevent the attack from affecting other ULPs."
    victim, hostile = clients(), clients()
    victim.works()
    victim.stream.post_recv(bytearray(8), wr_id="waits")
    before = ignored(prm, hostile.page()), ignored(prm, victim.page())
    there = prm.context.capabilities
    streams = [*range(there.streams), there.streams, 0x7FFF, 0xFFFE]
    queues = [*range(there.cqs), there.cqs, 0xFE]
    streams.remove(hostile.stream.number)
    queues.remove(hostile.queue.number)
    attacks = [ring_send(number, 1000 + number) for number in streams]
    attacks += [take(1000 + number, queue=number, arm=True) for number in queues]
    for count, attack in enumerate(attacks, 1):
        hostile.ring_raw(*attack)
        counted(prm, hostile, before[0] + count)
    assert ignored(prm, victim.page()) == before[1]
    # What waits at the victim is as before, and so is all that it does from now on.
    with prm.context.lock:
        prm.context.registers.write("SEND_STREAM", victim.stream.number)
        assert prm.context.registers.read("SEND_CONSUMER") == 1
    victim.peer.send(b"comes")
    (completion,) = victim.take(1)
    assert (completion.wr_id, completion.status) == ("waits", WcStatus.SUCCESS)
    victim.works()
    hostile.works()
    until(
        lambda: sum(line["doorbells"] for line in prm.lines("ignored")) == len(attacks), "the log"
    )
    for line in prm.lines("ignored"):
        assert (line["page"], line["pid"], line["uid"]) == (
            hostile.page(), os.getpid(), os.geteuid())  # fmt: skip


def test_a_producer_index_more_than_a_ring_ahead_stops_that_stream_alone(
    prm: Managed, clients: Callable[[], Client]
) -> None:
    victim, hostile = clients(), clients()
    second = Stream(hostile.pd, hostile.queue)
    sound = SendRing(second, hostile.queue, entries=8)
    hostile.ring.post(Kind.UNTAGGED, b"good", wr_id="good", qn=0)
    assert hostile.take(1)[0].status is WcStatus.SUCCESS
    hostile.ring_raw(*ring_send(hostile.stream.number, 1 + 9))
    (stop,) = prm.awaited("stop")
    assert "more than a ring ahead" in stop["reason"]
    assert (stop["stream"], stop["pid"]) == (hostile.stream.number, os.getpid())
    for index in (0, 3, 0x8000, 0xFFFF):
        hostile.ring_raw(*ring_send(hostile.stream.number, index))
    sound.post(Kind.UNTAGGED, b"another stream", wr_id="other", qn=0)
    until(lambda: any(each.wr_id == "other" for each in hostile.queue.poll()), "the other stream")
    assert [
        each.endswith(b"another stream") for each in segments(MpaReceiver(), sound.fpdus())
    ] == [True]
    victim.works()
    hostile.stream.close()
    hostile.open()
    hostile.works()


def test_a_work_request_reads_no_octet_that_is_anothers(
    prm: Managed, clients: Callable[[], Client]
) -> None:
    victim, hostile = clients(), clients()
    victim.buffer[:6] = b"secret"
    foreign = Part(victim.region, 0, 6).piece
    hostile.ring.post(Kind.TAGGED, foreign, wr_id="foreign", stag=1, to=0)
    (failed,) = hostile.take(1)
    assert failed.status is WcStatus.NOT_READ and not hostile.ring.fpdus()
    (stop,) = prm.awaited("stop")
    assert "memory that it may not send" in stop["reason"]
    # Entries of any octets end too, and leave nothing.
    rng = random.Random(7)
    for _ in range(20):
        hostile.stream.close()
        hostile.queue.poll(100)
        hostile.open()
        hostile.ring._memory.map[: 8 * ENTRY] = rng.randbytes(8 * ENTRY)
        hostile.ring_raw(*ring_send(hostile.stream.number, rng.randrange(1, 9)))
        victim.works()
        assert not hostile.ring.fpdus()


def test_a_wrong_message_fails_that_is_longer_than_what_the_device_reads_at_once(
    clients: Callable[[], Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After turns that end within a message the device reads few entries; it flushes the others."""
    client = clients()
    ring, page = client.ring, client.ring._page
    for _ in range(8):
        ring.post(Kind.TAGGED, Part(client.region, 0, 1 << 14), stag=1, to=0)
    taken: list[WC] = []
    while len(taken) < 8:
        taken += client.queue.poll(8)
        ring.fpdus()
    assert {each.status for each in taken} == {WcStatus.SUCCESS}
    (kind,) = (field.octet for field in MESSAGE if field.name == "kind")
    first = ring._producer % 8 * ENTRY

    def spoiled(writes: Any) -> None:
        ring._memory.map[first + kind] = 0xFF
        plain(writes)

    plain = page.ring
    monkeypatch.setattr(page, "ring", spoiled)
    ring.post(Kind.UNTAGGED, bytes(400), wr_id="wrong")
    assert [(each.wr_id, each.status) for each in client.take(1)] == [("wrong", WcStatus.NOT_READ)]


def test_a_client_that_lies_about_what_it_took_harms_nobody_else(
    prm: Managed, clients: Callable[[], Client]
) -> None:
    # RFC 5042 section 6.4.6: "an RNIC MUST ensure that if a CQ overflows, any Streams that do not
    # use the CQ MUST remain unaffected."
    victim, hostile = clients(), clients()
    rng = random.Random(64)
    posted = 0
    for turn in range(40):
        hostile.ring_raw(*take(rng.getrandbits(16), queue=hostile.queue.number, arm=turn % 2 == 0))
        for _ in range(3):
            if posted < 100:
                posted += 1
                with suppress(StreamError):  # its queue overflows, sooner or later
                    hostile.stream.post_recv(bytearray(8))
                    hostile.peer.send(b"overflow")
            if rng.random() < 0.5:
                index = hostile.ring._producer = hostile.ring._producer + 1
                hostile.ring_raw(*ring_send(hostile.stream.number, index))
        if turn % 8 == 0:
            victim.works()
    victim.works()
    # Its own queue is out of step; once the client has gone, nothing is left of it.
    hostile.context.link.close()
    until(lambda: len(prm.lines("disconnect")) == 1, "the client gone")
    third = clients()
    third.works()
    victim.works()


def test_a_completion_of_the_past_reaches_no_other_client(
    prm: Managed, clients: Callable[[], Client]
) -> None:
    """A client that gives entries back too early makes the manager read such ones, or half of two.
    Here the test writes them to the ring.
    """
    hostile = clients()
    with connect(prm.path) as context, PD(context) as pd, CQ(context) as cq:
        with Stream(pd, cq) as victim, pd.register(bytearray(8)) as region:
            (ring,) = (each for each in prm.context.rings if each.number == hostile.queue.number)
            for kind in (15, 0):  # none that there is, and a tagged message
                entry = bytearray(
                    struct.pack("<BBHI", kind << 4 | 1, 0, victim.number, region.stag)
                )
                with prm.context.lock:
                    assert not ring.consumed
                    ring.memory.view[: len(entry)] = entry
                    ring.memory.view[31] = 1
                context.events()
                context.events()
                assert ring.consumed == (kind == 0)
            assert cq.poll() == []
            Peer(prm.sim, victim.number).write(region.stag, 0, b"sound")
            assert cq.wait(10)[0].byte_len == 5
    hostile.context.link.close()


def test_no_two_clients_share_a_queue_and_each_has_its_part(
    prm: Managed, clients: Callable[[], Client]
) -> None:
    # RFC 5042 section 7.1: "an RNIC MUST NOT enable sharing a CQ across ULPs that do not share
    # Partial Mutual Trust." Section 6.4.3.2: "an implementation MUST implement a Privileged
    # Resource Manager to control the allocation of CQ entries."
    with connect(prm.path) as greedy:
        for _ in range(16):
            CQ(greedy, 100)
        every = [clients() for _ in range(6)]
        assert len({each.queue.number for each in every}) == 6
        for each in every:
            with pytest.raises(ResourceExhausted, match="none is left for this client"):
                DirectCQ(each.context)
        with connect(prm.path) as small:
            CQ(small, 4000)
            with pytest.raises(ResourceExhausted, match="4096 completions of its queues"):
                DirectCQ(small, 128)


def test_the_seventeenth_client_gets_a_sentence_and_later_the_page_of_one_that_left(
    tmp_path: Path,
) -> None:
    # RFC 5042 section 3: "All ULP resource allocation requests for scarce resources MUST also be
    # done using a Privileged Resource Manager."
    policy = Policy(clients=17, per_user=17, limits=Limits(streams=2))
    with managed(tmp_path, policy, config=SENDS) as prm, ExitStack() as stack:
        many = [stack.enter_context(connect(prm.path)) for _ in range(17)]
        pages = [each.doorbells().number for each in many[:16]]
        assert pages == list(range(1, 17)) and prm.manager.pages.free == 0
        last = many[16]
        full = "all 16 doorbell pages of the device are taken: use CQ and Stream without one, or"
        for _ in range(2):
            with pytest.raises(ResourceExhausted, match=full):
                last.doorbells()
        with PD(last) as pd, CQ(last) as cq, Stream(pd, cq) as stream:
            stream.post_recv(bytearray(5), wr_id="without a page")
            Peer(prm.sim, stream.number).send(b"hello")
            assert cq.wait(10)[0].wr_id == "without a page"
            with pytest.raises(ResourceExhausted, match="all 16 doorbell pages"):
                DirectCQ(last)
        many[4].close()
        until(lambda: prm.manager.pages.free, "a page given back")
        assert last.doorbells().number == 5
        assert last.doorbells() is last.doorbells()
        with pytest.raises(StateError, match="this client has the doorbell page 5 already"):
            last.ask(protocol.Page())
        assert full in {
            line["reason"].partition(": ")[2][: len(full)] for line in prm.lines("refuse")
        }
    with managed(tmp_path, policy, config=SENDS) as prm, connect(prm.path) as one:
        with pytest.raises(ResourceExhausted, match="have the manager serve fewer clients"):
            DirectCQ(one)
        one.close()
        assert prm.all_gone()


@pytest.mark.parametrize("kind", [CQ, DirectCQ])
def test_closing_a_context_ends_the_waits_of_other_threads(tmp_path: Path, kind: type[CQ]) -> None:
    errors: list[str] = []

    def wait(call: Callable[[], object]) -> None:
        try:
            while True:
                call()
        except RnicError as error:
            errors.append(str(error))

    with managed(tmp_path) as prm:
        context = connect(prm.path)
        cq = kind(context)
        calls: list[Callable[[], object]] = [
            lambda: cq.wait(60),
            lambda: cq.wait_until(lambda: False, 60),
            lambda: asyncio.run(cq.wait_async(60)),
        ]
        threads = [threading.Thread(target=wait, args=(call,)) for call in calls for _ in range(2)]
        for thread in threads:
            thread.start()
        time.sleep(0.2)
        context.close()
        for thread in threads:
            thread.join(20)
        # The manager answers the waits for a closed queue, unless the connection is closed first.
        assert len(errors) == 6
        assert {*errors} <= {"the context is closed", "the connection to the manager is closed"}
        for call in calls:
            wait(call)
        assert errors[6:] == ["the context is closed"] * 3


#: What a client does, step by step; it may die after each.
STEPS: list[Callable[[dict], object]] = [
    lambda it: it["context"].doorbells(),
    lambda it: it.update(pd=PD(it["context"])),
    lambda it: it.update(queue=DirectCQ(it["context"], 8)),
    lambda it: it.update(buffer=it["context"].allocate(1 << 16)),
    lambda it: it.update(region=it["pd"].register(it["buffer"], BOTH)),
    lambda it: it.update(stream=Stream(it["pd"], it["queue"])),
    lambda it: it.update(peer=Peer(it["sim"], it["stream"].number)),
    lambda it: it["stream"].post_recv(it["region"], length=100),
    lambda it: it["stream"].post_recv(bytearray(100)),
    lambda it: it["peer"].send(b"one"),
    lambda it: it.update(ring=SendRing(it["stream"], it["queue"], entries=8)),
    lambda it: it["ring"].post(Kind.UNTAGGED, b"first", qn=0),
    # More than the client lets leave, as it takes no FPDU.
    *[lambda it: it["ring"].post(Kind.TAGGED, Part(it["region"], 0, 1 << 16), stag=1, to=0)] * 6,
    lambda it: it["context"].link.ask(protocol.Wait(it["queue"].handle, 1000, 0)),
    lambda it: it["peer"].send(b"two"),
    lambda it: it["context"].link.ask(protocol.Close(protocol.Object.STREAM, it["stream"].handle)),
    lambda it: it["context"].link.ask(protocol.Close(protocol.Object.QUEUE, it["queue"].handle)),
]


def test_a_client_that_dies_after_any_step_leaves_nothing(prm: Managed) -> None:
    with connect(prm.path) as context:
        spared = Client(prm)
        for count in range(len(STEPS) + 1):
            it: dict[str, Any] = {"sim": prm.sim, "context": connect(prm.path)}
            for step in STEPS[:count]:
                step(it)
            it["context"].link.close()  # without a word
            # The mapping of a dead client goes with it.
            if (page := it["context"]._page) is not None:
                page.close()
            until(lambda: len(prm.manager._seats) == 6, f"gone after step {count}")
            assert prm.manager.pages.free == 15 and len(prm.manager.pages.allotted) == 1
            assert len(prm.context.streams) == len(prm.context.regions) == 1
            spared.works()
        del context
    spared.context.close()
    assert prm.all_gone()


def test_what_a_dead_client_left_in_flight_reaches_no_next_client(prm: Managed) -> None:
    """The next client gets the page and, soon, the stream and the queue of the dead one."""
    numbers = set()
    for _ in range(70):  # more often than the device has streams
        one = Client(prm)
        numbers.add((one.page(), one.stream.number))
        one.works()
        for _ in range(3):
            one.ring.post(Kind.TAGGED, Part(one.region, 0, 1 << 14), stag=1, to=0)
        one.die()
        until(lambda: len(prm.manager._seats) == 8, "gone")
    assert {page for page, _ in numbers} == {1} and len(numbers) == SENDS.streams
    assert prm.all_gone()


KILLED = """
import sys
from ddp_rnic.sw_driver import PD, Stream
from ddp_rnic.sw_driver.prm import DirectCQ, SendRing, connect
from ddp_rnic.hdl.spec.send import Kind

context = connect(sys.argv[1])
queue = DirectCQ(context)
stream = Stream(PD(context), queue)
ring = SendRing(stream, queue)
page = context.doorbells()
print(page.number, page.mapped, flush=True)
while True:
    ring.post(Kind.UNTAGGED, b"again and again", qn=0)
    queue.wait()
    ring.fpdus()
"""


def sends_more(prm: Managed, count: int) -> None:
    """Waits until the device has sent more than ``count`` further FPDUs."""
    sent = prm.context.registers.read("SENT")
    until(lambda: prm.context.registers.read("SENT") > sent + count, f"{count} FPDUs")


def test_a_program_killed_while_it_rings_gives_its_page_back(prm: Managed) -> None:
    spared = Client(prm)
    mapped = spared.context.doorbells().mapped
    for _ in range(3):
        command = [sys.executable, "-c", KILLED, str(prm.path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as killed:
            assert killed.stdout is not None
            assert killed.stdout.readline() == f"2 {mapped}\n"
            sends_more(prm, 20)
            killed.kill()
            assert killed.wait() == -signal.SIGKILL
        until(lambda: prm.manager.pages.free == 15, "its page is free")
        spared.works()
    spared.context.close()
    assert prm.all_gone()


def test_a_page_that_may_still_be_mapped_is_given_to_nobody(tmp_path: Path) -> None:
    """A mapping outlives the descriptor, the connection, and, in a child, the client."""
    with PagedSim(tmp_path, 2) as sim, Device(sim).open() as context:
        with served(context, tmp_path / "rnic.sock", Policy(per_user=8)) as prm:
            prm.sim = sim
            left = connect(prm.path)
            page = left.doorbells()
            assert (page.number, page.mapped) == (1, True)
            left.link.close()
            until(lambda: len(prm.manager._seats) == 8, "gone")
            assert prm.manager.pages.free == 15
            one, other = Client(prm), Client(prm)
            assert (one.page(), other.page()) == (2, 3)
            assert not other.context.doorbells().mapped  # the other pages have no file
            # The device ignores a doorbell through the old mapping; the log names its client.
            page.ring(ring_send(one.stream.number, 5))
            (line,) = prm.awaited("ignored")
            assert (line["page"], line["doorbells"]) == (1, 1)
            one.works()
            other.works()
            page.close()
            assert prm.manager.pages.free == 14
            with connect(prm.path) as last:
                assert last.doorbells().number == 1 and last.doorbells().mapped
            one.context.close()
            other.context.close()
            assert prm.all_gone()
            left.close()


def test_a_stream_that_was_closed_is_not_rung_through_its_page_any_more(
    prm: Managed, clients: Callable[[], Client]
) -> None:
    hostile, other = clients(), clients()
    number = hostile.stream.number
    hostile.works()
    hostile.stream.close()
    before = ignored(prm, hostile.page())
    hostile.ring_raw(*ring_send(number, 2))
    counted(prm, hostile, before + 1)
    # Another client opens streams until one of them has the number.
    while other.stream.number != number:
        other.stream.close()
        other.open()
    hostile.ring_raw(*ring_send(number, 3))
    counted(prm, hostile, before + 2)
    other.works()


def test_a_ring_is_closed_after_its_page_was_taken_and_its_messages_have_ended(
    prm: Managed, clients: Callable[[], Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The register map: SEND_RING_COMMIT is written "while the stream sends nothing".
    one = clients()
    for _ in range(8):  # more than the client lets leave
        one.ring.post(Kind.TAGGED, Part(one.region, 0, 1 << 14), stag=1, to=0)
    page, number, found = one.page(), one.stream.number, []
    closes = commands.close_send_ring

    def closing(stream: int) -> tuple[Write, ...]:
        registers, before = prm.context.registers, ignored(prm, page)
        registers.start(ring_send(stream, 8, page=page))
        registers.write("SEND_STREAM", stream)
        found.append((stream, ignored(prm, page) - before, registers.read("SEND_CONSUMER")))
        return closes(stream)

    monkeypatch.setattr(commands, "close_send_ring", closing)
    one.stream.close()
    assert found == [(number, 1, 8)]


def test_a_client_that_rings_while_its_stream_is_closed_harms_nobody(
    prm: Managed, clients: Callable[[], Client]
) -> None:
    victim, hostile = clients(), clients()
    ends = threading.Event()

    def ring() -> None:
        rng = random.Random(3)
        while not ends.is_set():
            hostile.ring_raw(*ring_send(hostile.stream.number, rng.getrandbits(16)))
            hostile.ring_raw(*ring_send(hostile.stream.number, rng.randrange(1, 9)))

    hostile.ring._memory.map[: 8 * ENTRY] = random.Random(2).randbytes(8 * ENTRY)
    ringer = threading.Thread(target=ring)
    ringer.start()
    try:
        for _ in range(30):
            hostile.stream.close()
            hostile.queue.poll(100)
            hostile.open()
            victim.works()
    finally:
        ends.set()
        ringer.join()
    hostile.stream.close()
    hostile.queue.poll(100)
    hostile.open()
    hostile.works()


def test_requests_that_make_no_sense_are_refused_in_a_sentence(prm: Managed) -> None:
    with connect(prm.path) as context:
        assert isinstance(context, ClientContext)
        pd, cq = PD(context), CQ(context)
        for request in (protocol.DirectQueue(4), protocol.Bell(0, 0)):
            with pytest.raises(StateError, match="has no doorbell page: ask for one first"):
                context.ask(request)
        stream, queue = Stream(pd, cq), DirectCQ(context, 8)
        assert isinstance(stream, ClientStream) and isinstance(cq, ClientCQ)
        memory = context.allocate(8192)
        ring = protocol.SendRing(stream.handle, queue.handle, 0, 0, 3, 128, True, False)
        (mapped,) = context._allocated.values()
        ring = ring._replace(memory=mapped.handle)
        for wrong, text in (
            (ring._replace(queue=cq.handle), "a send ring needs a direct completion queue"),
            (ring._replace(size=7), "must have from 2 to 64 entries"),
            (ring._replace(size=0), "must have from 2 to 64 entries"),
            (ring._replace(mulpdu=127), "a MULPDU from 128 to 16384"),
            (ring._replace(mulpdu=16385), "a MULPDU from 128 to 16384"),
            (ring._replace(offset=8192 - 8 * ENTRY + 64), "are not within the memory's 8192"),
            (ring._replace(stream=99), "there is no stream 99"),
            (ring._replace(memory=99), "there is no memory 99"),
            (protocol.DirectQueue(0), "must have from 2 to 128 entries"),
            (protocol.DirectQueue(8), "must have from 2 to 128 entries"),
            (protocol.Bell(2, 0), "a doorbell page has SEND_DOORBELL and CQ_DOORBELL"),
            (protocol.Sent(stream.handle), "the stream has no send ring"),
        ):
            with pytest.raises(RnicError, match=text):
                context.ask(wrong)
        context.ask(ring)
        with pytest.raises(StateError, match="the stream has a send ring already"):
            context.ask(ring)
        other = SendRing(Stream(pd, cq), queue, entries=8)
        for body, fields, text in (
            (b"octets", {"stag": 1 << 32}, r"stag must be from 0 to 2\*\*32 - 1"),
            (Piece(1, 1 << 32, 0), {}, r"length must be from 0 to 2\*\*32 - 1"),
            ("text", {}, "body must be a bytes object, a Part or a Piece, not 'text'"),
            (Piece(1, cast(Any, 1.0), 0), {}, "a piece's length must be an integer, not 1.0"),
            (b"octets", {"zz": 1}, "fields are rsvdulp, qn, stag, to, and not 'zz'"),
            (b"octets", {"kind": 9}, "a message's kind must be a Kind, not 9"),
            (b"octets", {"kind": Kind.UNTAGGED, "qn": 4}, r"opened with, \[0, 1, 2, 3\], not 4"),
            (b"octets", {"kind": Kind.CONTROL}, "CONTROL message must be sent on a stream over"),
        ):
            with pytest.raises(InvalidRequest, match=text):
                other.post(cast(Any, fields.pop("kind", Kind.TAGGED)), cast(Any, body), **fields)
        assert not other.fpdus() and not queue.poll(1)
        other.stream.close()
        with pytest.raises(StateError, match="streams use the completion queue"):
            context.remove(protocol.Object.QUEUE, queue.handle)
        with pytest.raises(StateError, match="are in the memory"):
            context.free(memory)
        stream.close()
        context.free(memory)
        for wrong_mulpdu in (-1, 0, 14, 127, 16385):
            with pytest.raises(InvalidRequest, match="mulpdu must be from 128 to 16384, not"):
                SendRing(stream, queue, mulpdu=wrong_mulpdu)
        for wrong_entries in (1, 3, 256):
            with pytest.raises(InvalidRequest, match="entries must be a power of two"):
                DirectCQ(context, wrong_entries)
            with pytest.raises(InvalidRequest, match="entries must be a power of two"):
                SendRing(stream, queue, entries=wrong_entries)
    assert prm.all_gone()


def test_a_device_that_does_not_send_has_direct_queues_and_no_send_rings(tmp_path: Path) -> None:
    with managed(tmp_path) as prm:
        with connect(prm.path) as context:
            pd, queue = PD(context), DirectCQ(context)
            stream = Stream(pd, queue)
            stream.post_recv(bytearray(5), wr_id=1)
            Peer(prm.sim, stream.number).send(b"hello")
            assert queue.wait(10)[0].byte_len == 5
            with pytest.raises(InvalidRequest, match="the device sends nothing"):
                SendRing(stream, queue)
        assert prm.all_gone()


def test_a_link_with_copies_of_memory_has_no_direct_queues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = SimTransport.share
    monkeypatch.setattr(SimTransport, "share", Transport.share)
    monkeypatch.setattr(
        SimTransport,
        "allocate",
        lambda sim, octets: shares(sim, memoryview(bytearray(octets))),
    )
    with managed(tmp_path) as prm:
        with connect(prm.path) as context:
            with pytest.raises(UnsupportedDevice, match="reads and writes copies of memory"):
                DirectCQ(context)
        assert prm.all_gone()

"""Tests of the Privileged Resource Manager and its clients, on the real gateware."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import mmap
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest
from ddp_rnic.cli.app import app
from ddp_rnic.cli.prm import prm as command
from ddp_rnic.hdl.spec import ddp
from ddp_rnic.sim.devices.live import Peer, SimTransport
from ddp_rnic.sw_driver import (
    CQ,
    PD,
    Access,
    CompletionOverrun,
    Context,
    Device,
    InvalidRequest,
    ResourceExhausted,
    RnicError,
    RnicTimeout,
    StateError,
    Stream,
    StreamError,
    StreamState,
    TransportError,
    UnsupportedDevice,
    WcStatus,
)
from ddp_rnic.sw_driver.prm import Limits, Policy, StreamStopped, connect, protocol
from ddp_rnic.sw_driver.prm.client import ClientContext, Link
from ddp_rnic.sw_driver.prm.memory import F_SEAL_FUTURE_WRITE
from ddp_rnic.sw_driver.prm.session import Session
from ddp_rnic.sw_driver.tests.managed import Managed, managed, until
from typer.testing import CliRunner


@pytest.fixture
def prm(tmp_path: Path) -> Iterator[Managed]:
    with managed(tmp_path) as served:
        yield served


def receive(sim: SimTransport, context: Context) -> list[tuple]:
    """A program as it would be with a device of its own."""
    told: list[tuple] = []
    with PD(context) as pd, CQ(context) as cq, Stream(pd, cq) as stream:
        peer, array = Peer(sim, stream.number), np.zeros(5000, np.uint16)
        with pd.register(array, to=1000) as region:
            assert (region.to, region.length, stream.state) == (1000, 10000, StreamState.RECEIVING)
            stream.post_recv(region, 1, wr_id="in it", offset=8000, length=2000)
            stream.post_recv(buffer := bytearray(3000), wr_id="outside", offset=1000)
            stream.post_recv(None, 2, wr_id="empty")
            peer.write(region.stag, 1100, b"w" * 5000)
            peer.send(b"u" * 1500, 1, rsvdulp=7)
            peer.send(b"v" * 1800, 0)
            peer.send(b"", 2)
            taken: list = []
            while len(taken) < 4:
                taken += cq.wait(10)
            assert taken[0].mr is region and taken[0].stag == region.stag
            assert {each.stream for each in taken} == {stream}
            for each in taken:
                told.append((each.status, each.opcode, each.wr_id, each.byte_len, each.qn))
                told.append((each.msn, each.rsvdulp))
            told.append((bytes(array.tobytes()), bytes(buffer), region.read(10, 95)))
            stream.post_recv(bytearray(10), 3, wr_id="flushed")
            assert stream.outstanding(3) == 1
            with pytest.raises(RnicTimeout):
                cq.wait(0.02)
            stream.close()
            (flushed,) = cq.poll()
            told.append((flushed.status, flushed.wr_id, stream.state))
            region.write(b"written", 3)
            told.append((array.tobytes()[:12], region.posted))
    return told


def test_a_program_moves_to_the_manager_with_one_line(prm: Managed) -> None:
    with SimTransport() as sim, Device(sim).open() as context:
        alone = receive(sim, context)
    with connect(prm.path) as context:
        assert isinstance(context, Context)
        assert receive(prm.sim, context) == alone
    assert prm.all_gone()


def test_an_allocated_buffer_is_written_where_it_is(tmp_path: Path) -> None:
    with managed(tmp_path, page=4096) as prm, connect(prm.path) as context:
        assert isinstance(context, ClientContext)
        with PD(context) as pd, CQ(context) as cq, Stream(pd, cq) as stream:
            array = np.frombuffer(context.allocate(100_000), np.uint8)
            region = pd.register(array[5000:90_000])
            stream.post_recv(array[95_000:], wr_id=1)
            peer = Peer(prm.sim, stream.number)
            peer.write(region.stag, 0, bytes(range(256)) * 100)
            peer.send(b"x" * 5000)
            until(lambda: array[-1], "the Send placed")  # no completion is taken
            assert array[5000:30600].tobytes() == bytes(range(256)) * 100 and not array[30600]
            with pytest.raises(
                StateError, match="[12] regions and receive buffers are in the memory"
            ):
                context.free(array)
            taken = 0
            while taken < 2:
                taken += len(cq.wait(5))
            region.revoke()
            context.free(array)
            with pytest.raises(InvalidRequest, match="must be a whole buffer from allocate"):
                context.free(array)


def test_completions_can_be_awaited_and_errors_are_raised(prm: Managed) -> None:
    with connect(prm.path) as context, PD(context) as pd, CQ(context) as cq:
        stream = Stream(pd, cq, queues=[0])
        peer = Peer(prm.sim, stream.number)
        stream.post_recv(bytearray(10))
        timer = threading.Timer(0.2, peer.send, (b"later",))
        timer.start()
        (completion,) = asyncio.run(cq.wait_async(10))
        assert completion.byte_len == 5
        peer.send(b"nobody waits for this")
        with pytest.raises(StreamError) as caught:
            cq.wait(10)
        assert caught.value.number == ddp.NO_BUFFER and caught.value.event == stream.error
        assert context.events() == [stream.error] and context.events() == []
        assert stream.state is StreamState.ERROR
        with pytest.raises(StreamError):
            stream.post_recv(bytearray(10))
        with pytest.raises(UnsupportedDevice, match="only the manager can read"):
            context.counters()
        with pytest.raises(InvalidRequest, match="the manager chooses a stream's number"):
            Stream(pd, cq, number=5)
    (stop,) = prm.lines("stop")
    assert stop["reason"].startswith("in error: 0x2/0x02")


def test_no_client_can_name_what_another_has(prm: Managed) -> None:
    with connect(prm.path) as mine, connect(prm.path) as other:
        assert isinstance(mine, ClientContext) and isinstance(other, ClientContext)
        pd, cq = PD(mine), CQ(mine)
        stream = Stream(pd, cq)
        region = pd.register(mine.allocate(4096))
        domain = other.make(protocol.Domain())
        for handle in range(1, 16):
            if handle == domain:
                continue
            told = set()
            requests: list[protocol.Request] = [
                *(protocol.Close(kind, handle) for kind in protocol.Object),
                protocol.Queue(1 << 20),
                protocol.Stream(handle, handle, True, False, 15),
                protocol.Region(handle, handle, 0, 10, 3, 0, 0),
                protocol.Region(domain, handle, 0, 10, 3, 0, handle),
                protocol.Sync(handle, False, 0, 1),
                protocol.Post(handle, 0, protocol.Object.REGION, handle, 0, 10, 1),
                protocol.Poll(handle, 1, False),
                protocol.Wait(handle, 0),
                protocol.State(handle),
            ]
            for request in requests:
                with pytest.raises((InvalidRequest, ResourceExhausted)) as caught:
                    other.ask(request)
                told.add(str(caught.value).replace(str(handle), "N"))
            # The message for another client's object is the same as for an object that does not
            # exist.
            assert {text for text in told if "exceed this client's share" not in text} == {
                f"there is no {kind.name.lower()} N" for kind in protocol.Object
            }
        # Nor does a peer reach the region on the other client's stream, even with the right
        # Steering Tag.
        theirs, queue = PD(other), CQ(other)
        intruder = Stream(theirs, queue)
        Peer(prm.sim, intruder.number).write(region.stag, 0, b"intrusion")
        with pytest.raises(StreamError) as denied:
            queue.wait(10)
        assert denied.value.number == ddp.STAG_NOT_ASSOCIATED
        assert region.read(4096) == bytes(4096) and stream.state is StreamState.RECEIVING


def memfd(octets: int = 8192, seals: int = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW) -> int:
    descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, octets)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def read_only() -> int:
    descriptor = memfd()
    again = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)
    os.close(descriptor)
    return again


def holders(file: os.stat_result) -> list[int]:
    """Returns the descriptors by which this process, with the manager in it, has a file open."""
    found = []
    for number in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # closed by now
            if os.path.samestat(os.fstat(number), file):
                found.append(number)
    return found


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: os.open("/dev/zero", os.O_RDWR), "must be a memfd"),
        (lambda: memfd(seals=0), "F_SEAL_SHRINK and F_SEAL_GROW"),
        (lambda: memfd(seals=fcntl.F_SEAL_SHRINK), "F_SEAL_SHRINK and F_SEAL_GROW"),
        (lambda: memfd(seals=fcntl.F_SEAL_GROW), "F_SEAL_SHRINK and F_SEAL_GROW"),
        (lambda: memfd(seals=7), "must not have F_SEAL_SEAL"),
        (lambda: memfd(seals=14), "writable, and passed once"),
        (lambda: memfd(0), "at least one octet"),
        (read_only, "open for reading and writing"),
        (lambda: memfd(65 << 20), "share of 67108864 octets of memory passed"),
    ],
)
def test_memory_that_a_client_could_take_away_or_not_write_is_refused(
    prm: Managed, make: object, message: str
) -> None:
    with connect(prm.path) as context:
        assert isinstance(context, ClientContext) and callable(make)
        descriptor = make()
        file = os.fstat(descriptor)
        with pytest.raises((InvalidRequest, ResourceExhausted), match=message):
            context.link.ask(protocol.Memory(), descriptor).result()
        os.close(descriptor)
        assert not holders(file)


def test_passed_memory_can_neither_shrink_nor_get_holes(prm: Managed) -> None:
    with connect(prm.path) as context:
        assert isinstance(context, ClientContext)
        descriptor = memfd()
        mapped = mmap.mmap(descriptor, 8192)
        context.link.ask(protocol.Memory(), descriptor).result()
        for octets in (0, 4096, 1 << 20):
            with pytest.raises(PermissionError):
                os.ftruncate(descriptor, octets)
        with pytest.raises(OSError):
            mapped.madvise(mmap.MADV_REMOVE)
        assert fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & F_SEAL_FUTURE_WRITE
        with pytest.raises(InvalidRequest, match="passed once"):
            context.link.ask(protocol.Memory(), descriptor).result()
        mapped[:3] = b"yes"
        os.close(descriptor)
    assert prm.all_gone()
    with open("/proc/self/maps") as maps:
        assert sum("memfd:test" in line for line in maps) == 1  # this test's own


def exhaust(take: object) -> int:
    count = 0
    assert callable(take)
    while True:
        try:
            take()
        except ResourceExhausted as error:
            assert "share of" in str(error) or "this client's page table" in str(error)
            return count
        count += 1


def test_a_greedy_client_takes_its_share_and_no_more(tmp_path: Path) -> None:
    limits = Limits(
        stags=20, streams=3, buffers=50, pages=100, octets=1 << 20, completions=500, domains=4,
        queues=2, memory=1 << 20, memories=10,
    )  # fmt: skip
    with managed(tmp_path, Policy(limits=limits, per_user=8), page=4096) as prm:
        clients = [connect(prm.path) for _ in range(3)]
        for context in clients:
            assert isinstance(context, ClientContext)
            assert (context.capabilities.stags, context.capabilities.streams) == (20, 3)
            pds: list[PD] = []
            assert exhaust(lambda c=context, pds=pds: pds.append(PD(c))) == 4
            pd = pds[0]
            with pytest.raises(ResourceExhausted, match="share of 500 completions"):
                CQ(context, 501)
            cq = CQ(context, 400)
            with pytest.raises(ResourceExhausted, match="400 are in use"):
                CQ(context, 101)
            CQ(context, 100)
            with pytest.raises(ResourceExhausted, match="2 completion queues"):
                CQ(context, 1)
            streams: list[Stream] = []
            open_one = lambda c=streams, pd=pd, cq=cq: c.append(Stream(pd, cq))  # noqa: E731
            assert exhaust(open_one) == 3
            buffer = context.allocate(1 << 19)
            small = pd.register(buffer[:1], Access.LOCAL_WRITE)
            assert exhaust(lambda s=streams, r=small: s[0].post_recv(r, 0, length=1)) == 50
            # One of the 99 pages is in use, and each buffer of 4096 octets may begin in two.
            assert exhaust(lambda pd=pd, b=buffer: pd.register(b[: 10 * 4096])) in (8, 9)
            assert exhaust(lambda c=context: c.allocate(1000)) == 9
        assert len(prm.manager.connections) == 3
        clients[0].close()
        # The other clients close without further requests.
        for context in clients[1:]:
            assert isinstance(context, ClientContext)
            context.link.close()
        assert prm.all_gone()


def test_shares_that_do_not_fit_the_device_are_refused(prm: Managed) -> None:
    there = prm.context.capabilities
    assert Limits().within(there, 8).streams == 8
    with pytest.raises(InvalidRequest, match="8 clients with 200 Steering Tags each need more"):
        Limits(stags=200).within(there, 8)
    with pytest.raises(InvalidRequest, match="64 streams are too few for 100 clients"):
        Limits().within(there, 100)
    with pytest.raises(InvalidRequest, match="octets must be at least 1, not 0"):
        Limits(octets=0)
    with pytest.raises(InvalidRequest, match="file descriptors"):
        limits = Limits(memories=1 << 29)
        type(prm.manager)(prm.context, prm.path, Policy(limits=limits), prm.manager._audit)
    with pytest.raises(InvalidRequest, match="a manager serves .* already"):
        type(prm.manager)(prm.context, prm.path, Policy(), prm.manager._audit)


def test_an_overrun_stops_the_stream_of_who_does_not_poll(prm: Managed) -> None:
    with connect(prm.path) as lazy, connect(prm.path) as diligent:
        queues, streams, regions = [], [], []
        for context, cqe in ((lazy, 4), (diligent, 64)):
            pd, cq = PD(context), CQ(context, cqe)
            queues.append(cq)
            streams.append(Stream(pd, cq))
            regions.append(pd.register(bytearray(64)))
        peers = [Peer(prm.sim, stream.number) for stream in streams]
        for n in range(40):
            for peer, region in zip(peers, regions, strict=True):
                peer.write(region.stag, 0, bytes([n + 1]) * 8)
        taken = 0
        while taken < 40:
            taken += len(queues[1].wait(10))
        assert regions[1].read(8) == bytes([40]) * 8
        assert len(queues[0].wait(10)) == 4
        with pytest.raises(CompletionOverrun, match="more than 4 completions waited"):
            queues[0].wait(10)
        assert streams[0].state is StreamState.ERROR
        assert streams[1].state is StreamState.RECEIVING
    (stop,) = prm.lines("stop")
    assert stop["reason"] == "its completion queue is full"


def test_a_peer_that_uses_up_more_than_its_share_is_stopped(prm: Managed) -> None:
    with connect(prm.path) as context, PD(context) as pd, CQ(context, 40) as cq:
        greedy, modest = Stream(pd, cq), Stream(pd, cq)
        region = pd.register(bytearray(64))
        flood, friend = Peer(prm.sim, greedy.number), Peer(prm.sim, modest.number)
        for _ in range(100):
            flood.write(region.stag, 0, b"flood")
        until(lambda: greedy.state is not StreamState.RECEIVING, "the greedy one stopped")
        for _ in range(15):
            friend.write(region.stag, 32, b"friend")
        taken: list = []
        with pytest.raises(StreamStopped, match="more than its part") as caught:
            while True:
                taken += cq.wait(10)
        assert caught.value.stream == greedy.number
        while sum(each.stream is modest for each in taken) < 15:
            taken += cq.wait(10)
        assert sum(each.stream is greedy for each in taken) == 21
        assert modest.state is StreamState.RECEIVING
    (stop,) = prm.lines("stop")
    assert stop["reason"] == "its peer uses more than its part of the completion queue"
    assert stop["stream"] == caught.value.stream and stop["uid"] == os.geteuid()


def test_completions_that_nobody_takes_do_not_pile_up_in_the_manager(prm: Managed) -> None:
    with connect(prm.path) as context, PD(context) as pd, CQ(context, 10) as cq:
        region = pd.register(bytearray(64), Access.LOCAL_WRITE)
        with pytest.raises(ResourceExhausted, match="wait in the queue: take them first"):
            for _ in range(10):
                with Stream(pd, cq) as stream:
                    for _ in range(4):
                        stream.post_recv(region)
        assert {each.status for each in cq.poll(100)} == {WcStatus.FLUSHED}


def test_who_may_not_connect_is_refused_in_a_sentence(tmp_path: Path) -> None:
    stranger = Policy(users=frozenset([4242]), clients=2, per_user=1)
    with managed(tmp_path, stranger) as prm:
        with pytest.raises(ResourceExhausted, match="may not use this device"):
            connect(prm.path)
        assert prm.lines("refuse") and not prm.lines("connect")
        assert prm.path.stat().st_mode & 0o777 == 0o666
    assert not prm.path.exists()
    with pytest.raises(TransportError, match="no manager serves .*: start one with 'rnic prm'"):
        connect(prm.path)
    mine = Policy(users=frozenset(), group=os.getegid(), clients=2, per_user=1)
    with managed(tmp_path, mine) as prm:
        with connect(prm.path):
            with pytest.raises(ResourceExhausted, match="has 1 connections already"):
                connect(prm.path)
        assert prm.all_gone()
        connect(prm.path).close()
    with managed(tmp_path) as prm:
        assert prm.path.stat().st_mode & 0o777 == 0o600


CLIENT = """
import sys, hashlib
from ddp_rnic.sw_driver import CQ, PD, Stream
from ddp_rnic.sw_driver.prm import connect

with connect(sys.argv[1]) as context:
    with PD(context) as pd, CQ(context) as cq, Stream(pd, cq) as stream:
        buffer = bytearray(1 << 16)
        region = pd.register(buffer)
        for _ in range(8):
            stream.post_recv(context.allocate(4096))
        print(stream.number, region.stag, flush=True)
        taken = 0
        while taken < int(sys.argv[2]):
            taken += len(cq.wait(30))
        region.revoke()
        print(hashlib.sha256(buffer).hexdigest(), flush=True)
"""


@contextmanager
def start(prm: Managed, messages: int) -> Iterator[tuple[subprocess.Popen[str], int, int]]:
    command = [sys.executable, "-c", CLIENT, str(prm.path), str(messages)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            number, stag = map(int, process.stdout.readline().split())
            yield process, number, stag
        finally:
            process.kill()


def test_a_client_killed_mid_transfer_harms_no_other_and_leaves_nothing(prm: Managed) -> None:
    with start(prm, 10_000) as (killed, number, stag), start(prm, 200) as (spared, other, its):
        kill_one_of_two(prm, killed, Peer(prm.sim, number), stag, spared, Peer(prm.sim, other), its)
    assert prm.all_gone()
    # The next client may get the number and the memory of the dead one, but nothing meant for that
    # one is written there.
    with connect(prm.path) as context, PD(context) as pd, CQ(context) as cq:
        streams = [Stream(pd, cq) for _ in range(8)]
        for region in [pd.register(bytearray(1 << 16)) for _ in range(4)]:
            assert region.read(1 << 16) == bytes(1 << 16) and region.stag != stag
        late = Peer(prm.sim, streams[0].number)
        late.write(stag, 0, b"to the dead one's region")
        with pytest.raises(StreamError) as caught:
            cq.wait(10)
        assert caught.value.number == ddp.INVALID_STAG
    assert {line["reason"] for line in prm.lines("disconnect")} == {"closed by the client"}
    assert f"{stag:x}" not in prm.log.getvalue() and str(stag) not in prm.log.getvalue()
    assert len(prm.lines("revoke")) == len(prm.lines("register")) == 6


def kill_one_of_two(
    prm: Managed,
    killed: subprocess.Popen[str],
    victim: Peer,
    stag: int,
    spared: subprocess.Popen[str],
    peer: Peer,
    its_stag: int,
) -> None:
    expected = bytearray(1 << 16)
    for n in range(200):
        # The simulated bus refuses writes where nothing is pinned, and the manager would fail.
        victim.write(stag, 300 * n, bytes([n]) * 1000)
        part = bytes([n + 1]) * 2000
        peer.write(its_stag, 300 * n, part)
        expected[300 * n : 300 * n + 2000] = part
        if n == 100:
            until(lambda: prm.context.counters()["PLACED_SEGMENTS"] >= 20, "20 segments placed")
            killed.kill()
    assert killed.wait() == -signal.SIGKILL
    text, _ = spared.communicate(timeout=60)
    assert text.strip() == hashlib.sha256(expected).hexdigest() and spared.returncode == 0


FORK = """
import os, sys, time
from ddp_rnic.sw_driver import PD
from ddp_rnic.sw_driver.prm import connect

context = connect(sys.argv[1])
PD(context)
if os.fork() == 0:
    try:
        PD(context)
    except Exception as error:
        print(error, flush=True)
    sys.stdin.read()
os._exit(0)
"""


def test_a_forked_child_does_not_keep_a_dead_parents_part(prm: Managed) -> None:
    command = [sys.executable, "-c", FORK, str(prm.path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert "belongs to the parent process" in process.stdout.readline()
        process.wait()
        assert prm.all_gone()  # although the child still lives


def test_a_client_gets_an_error_when_the_manager_ends(tmp_path: Path) -> None:
    with managed(tmp_path) as prm:
        context = connect(prm.path)
        cq = CQ(context)
    with pytest.raises(TransportError):
        cq.wait(10)
    context.close()


def test_another_protocol_is_reported_and_the_connection_ends(prm: Managed) -> None:
    link = Link(prm.path)
    with pytest.raises(RnicError, match="version 9, the manager's is 4: update the older one"):
        link.ask(protocol.Hello(version=9)).result()
    link.close()
    assert prm.awaited("disconnect")[0]["reason"].startswith("protocol: the client's protocol")


def test_more_threads_wait_than_the_manager_takes(prm: Managed) -> None:
    with connect(prm.path) as context:
        assert isinstance(context, ClientContext)
        queue = context.make(protocol.Queue(10))
        asked = [context.link.ask(protocol.Wait(queue, 1000)) for _ in range(16)]
        with pytest.raises(ResourceExhausted, match="16 threads of this client wait already"):
            context.ask(protocol.Wait(queue, 1000))
        assert {each.result() for each in asked} == {protocol.READY.pack(False)}


def test_a_client_that_takes_no_answers_is_not_served_on_and_holds_up_nobody(prm: Managed) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as mute, connect(prm.path) as context:
        connected = prm.manager.connections
        mute.connect(str(prm.path))
        mute.setblocking(False)
        mute.send(protocol.encode(1, protocol.Hello()))
        taken = time.monotonic()
        while time.monotonic() < taken + 0.5:
            try:
                mute.send(protocol.encode(2, protocol.Close(9, 9)))
                taken = time.monotonic()
            except BlockingIOError:
                time.sleep(0.001)
        until(lambda: any(each.output for each in connected.values()), "answers not taken")
        (stuck,) = [each for each in connected.values() if each.output]
        assert len(stuck.output) < 200 and len(stuck.decoder) < 5000
        with PD(context) as pd, CQ(context) as cq, Stream(pd, cq) as stream:
            region = pd.register(bytearray(8))
            Peer(prm.sim, stream.number).write(region.stag, 0, b"in time")
            assert cq.wait(10)[0].mr is region
    assert prm.all_gone()


def test_what_the_device_does_not_let_go_of_is_given_to_nobody(
    prm: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, fencing = threading.Event(), prm.context.fencing
    stuck.set()

    def late(complaint: str) -> Iterator[None]:
        if stuck.is_set():
            raise RnicTimeout(complaint)
        yield from fencing(complaint)

    context = connect(prm.path)
    assert isinstance(context, ClientContext)
    stream = Stream(PD(context), CQ(context))
    stream.pd.register(bytearray(100), stream=stream)
    monkeypatch.setattr(prm.context, "fencing", late)
    with pytest.raises(RnicTimeout, match="call close.. again"):
        stream.close()
    context.link.close()
    until(lambda: prm.manager.leaving, "a client that leaves")
    time.sleep(1.2)  # meanwhile the manager tries again
    assert len(prm.context.streams) == len(prm.context.regions) == 1
    assert len(prm.manager._seats) == 7 and not prm.lines("revoke")
    stuck.clear()
    assert prm.all_gone() and len(prm.lines("revoke")) == 1


def test_nothing_comes_in_for_a_dead_client_while_what_it_had_is_revoked(
    prm: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = connect(prm.path)
    assert isinstance(context, ClientContext)
    pd, cq = PD(context), CQ(context)
    streams = [Stream(pd, cq) for _ in range(3)]
    assert len(streams) == 3
    held, removing = threading.Event(), Session.removing

    def late(session: Session) -> Iterator[None]:
        while not held.is_set():
            yield
        yield from removing(session)

    with monkeypatch.context() as patch:
        patch.setattr(Session, "removing", late)
        context.link.close()
        states = [StreamState.ERROR] * 3
        until(
            lambda: [each.state for each in prm.context.streams.values()] == states, "all stopped"
        )
        held.set()
    assert prm.all_gone()


def test_the_socket_of_a_manager_that_died_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "rnic.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(path))
    with managed(tmp_path) as prm, connect(prm.path):
        pass
    path.write_text("a file")
    with pytest.raises(InvalidRequest, match="exists and is not a socket"), managed(tmp_path):
        pass


def test_the_command_serves_until_a_signal_ends_it(tmp_path: Path) -> None:
    path, log = tmp_path / "rnic.sock", tmp_path / "audit.log"
    command = [sys.executable, "-m", "ddp_rnic", "prm", "sim", "--socket", str(path)]
    command += ["--log", str(log), "--share", "stags=7"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == f"serving sim at {path}\n"
            context = connect(path)
            assert context.capabilities.stags == 7
            PD(context).register(bytearray(100))
            process.terminate()
            assert process.wait(20) == 0
        finally:
            process.kill()
    context.close()
    events = [json.loads(line)["event"] for line in log.read_text().splitlines()]
    assert events == ["connect", "register", "disconnect", "revoke"]
    assert log.stat().st_mode & 0o777 == 0o600 and not path.exists()


def test_the_help_of_share_names_all_that_can_be_shared() -> None:
    (_, option) = get_args(get_type_hints(command, include_extras=True)["share"])
    (names,) = re.findall(r"NAME is ([^.]*)\.", option.help)
    assert sorted(re.split(", | or ", names)) == sorted(asdict(Limits()))


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["sun"], 2, "a device must be uart:PORT"),
        (["sim", "--share", "stags"], 2, "a share must be NAME=NUMBER"),
        (["sim", "--share", "stags=1000"], 2, "8 clients with 1000 Steering Tags each need"),
        (["sim", "--user", "nobody-here"], 2, "there is no user 'nobody-here'"),
        (["sim", "--group", "nobody-here"], 2, "there is no group 'nobody-here'"),
        (["sim", "--socket", "/nowhere/rnic.sock"], 2, "cannot be served: No such file"),
        (["sim", "--log", "/nowhere/log"], 2, "cannot be written"),
        (["sim", "--per-user", "9"], 2, "per_user must be from 1 to the 8 clients"),
        (["sim", "--page", "/dev/null"], 2, "--page is only for a device mapped:FILE, not for"),
        (["uart:/dev/nowhere"], 1, "cannot be opened"),
    ],
)
def test_the_command_says_what_is_wrong_in_a_sentence(
    arguments: list[str], code: int, message: str
) -> None:
    result = CliRunner().invoke(app, ["prm", *arguments])
    text = result.stderr
    assert result.exit_code == code, text
    assert text.startswith("rnic: ") and message in text and text.count("\n") == 1

"""Tests that a manager, its clients and a driver that live long use up no numbers and do not grow.

The device here does nothing except complete what a test makes it complete.
"""

from __future__ import annotations

import gc
import os
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from ddp_rnic.hdl.lib.tests.long import long
from ddp_rnic.hdl.spec.completion import Completion, Status
from ddp_rnic.sw_driver import (
    CQ,
    PD,
    Device,
    InvalidRequest,
    ResourceExhausted,
    RnicError,
    RnicTimeout,
    StateError,
    Stream,
    StreamState,
)
from ddp_rnic.sw_driver.prm import Policy, StreamStopped, audit, connect, protocol
from ddp_rnic.sw_driver.prm.client import ClientContext, ClientCQ, ClientMR, ClientStream, Link
from ddp_rnic.sw_driver.prm.protocol import Kind
from ddp_rnic.sw_driver.tests.managed import Managed, served
from ddp_rnic.sw_driver.tests.test_prm_turns import Idle

END = 1 << 32
ROUNDS = 150


@pytest.fixture
def prm(tmp_path: Path) -> Iterator[Managed]:
    with Device(Idle()).open() as context:
        with served(context, tmp_path / "rnic.sock", Policy(per_user=8)) as made:
            yield made


@pytest.fixture
def client(prm: Managed) -> Iterator[ClientContext]:
    with connect(prm.path) as context:
        assert isinstance(context, ClientContext)
        yield context


@pytest.mark.parametrize("last", [END - 2, END - 1, END, (1 << 63) - 1])
def test_handles_go_on_past_32_bits(prm: Managed, client: ClientContext, last: int) -> None:
    (connection,) = prm.manager.connections.values()
    connection.session._last = last
    with PD(client) as pd, CQ(client) as cq, Stream(pd, cq) as stream:
        assert isinstance(cq, ClientCQ) and isinstance(stream, ClientStream)
        assert (pd.number, cq.handle, stream.handle) == (last + 1, last + 2, last + 3)
        region = pd.register(bytearray(100), stream=stream)
        # The handle of its memory was given before its own.
        assert isinstance(region, ClientMR) and region.handle == last + 5
        region.write(b"written", 5)
        assert region.read(7, 5) == bytes(7)  # the octets of the device
        stream.post_recv(region, wr_id="in the region")
        stream.post_recv(bytearray(10), wr_id="in memory")
        assert stream.error is None
        stream.close()
        assert [wc.wr_id for wc in cq.poll()] == ["in the region", "in memory"]
    told = protocol.decode_error(protocol.encode_error(StreamStopped(END + 1, "stopped")))
    assert isinstance(told, StreamStopped) and told.stream == END + 1


def test_numbers_of_requests_wrap_past_0_and_past_those_not_answered_yet(
    prm: Managed, client: ClientContext
) -> None:
    queue = client.make(protocol.Queue(1))
    link = client.link
    link._number = END - 3
    waits = [link.ask(protocol.Wait(queue, 500)) for _ in range(4)]
    asked = [END - 2, END - 1, 1, 2]
    assert list(link._asked) == asked
    link._number = END - 3
    assert client.ask(protocol.Poll(queue, 1, False)) == b""
    assert link._number == 3
    assert [wait.result() for wait in waits] == [protocol.READY.pack(False)] * 4
    link._number = END - 1
    assert client.ask(protocol.Events()) == b"" and link._number == 1


def test_a_request_of_number_0_ends_the_connection(prm: Managed) -> None:
    link = Link(prm.path)
    answer: Future[bytes] = Future()
    link._asked[0] = answer
    link._socket.sendall(protocol.encode(0, protocol.Hello()))
    with pytest.raises(RnicError, match="a request's number must not be 0"):
        answer.result(10)
    link.close()


def test_a_client_of_the_first_version_is_asked_to_update(prm: Managed) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(str(prm.path))
        # The frame's length, kind and number, and HELLO's body, in the format of version 1.
        client.sendall(bytes.fromhex("0f000000 01 01000000") + b"ddp-rnic" + b"\x01\x00")
        octets = b"".join(iter(lambda: client.recv(1000), b""))
    length, kind, number, code = struct.unpack_from("<IBIB", octets)
    assert (length, kind, number) == (len(octets) - 4, Kind.ERROR, 0) and code
    assert octets[10:] == (
        b"the client's protocol is version 1, the manager's is 4: update the older one"
    )


def test_a_cookie_is_of_one_posted_buffer_when_they_wrap() -> None:
    with Device(Idle()).open() as context:
        with PD(context) as pd, CQ(context) as cq, Stream(pd, cq) as stream:
            context.cookie = END - 2
            for wr_id in range(3):
                stream.post_recv(None, wr_id=wr_id)
            assert list(stream._posted) == [END - 1, 0, 1]
            # 2**32 posts later: the first three still wait.
            context.cookie = END - 2
            stream.post_recv(None, wr_id="later")
            assert list(stream._posted) == [END - 1, 0, 1, 2]
            for cookie in (2, END - 1, 0, 1):
                stream.complete(completion(stream.number, cookie))
            assert [wc.wr_id for wc in cq.poll()] == ["later", 0, 1, 2]


def completion(stream: int, cookie: int) -> Completion:
    """Returns the device's completion of a Send without octets."""
    return Completion(0, False, Status.DELIVERED, stream, 1, 0, cookie, 0, 0)


def test_buffers_whose_completions_were_lost_are_given_back_when_their_stream_is_closed(
    prm: Managed, client: ClientContext
) -> None:
    with PD(client) as pd, CQ(client, 1) as cq:
        stream = Stream(pd, cq)
        region = pd.register(bytearray(10))
        for wr_id in range(3):
            stream.post_recv(bytearray(10), wr_id=wr_id)
        stream.post_recv(region)
        (connection,) = prm.manager.connections.values()
        with prm.context.lock:
            (owned,) = prm.context.streams.values()
            assert isinstance(owned, Stream)
            for cookie in list(owned._posted):
                owned.complete(completion(owned.number, cookie))
        stream.close()
        assert [wc.wr_id for wc in cq.poll()] == [0]
        assert isinstance(cq, ClientCQ) and not cq.named and not region.posted
        region.revoke()
        used = +connection.session.share.used
        assert used == Counter(domains=1, queues=1, completions=1)


def native(octets: int) -> list[object]:
    return [bytearray(octets), np.zeros(octets, np.float64), np.zeros((octets, 2), np.int16).T.T]


def structured(octets: int) -> list[object]:
    return [np.zeros(octets, [("a", "u1"), ("b", ">u4")]), np.zeros(octets, ">u2")]


class Everything:
    """Makes every request that a client of the manager can make, with other sizes each time.

    The queue of completions is never empty, and completions are taken after their stream is closed.

    Parameters
    ----------
    buffers
        Makes the buffers that are registered.
    """

    def __init__(self, prm: Managed, buffers: Callable[[int], list[object]]) -> None:
        self._path, self._buffers, self._round = prm.path, buffers, 0
        self._context = connect(prm.path)
        self._pd, self._cq = PD(self._context), CQ(self._context, 64)
        with Stream(self._pd, self._cq) as stream:
            stream.post_recv(None, wr_id="empty")

    def once(self) -> None:
        """Makes all requests once, about fifty."""
        self._round += 1
        size, context, cq = 100 + self._round, self._context, self._cq
        assert isinstance(context, ClientContext)
        with connect(self._path) as other, PD(other), CQ(other, self._round % 50 + 1):
            pass
        allocated = context.allocate(size)
        with Stream(self._pd, cq) as stream:
            for buffer in self._buffers(size):
                with self._pd.register(buffer, stream=stream) as region:
                    region.write(b"12345", 5)
                    region.read(5, 5)
            region = self._pd.register(allocated)
            stream.post_recv(region, 1, wr_id="in a region", offset=5)
            stream.post_recv(bytearray(size), 2, wr_id="in memory")
            stream.post_recv(None, 3, wr_id="empty")
            assert stream.state is StreamState.RECEIVING and context.events() == []
        with pytest.raises(StateError):
            stream.post_recv(None)
        with pytest.raises(InvalidRequest, match="there is no region"):
            context.ask(protocol.Sync(END + self._round, True, 0, 1))
        with pytest.raises(ResourceExhausted):
            context.make(protocol.Queue(1 << 20))
        with CQ(context) as quiet, pytest.raises(RnicTimeout):
            quiet.wait(0)
        taken = [cq.wait(1, 1)[0], *cq.poll(2)]
        assert [wc.wr_id for wc in taken] == ["empty", "in a region", "in memory"]
        region.revoke()
        context.free(allocated)

    def close(self) -> None:
        self._context.close()


def held() -> Counter[str]:
    """Counts the objects of each type, and the open files and mappings of this process."""
    counts = Counter(type(each).__name__ for each in gc.get_objects())
    counts["open files"] = len(os.listdir("/proc/self/fd"))
    with open("/proc/self/maps") as maps:
        counts["mappings"] = sum("memfd:rnic" in line for line in maps)
    return counts


@pytest.mark.parametrize(("buffers", "collected"), [(structured, True), *long((native, False))])
def test_thousands_of_requests_of_every_kind_leave_a_bounded_number_of_objects(
    prm: Managed,
    monkeypatch: pytest.MonkeyPatch,
    buffers: Callable[[int], list[object]],
    collected: bool,
) -> None:
    # The log's memory of lines is full soon.
    monkeypatch.setattr(audit, "REMEMBERED", 10)
    with closing(Everything(prm, buffers)) as everything:
        for _ in range(20):
            everything.once()
        held()  # objects that the counting itself makes are not counted
        gc.collect()
        # Only arrays that need a type of ctypes are left to the garbage collector.
        gc.disable()
        try:
            before = held()
            for _ in range(ROUNDS):
                everything.once()
            if collected:
                gc.collect()
            more = held() - before
        finally:
            gc.enable()
    # Fewer than one object per round.
    assert sum(more.values()) < ROUNDS, more.most_common(10)

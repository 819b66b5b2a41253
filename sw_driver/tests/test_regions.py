"""Tests of memory regions: registering, placing, revoking; on the real gateware."""

from __future__ import annotations

import mmap
import random
import threading
from pathlib import Path

import numpy as np
import pytest
from ddp_rnic.hdl.spec.ddp import INVALID_STAG, STAG_NOT_ASSOCIATED, ErrorNumber, ErrorType
from ddp_rnic.sim.devices.live import Peer, SimTransport
from ddp_rnic.sim.engines.engine import Stalls
from ddp_rnic.sw_driver import (
    CQ,
    PD,
    Access,
    CompletionOverrun,
    InvalidRequest,
    Opcode,
    ResourceExhausted,
    RnicError,
    StateError,
    Stream,
    StreamError,
    TransportError,
    WcStatus,
)
from ddp_rnic.sw_driver.prm import connect
from ddp_rnic.sw_driver.tests.conftest import Bench, begin
from ddp_rnic.sw_driver.tests.managed import managed


def test_a_write_is_placed_where_its_stag_and_offset_say(scattered: Bench) -> None:
    array = np.full(300_000, 0xEE, np.uint8)
    data = np.random.default_rng(1).integers(0, 256, 200_001, np.uint8)
    with scattered.pd.register(array, to=1 << 63) as region:
        scattered.peer.write(region.stag, region.to + 12_345, data.tobytes(), rsvdulp=0x41)
        (completion,) = scattered.cq.wait(20)
    assert completion.opcode is Opcode.TAGGED and completion.status is WcStatus.SUCCESS
    assert completion.stream is scattered.stream and completion.mr is region
    assert completion.stag == region.stag and completion.rsvdulp == 0x41
    assert (array[12_345 : 12_345 + len(data)] == data).all()
    assert (array[:12_345] == 0xEE).all() and (array[12_345 + len(data) :] == 0xEE).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda: bytearray(64),
        lambda: memoryview(bytearray(100))[18:82],
        lambda: np.zeros((4, 2), np.float64),
        lambda: np.zeros(8, [("count", "<i4"), ("value", "<f4")]),
        lambda: np.zeros(16, ">i4"),
        lambda: mmap.mmap(-1, 64),
    ],
    ids=["bytearray", "memoryview", "array of two axes", "records", "big-endian", "mmap"],
)
def test_any_writable_buffer_can_be_registered(bench: Bench, make) -> None:  # type: ignore[no-untyped-def]
    buffer = make()
    octets = random.Random(2).randbytes(64)
    with bench.pd.register(buffer) as region:
        assert region.length == 64
        bench.peer.write(region.stag, 0, octets)
        bench.cq.wait(5)
        assert region.read(64) == octets
        region.write(b"host", 60)
    assert bytes(memoryview(buffer).cast("B") if not isinstance(buffer, np.ndarray)
                 else buffer.tobytes()) == octets[:60] + b"host"  # fmt: skip


@pytest.mark.parametrize(
    ("buffer", "message"),
    [
        (b"octets", "must be writable, and this bytes is read-only"),
        (memoryview(bytearray(4)).toreadonly(), "this memoryview is read-only"),
        (bytearray(), "at least one octet"),
        (np.zeros((0, 5)), "at least one octet"),
        (np.zeros((8, 8))[:, 2], "must be contiguous: copy the array"),
        ("text", "a buffer must be writable memory, as a bytearray.* is, not str"),
        (None, "not NoneType"),
    ],
)
def test_what_cannot_be_registered_is_reported(bench: Bench, buffer: object, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        bench.pd.register(buffer)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"access": 0}, "access must be a combination of"),
        ({"access": 16}, "access must be a combination of"),
        ({"access": "rw"}, "access must be a combination of"),
        ({"to": -1}, "to must be from 0 to"),
        ({"to": (1 << 64) - 9}, "less the 10 octets"),
    ],
)
def test_rights_and_offsets_that_cannot_be_are_reported(
    bench: Bench, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        bench.pd.register(bytearray(10), **arguments)  # type: ignore[arg-type]
    bench.pd.register(bytearray(10), to=(1 << 64) - 10)


def test_a_region_is_refreshed_once_for_all_the_messages_that_are_taken(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    regions = [bench.pd.register(bytearray(100)) for _ in range(3)]
    copies: list[int] = []
    for n, region in enumerate(regions):
        memory = region.mapping.memory
        monkeypatch.setattr(memory, "pull_written", lambda n=n: copies.append(n))
        monkeypatch.setattr(memory, "pull", lambda *_: pytest.fail("a further octet is copied"))
    for n in (0, 1, 0, 0, 1, 0):
        bench.peer.write(regions[n].stag, n, b"octet")
    bench.sim.run(3000)
    bench.context.service()
    assert not copies
    assert len(bench.cq.poll(1)) == 1 and copies == [0]
    assert len(bench.cq.poll()) == 5 and copies in ([0, 1], [0, 0, 1], [0, 1, 0])
    done = len(copies)
    assert bench.cq.poll() == [] and len(copies) == done


def test_a_completion_whose_octets_cannot_be_copied_is_not_lost(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    region = bench.pd.register(bytearray(100))
    bench.peer.write(region.stag, 0, b"octet")
    bench.sim.run(1000)

    def fail() -> None:
        raise TransportError("the cable is out")

    with monkeypatch.context() as patch:
        patch.setattr(region.mapping.memory, "pull_written", fail)
        with pytest.raises(TransportError, match="the cable is out"):
            bench.cq.poll()
    (completion,) = bench.cq.poll()
    assert completion.mr is region


def test_a_managers_client_keeps_what_it_has_written_itself(tmp_path: Path) -> None:
    """A buffer outside the manager's memory has a copy, of which only new octets are copied
    back.
    """
    with managed(tmp_path) as served, connect(tmp_path / "rnic.sock") as context:
        with PD(context) as pd, CQ(context) as cq, Stream(pd, cq) as stream:
            array, peer = np.zeros(1000, np.uint8), Peer(served.sim, stream.number)
            with pd.register(array) as region:
                peer.write(region.stag, 100, b"\1" * 50)
                array[500:] = 0xEE
                (completion,) = cq.wait(10)
                assert completion.mr is region and (array[100:150] == 1).all()
            assert (array[500:] == 0xEE).all() and array.sum() == 50 + 500 * 0xEE


def test_a_registered_buffer_keeps_its_size(bench: Bench) -> None:
    array = bytearray(100)
    with bench.pd.register(array), pytest.raises(BufferError):
        array.extend(b"more")
    array.extend(b"more")


def test_a_view_that_is_still_held_does_not_keep_a_region_from_being_revoked(
    bench: Bench,
) -> None:
    region = bench.pd.register(bytearray(100))
    view = region.view
    held = np.frombuffer(view, np.uint8)
    region.revoke()
    assert held.sum() == 0 and len(view) == 100


def test_a_region_without_remote_rights_has_no_stag(bench: Bench) -> None:
    array = bytearray(100)
    with bench.pd.register(array, Access.LOCAL_WRITE) as region:
        with pytest.raises(InvalidRequest, match="no STag, because it has no remote right"):
            _ = region.stag
        bench.stream.post_recv(region, offset=50, length=20)
        bench.peer.send(b"received")
        assert bench.cq.wait(5)[0].byte_len == 8
        assert array[50:58] == b"received"
    with pytest.raises(InvalidRequest, match="bound to a stream must have a remote right"):
        bench.pd.register(array, Access.LOCAL_WRITE, stream=bench.stream)


@pytest.mark.parametrize("access", [Access.REMOTE_READ, Access.LOCAL_WRITE | Access.REMOTE_READ])
def test_a_region_that_may_be_read_alone_is_not_written(bench: Bench, access: Access) -> None:
    array = bytearray(100)
    with bench.pd.register(array, access) as region:
        bench.peer.write(region.stag, 0, b"refused")
        with pytest.raises(StreamError):
            bench.cq.wait(5)
    assert not any(array)


def test_a_domain_does_not_reach_the_regions_of_another(bench: Bench) -> None:
    array = bytearray(100)
    with PD(bench.context) as other, other.register(array) as region:
        bench.peer.write(region.stag, 0, b"refused")
        with pytest.raises(StreamError) as caught:
            bench.cq.wait(5)
        with pytest.raises(InvalidRequest, match="to the stream's protection domain"):
            Stream(bench.pd, bench.cq).post_recv(region)
    assert caught.value.number == STAG_NOT_ASSOCIATED and not any(array)


def test_a_bound_region_is_reached_by_its_stream_alone_and_goes_with_it(bench: Bench) -> None:
    array = bytearray(100)
    owner = Stream(bench.pd, bench.cq)
    region = bench.pd.register(array, stream=owner)
    Peer(bench.sim, owner.number).write(region.stag, 0, b"mine")
    assert bench.cq.wait(5)[0].stream is owner
    bench.peer.write(region.stag, 0, b"not mine")
    with pytest.raises(StreamError) as caught:
        bench.cq.wait(5)
    assert caught.value.number == STAG_NOT_ASSOCIATED
    assert caught.value.event.stream == bench.stream.number
    owner.close()
    assert region.revoked
    with pytest.raises(StateError, match="revoked"):
        region.revoke()
    assert array[:8] == b"mine\0\0\0\0"
    array.clear()
    with pytest.raises(StateError, match="closed"):
        bench.pd.register(bytearray(1), stream=owner)
    with PD(bench.context) as other, pytest.raises(InvalidRequest, match="region's protection"):
        other.register(bytearray(1), stream=Stream(bench.pd, bench.cq))


@pytest.mark.parametrize("seed", range(12))
def test_not_one_octet_comes_after_a_revocation(seed: int) -> None:
    rng = random.Random(seed)
    stalls = Stalls(
        write=rng.choice([0, 0.5, 0.9]), response=rng.choice([0, 0.5]),
        response_latency=rng.choice([1, 50, 400]), seed=seed + 1,
    )  # fmt: skip
    with SimTransport(page=rng.choice([None, 4096]), stalls=stalls, seed=seed) as sim:
        bench = begin(sim)
        with bench.context:
            array = np.zeros(60_000, np.uint8)
            region = bench.pd.register(array)
            for at in range(0, 60_000, 1000):
                bench.peer.write(region.stag, at, bytes([1 + at // 1000]) * 1000)
            sim.run(rng.randrange(200, 6000))
            region.revoke()
            before = array.copy()
            # The simulation fails on a write to memory that is not registered, but not on a write
            # to other memory of this process. So the memory is checked as well.
            sim.run(40_000)
            assert (array == before).all()
            placed = int((before != 0).sum())
            assert 0 < placed < 60_000
            (event,) = bench.context.events()
            assert event.number == INVALID_STAG


def test_revoking_twice_is_reported_and_closing_twice_is_not(bench: Bench) -> None:
    region = bench.pd.register(bytearray(10))
    region.revoke()
    with pytest.raises(StateError, match="the region is revoked"):
        region.revoke()
    for call in (lambda: region.read(1), lambda: region.write(b"1"), lambda: region.view):
        with pytest.raises(StateError, match="revoked"):
            call()
    region.close()


def test_reads_and_writes_stay_inside_of_the_region(bench: Bench) -> None:
    with bench.pd.register(bytearray(10)) as region:
        for offset, length in ((-1, 1), (0, 11), (10, 1), (3, -1)):
            with pytest.raises(InvalidRequest, match="not within the region's 10"):
                region.read(length, offset)
        with pytest.raises(InvalidRequest, match="5 octets from 6 on"):
            region.write(b"12345", 6)


def test_a_full_table_is_reported_and_goes_on_when_one_is_revoked(bench: Bench) -> None:
    regions = [bench.pd.register(bytearray(1)) for _ in range(1024)]
    assert len({region.stag for region in regions}) == 1024
    with pytest.raises(ResourceExhausted, match="all 1024 Steering Tags .* revoke one"):
        bench.pd.register(bytearray(1))
    freed = regions.pop().stag
    bench.pd.context.tags[freed].revoke()
    again = bench.pd.register(bytearray(3))
    assert again.stag != freed
    bench.peer.write(again.stag, 0, b"yes")
    assert bench.cq.wait(5)[0].mr is again


def test_a_full_page_table_is_reported_and_nothing_is_lost() -> None:
    with SimTransport(page=4096) as sim:
        bench = begin(sim)
        with bench.context:
            half = bench.pd.register(np.zeros(4096 * 1500, np.uint8))
            array = np.zeros(4096 * 600, np.uint8)
            with pytest.raises(ResourceExhausted, match="601 consecutive slots of the page table"):
                for _ in range(3):  # the offset in the first page can save one page
                    bench.pd.register(array)
            half.revoke()
            with bench.pd.register(array) as region:
                bench.peer.write(region.stag, len(array) - 4, b"last")
                bench.cq.wait(5)
            assert array[-4:].tobytes() == b"last" and len(bench.context.tags) == 0


def test_a_region_with_posted_buffers_is_not_revoked(bench: Bench) -> None:
    array = bytearray(100)
    region = bench.pd.register(array)
    bench.stream.post_recv(region, length=50)
    with pytest.raises(StateError, match="1 receive buffers of the region are posted"):
        region.revoke()
    bench.peer.send(b"message")
    bench.cq.wait(5)
    region.revoke()
    array.clear()


def test_a_bound_region_with_buffers_posted_elsewhere_stays_in_memory(bench: Bench) -> None:
    array = bytearray(100)
    owner = Stream(bench.pd, bench.cq)
    region = bench.pd.register(array, stream=owner)
    bench.stream.post_recv(region)
    owner.close()
    assert region.revoked
    with pytest.raises(BufferError):
        array.clear()
    bench.peer.send(b"message")
    assert bench.cq.wait(5)[0].byte_len == 7 and array[:7] == b"message"
    array.clear()


def test_threads_register_and_revoke_while_traffic_goes_on(bench: Bench) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            stream = Stream(bench.pd, cq := CQ(bench.context))
            peer = Peer(bench.sim, stream.number)
            rng = random.Random(number)
            for turn in range(25):
                array = bytearray(rng.randrange(1, 5000))
                message = rng.randbytes(len(array))
                with bench.pd.register(array) as region:
                    peer.write(region.stag, 0, message)
                    (completion,) = cq.wait(20)
                    assert completion.mr is region and array == message
                buffer = bytearray(len(message))
                stream.post_recv(buffer, turn % 4, wr_id=turn)
                peer.send(message, turn % 4)
                (completion,) = cq.wait(20)
                assert (completion.wr_id, completion.byte_len) == (turn, len(message))
                assert buffer == message
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == [] and not any(thread.is_alive() for thread in threads)


def test_errors_carry_the_numbers_of_the_rfc() -> None:
    assert RnicError("any").type is None and RnicError("any").code is None
    assert CompletionOverrun("any").number is None
    error = RnicError("one")
    error.number = ErrorNumber(ErrorType.TAGGED, 1)
    assert (error.type, error.code) == (1, 1)

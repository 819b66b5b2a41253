"""Tests of streams, receive queues, completions and errors; on the real gateware."""

from __future__ import annotations

import asyncio
import random
import threading
import time

import numpy as np
import pytest
from ddp_rnic.hdl.spec import commands, ddp, regs
from ddp_rnic.sim.devices.live import Peer, SimTransport
from ddp_rnic.sim.engines.engine import Stalls
from ddp_rnic.sim.model.header import TaggedHeader, UntaggedHeader
from ddp_rnic.sw_driver import (
    CQ,
    PD,
    WC,
    CompletionOverrun,
    Context,
    Device,
    InvalidRequest,
    Opcode,
    ResourceExhausted,
    RnicError,
    RnicTimeout,
    StateError,
    Stream,
    StreamError,
    StreamState,
    TransportError,
    WcStatus,
)
from ddp_rnic.sw_driver.tests.conftest import Bench, begin
from ddp_rnic.sw_driver.tests.managed import until
from ddp_rnic.sw_driver.verbs import context


def test_messages_go_to_the_buffers_of_their_queue_in_order(scattered: Bench) -> None:
    rng = random.Random(3)
    buffers = {(qn, n): bytearray(9000) for qn in range(4) for n in range(5)}
    for (qn, n), buffer in buffers.items():
        assert scattered.stream.post_recv(buffer, qn, wr_id=(qn, n)) == n + 1
    messages = {key: rng.randbytes(rng.choice([0, 1, 1000, 9000])) for key in buffers}
    order = sorted(messages, key=lambda key: (key[1], rng.random()))
    for qn, n in order:
        scattered.peer.send(messages[qn, n], qn, rsvdulp=0x4100000000 + n)
    taken: list[WC] = []
    while len(taken) < len(order):
        taken += scattered.cq.wait(20)
    assert [completion.wr_id for completion in taken] == order
    for completion in taken:
        qn, n = key = completion.wr_id
        assert completion.opcode is Opcode.RECV and completion.status is WcStatus.SUCCESS
        assert (completion.qn, completion.msn, completion.byte_len) == (
            qn,
            n + 1,
            len(messages[key]),
        )
        assert completion.rsvdulp == 0x4100000000 + n and completion.mr is None
        assert buffers[key] == messages[key] + bytes(9000 - len(messages[key]))
        buffers[key].clear()  # the buffer is not pinned any more


def test_a_region_serves_many_receive_buffers(scattered: Bench) -> None:
    array = np.zeros((10, 1000), np.uint8)
    with scattered.pd.register(array) as region:
        for n in range(10):
            scattered.stream.post_recv(region, 1, wr_id=n, offset=1000 * n, length=1000)
        assert region.posted == 10 and scattered.stream.outstanding(1) == 10
        for n in range(10):
            scattered.peer.send(bytes([n + 1]) * 700, 1)
        taken: list[WC] = []
        while len(taken) < 10:
            taken += scattered.cq.wait(20)
        assert region.posted == 0
    assert (array[:, :700] == np.arange(1, 11)[:, None]).all() and not array[:, 700:].any()


def test_a_message_without_octets_needs_no_buffer(bench: Bench) -> None:
    bench.stream.post_recv(None, wr_id="empty")
    bench.peer.send(b"")
    (completion,) = bench.cq.wait(5)
    assert (completion.wr_id, completion.byte_len) == ("empty", 0)
    bench.stream.post_recv(None)
    bench.peer.send(b"1")
    with pytest.raises(StreamError) as caught:
        bench.cq.wait(5)
    assert caught.value.number in (ddp.INVALID_MO, ddp.MESSAGE_TOO_LONG)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((bytearray(4), 4), r"one that the stream was opened with, \[0, 1, 2, 3\], not 4"),
        ((bytearray(4), -1), "not -1"),
        ((bytearray(4), 0, 5), "-1 octets from 5 on are not within the buffer's 4"),
        ((bytearray(4), 0, 2, 3), "3 octets from 2 on are not within the buffer's 4"),
        ((bytearray(4), 0, 0, -1), "not within"),
        ((b"octets", 0), "read-only"),
        ((None, 0, 1), "must have neither offset nor length"),
        (("text", 0), "not str"),
    ],
)
def test_posts_that_cannot_be_are_reported_and_take_nothing(
    bench: Bench, arguments: tuple, message: str
) -> None:
    names = ("buffer", "qn", "offset", "length")
    with pytest.raises(InvalidRequest, match=message):
        bench.stream.post_recv(**dict(zip(names, arguments, strict=False)))
    assert bench.stream.post_recv(bytearray(4)) == 1 and len(bench.context.buffers) == 2047


def test_the_65th_buffer_of_a_queue_is_refused_until_a_completion_is_taken(bench: Bench) -> None:
    for n in range(64):
        bench.stream.post_recv(bytearray(10), wr_id=n)
    with pytest.raises(ResourceExhausted, match="queue 0 of stream 0 holds 64 buffers and is full"):
        bench.stream.post_recv(bytearray(10))
    assert bench.stream.post_recv(bytearray(10), 1) == 1
    bench.peer.send(b"one")
    assert bench.cq.wait(5)[0].wr_id == 0
    assert bench.stream.post_recv(bytearray(10)) == 65


def test_all_buffers_of_the_device_can_be_posted_and_no_more(bench: Bench) -> None:
    with bench.pd.register(bytearray(10)) as region:
        streams = [Stream(bench.pd, bench.cq) for _ in range(9)]
        for stream in streams[:8]:
            for n in range(256):
                stream.post_recv(region, n % 4)
        with pytest.raises(ResourceExhausted, match="all 2048 receive buffers of the device"):
            streams[8].post_recv(region)
        streams[0].close()
        assert {completion.status for completion in bench.cq.poll(256)} == {WcStatus.FLUSHED}
        streams[8].post_recv(region)
        for stream in streams:
            stream.close()


def test_buffers_are_posted_and_given_back_without_end(bench: Bench) -> None:
    # Cookies, slots and the ring of 128 wrap around; completions come by twos and threes.
    sent = taken = 0
    buffer = bytearray(16)
    with bench.pd.register(buffer) as region:
        while taken < 700:
            while sent - taken < 3:
                bench.stream.post_recv(region, sent % 4, wr_id=sent)
                bench.peer.send(sent.to_bytes(4, "little"), sent % 4)
                sent += 1
            for completion in bench.cq.wait(5, num_entries=2):
                assert completion.wr_id == taken
                taken += 1
        while taken < sent:
            taken += len(bench.cq.wait(5))


# -- streams --------------------------------------------------------------------------------------


@pytest.mark.parametrize("crc", [True, False])
@pytest.mark.parametrize("markers", [True, False])
def test_a_stream_is_received_as_mpa_agreed(bench: Bench, crc: bool, markers: bool) -> None:
    stream = Stream(bench.pd, bench.cq, crc=crc, markers=markers)
    peer = Peer(bench.sim, stream.number, crc=crc, markers=markers)
    array, message = bytearray(5000), random.Random(4).randbytes(5000)
    with bench.pd.register(array) as region:
        peer.write(region.stag, 0, message)
        bench.cq.wait(5)
    assert array == message


def test_a_stream_has_the_queues_that_it_was_opened_with(bench: Bench) -> None:
    stream = Stream(bench.pd, bench.cq, queues=[2])
    stream.post_recv(bytearray(9), 2)
    with pytest.raises(InvalidRequest, match=r"opened with, \[2\], not 0"):
        stream.post_recv(bytearray(9), 0)
    peer = Peer(bench.sim, stream.number)
    peer.send(b"right", 2)
    assert bench.cq.wait(5)[0].qn == 2
    peer.send(b"wrong", 1)
    with pytest.raises(StreamError) as caught:
        bench.cq.wait(5)
    assert caught.value.number == ddp.INVALID_QN
    with pytest.raises(InvalidRequest, match="a Queue Number must be from 0 to 3, not 4"):
        Stream(bench.pd, bench.cq, queues=[4])


def test_numbers_of_streams_are_given_once(bench: Bench) -> None:
    stream = Stream(bench.pd, bench.cq, number=17)
    with pytest.raises(StateError, match="stream 17 is in use: close it first"):
        Stream(bench.pd, bench.cq, number=17)
    for number in (64, -1):
        with pytest.raises(InvalidRequest, match=f"must be from 0 to 63, not {number}"):
            Stream(bench.pd, bench.cq, number=number)
    others = [Stream(bench.pd, bench.cq) for _ in range(62)]
    assert len({each.number for each in [*others, stream, bench.stream]}) == 64
    with pytest.raises(ResourceExhausted, match="all 64 streams of the device are in use"):
        Stream(bench.pd, bench.cq)
    stream.close()
    others[0].close()
    # The stream that was closed longest ago.
    assert Stream(bench.pd, bench.cq).number == 17


def test_a_stream_needs_a_domain_and_a_queue_of_one_open_context(bench: Bench) -> None:
    with SimTransport() as sim, begin(sim).context as other:
        with pytest.raises(InvalidRequest, match="to the stream's context"):
            Stream(bench.pd, CQ(other))
    cq = CQ(bench.context)
    cq.close()
    with pytest.raises(StateError, match="completion queue is closed"):
        Stream(bench.pd, cq)
    pd = PD(bench.context)
    pd.close()
    with pytest.raises(StateError, match="protection domain is closed"):
        Stream(pd, bench.cq)


@pytest.mark.parametrize("seed", range(6))
def test_not_one_octet_comes_after_a_stream_is_closed(seed: int) -> None:
    rng = random.Random(seed)
    stalls = Stalls(
        write=rng.choice([0, 0.5]), response_latency=rng.choice([1, 300]), seed=seed + 1
    )
    with SimTransport(page=rng.choice([None, 4096]), stalls=stalls, seed=seed) as sim:
        bench = begin(sim)
        with bench.context:
            buffers = [np.zeros(5000, np.uint8) for _ in range(20)]
            for n, buffer in enumerate(buffers):
                bench.stream.post_recv(buffer, wr_id=n)
            for n in range(20):
                bench.peer.send(bytes([n + 1]) * 5000)
            sim.run(rng.randrange(1000, 8000))
            bench.stream.close()
            before = [buffer.copy() for buffer in buffers]
            sim.run(40_000)
            assert all((a == b).all() for a, b in zip(before, buffers, strict=True))
            statuses = {wc.wr_id: wc.status for wc in bench.cq.poll(100)}
            # Each buffer came back once, the delivered ones first, and those are complete.
            assert list(statuses) == list(range(20))
            good = [n for n, status in statuses.items() if status is WcStatus.SUCCESS]
            assert good == list(range(len(good))) and 0 < len(good) < 20
            assert all((buffers[n] == n + 1).all() for n in good)


@pytest.mark.parametrize("seed", range(6))
def test_not_one_octet_comes_after_the_fence_of_a_stream(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy device the driver waits for nothing but the fence.
    monkeypatch.setattr(Context, "settle", lambda context: None)
    stalls = Stalls(write=0.5, response_latency=400, seed=seed + 1)
    with SimTransport(stalls=stalls, seed=seed) as sim:
        bench = begin(sim)
        buffers = [bytearray(1000) for _ in range(60)]
        for buffer in buffers:
            bench.stream.post_recv(buffer)
        for _ in buffers:
            bench.peer.send(b"\xff" * 1000)
        sim.run(2000 + 700 * seed)
        bench.stream.close()
        before = [bytes(buffer) for buffer in buffers]
        sim.run(20_000)
        assert [bytes(buffer) for buffer in buffers] == before
        assert 0 < b"".join(before).count(b"\xff") < 60_000
        bench.context.close()


def test_a_new_stream_of_the_same_number_knows_nothing_of_the_old_one(bench: Bench) -> None:
    for turn in range(3):
        stream = Stream(bench.pd, bench.cq, number=5)
        peer = Peer(bench.sim, 5)
        peer.send(b"no buffer")
        with pytest.raises(StreamError) as caught:
            bench.cq.wait(5)
        assert caught.value.number == ddp.NO_BUFFER and stream.state is StreamState.ERROR
        stream.close()
        again = Stream(bench.pd, bench.cq, number=5)
        again.post_recv(bytearray(9), wr_id=turn)
        Peer(bench.sim, 5).send(b"a buffer")
        assert bench.cq.wait(5)[0].wr_id == turn
        again.close()


# -- errors ---------------------------------------------------------------------------------------


def test_an_error_has_its_number_its_header_and_its_place(bench: Bench) -> None:
    with bench.pd.register(bytearray(100), to=50) as region:
        bench.peer.write(region.stag, 50, b"good")
        header = TaggedHeader(region.stag, 149, True, 7).encode()
        bench.peer.segments(header + b"12")
        assert bench.cq.wait(5)[0].mr is region
        with pytest.raises(StreamError, match="0x1/0x01 Base or bounds violation") as caught:
            bench.cq.wait(5)
    event = caught.value.event
    assert caught.value.number == ddp.BASE_OR_BOUNDS
    assert (caught.value.type, caught.value.code) == (1, 1)
    assert event.header == header and event.length == 16 and event.stream == bench.stream.number
    assert event.sequence == 24  # after the first FPDU
    assert bench.stream.error is event
    assert bench.context.events() == [event] and bench.context.events() == []
    (packet,) = bench.sim.exceptions()
    assert packet.reason == 0x101 and header + b"12" in packet.octets
    # The error was raised once, and is not raised again; but nothing can be posted.
    with pytest.raises(RnicTimeout, match=r"no completion came within 0\.01 seconds"):
        bench.cq.wait(0.01)
    with pytest.raises(StreamError, match="close it"):
        bench.stream.post_recv(bytearray(1))


def test_an_error_of_an_untagged_message_has_the_longer_header(bench: Bench) -> None:
    header = UntaggedHeader(1, 2, 3, True, 0x0102030405).encode()
    bench.peer.segments(header)
    with pytest.raises(StreamError) as caught:
        bench.cq.wait(5)
    assert caught.value.event.header == header and caught.value.type == 2


def test_an_event_of_a_number_s_former_user_is_not_the_next_user_s(bench: Bench) -> None:
    """The device refuses to start the stream until the driver has read the event."""
    number, registers = 9, bench.context.registers
    registers.start(commands.set_stream(number, pd=bench.pd.number, crc=True))
    Peer(bench.sim, number).send(b"nobody has posted a buffer")
    while registers.read("STATUS") & 3 != 3:  # idle, with an event
        pass
    stream = Stream(bench.pd, bench.cq, number=number)
    assert stream.state is StreamState.RECEIVING and stream.error is None
    (event,) = bench.context.events()
    assert event.stream == number and event.number == ddp.INVALID_QN
    stream.post_recv(buffer := bytearray(4))
    Peer(bench.sim, number).send(b"next")
    assert bench.cq.wait(5)[0].stream is stream and buffer == b"next"


def test_errors_on_one_stream_leave_another_alone(bench: Bench) -> None:
    other = Stream(bench.pd, cq := CQ(bench.context))
    peer = Peer(bench.sim, other.number)
    array = bytearray(4)
    with bench.pd.register(array) as region:
        bench.peer.write(region.stag ^ 0x100, 0, b"none")
        peer.write(region.stag, 0, b"good")
        assert cq.wait(5)[0].mr is region
        with pytest.raises(StreamError):
            bench.cq.wait(5)
    assert array == b"good" and other.state is StreamState.RECEIVING


def test_a_write_that_the_bus_refuses_is_reported(bench: Bench) -> None:
    region = bench.pd.register(bytearray(100))
    bench.stream.post_recv(region, wr_id="lost")
    (extent,) = region.mapping.memory.extents
    bench.sim.fault(range(extent.address + 50, extent.address + 51))
    bench.peer.send(bytes(100))
    completions: list[WC] = []
    errors: list[StreamError] = []
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and not (completions and errors):
        try:
            completions += bench.cq.wait(0.1)
        except StreamError as error:
            errors.append(error)
        except RnicTimeout:
            pass
    assert [completion.status for completion in completions] == [WcStatus.NOT_PLACED]
    assert [error.number for error in errors] == [ddp.LOCAL_CATASTROPHIC]


def test_a_completion_that_the_bus_refuses_stops_the_ring_and_is_reported(bench: Bench) -> None:
    (extent,) = bench.cq.ring.memory.extents
    bench.sim.fault(range(extent.address, extent.address + extent.length))
    bench.stream.post_recv(bytearray(5))
    bench.peer.send(b"1")
    bench.sim.run(2000)
    with pytest.raises(TransportError, match="refused the write of a completion.* open the device"):
        bench.cq.wait(5)
    bench.context.close()
    again = begin(bench.sim)
    with again.context:
        again.stream.post_recv(bytearray(5), wr_id=1)
        again.peer.send(b"1")
        assert again.cq.wait(5)[0].wr_id == 1


# -- completion queues ----------------------------------------------------------------------------


def test_completions_go_to_the_queue_of_their_stream(bench: Bench) -> None:
    queues = [CQ(bench.context) for _ in range(3)]
    streams = [Stream(bench.pd, cq) for cq in queues]
    for n in range(9):
        streams[n % 3].post_recv(bytearray(4), wr_id=n)
    for stream in streams:
        peer = Peer(bench.sim, stream.number)
        for _ in range(3):
            peer.send(b"1234")
    bench.sim.run(3000)
    assert [[wc.wr_id for wc in cq.poll()] for cq in queues] == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]


def test_a_queue_that_nobody_polls_stops_its_stream_and_no_other(bench: Bench) -> None:
    small, buffer = CQ(bench.context, cqe=4), bytearray(4)
    stream = Stream(bench.pd, small)
    with bench.pd.register(buffer) as region:
        peer = Peer(bench.sim, stream.number)
        for _ in range(7):
            peer.write(region.stag, 0, b"1234")
        bench.sim.run(3000)
        assert bench.cq.poll() == []
        assert len(small.poll(3)) == 3 and len(small.wait(1)) == 1
        with pytest.raises(CompletionOverrun, match="more than 4 completions waited"):
            small.wait(1)
        assert stream.state is StreamState.ERROR and stream.error is None
        with pytest.raises(StateError, match="is stopped: close it"):
            stream.post_recv(region)
        octets = bytes(buffer)
        peer.write(region.stag, 0, b"5678")
        bench.peer.write(region.stag, 2, b"AB")
        assert bench.cq.wait(5)[0].stream is bench.stream
        assert buffer == octets[:2] + b"AB"
    for cqe in (0, -1, "many"):
        with pytest.raises(InvalidRequest, match="cqe must be at least 1"):
            CQ(bench.context, cqe)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="num_entries must be at least 1, not 0"):
        small.poll(0)


def test_a_stream_that_overruns_its_ring_ends_alone_after_what_was_delivered() -> None:
    with SimTransport() as sim, Device(sim).open(completions=2) as context:
        with PD(context) as pd, CQ(context) as cq, Stream(pd, cq) as stream:
            peer = Peer(sim, stream.number)
            with pd.register(bytearray(8)) as region:
                for n in range(50):
                    peer.write(region.stag, 0, b"12345678", rsvdulp=n)
                sim.run(5000)
                taken = cq.wait(5)
                with pytest.raises(StreamError, match="more than 2 completions") as caught:
                    while True:
                        taken += cq.wait(5)
                assert caught.value.number == ddp.QUEUE_OVERRUN
                assert [completion.rsvdulp for completion in taken] == [0, 1]
            with Stream(pd, cq) as other, pd.register(bytearray(8)) as region:
                Peer(sim, other.number).write(region.stag, 0, b"12345678", rsvdulp=7)
                assert [completion.rsvdulp for completion in cq.wait(5)] == [7]


def test_a_queue_of_its_own_is_not_overrun_by_the_streams_of_another() -> None:
    with SimTransport() as sim, Device(sim).open(completions=2) as context, PD(context) as pd:
        with CQ(context) as flooded, CQ(context) as cq, pd.register(bytearray(8)) as region:
            assert len({0, flooded.ring.number, cq.ring.number}) == 3
            bad, good = Stream(pd, flooded), Stream(pd, cq)
            for stream, count in ((bad, 50), (good, 2)):
                peer = Peer(sim, stream.number)
                for n in range(count):
                    peer.write(region.stag, 0, b"12345678", rsvdulp=n)
            sim.run(5000)
            assert [completion.rsvdulp for completion in cq.wait(5)] == [0, 1]
            assert len(flooded.wait(5)) == 2
            with pytest.raises(StreamError, match="overrun"):
                flooded.wait(5)
            assert good.error is None


def test_queues_that_the_device_does_not_have_share_one(bench: Bench) -> None:
    queues = [CQ(bench.context) for _ in range(20)]
    assert [queue.ring.number for queue in queues].count(0) == 20 + 2 - 16
    with Stream(bench.pd, queues[-1]) as stream, bench.pd.register(bytearray(8)) as region:
        Peer(bench.sim, stream.number).write(region.stag, 0, b"12345678", rsvdulp=7)
        assert [completion.rsvdulp for completion in queues[-1].wait(5)] == [7]
    for queue in queues:
        queue.close()


def test_a_ring_goes_round_with_its_phase() -> None:
    with SimTransport() as sim, Device(sim).open(completions=2) as context:
        with PD(context) as pd, CQ(context) as cq, Stream(pd, cq) as stream:
            peer = Peer(sim, stream.number)
            with pd.register(bytearray(8)) as region:
                for n in range(20):
                    peer.write(region.stag, 0, b"12345678", rsvdulp=n)
                    assert [completion.rsvdulp for completion in cq.wait(5)] == [n]


def test_messages_that_were_delivered_are_not_flushed() -> None:
    with SimTransport() as sim, Device(sim).open(completions=32) as context:
        with PD(context) as pd, CQ(context) as cq:
            stream = Stream(pd, cq)
            for n in range(40):
                stream.post_recv(bytearray(4), wr_id=n)
            peer = Peer(sim, stream.number)
            for _ in range(30):
                peer.send(b"1234")
            sim.run(5000)
            stream.close()
            taken = cq.poll(100)
            assert [completion.wr_id for completion in taken] == list(range(40))
            assert [completion.status for completion in taken] == [WcStatus.SUCCESS] * 30 + [
                WcStatus.FLUSHED
            ] * 10


def test_waiting_for_a_completion_that_does_not_come_ends_in_time(bench: Bench) -> None:
    begun = time.monotonic()
    with pytest.raises(RnicTimeout, match=r"within 0\.2 seconds") as caught:
        bench.cq.wait(0.2)
    assert isinstance(caught.value, TimeoutError)
    assert 0.2 <= time.monotonic() - begun < 2
    with pytest.raises(RnicTimeout):
        bench.cq.wait(0)


def test_a_thread_that_waits_is_woken_by_what_another_sends(bench: Bench) -> None:
    taken = []
    thread = threading.Thread(target=lambda: taken.append(bench.cq.wait(20)))
    thread.start()
    time.sleep(0.05)
    bench.stream.post_recv(bytearray(4), wr_id="woken")
    bench.peer.send(b"1234")
    thread.join(20)
    assert taken[0][0].wr_id == "woken"


def test_a_wait_ends_as_soon_as_another_thread_has_put_a_completion(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wait ends early, not at the end of a time slice. Two threads wait: one for the device."""
    monkeypatch.setattr(context, "SLICE", 30)
    posted = [bytearray(4), bytearray(4)]
    for buffer in posted:
        bench.stream.post_recv(buffer, wr_id="flushed")
    taken: list[WC] = []
    threads = [threading.Thread(target=lambda: taken.extend(bench.cq.wait(20, 1))) for _ in posted]
    for thread in threads:
        thread.start()
    until(lambda: bench.context._watching, "a thread that waits for the device")
    time.sleep(0.05)
    begun = time.monotonic()
    # This causes no interrupt, because the device is not involved.
    bench.stream.close()
    for thread in threads:
        thread.join(20)
    assert [wc.wr_id for wc in taken] == ["flushed", "flushed"]
    assert time.monotonic() - begun < 5


def test_a_wait_ends_as_soon_as_its_queue_is_closed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "SLICE", 30)
    failures: list[RnicError] = []

    def wait() -> None:
        try:
            bench.cq.wait(20)
        except RnicError as error:
            failures.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: bench.context._watching, "a thread that waits for the device")
    begun = time.monotonic()
    bench.cq.close()
    thread.join(20)
    assert str(failures[0]) == "the completion queue is closed"
    assert time.monotonic() - begun < 5


def test_asyncio_waits_while_the_loop_goes_on(bench: Bench) -> None:
    ticks = []

    async def tick() -> None:
        while True:
            ticks.append(time.monotonic())
            await asyncio.sleep(0.01)

    async def session() -> None:
        ticker = asyncio.create_task(tick())
        waiter = asyncio.create_task(bench.cq.wait_async(20))
        await asyncio.sleep(0.1)
        assert not waiter.done()
        bench.stream.post_recv(bytearray(4), wr_id="async")
        bench.peer.send(b"1234")
        assert (await waiter)[0].wr_id == "async"
        with pytest.raises(RnicTimeout):
            await bench.cq.wait_async(0.05)
        cancelled = asyncio.create_task(bench.cq.wait_async())
        await asyncio.sleep(0.05)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        ticker.cancel()

    asyncio.run(session())
    assert len(ticks) >= 5


def test_the_interrupt_is_moderated() -> None:
    with SimTransport() as sim, Device(sim).open(coalesce=4, timeout=3000) as context:
        pd, cq = PD(context), CQ(context)
        stream = Stream(pd, cq)
        peer, region = Peer(sim, stream.number), pd.register(bytearray(4))

        def cycles(messages: int) -> int:
            """Returns the cycles from this many messages to the interrupt."""
            begun = sim.cycle
            for _ in range(messages):
                peer.write(region.stag, 0, b"1234")
            sim.wait(20)
            took = sim.cycle - begun
            assert len(cq.poll()) == messages
            return took

        assert cycles(4) < 1000 < 3000 < cycles(1) < 4000


def test_completions_are_read_only_once_their_phase_was_seen(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Over a slow link an entry may be written while it is read, so its last octet is read first.
    pulls = []
    monkeypatch.setattr(
        bench.cq.ring.memory, "pull", lambda offset, length: pulls.append((offset, length))
    )
    bench.cq.poll()
    assert pulls == [(31, 1)]
    bench.stream.post_recv(bytearray(1))
    bench.peer.send(b"1")
    bench.sim.run(1000)
    assert len(bench.cq.poll()) == 1
    assert pulls[1:] == [(31, 1), (0, 32), (63, 1)]


def test_an_entry_that_cannot_be_is_reported(bench: Bench) -> None:
    bench.cq.ring.memory.view[0] = 0xF0
    bench.cq.ring.memory.view[31] = 1
    with pytest.raises(TransportError, match="is not valid .* check the link"):
        bench.cq.poll()
    bench.cq.ring.memory.view[31] = 0


def test_the_counters_tell_what_was_placed(bench: Bench) -> None:
    with bench.pd.register(bytearray(1000)) as region:
        bench.peer.write(region.stag, 0, bytes(1000))
        bench.cq.wait(5)
    counters = bench.context.counters()
    assert counters["PLACED_OCTETS"] == 1000 and counters["PLACED_SEGMENTS"] == 1
    assert counters["DELIVERED"] == 1
    assert set(counters) == {
        name for name in regs.COUNTERS if not name.startswith("PLACED_OCTETS_")
    } | {"PLACED_OCTETS"}

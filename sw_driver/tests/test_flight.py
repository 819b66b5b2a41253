"""Tests an SCTP sender's decisions with a network that loses packets; RFC 9260 is the judge."""

from __future__ import annotations

import random
import time
from collections import deque
from itertools import permutations
from pathlib import Path

import pytest
from ddp_rnic.sim.devices.peer.association import Received
from ddp_rnic.sim.model.sctp import DataChunk, InitChunk, Packet, SackChunk
from ddp_rnic.sim.replay.tests.test_sending import KERNELS_SCTP
from ddp_rnic.sw_driver.verbs.flight import Flight
from scapy.layers.sctp import SCTP
from scapy.utils import rdpcap

LONGEST, WINDOW = 1000, 20_000
TSN = (1 << 32) - 5


class Peer(Received):
    """Receives chunks, and answers with the fields of SACK chunks."""

    def answer(self) -> tuple[int, list[tuple[int, int]]]:
        """Returns the Cumulative TSN Ack, and the Gap Ack Blocks."""
        sack = self.sack(0)
        return sack.cumulative, list(sack.gaps)


class Network:
    """A sender, a peer, and packets that take 0.05 s each way or are lost."""

    def __init__(self, *, loss: float, chunks: int, seed: int = 1, window: int = WINDOW) -> None:
        self.flight, self.peer, self.rng = (
            Flight(TSN, window, LONGEST),
            Peer(TSN),
            random.Random(seed),
        )
        self.loss, self.left, self.window, self.now = loss, chunks, window, 0.0
        self.sizes: dict[int, int] = {}
        self.way: deque[tuple[float, int]] = deque()
        self.back: deque[tuple[float, tuple[int, list[tuple[int, int]], int]]] = deque()
        self.repeats = self.most = 0

    def send(self) -> None:
        flight = self.flight
        for tsn in flight.due(self.now):
            self.repeats += 1
            self._put(tsn)
        while self.left:
            size, limits = self.rng.choice((200, LONGEST)), flight.limits()
            if flight.next >= limits.tsn or flight.octets + size > limits.octets:
                break
            # Section 6.1, B: "MUST NOT transmit new data to a given transport address if it has
            # cwnd + (PMDCS - 1) or more bytes of data outstanding to that transport address."
            assert flight.flight + size < flight.cwnd + LONGEST
            self.sizes[flight.next] = size
            self._put(flight.next)
            flight.leave(size, self.now)
            self.left -= 1
        # Section 6.1, A: the peer has room for all of it.
        outstanding = sum(self.sizes[tsn] for tsn in range(self.peer.next, flight.next))
        assert outstanding <= self.window or flight.next - self.peer.next == 1
        self.most = max(self.most, outstanding)

    def _put(self, tsn: int) -> None:
        if self.rng.random() >= self.loss:
            self.way.append((self.now + 0.05, tsn))

    def run(self, until: float = 3000.0) -> None:
        while self.left or self.flight.first != self.flight.next:
            assert self.now < until, "the sender has stopped"
            self.send()
            times = [each[0][0] for each in (self.way, self.back) if each]
            if self.flight.deadline is not None:
                times.append(self.flight.deadline)
            self.now = min(times)
            while self.way and self.way[0][0] <= self.now:
                self.peer.take(self.way.popleft()[1])
                if self.rng.random() >= self.loss:
                    room = self.window - sum(self.sizes[tsn] for tsn in self.peer.ahead)
                    self.back.append((self.now + 0.05, (*self.peer.answer(), room)))
            while self.back and self.back[0][0] <= self.now:
                cumulative, gaps, room = self.back.popleft()[1]
                self.flight.acknowledge(cumulative, room, gaps, self.now)
                self.send()
            self.flight.expire(self.now)


@pytest.mark.parametrize("loss", [0.0, 0.02, 0.2])
@pytest.mark.parametrize("seed", range(4))
def test_all_chunks_arrive_whatever_the_network_loses(loss: float, seed: int) -> None:
    path = Network(loss=loss, chunks=300, seed=seed)
    path.run()
    assert path.peer.next == TSN + 300 and (path.repeats > 0) == (loss > 0)
    if not loss:
        assert path.most > 0.9 * WINDOW  # the window is used


def test_the_congestion_window_opens_slowly() -> None:
    """Section 7.2.1: "The initial cwnd before DATA transmission MUST be set to min(4 * PMDCS,
    max(2 * PMDCS, 4404)) bytes"; it grows by one packet for each packet that is acknowledged.
    """
    path = Network(loss=0.0, chunks=100, window=1 << 20)
    path.send()
    assert path.flight.cwnd == 4000 and 4000 <= path.flight.flight < 5000
    path.run(10.0)
    assert path.flight.cwnd > 20_000


def test_a_sack_for_many_chunks_opens_the_window_by_one_packet() -> None:
    """Section 7.2.1: "cwnd MUST be increased by, at most, the lesser of 1. the total size of the
    previously outstanding DATA chunk(s) acknowledged and 2. L times the destination's PMDCS."
    """
    flight = outstanding(4)
    flight.acknowledge((TSN + 2) % (1 << 32), 1 << 20, [], 0.1)
    assert flight.cwnd == 5 * LONGEST


def test_chunks_that_are_lost_leave_before_new_ones() -> None:
    """Section 6.1, C: "before sending new DATA chunks, the sender MUST first transmit any DATA
    chunks that are marked for retransmission".
    """
    flight = outstanding(2)
    assert flight.deadline is not None and flight.expire(flight.deadline)
    assert flight.limits().octets == flight.octets
    assert flight.due(2.0) == [TSN] and flight.limits().octets == flight.octets
    flight.acknowledge(TSN % (1 << 32), 1 << 20, [], 2.1)
    assert flight.due(2.1) == [TSN + 1] and flight.limits().octets > flight.octets


def outstanding(count: int) -> Flight:
    flight = Flight(TSN, 1 << 20, LONGEST)
    for _ in range(count):
        flight.leave(LONGEST, 0.0)
    return flight


def test_the_third_report_of_a_missing_chunk_has_it_sent_again_once() -> None:
    """Section 7.2.4: "When a TSN is reported as missing in the third consecutive SACK chunk, the
    data sender MUST: 1) Mark the missing DATA chunk(s) for retransmission."
    """
    flight = outstanding(8)
    for end in (2, 3):
        assert flight.acknowledge(TSN - 1, 1 << 20, [(2, end)], 0.1) and not flight.due(0.1)
    flight.acknowledge(TSN - 1, 1 << 20, [(2, 4)], 0.1)
    assert flight.due(0.1) == [TSN] and flight.cwnd == 4 * LONGEST
    for end in (5, 6, 7, 8):
        flight.acknowledge(TSN - 1, 1 << 20, [(2, end)], 0.1)
    assert not flight.due(0.1) and flight.cwnd == 4 * LONGEST
    assert flight.acknowledge((TSN + 7) % (1 << 32), 1 << 20, [], 0.2)
    assert flight.first == flight.next and flight.deadline is None


def test_the_timer_sends_again_and_doubles() -> None:
    """Section 6.3.3, E2: "For the destination address for which the timer expires, set RTO = RTO *
    2 ('back off the timer')." Section 7.2.3: cwnd is one packet then.
    """
    flight, times = outstanding(4), []
    for _ in range(4):
        assert flight.deadline is not None
        times.append(flight.deadline)
        assert not flight.expire(times[-1] - 0.01)
        assert flight.expire(times[-1])
        assert flight.due(times[-1]) == [TSN] and flight.cwnd == LONGEST
    assert [b - a for a, b in zip(times, times[1:], strict=False)] == [2.0, 4.0, 8.0]
    flight.acknowledge(TSN % (1 << 32), 1 << 20, [], times[-1] + 0.1)
    assert flight.due(times[-1] + 0.1) == [TSN + 1, TSN + 2]  # it is in slow start


def test_a_round_trip_ends_with_the_first_report_of_a_chunk() -> None:
    """RFC 9260 section 6.3.1: the time until "the SACK chunk that acknowledges" the chunk, in a gap
    or not. What is missing before the gap may take long.
    """
    flight = Flight(0, WINDOW, LONGEST)
    for _ in range(3):
        flight.leave(LONGEST, 0.0)
    assert flight.acknowledge((1 << 32) - 1, WINDOW, [(2, 3)], 0.8)
    # SRTT is 0.8 s, and RTTVAR is half of that.
    assert flight.expire(1.0) and flight.due(1.0) == [0]
    assert flight.deadline == 1.0 + 2 * (0.8 + 4 * 0.4)
    assert flight.acknowledge(2, WINDOW, [], 50.0)
    flight.leave(LONGEST, 50.0)
    assert flight.deadline == 50.0 + 2 * (0.8 + 4 * 0.4)
    # The next chunk measures again.
    assert flight.acknowledge(3, WINDOW, [], 50.8)
    flight.leave(LONGEST, 51.0)
    assert flight.deadline == pytest.approx(51.0 + 0.8 + 4 * 0.3)


def test_one_chunk_probes_a_window_that_is_closed() -> None:
    """Section 6.1, A: "A zero window probe SHOULD only be sent when all outstanding DATA chunks
    have been cumulatively acknowledged and no DATA chunks are in flight."
    """
    flight = outstanding(2)
    flight.acknowledge(TSN % (1 << 32), 0, [], 0.1)
    assert flight.limits().octets == flight.octets
    flight.acknowledge((TSN + 1) % (1 << 32), 0, [], 0.1)
    limits = flight.limits()
    assert limits.tsn == flight.next + 1 and limits.octets == flight.octets + LONGEST
    flight.leave(LONGEST, 0.2)
    assert flight.limits().octets == flight.octets


@pytest.mark.parametrize("cumulative", [TSN - 2, TSN + 4, TSN - (1 << 31)])
def test_a_sack_that_is_old_or_acknowledges_what_was_not_sent_is_dropped(cumulative: int) -> None:
    """Section 6.2.1, D i): "If Cumulative TSN Ack is less than the Cumulative TSN Ack Point, then
    drop the SACK chunk."
    """
    flight = outstanding(4)
    flight.acknowledge((TSN - 1) % (1 << 32), 1 << 20, [], 0.0)
    before = flight.limits(), flight.flight
    assert not flight.acknowledge(cumulative % (1 << 32), 5, [], 0.1)
    assert (flight.limits(), flight.flight) == before


def test_long_gap_blocks_of_a_hostile_peer_cost_no_more_than_short_ones() -> None:
    """Each of the blocks, in no order, covers 2**16 TSNs; three chunks are outstanding."""
    flight = Flight(TSN, WINDOW, LONGEST)
    for _ in range(3):
        flight.leave(LONGEST, 0.0)
    began = time.process_time()
    blocks = [(5, 4), (2, 65535), *((at, 65535) for at in range(16_000, 2, -1))]
    assert flight.acknowledge(TSN - 1, WINDOW, blocks, 1.0)
    assert time.process_time() - began < 5
    assert flight.first == TSN and flight.flight == LONGEST


def test_a_receiver_may_take_back_what_only_a_gap_has_acknowledged() -> None:
    """Section 6.2.1, D iii): "the data receiver reneged on the data"."""
    flight = outstanding(4)
    flight.acknowledge((TSN - 1) % (1 << 32), 1 << 20, [(2, 4)], 0.1)
    assert flight.flight == LONGEST
    flight.acknowledge((TSN - 1) % (1 << 32), 1 << 20, [], 0.1)
    assert flight.flight == 4 * LONGEST and flight.first == TSN


@pytest.mark.skipif(not KERNELS_SCTP, reason="needs the captures of real stacks beside the project")
@pytest.mark.parametrize("capture", KERNELS_SCTP, ids=lambda path: path.stem)
def test_the_sack_chunks_of_kernels_acknowledge_what_kernels_sent(capture: Path) -> None:
    """Each end of a recorded association is the sender once, and the other kernel acknowledges. The
    network of one capture loses and reorders packets; without that no chunk is sent again.
    """
    chunks = [
        (float(frame.time), frame[SCTP].sport, chunk)
        for frame in rdpcap(str(capture))
        if SCTP in frame
        for chunk in Packet.parse(bytes(frame[SCTP])).chunks
    ]
    inits = {port: chunk for _, port, chunk in chunks if isinstance(chunk, InitChunk)}
    for port, other in permutations(inits):
        first = inits[port].tsn
        sizes = {
            (chunk.tsn - first) % (1 << 32): len(chunk.payload)
            for _, sender, chunk in chunks
            if sender == port and isinstance(chunk, DataChunk)
        }
        flight, last, repeats = Flight(first, inits[other].window, 1452), 0, 0
        for now, sender, chunk in chunks:
            if sender == port and isinstance(chunk, DataChunk):
                while flight.next <= first + (chunk.tsn - first) % (1 << 32):
                    flight.leave(sizes[flight.next - first], now)
            elif sender == other and isinstance(chunk, SackChunk):
                before = flight.first
                taken = flight.acknowledge(chunk.cumulative, chunk.window, chunk.gaps, now)
                number = (chunk.cumulative - first + 1) % (1 << 32)
                assert taken == (number >= before - first)
                last = max(last, number)
            flight.expire(now)
            repeats += len(flight.due(now))
        assert flight.first == first + last and last >= len(sizes) - 4
        assert (repeats > 0) == ("loss" in capture.stem)

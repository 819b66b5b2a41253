"""This side's SCTP, whose peer sends what a kernel does not send."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import cast

import pytest
from ddp_rnic.hdl.spec.sctp import Function
from ddp_rnic.sim.devices.guest.ethernet import Ethernet
from ddp_rnic.sim.devices.peer import association
from ddp_rnic.sim.devices.peer.association import AssociationEnd, Received, SctpNetwork
from ddp_rnic.sim.devices.peer.channel import Wrong
from ddp_rnic.sim.devices.peer.end import carried
from ddp_rnic.sim.devices.peer.over_sctp import SctpNode
from ddp_rnic.sim.model.sctp import (
    ADAPTATION_DDP,
    ADAPTATION_PARAMETER,
    AnyChunk,
    Chunk,
    ChunkType,
    DataChunk,
    InitChunk,
    Packet,
    Ppid,
    SackChunk,
)
from ddp_rnic.sim.replay.paths import frame_of
from ddp_rnic.sw_driver import CQ
from scapy.layers.sctp import SCTP, SCTPChunkInit, SCTPChunkParamAdaptationLayer

PORT, TAG, TSN = 4791, 0x1234, 100
WINDOW = association._WINDOW
COOKIE = 7, b"biscuit!"
ANSWER = InitChunk(
    TAG, TSN, 3, 3, 1 << 17, (COOKIE, (ADAPTATION_PARAMETER, ADAPTATION_DDP.to_bytes(4, "big"))),
    acknowledges=True,
)  # fmt: skip
ABORT = Chunk(ChunkType.ABORT)
COMPLETE = Chunk(ChunkType.SHUTDOWN_COMPLETE, flags=1)
#: Seconds after which nothing is expected any more.
NEVER = 0.3


class Stranger:
    """A peer at the other end of the cable, which accepts associations.

    Attributes
    ----------
    got
        The chunks that have come.
    waiting
        The frames that it sends.
    first
        The first frame that has come, with its INIT chunk.
    init
        The INIT chunk that has come.
    """

    def __init__(self, answers: Sequence[InitChunk] = (ANSWER,)) -> None:
        self.first = b""
        self.got: list[AnyChunk] = []
        self.waiting = deque[bytes]()
        self._answers = deque(answers)
        headers = association._headers(False, False)
        self._headers = headers[:26] + headers[30:34] + headers[26:30]

    def frames(self) -> Iterator[bytes]:
        while self.waiting:
            yield self.waiting.popleft()

    def put(self, frame: bytes) -> None:
        self.first = self.first or frame
        packet = Packet.parse(frame[34:])
        self.port = packet.source
        self.got += packet.chunks
        for chunk in packet.chunks:
            if isinstance(chunk, InitChunk):
                self.init = chunk
                self.send(self._answers.popleft() if len(self._answers) > 1 else self._answers[0])
            elif chunk.encode()[0] == ChunkType.COOKIE_ECHO:
                self.send(Chunk(ChunkType.COOKIE_ACK))

    def send(self, *chunks: AnyChunk, tag: int | None = None, port: int = PORT) -> None:
        """Sends a packet, whose Verification Tag is the right one unless another is given."""
        packet = Packet(port, self.port, self.init.tag if tag is None else tag, chunks)
        self.waiting.append(frame_of(self._headers, packet.encode()))

    def kinds(self) -> list[int]:
        """Returns the types of the chunks that have come."""
        return [chunk.encode()[0] for chunk in self.got]


@pytest.fixture(scope="module")
def node() -> Iterator[SctpNode]:
    with SctpNode() as opened:
        yield opened


def meet(
    node: SctpNode,
    stranger: Stranger,
    act: Callable[[AssociationEnd], None] = lambda end: None,
    ready: Callable[[AssociationEnd], object] = lambda end: False,
    seconds: float = 20.0,
) -> bool:
    """Sets an association up, lets the stranger act, and waits for ``ready``, at most some seconds.

    The association is closed at last, and the network carries what that sends.
    """
    network = SctpNetwork(cast(Ethernet, stranger), node.sim, None, Counter(), seed=1)

    async def run() -> bool:
        end = AssociationEnd(network, node.context, v6=False, udp=False, streams=3)
        try:
            await end.connect(PORT)
            act(end)
            return await end.until(lambda: ready(end), seconds)
        finally:
            end.close()
            while network._flying:
                await asyncio.sleep(0)

    return asyncio.run(carried(network, [node.context], network.ends, run()))


def test_an_init_chunk_indicates_ddp(node: SctpNode) -> None:
    """RFC 5043 section 5.1: "We define an Adaptation Indication that MUST appear in the INIT or
    INIT-ACK". Scapy reads the packet.
    """
    stranger = Stranger()
    assert meet(node, stranger, ready=lambda end: True)
    init = SCTP(stranger.first[34:])[SCTPChunkInit]
    (indication,) = [
        each for each in init.params if isinstance(each, SCTPChunkParamAdaptationLayer)
    ]
    assert (indication.type, indication.indication) == (0xC006, 1)


@pytest.mark.parametrize(
    "kind", [ChunkType.ABORT, ChunkType.SHUTDOWN_COMPLETE, ChunkType.HEARTBEAT]
)
def test_a_packet_with_another_tag_or_port_is_discarded(node: SctpNode, kind: ChunkType) -> None:
    """RFC 9260 section 8.5: "If this is not the case, the receiver MUST silently discard the
    packet".
    """
    stranger = Stranger()

    def act(end: AssociationEnd) -> None:
        stranger.got.clear()
        stranger.send(Chunk(kind), tag=stranger.init.tag ^ 1)
        stranger.send(Chunk(kind), tag=TAG)  # without the flag T
        stranger.send(Chunk(kind), port=PORT + 1)

    assert not meet(node, stranger, act, lambda end: end.ended, NEVER)
    assert stranger.kinds() == [ChunkType.ABORT]  # that of close()


@pytest.mark.parametrize("reflected", [False, True])
def test_an_abort_ends_the_association_however_often_it_comes(
    node: SctpNode, reflected: bool
) -> None:
    """RFC 9260 section 8.5.1: with the flag T an ABORT has the tag of the other direction; "The
    receiver of the ABORT chunk [...] MUST NOT respond".
    """
    stranger = Stranger()

    def act(end: AssociationEnd) -> None:
        stranger.got.clear()
        for _ in range(3):
            stranger.send(replace(ABORT, flags=int(reflected)), tag=TAG if reflected else None)

    with pytest.raises(Wrong, match="the kernel has sent ABORT"):
        meet(node, stranger, act)
    assert not stranger.got


def test_a_heartbeat_is_answered_with_its_octets(node: SctpNode) -> None:
    stranger, info = Stranger(), bytes(range(40))
    answer = Chunk(ChunkType.HEARTBEAT_ACK, value=info)
    heartbeat = Chunk(ChunkType.HEARTBEAT, value=info)
    assert meet(
        node, stranger, lambda end: stranger.send(heartbeat), lambda end: answer in stranger.got
    )


def test_an_init_ack_that_is_not_allowed_is_passed_over(
    node: SctpNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RFC 9260 section 3.3.3: the Initiate Tag is not 0, there is a State Cookie, and a window of
    at least 1500 octets.
    """
    monkeypatch.setattr(association, "_AGAIN", 0.1)
    bad = replace(ANSWER, parameters=ANSWER.parameters[1:]), replace(ANSWER, tag=0)
    stranger = Stranger([*bad, replace(ANSWER, window=1499), ANSWER])
    assert meet(node, stranger, ready=lambda end: True)
    assert stranger.kinds().count(ChunkType.INIT) == 4


@pytest.mark.parametrize(
    "answer, said",
    [
        (replace(ANSWER, inbound=2), "streams"),
        (replace(ANSWER, parameters=ANSWER.parameters[:1]), "does not indicate DDP"),
    ],
)
def test_an_init_ack_without_what_ddp_needs_fails(
    node: SctpNode, answer: InitChunk, said: str
) -> None:
    with pytest.raises(Wrong, match=said):
        meet(node, Stranger([answer]))


def test_the_peer_ends_the_association_after_it_has_acknowledged_all(node: SctpNode) -> None:
    """RFC 9260 section 9.2: "If there are still outstanding DATA chunks left, the SHUTDOWN chunk
    receiver MUST continue to follow normal data transmission procedures".
    """
    stranger, cq = Stranger(), CQ(node.context)

    def act(end: AssociationEnd) -> None:
        end.sender.open(end.association.stream(0, node.pd, cq))
        end.sender.control(0, Function.INITIATE)

    def accepted(end: AssociationEnd) -> bool:
        kinds = stranger.kinds()
        if ChunkType.DATA in kinds:
            stranger.send(Chunk(ChunkType.SHUTDOWN, value=bytes(4)))
        if kinds.count(ChunkType.DATA) > 1:  # the chunk was sent again after a second
            stranger.send(SackChunk(stranger.init.tsn))
        else:
            assert ChunkType.SHUTDOWN_ACK not in kinds
        return ChunkType.SHUTDOWN_ACK in kinds

    assert meet(node, stranger, act, accepted)


def test_a_peer_whose_last_answer_was_lost_answers_again(node: SctpNode) -> None:
    """RFC 9260 section 9.2: the SHUTDOWN ACK chunk is sent again after a time; section 8.4: "the
    receiver should respond [...] with a SHUTDOWN COMPLETE chunk", with the flag T.
    """
    stranger = Stranger()

    def ended(end: AssociationEnd) -> bool:
        if stranger.kinds().count(ChunkType.SHUTDOWN_ACK) == 2:
            stranger.send(COMPLETE, tag=TAG)
        return end.ended

    assert meet(
        node, stranger, lambda end: stranger.send(Chunk(ChunkType.SHUTDOWN, value=bytes(4))), ended
    )


def test_frames_that_are_too_short_are_dropped(node: SctpNode) -> None:
    stranger = Stranger()

    def act(end: AssociationEnd) -> None:
        stranger.send(ABORT, tag=0)
        frame = stranger.waiting.pop()
        stranger.waiting.extend(frame[:length] for length in range(14, len(frame)))

    assert not meet(node, stranger, act, seconds=NEVER)


def test_a_message_that_no_packet_holds_ends_the_association(node: SctpNode) -> None:
    stranger, part = Stranger(), bytes(1400)

    def act(end: AssociationEnd) -> None:
        for number in range(50):
            chunk = DataChunk(TSN + number, 0, Ppid.SEGMENT, part, ending=False)
            stranger.send(replace(chunk, beginning=number == 0))

    with pytest.raises(Wrong, match="message"):
        meet(node, stranger, act)


def test_an_earlier_association_whose_end_was_lost_ends(node: SctpNode) -> None:
    """RFC 9260 section 8.4: "If the packet contains a SHUTDOWN ACK chunk, the receiver SHOULD
    respond to the sender of the OOTB packet with a SHUTDOWN COMPLETE chunk", with the packet's tag.
    A peer that waits for that answers no INIT chunk.
    """
    stranger, old = Stranger(), 0x4321
    answer, packets = stranger.put, []

    def put(frame: bytes) -> None:
        packet = Packet.parse(frame[34:])
        packets.append(packet)
        if Packet(packet.source, PORT, old, (COMPLETE,)) in packets:
            answer(frame)
        else:
            stranger.port, stranger.init = packet.source, cast(InitChunk, packet.chunks[0])
            stranger.send(Chunk(ChunkType.SHUTDOWN_ACK), tag=old)

    stranger.put = put  # type: ignore[method-assign]
    assert meet(node, stranger, ready=lambda end: not end.ended)


def test_an_abort_that_was_lost_is_sent_again(node: SctpNode) -> None:
    """RFC 9260 section 8.4: "The receiver of an OOTB packet [...] SHOULD respond [...] with an
    ABORT chunk".
    """
    stranger = Stranger()
    network = SctpNetwork(cast(Ethernet, stranger), node.sim, None, Counter(), seed=1)

    async def run() -> None:
        end = AssociationEnd(network, node.context, v6=False, udp=False, streams=3)
        await end.connect(PORT)
        end.close()
        stranger.got.clear()
        stranger.send(Chunk(ChunkType.HEARTBEAT, value=bytes(8)), ABORT)
        stranger.send(ABORT)
        stranger.send(DataChunk(TSN, 0, Ppid.SEGMENT, bytes(40)))
        await asyncio.sleep(0.5)

    asyncio.run(carried(network, [node.context], network.ends, run()))
    assert stranger.kinds() == [ChunkType.ABORT] * 2


@pytest.mark.parametrize("whole", [True, False])
def test_the_window_is_smaller_while_the_host_keeps_chunks(node: SctpNode, whole: bool) -> None:
    """RFC 9260 section 6.2: the window is what the buffers have left. A chunk is kept with its
    header of 16 octets, until its message is whole or its session ends.
    """
    stranger, count = Stranger(), 2 + whole
    flags = ({"ending": False}, {"beginning": False, "ending": False}, {"beginning": False})
    chunks = deque(
        DataChunk(TSN + at, 0, Ppid.SEGMENT, bytes(1000), **each)
        for at, each in enumerate(flags[:count])
    )

    def seen(end: AssociationEnd) -> bool:
        windows = [each.window for each in stranger.got if isinstance(each, SackChunk)]
        if chunks and len(windows) == count - len(chunks):
            stranger.send(chunks.popleft())
        elif len(windows) == 2 and not whole:
            end.association.tell(0, Function.FORGET, tsn=TSN)
        return windows == [WINDOW - 1016, WINDOW - 2032, WINDOW]

    assert meet(node, stranger, ready=seen)


@pytest.mark.parametrize("ahead, reported", [(65534, True), (65535, False), (1 << 30, False)])
def test_a_tsn_that_no_sack_chunk_can_report_ends_the_association(
    node: SctpNode, ahead: int, reported: bool
) -> None:
    """RFC 9260 section 3.3.4: the offsets of a Gap Ack Block have 16 bits."""
    stranger, gap = Stranger(), (ahead + 1, ahead + 1)
    chunk = DataChunk(TSN + ahead, 0, Ppid.SEGMENT, bytes(40))

    def seen(end: AssociationEnd) -> bool:
        return any(isinstance(each, SackChunk) and each.gaps == (gap,) for each in stranger.got)

    if reported:
        assert meet(node, stranger, lambda end: stranger.send(chunk), seen)
    else:
        with pytest.raises(Wrong, match="beyond any window"):
            meet(node, stranger, lambda end: stranger.send(chunk), seen)


def test_a_sack_chunk_fits_in_a_packet() -> None:
    """RFC 9260 section 3.3.4: the gap blocks and duplicates are bounded by the MTU. The first gaps
    are reported; the peer sends the other chunks again.
    """
    received = Received(0)
    for tsn in (*range(1, 201, 2), *range(1, 4001, 2)):
        received.take(tsn)
    for blocks, duplicates in ((120, 0), (120, 0)):
        sack = received.sack(0)
        assert len(sack.encode()) <= 576 - 40 - 8 - 12
        assert (len(sack.gaps), len(sack.duplicates)) == (blocks, duplicates)
        assert sack.gaps[:2] == ((2, 2), (4, 4))
    for _ in range(1000):
        received.take(1)
        received.take(7)
    for tsn in range(0, 4001, 2):
        received.take(tsn)
    sack = received.sack(0)
    assert not sack.gaps and len(sack.duplicates) == 120

"""A device sends to a kernel's TCP through a network that loses, and its own TCP keeps no copy.

DESIGN: "buffers are overwritten right after each completion, and the peer's data is still right".
The judges are the kernel, which gives its socket all octets in order, whatever was lost; and the
golden model, which checks each FPDU that comes out of the socket.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from ddp_rnic.hdl.spec import commands
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.sim.devices.live import SimTransport
from ddp_rnic.sim.devices.tests.copyless import MSS, Copyless, Network
from ddp_rnic.sim.model.ddp import decode_segment
from ddp_rnic.sim.model.header import TaggedHeader, UntaggedHeader
from ddp_rnic.sim.model.mpa import Fpdu, MpaReceiver, MpaSender
from ddp_rnic.sim.model.rdmap import Opcode as Message
from ddp_rnic.sim.model.rdmap import ReadRequest, rsvdulp
from ddp_rnic.sw_driver import PD, Access, Device, WcStatus
from ddp_rnic.sw_driver.cm.framing import Cutter
from ddp_rnic.sw_driver.rdmap import CQ, QP, Opcode, QPState
from ddp_rnic.sw_driver.verbs.sending import SendSettings

#: A buffer of the sender; how many it has; and messages of a test.
SIZE, SLOTS, MESSAGES = 6000, 6, 40
#: With markers, and five of them, an FPDU still fits in a TCP segment.
MULPDU = MSS - 32
JUNK = 0xDD
IRD = 4


@pytest.fixture
def network() -> Iterator[Network]:
    try:
        network = Network()
    except OSError as error:
        pytest.skip(f"no network of its own: {error}")
    yield network
    network.close()


@dataclass
class Peer:
    """The golden model, which reads the kernel's socket and writes to it."""

    markers: bool
    writes: dict[int, bytes] = field(default_factory=dict)  #: by Tagged Offset of the message
    sends: list[bytes] = field(default_factory=list)
    answers: dict[int, bytes] = field(default_factory=dict)  #: Read Responses, by sink STag
    terminate: bytes = b""
    #: Reads that the peer has asked for: offset and length, by sink STag.
    asked: dict[int, tuple[int, int]] = field(default_factory=dict)
    _parts: bytearray = field(default_factory=bytearray)
    _begin: int = 0

    def __post_init__(self) -> None:
        self.wire = MpaReceiver(crc=True, markers=self.markers)
        self.sender = MpaSender(crc=True)

    def take(self, octets: bytes) -> None:
        for fpdu in self.wire.receive(octets):
            assert isinstance(fpdu, Fpdu), fpdu
            header, payload = decode_segment(fpdu.ulpdu)
            if not self._parts:
                self._begin = header.to if isinstance(header, TaggedHeader) else 0
            at = header.to - self._begin if isinstance(header, TaggedHeader) else header.mo
            assert at == len(self._parts)
            self._parts += payload
            if header.last:
                self._end(header, bytes(self._parts))
                self._parts.clear()

    def _end(self, header: TaggedHeader | UntaggedHeader, message: bytes) -> None:
        if isinstance(header, UntaggedHeader) and header.qn == 2:
            self.terminate = message
        elif isinstance(header, UntaggedHeader):
            assert (header.qn, header.msn) == (0, len(self.sends) + 1)
            self.sends.append(message)
        elif header.stag == 0x7700:
            self.writes[self._begin] = message
        else:
            self.answers[header.stag] = message

    def ask(self, stag: int, to: int, length: int) -> bytes:
        """Returns the FPDU of a Read Request to octets of a region whose TO begins with 0."""
        msn = len(self.asked) + 1
        self.asked[0x9900 + msn] = to, length
        request = ReadRequest(0x9900 + msn, 5, length, stag, to).encode()
        control = rsvdulp(Message.READ_REQUEST, tagged=False)
        header = UntaggedHeader(last=True, rsvdulp=control, qn=1, msn=msn, mo=0)
        return self.sender.send(header.encode() + request)

    def write(self, stag: int) -> bytes:
        """Returns the FPDU of an RDMA Write."""
        control = rsvdulp(Message.RDMA_WRITE, tagged=True)
        return self.sender.send(
            TaggedHeader(last=True, rsvdulp=control, stag=stag, to=0).encode() + b"octets"
        )


class Session:
    """A queue pair of a device, its TCP, and the peer on the kernel's side."""

    def __init__(self, network: Network, *, width: int, markers: bool, loss: float) -> None:
        self.network, self.markers, self.loss = network, markers, loss
        self.rng = random.Random(f"{width} {markers} {loss}")
        self.sim = SimTransport(RnicConfig(width=width, transmit=True, responder=True))
        self.context = Device(self.sim).open()
        self.pd, self.cq = PD(self.context), CQ(self.context)
        self.memory = bytearray(SIZE * SLOTS)
        self.region = self.pd.register(self.memory, Access.LOCAL_READ)
        self.static = bytes(self.rng.randbytes(20_000))
        self.source = self.pd.register(bytearray(self.static), Access.REMOTE_READ)
        self.begin()

    def begin(self) -> None:
        """Opens a queue pair and its connection."""
        settings = SendSettings(MULPDU, crc=True, markers=self.markers, keeps=False)
        self.qp = QP(self.pd, self.cq, settings, ird=IRD)
        self.tcp = Copyless(self.network, loss=self.loss, rng=self.rng)
        self.peer, self.cutter = Peer(self.markers), Cutter(markers=False)
        self.free = deque(range(SLOTS))
        self.completed = 0
        self.socket = self.network.accept(self.tcp.serve)

    def close(self) -> None:
        self.socket.close()
        self.context.close()
        self.sim.close()

    def step(self) -> None:
        """Carries octets once in each direction, and takes completions."""
        tcp, qp = self.tcp, self.qp
        tcp.serve()
        with suppress(BlockingIOError):
            self.peer.take(self.socket.recv(1 << 16))
        asks, tcp.asks = tcp.asks, []
        qp.acknowledge(tcp.acknowledged)
        for position in asks:
            qp.repeat(position)
        for position, octets in qp.repeats_to_send():
            tcp.again(position, octets)
        for octets in qp.pieces_to_send(tcp.room):
            tcp.send(octets)
        if tcp.received:
            fpdus = self.cutter.receive(bytes(tcp.received))
            tcp.received.clear()
            for fpdu in fpdus:
                self.sim.send(qp.stream.number, fpdu.position, fpdu.octets)
        self.sim.wait(0.0)
        for wc in self.cq.poll(100):
            assert (wc.status is WcStatus.SUCCESS) == (qp.state is QPState.RTS), wc
            if (slot := wc.wr_id) is not None:
                # The buffer is the client's again.
                self.region.write(bytes([JUNK]) * SIZE, slot * SIZE)
                self.free.append(slot)
            self.completed += 1

    def until(self, condition: Callable[[], object], seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            self.step()
            assert time.monotonic() < deadline, (self.tcp.acknowledged, self.tcp.outstanding)

    def play(self, messages: int = MESSAGES) -> tuple[dict[int, bytes], list[bytes]]:
        """Posts Writes from buffers and Sends; returns what the peer has to get."""
        writes: dict[int, bytes] = {}
        sends: list[bytes] = []
        to = 0
        for number in range(messages):
            self.until(lambda: self.free)
            if self.rng.random() < 0.3:
                octets = self.rng.randbytes(self.rng.choice((1, 64, 481, 3000)))
                self.qp.post_send(Opcode.SEND, octets)
                sends.append(octets)
                continue
            slot, length = self.free.popleft(), self.rng.choice((1, 700, 1428, 3000, SIZE))
            octets = self.rng.randbytes(length)
            self.region.write(octets, slot * SIZE)
            self.qp.post_send(
                Opcode.RDMA_WRITE, self.region, offset=slot * SIZE, length=length, stag=0x7700,
                to=to, wr_id=slot,
            )  # fmt: skip
            writes[to] = octets
            to += length
            if len(self.peer.asked) - len(self.peer.answers) < IRD:
                self.socket.send(self.peer.ask(self.source.stag, number, 4000))
        peer = self.peer
        self.until(
            lambda: (
                self.completed == messages
                and not self.tcp.outstanding
                and len(peer.answers) == len(peer.asked)
            )
        )
        return writes, sends


@pytest.fixture
def session(request: pytest.FixtureRequest, network: Network) -> Iterator[Session]:
    session = Session(network, **request.param)
    yield session
    session.close()


def with_loss(*cases: tuple[int, bool, float]) -> pytest.MarkDecorator:
    """Runs a test with sessions: width, markers, and the share of packets that are lost."""
    return pytest.mark.parametrize(
        "session",
        [
            pytest.param(
                {"width": width, "markers": markers, "loss": loss},
                marks=pytest.mark.long if width > 64 else (),
                id=f"{width}-{markers}-{loss}",
            )
            for width, markers, loss in cases
        ],
        indirect=True,
    )


@with_loss((64, False, 0.0), (64, False, 0.1), (64, True, 0.2), (512, True, 0.1))
def test_a_kernel_gets_the_right_octets_from_buffers_that_are_used_again(session: Session) -> None:
    """RFC 5041 section 5.4, of the sending side."""
    writes, sends = session.play()
    peer = session.peer
    assert peer.writes == writes and peer.sends == sends
    assert peer.answers == {
        sink: session.static[at : at + length] for sink, (at, length) in peer.asked.items()
    }
    assert len(peer.asked) > 2 * IRD
    # Each segment that was lost has left again.
    assert session.tcp.repeated >= session.tcp.lost
    assert bool(session.tcp.lost) == bool(session.loss)


@with_loss((64, False, 0.2))
def test_it_fails_if_messages_end_when_they_have_left(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative: with completion moved to hand-over the peer gets octets of a later use."""
    # The device completes messages that have left, and the driver does not know.
    session.qp.close()
    session.socket.close()
    opens = commands.set_send_ring
    monkeypatch.setattr(
        commands, "set_send_ring", lambda *given, repeats, **named: opens(*given, **named)
    )
    session.begin()
    writes, sends = session.play()
    peer = session.peer
    # A short Send's octets lie in the ring, in entries that a later one may have by now.
    assert [*map(len, peer.sends)] == [*map(len, sends)]
    assert peer.writes.keys() == writes.keys()
    wrong = [octets for to, octets in peer.writes.items() if octets != writes[to]]
    # In the place of a single octet, that of a later message may stand in the buffer by then.
    longer = [octets for octets in wrong if len(octets) > 1]
    assert longer and all(JUNK in octets for octets in longer)


@with_loss((64, False, 0.2), (64, True, 0.2))
def test_the_terminate_arrives_after_all_octets_before_it(session: Session) -> None:
    """RFC 5040 section 5.4: the stream has ended, and the peer learns why, whatever is lost."""
    session.play(10)
    posted = [session.rng.randbytes(3000) for _ in range(8)]
    for octets in posted:
        session.qp.post_send(Opcode.SEND, octets)
    before = len(session.peer.sends)
    session.socket.send(session.peer.write(stag=0x666))
    session.until(lambda: session.peer.terminate)
    assert session.qp.state is QPState.ERR and session.qp.sent is not None
    assert session.peer.terminate == session.qp.sent.encode()
    assert session.peer.sends[before:] == posted


@with_loss((64, False, 0.0))
def test_a_terminate_waits_for_no_answer_that_the_peer_must_have(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that has asked for more Reads has the earlier answers; the device repeats none of
    these, and a Terminate must not wait for them, even if no acknowledgment has come.
    """
    monkeypatch.setattr(session.qp, "acknowledge", lambda position: None)
    for number in range(3 * IRD):
        session.socket.send(session.peer.ask(session.source.stag, number, 4000))
        session.until(lambda: len(session.peer.answers) == len(session.peer.asked))
    session.socket.send(session.peer.write(stag=0x666))
    session.until(lambda: session.peer.terminate)
    assert session.qp.state is QPState.ERR

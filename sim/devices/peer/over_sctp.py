"""DDP over SCTP with a guest's kernel, which receives from the device and sends to it.

The golden model is the ULP at the kernel's end.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from itertools import chain
from typing import NamedTuple

from ....flow.tools import ToolError
from ....hdl.spec.config import RnicConfig
from ....hdl.spec.sctp import Function
from ....hdl.spec.send import Kind, Piece
from ....sw_driver import CQ, PD, WC, Access, Device, Opcode, WcStatus
from ....sw_driver.base.errors import RnicError
from ....sw_driver.cm import Enhanced
from ....sw_driver.verbs.sending import Part
from ...model import rdmap
from ...model.memory import Access as ModelAccess
from ...model.memory import Memory, Region
from ...model.sctp import State
from ..guest.ethernet import GUEST, GUEST6, HOST6, HOST_MAC
from ..guest.machine import Guest
from ..live import SimTransport
from .association import MTU, AssociationEnd, SctpNetwork
from .channel import Tally, Wrong
from .demo import Row
from .end import carried
from .relay import Relay, RelayStream

__all__ = [
    "PATHS",
    "RELAY",
    "Exchange",
    "SctpNode",
    "SctpPath",
    "associated",
    "bring_up",
    "over_sctp",
]

#: The SCTP port of the guest's program, and its TCP port.
PORT, RELAY = 4791, 7175
#: DDP Streams of an association, and the path MTU after it dropped.
STREAMS, SMALL = 3, 1000
#: Octets of a buffer after its message has ended.
_JUNK = b"\xdd"
#: Seconds that an exchange may take.
PATIENCE = 300.0
_UP = (
    "modprobe sctp",
    f"ip address replace {GUEST}/24 dev eth1",
    f"/bin/ip address replace {GUEST6}/64 dev eth1 nodad",
    "ip link set eth1 up",
    f"/bin/ip neigh replace {HOST6} lladdr {HOST_MAC} dev eth1 nud permanent",
    "sysctl -q -w net.sctp.udp_port=9899",
)


class SctpNode:
    """An open device for DDP over SCTP. ``with`` opens and closes it.

    Parameters
    ----------
    width
        Width of the datapath in bits.
    """

    def __init__(self, width: int = 64) -> None:
        self.config = RnicConfig(width=width, transmit=True, responder=True, mpa=False, sctp=True)

    def __enter__(self) -> SctpNode:
        with ExitStack() as stack:
            self.sim = stack.enter_context(SimTransport(self.config))
            self.context = stack.enter_context(Device(self.sim).open())
            self.pd = PD(self.context)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()


class Exchange:
    """Lets the device and its peer send each other messages on one DDP Stream.

    Each side sends ``count`` Writes, Sends and Read Requests, each of or for ``size`` octets. A
    buffer of this side is overwritten once its message has ended.

    Parameters
    ----------
    node, end, relay
        The device, its end of the association, and the peer.
    sid
        The SCTP stream.
    count, size
        Messages of each kind, and their octets.
    rng
        Draws the octets.

    Attributes
    ----------
    stream, region
        The device's stream, and the region from which the device sends.
    ended
        The outcome of each message that the device was to send, in the order of the completions.
    """

    #: Kinds of messages: Writes, Sends and Read Responses of each side, and Read Requests of the
    #: device. It answers those of the peer without the host.
    KINDS = 7
    #: Read Requests of the peer that may be outstanding.
    IRD = 4

    def __init__(
        self,
        node: SctpNode,
        end: AssociationEnd,
        relay: Relay,
        sid: int,
        count: int,
        size: int,
        rng: random.Random,
    ) -> None:
        self._end, self._relay, self._sid, self._count, self._size = end, relay, sid, count, size
        room = self._room = count * size
        # The octets of Writes and Sends of each side, and those that each side reads.
        self._ours, self._theirs = rng.randbytes(2 * room), rng.randbytes(2 * room)
        self._read, self._lent = rng.randbytes(room), rng.randbytes(room)
        self._source = node.pd.register(bytearray(self._lent), Access.REMOTE_READ)
        self.region = node.pd.register(bytearray(self._ours), Access.LOCAL_READ)
        self._sink = node.pd.register(bytearray(2 * room), Access.REMOTE_WRITE)
        memory, self._stag = Memory(), sid + 1 << 8
        rights = ModelAccess.REMOTE_WRITE | ModelAccess.REMOTE_READ
        octets = bytearray(room) + self._read + bytearray(room)
        memory.register(
            Region(stag=self._stag, to=0, length=len(octets), access=rights, stream=sid), octets
        )
        self.peer = relay.streams[sid] = RelayStream(sid, memory, end.sender.mulpdu)
        self.peer.sink.post(rdmap.QueueNumber.SEND, size, count)
        self.cq = CQ(node.context)
        self.stream = end.association.stream(sid, node.pd, self.cq)
        self._buffers: list[bytearray] = []  # those for the peer's Sends
        self._half = end.sender.open(self.stream)
        self.stream.answer_reads(self.IRD)
        self._asked = 0
        self.ended: list[WcStatus] = []
        self._received = 0
        if sid % 2:  # one session of two is enhanced (RFC 6581 section 7)
            limits = Enhanced(self.IRD, self.IRD).encode()
            end.sender.control(sid, Function.ENHANCED_INITIATE, limits + b"%d" % sid)
        else:
            end.sender.control(sid, Function.INITIATE, b"%d" % sid)
        for number in range(count):
            self._post(number * size)

    def _post(self, at: int) -> None:
        """Posts a message of each kind; those of the peer begin at octet ``at``."""
        size, room, half = self._size, self._room, self._half
        write, send = Part(self.region, at, size), Part(self.region, room + at, size)
        expect, control = self.peer.expect, rdmap.rsvdulp
        half.post(
            Kind.TAGGED, write, wr_id=write, stag=self._stag, to=at,
            rsvdulp=control(rdmap.Opcode.RDMA_WRITE, tagged=True) << 32,
        )  # fmt: skip
        expect(rdmap.Opcode.RDMA_WRITE, self._ours[at : at + size], stag=self._stag, to=at)
        half.post(
            Kind.UNTAGGED, send, wr_id=send, qn=rdmap.QueueNumber.SEND,
            rsvdulp=control(rdmap.Opcode.SEND, tagged=False),
        )  # fmt: skip
        expect(rdmap.Opcode.SEND, self._ours[room + at : room + at + size])
        sink = Piece(self._sink.stag, size, room + at)
        half.post(
            Kind.READ, sink, wr_id=sink, stag=self._stag, to=room + at,
            rsvdulp=control(rdmap.Opcode.READ_REQUEST, tagged=False),
        )  # fmt: skip
        request = rdmap.ReadRequest(sink.stag, sink.to, size, self._stag, room + at)
        expect(rdmap.Opcode.READ_REQUEST, request.encode())

    def serve(self) -> None:
        """Takes completions, and lets the peer send what the device has buffers for."""
        if self.peer.session.state is State.ESTABLISHED:
            depth = self.stream.context.capabilities.queue
            while len(self._buffers) < self._count and self.stream.outstanding(0) < depth:
                self._answer(len(self._buffers) * self._size)
            while self._asked < self._count and self.peer.unanswered < self.IRD:
                self._ask(self._asked * self._size)
                self._asked += 1
        for wc in self.cq.poll(1 << 10):
            if wc.opcode is not Opcode.SENT:
                self._received += wc.status is WcStatus.SUCCESS
            elif wc.wr_id is not None:  # not that of the Initiate
                self._sent(wc)

    def _answer(self, at: int) -> None:
        """Lets the peer send a Write and a Send, which begin at octet ``at``."""
        size, room = self._size, self._room
        self._buffers.append(bytearray(size))
        self.stream.post_recv(self._buffers[-1])
        write = self.peer.tagged(self._sink.stag, at, self._theirs[at : at + size])
        send = self.peer.untagged(self._theirs[room + at : room + at + size])
        self._relay.send(self._sid, chain(write, send))

    def _ask(self, at: int) -> None:
        """Lets the peer send a Read Request, for the octets from ``at`` on."""
        size, source = self._size, self._source
        request = rdmap.ReadRequest(
            self._stag, 2 * self._room + at, size, source.stag, source.to + at
        )
        self._relay.send(self._sid, self.peer.ask(request, self._lent[at : at + size]))

    def _sent(self, wc: WC) -> None:
        self.ended.append(wc.status)
        if isinstance(wc.wr_id, Part):
            self.region.write(_JUNK * wc.wr_id.length, wc.wr_id.offset)

    @property
    def messages(self) -> int:
        """The number of messages of both sides that have arrived."""
        return len(self.peer.delivered) + self._received

    @property
    def done(self) -> bool:
        """True once all messages of both sides have arrived, and those of the device have ended."""
        return len(self.ended) == 3 * self._count and self.messages == self.KINDS * self._count

    def complaints(self) -> Iterator[str]:
        """Yields what went wrong, a sentence each."""
        room, size = self._room, self._size
        yield from self.peer.differences
        where = f"on stream {self._sid}"
        octets = self.peer.memory.octets(self._stag)
        if octets[:room] != self._ours[:room] or octets[2 * room :] != self._lent:
            yield f"the Writes and Read Responses of the device have other octets {where}"
        if self._sink.view != self._theirs[:room] + self._read:
            yield f"the Writes and Read Responses of the peer have other octets {where}"
        sends = [self._theirs[room + at : room + at + size] for at in range(0, room, size)]
        if self._buffers != sends:
            yield f"the Sends of the peer have other octets {where}"
        if any(status is not WcStatus.SUCCESS for status in self.ended):
            yield f"not all messages of the device have succeeded {where}"

    def close(self) -> None:
        """Frees the stream, the queue and the regions."""
        for each in (self.cq, self.region, self._sink, self._source):
            each.close()


class SctpPath(NamedTuple):
    """Declares how packets reach the kernel: over IPv6 or IPv4, and in UDP or not."""

    v6: bool
    udp: bool

    def __str__(self) -> str:
        return f"SCTP{' in UDP' * self.udp}, IPv{6 if self.v6 else 4}"


PATHS = tuple(SctpPath(v6, udp) for udp in (True, False) for v6 in (False, True))


@asynccontextmanager
async def associated(
    node: SctpNode, guest: Guest, network: SctpNetwork, path: SctpPath
) -> AsyncIterator[tuple[AssociationEnd, Relay]]:
    """Sets an association with the kernel up, and ends it; over IPv6 the kernel does that. Yields
    both ends.
    """
    address = GUEST6 if path.v6 else GUEST
    await _run(guest, f"sctp_relay {address} {PORT} {RELAY}")
    network.mtu = MTU
    end = AssociationEnd(network, node.context, v6=path.v6, udp=path.udp, streams=STREAMS)
    try:
        async with Relay(guest.address(RELAY)) as relay:
            await end.connect(PORT)
            yield end, relay
            if path.v6:
                relay.finish()
            else:
                await end.disconnect()
            if not await end.until(lambda: relay.ended and end.ended, PATIENCE):
                raise Wrong("the kernel has not ended the association")
    finally:
        end.close()
        await guest.run("killall -q sctp_relay")


async def bring_up(guest: Guest) -> None:
    """Gives the guest its addresses on the second network, and its SCTP a port of UDP."""
    for line in _UP:
        await _run(guest, line)


async def _run(guest: Guest, line: str) -> None:
    if (output := await guest.run(line)).status:
        raise ToolError(f"the guest refuses {line!r}: {output.text.strip()}")


async def over_sctp(
    node: SctpNode,
    guest: Guest,
    network: SctpNetwork,
    count: int,
    size: int,
    say: Callable[[str], object],
) -> list[Row]:
    """Exchanges messages with the kernel on all kinds of paths; returns the lines of the table.

    On a bad network each path carries only short packets from the first message on that has ended.
    """
    await bring_up(guest)
    rows = _rows(node, guest, network, count, size, say)
    return await carried(network, [node.context], network.ends, rows)


async def _rows(
    node: SctpNode,
    guest: Guest,
    network: SctpNetwork,
    count: int,
    size: int,
    say: Callable[[str], object],
) -> list[Row]:
    rows = []
    for path in PATHS:
        test = f"{path}{', bad network' * network.bad}"
        say(test)
        tally = Tally("sctp", GUEST)
        start, cycle = time.monotonic(), node.sim.cycle
        try:
            async with associated(node, guest, network, path) as (end, relay):
                exchanges = [
                    Exchange(node, end, relay, sid, count, size, network.rng)
                    for sid in range(STREAMS)
                ]
                await _exchange(end, network, exchanges)
                network.counts["repeats"] += end.sender.repeats
                network.counts["copies"] += end.sender.copies
                for each in exchanges:
                    tally.messages += each.messages
                    tally.differences += each.complaints()
                    each.close()
        except (Wrong, RnicError) as error:
            tally.errors.append(str(error))
        tally.octets = size * tally.messages
        tally.seconds, tally.cycles = time.monotonic() - start, node.sim.cycle - cycle
        rows.append(Row(test, "gateware", tally, STREAMS * Exchange.KINDS * count))
    return rows


async def _exchange(end: AssociationEnd, network: SctpNetwork, exchanges: list[Exchange]) -> None:
    """Waits until all messages have ended. On a bad network the path MTU drops when the first one
    has ended, and this side knows of that a second later.
    """

    def served() -> list[Exchange]:
        for each in exchanges:
            each.serve()
        return exchanges

    if network.bad and await end.until(lambda: any(each.ended for each in served()), PATIENCE):
        network.mtu = SMALL
        await end.until(lambda: all(each.done for each in served()), 1.0)
        end.sender.resize(SMALL)
        for each in exchanges:
            each.peer.resize(end.sender.mulpdu)
    if not await end.until(lambda: all(each.done for each in served()), PATIENCE):
        raise Wrong(f"not all messages have arrived after {PATIENCE:.0f} seconds")

"""perftest: ``ib_send_bw``, ``ib_write_bw`` and ``ib_read_lat`` with rdma_cm (``-R``), both ends.

A client opens two connections. On the first one, both sides exchange messages of the same kind:
version, sizes of buffers, MTU, and the names of buffers; the same messages later serve to wait for
each other. The second connection carries the test. A client that sends waits for credit: the server
writes how many messages it has received into a word of the client's memory.

perftest fills its buffer at random, and each message has the same octets of it. So a message is
checked by comparing it with the others; octets that came only once stay unchecked.
"""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import Awaitable, Callable

from ....sw_driver.cm.errors import ConnectError, Disconnected
from ....sw_driver.rdmap.wire import Queue, ReadRequest
from ....sw_driver.verbs.pd import MR, PD, Access
from ...model.ddp import TaggedHeader
from ...model.events import Delivered
from .channel import Channel, Tally, Wrong
from .node import Node
from .rping import pattern

#: LID, outstanding reads, QPN, PSN, rkey, address, GID, SRQ, index of the GID.
_NAME = struct.Struct(">4iI4xQ16sIi")
#: Octets of the messages of the first connection and of the test, and the depth of the receives.
CONTROL, SIZE, DEPTH = 64, 65536, 64
#: Octets of the buffer that a client may write and read: the most that perftest's ``-a`` uses.
_BUFFER = 1 << 23
_OUTSTANDING = 16
#: The kinds of tests that a client can run.
KINDS = ("send", "write", "read")
#: A client's messages until its second connection: version, octets of the buffer and of a cache
#: line, MTU, and an empty name.
STARTUP = (
    b"6.06" + bytes(12),
    (4096).to_bytes(4, "big"),
    (64).to_bytes(4, "big"),
    b"3\0",
    bytes(_NAME.size),
)
#: How many receives a server of perftest posts, and so how far a client is ahead of its credit.
#: Here the device holds fewer: :class:`.Channel` posts each buffer again before the next FPDU.
RECEIVES = 512
#: How often a client tries its second connection, and seconds between two tries.
_TRIES, _PAUSE = 20, 0.5
#: For how many seconds no message must come until a test is over.
_QUIET = 1.0


class Test:
    """Counts and compares the messages of a client on the second connection."""

    def __init__(self, pd: PD) -> None:
        self.memory = bytearray(_BUFFER)
        self.region: MR = pd.register(
            self.memory, Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ
        )
        #: How often each content came, by a digest, and its octets.
        self._contents: Counter[tuple[int, int, int]] = Counter()
        self.sent = self.written = self.read = self.octets = 0
        #: How many messages the client knows to be received, and where the client keeps the number.
        self.credit = 0
        self.client: tuple[int, int] | None = None

    def name(self) -> bytes:
        """Returns the name of the buffer, as the client gets it."""
        return _NAME.pack(0, _OUTSTANDING, 1, 0, self.region.stag, self.region.to, bytes(16), 0, 0)

    def observe(self, event: Delivered) -> None:
        """Counts a message of the client, and compares it with earlier ones."""
        header = event.header
        if isinstance(header, TaggedHeader):
            self.written += 1
            start = event.begin - self.region.to
            content = bytes(self.memory[start : start + event.length])
            self._contents[start, event.length, hash(content)] += 1
        elif header.qn == Queue.READ_REQUEST:
            self.read += 1
            request = ReadRequest.decode(event.message or b"")
            self.octets += request.length
            return
        elif header.qn == Queue.SEND:
            self.sent += 1
            self._contents[-1, event.length, hash(event.message)] += 1
        else:
            return
        self.octets += event.length

    def finish(self, tally: Tally) -> None:
        """Adds the test to a tally."""
        tally.messages, tally.octets = self.sent + self.written + self.read, self.octets
        places = Counter((start, octets) for start, octets, _ in self._contents)
        for (start, octets), contents in places.items():
            if start >= 0 and contents > 1:
                tally.errors.append(
                    f"{contents} different messages of {octets} octets were written"
                )
        once = [octets for (_, octets, _), times in self._contents.items() if times == 1]
        tally.unchecked = sum(once)


async def serve(
    control: Channel, node: Node, tally: Tally, accept: Callable[[Channel], Awaitable[object]]
) -> None:
    """Serves one client, whose first connection is there, until it has closed both.

    ``accept`` accepts the second connection, and begins its channel.
    """
    while len(message := await control.message()) != _NAME.size:
        control.send(message)  # version and sizes: this side has the same
    test = Test(node.pd)
    second = Channel(node.sim, SIZE, DEPTH)
    try:
        control.send(message)
        await accept(second)
        receiver = node.sim.receivers[second.qp.stream.number]
        receiver.observe = test.observe
        said = await _follow(control, second, test)
        if (reason := await second.over()) is not None:
            tally.errors.append(str(reason))
        # A client that writes says at the end how long a message was, and how many there were. Its
        # last messages may come after that, because they take the second connection.
        if test.written and said[:2] != [test.octets // test.written, test.written]:
            tally.errors.append(f"the client speaks of {said[:2]}, not of {test.written} messages")
        await node.end(second)
    finally:
        second.close()
        test.finish(tally)
        test.region.close()


async def _follow(control: Channel, second: Channel, test: Test) -> list[int]:
    """Answers the first connection, and gives credit on the second one; returns the numbers that
    the client said.
    """
    said: list[int] = []

    def give_credit() -> None:
        second.messages.clear()
        if test.sent > test.credit and test.client is not None and not second.endpoint.ended:
            test.credit = test.sent
            second.write(test.credit.to_bytes(4, "little"), *test.client)

    second.sim.served.append(give_credit)
    try:
        while True:
            message = await control.message(None)
            if len(message) == _NAME.size:
                *_, stag, to, _, _, _ = _NAME.unpack(message)
                test.client = stag, to
                await _quiet(test)
                control.send(test.name())
            else:
                said.append(int.from_bytes(message, "big"))
                control.send(message)
    except Disconnected:
        pass
    finally:
        second.sim.served.remove(give_credit)
    return said


async def _quiet(test: Test) -> None:
    """Waits until all messages of a test have come, if it has begun.

    The client asks for the end once its TCP has them all, and resets the second connection
    after the answer.
    """
    before = 0
    while (now := test.sent + test.written) != before:
        before = now
        await asyncio.sleep(_QUIET)


async def run(
    control: Channel,
    node: Node,
    tally: Tally,
    kind: str,
    server: tuple[str, int],
    *,
    count: int,
    size: int,
) -> None:
    """Is a client, whose first connection is there, for a test of ``count`` messages."""

    async def exchange(message: bytes) -> bytes:
        control.send(message)
        answer = await control.message()
        if len(answer) != len(message):
            raise Wrong(f"perftest answers {len(message)} octets likewise, not with {len(answer)}")
        return answer

    for message in STARTUP:
        await exchange(message)
    second = await _second(node, *server)
    credit = bytearray(4)
    try:
        await exchange(bytes(_NAME.size))
        with node.pd.register(credit) as region:
            name = _NAME.pack(0, 1, 1, 0, region.stag, region.to, bytes(16), 0, 0)
            # The last of these only waits for the server.
            for _ in range(3 if kind == "write" else 4):
                *_, stag, to, _, _, _ = _NAME.unpack(await exchange(name))
            await _test(second, tally, kind, count, size, (stag, to), credit)
            await exchange(name)
            if kind == "write":
                for number in (size, count, 0, 0, 0):
                    await exchange(number.to_bytes(8, "big"))
                await exchange(name)
            # siw reports a message as failed that was not acknowledged before the connection ended.
            await asyncio.sleep(_PAUSE)
            await asyncio.gather(node.end(second), node.end(control))
    finally:
        second.close()


async def _second(node: Node, host: str, port: int) -> Channel:
    """Returns the second connection. The server may need a moment until it listens again."""
    for left in reversed(range(_TRIES)):
        channel = Channel(node.sim, CONTROL, DEPTH)
        try:
            await node.connect(host, port, channel)
        except ConnectError:
            channel.close()
            if not left:
                raise
            await asyncio.sleep(_PAUSE)
        else:
            return channel
    raise AssertionError


async def _test(
    second: Channel,
    tally: Tally,
    kind: str,
    count: int,
    size: int,
    server: tuple[int, int],
    credit: bytearray,
) -> None:
    """Sends, writes or reads. All messages have the same octets, as those of perftest have."""
    content, first = pattern(0, size), None
    for turn in range(count):
        if kind == "send":
            least = turn - min(count, RECEIVES)

            def room(least: int = least) -> bool:
                return int.from_bytes(credit, "little") > least

            await second.until(room, 60.0)
            second.send(content)
        elif kind == "write":
            await second.settled(DEPTH)
            second.write(content, *server)
        else:
            got = await second.read(size, *server)
            first = got if first is None else first
            if got != first:
                tally.errors.append(f"read {turn} gave other octets than the first one")
        tally.count(size)
    if kind == "read" and count == 1:
        tally.unchecked = size

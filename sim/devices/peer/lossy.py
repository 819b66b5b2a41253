"""Programs of an unmodified Linux over a bad network, where the device sends octets again itself.

The guest's kernel judges: each lost FPDU of this side is read from host memory a second time, and
this side's buffers are overwritten as soon as their requests are complete.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable

from ....flow.tools import ToolError
from ....sw_driver.rdmap import WC, Opcode
from ....sw_driver.verbs.pd import Access
from ..guest.ethernet import GUEST, HOST, Ethernet
from ..guest.machine import Guest
from . import perftest, rping
from .channel import Channel, Tally, Wrong
from .demo import PORT, TESTS, Row, Virtual, given_up
from .end import carried
from .kernel import KernelNetwork
from .network import Rates
from .node import Node

__all__ = ["lossy"]

#: Octets of the memory that messages are sent from; and of a buffer after its completion.
_ROOM, _JUNK = 4 * rping.MOST, b"\xdd"
_UP = (
    f"ip address add {GUEST}/24 dev eth1",
    "ip link set eth1 up",
    "rdma link add siw1 type siw netdev eth1",
)
#: Plays with a program of the peer over a channel.
_Play = Callable[[Channel, Tally], Awaitable[None]]


class _Lender(Channel):
    """A channel whose messages leave from a region; a buffer is overwritten at its completion."""

    def __init__(self, node: Node) -> None:
        super().__init__(node.sim, rping.SIZE, rping.DEPTH)
        self._region = node.pd.register(bytearray(_ROOM), Access.LOCAL_WRITE)
        self._next = 0
        self._lent: deque[range] = deque()

    def send(self, message: bytes) -> None:
        self._lend(Opcode.SEND, message)

    def write(self, message: bytes, stag: int, to: int) -> None:
        self._lend(Opcode.RDMA_WRITE, message, stag, to)

    def _lend(self, opcode: Opcode, message: bytes, stag: int = 0, to: int = 0) -> None:
        if self._next + len(message) > _ROOM:
            self._next = 0
        place = range(self._next, self._next + len(message))
        if any(place.start < each.stop and each.start < place.stop for each in self._lent):
            raise Wrong("the requests that are not complete fill the memory of messages")
        self._next = place.stop
        self._lent.append(place)
        self._region.write(message, place.start)
        self.qp.post_send(
            opcode, self._region, wr_id=place, stag=stag, to=to, offset=place.start,
            length=len(place),
        )  # fmt: skip

    def _sort(self, completions: list[WC]) -> None:
        super()._sort(completions)
        while self._lent and any(wc.wr_id is self._lent[0] for wc in completions):
            place = self._lent.popleft()
            self._region.write(_JUNK * len(place), place.start)

    def close(self) -> None:
        super().close()
        self._region.close()


async def lossy(
    node: Node,
    guest: Guest,
    ethernet: Ethernet,
    rates: Rates,
    counts: Counter[str],
    count: int,
    size: int,
    say: Callable[[str], object],
) -> list[Row]:
    """Runs rping in both directions, and serves perftest; returns the lines of the table.

    ``counts`` gets the counts of the network, and of the FPDUs that were sent again.
    """
    for line in _UP:
        if (output := await guest.run(line)).status:
            raise ToolError(f"the guest refuses {line!r}: {output.text.strip()}")
    network = KernelNetwork(ethernet, rates, random.Random(), counts)
    rows = _rows(node, Virtual(guest), network, count, size, say)
    return await carried(network, [node.pd.context], network.ends, rows)


async def _rows(
    node: Node,
    shell: Virtual,
    network: KernelNetwork,
    count: int,
    size: int,
    say: Callable[[str], object],
) -> list[Row]:
    options = f"-v -V -C {count} -S {size} -p {PORT}"

    async def accept(channel: Channel) -> None:
        channel.begin(await network.accept(node.pd, prepare=channel.prepare, **node.settings))

    async def serve(channel: Channel, tally: Tally) -> None:
        await accept(channel)
        await rping.serve(channel, tally)

    async def run(channel: Channel, tally: Tally) -> None:
        end = await network.connect(node.pd, PORT, prepare=channel.prepare, **node.settings)
        channel.begin(end)
        await rping.run(channel, tally, count, size)

    async def serve_test(channel: Channel, tally: Tally) -> None:
        await accept(channel)
        await perftest.serve(channel, node, tally, accept)

    plays: list[tuple[str, str, str, _Play]] = [
        ("rping", "Linux", f"rping -c -a {HOST} {options}", serve),
        ("rping", "gateware", f"rping -s {options}", run),
    ]
    for word, command in TESTS.items():
        command += f" -n {count} -s {size} -p {PORT} {HOST}"
        plays.append((f"perftest {word}", "Linux", command, serve_test))
    rows = []
    for test, client, command, play in plays:
        say(f"{test} on a bad network, with {client} as the client")
        await shell.start(command)
        program = test.split()[0]
        tally = Tally(program, GUEST)
        playing = asyncio.create_task(_played(node, tally, play))
        if why := await given_up(playing, shell, program):
            tally.errors.append(why)
        await asyncio.gather(playing, return_exceptions=bool(why))
        status = "" if tally.errors else await shell.end()
        if client != "Linux":
            status = ""  # rping's server takes the end of the client for a failure
        rows.append(Row(f"{test}, bad network", client, tally, count, status))
    return rows


async def _played(node: Node, tally: Tally, play: _Play) -> None:
    """Plays with a program of the peer, and notes in the tally what goes wrong."""
    if tally.program == "rping":
        channel: Channel = _Lender(node)
    else:
        channel = Channel(node.sim, perftest.CONTROL, perftest.DEPTH)
    try:
        with node.measured(tally):
            await play(channel, tally)
            await node.end(channel)
    finally:
        channel.close()

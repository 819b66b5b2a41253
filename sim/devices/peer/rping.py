"""rping: the server reads the client's buffer, and writes the same octets back.

Each message names a buffer by 16 octets in network order: address, Steering Tag, length. A turn is

1. client: a message that names its source buffer; server: an RDMA Read of it, and a message;
2. client: a message that names its sink buffer; server: an RDMA Write to it, and a message.
"""

from __future__ import annotations

import struct

from ....sw_driver.cm.errors import Disconnected
from ....sw_driver.verbs.pd import Access
from .channel import Channel, Tally, Wrong

#: The name of a buffer: address, Steering Tag, length.
_NAME = struct.Struct(">QII")
#: Octets of rping's messages, and how many the peer may have on the way.
SIZE, DEPTH = _NAME.size, 16
#: Octets of a buffer, in rping's own default and at most.
DEFAULT, MOST = 64, 65536
#: The first and the last of the octets that follow each other in a buffer.
_FIRST, _LAST = 65, 122


def pattern(turn: int, octets: int) -> bytes:
    """Returns what rping has in its buffer in a turn, counted from 0."""
    head = f"rdma-ping-{turn}: ".encode()[:octets]
    count = _LAST - _FIRST + 1
    body = bytes(_FIRST + (turn + at) % count for at in range(octets - len(head)))
    return (head + body)[: octets - 1] + b"\0"


def _named(message: bytes) -> tuple[int, int, int]:
    if len(message) != SIZE:
        raise Wrong(f"a message of rping has {SIZE} octets, not {len(message)}: is this rping?")
    to, stag, octets = _NAME.unpack(message)
    if octets > MOST:
        raise Wrong(f"a buffer of rping has at most {MOST} octets, not {octets}")
    return to, stag, octets


async def serve(channel: Channel, tally: Tally) -> None:
    """Serves a client until it closes the connection, as ``rping -s -v -V`` does."""
    turn = 0
    while True:
        try:
            message = await channel.message(None)
        except Disconnected:
            return
        to, stag, octets = _named(message)
        data = await channel.read(octets, stag, to)
        if data != pattern(turn, octets):
            tally.errors.append(f"ping {turn} is not what rping sends")
        channel.send(bytes(SIZE))
        to, stag, octets = _named(await channel.message())
        channel.write(data[:octets], stag, to)
        channel.send(bytes(SIZE))
        tally.count(2 * octets)
        turn += 1


async def run(channel: Channel, tally: Tally, count: int, size: int) -> None:
    """Is a client for ``count`` turns, as ``rping -c -v -V -C`` is."""
    source, sink = bytearray(size), bytearray(size)
    pd = channel.qp.pd
    with (
        pd.register(source, Access.REMOTE_READ) as read,
        pd.register(sink, Access.LOCAL_WRITE | Access.REMOTE_WRITE) as written,
    ):
        for turn in range(count):
            expected = pattern(turn, size)
            read.write(expected)
            channel.send(_NAME.pack(read.to, read.stag, size))
            await channel.message()
            channel.send(_NAME.pack(written.to, written.stag, size))
            await channel.message()
            if written.read(size) != expected:
                tally.errors.append(f"ping {turn} came back changed")
            tally.count(2 * size)

"""Serves clients, and is a client of a server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from ....examples.nvme_target import Disk
from ....sw_driver.cm import ConnectRequest, Listener
from . import disk, messages, perftest, rping
from .channel import Channel, Tally
from .node import Node, Report


class _Program(NamedTuple):
    """A server: octets and number of its receive buffers, and its function."""

    size: int
    depth: int
    serve: Callable[[Channel, Tally], Awaitable[None]]


_PROGRAMS = {
    "rping": _Program(rping.SIZE, rping.DEPTH, rping.serve),
    "sink": _Program(messages.SIZE, messages.DEPTH, messages.sink),
    "echo": _Program(messages.SIZE, messages.DEPTH, messages.echo),
}


#: The names of the servers and of the clients.
SERVERS = ("rping", "perftest", "sink", "echo", "nvme")
CLIENTS = ("rping", *perftest.KINDS, "sink", "echo")


async def serve(
    node: Node,
    name: str,
    host: str,
    port: int,
    *,
    count: int | None,
    report: Report,
    listening: Callable[[int], object],
    size: int = 0,
) -> None:
    """Serves ``count`` peers, or until it is cancelled.

    Parameters
    ----------
    name
        rping, perftest, sink, echo or nvme.
    size
        nvme: octets of the disk.
    host, port
        The address at which to listen; port 0: a free one.
    report
        Takes the tally of each connection, at its end.
    listening
        Takes the port, once peers can connect.
    """
    drive = Disk(size, disk.NAME) if name == "nvme" else None
    async with Listener(node.pd, host, port) as listener:
        listening(listener.port)
        async with asyncio.TaskGroup() as group:
            begun = 0
            while count is None or begun < count:
                request = await listener.request()
                begun += 1
                if drive is not None:
                    group.create_task(_queue(node, drive, request, report))
                elif name == "perftest":
                    # Its second connection must not be taken for another's first.
                    await _session(node, name, listener, request, report)
                else:
                    group.create_task(_session(node, name, listener, request, report))


def _channel(node: Node, program: _Program | None) -> Channel:
    """Returns the channel of a program, or the first one of perftest."""
    if program is None:
        return Channel(node.sim, perftest.CONTROL, perftest.DEPTH)
    return Channel(node.sim, program.size, program.depth)


async def _session(
    node: Node, name: str, listener: Listener, request: ConnectRequest, report: Report
) -> None:
    """Serves one peer."""
    tally = Tally(name, _address(request))
    program = _PROGRAMS.get(name)
    channel = _channel(node, program)

    async def accept_another(another: Channel) -> None:
        await node.accept(await listener.request(60), another)

    with node.measured(tally):
        try:
            await node.accept(request, channel)
            if program is None:
                await perftest.serve(channel, node, tally, accept_another)
            else:
                await program.serve(channel, tally)
            await node.end(channel)
        finally:
            channel.close()
    report(tally)


async def _queue(node: Node, drive: Disk, request: ConnectRequest, report: Report) -> None:
    """Serves one queue of a host of the disk."""
    tally = Tally("nvme", _address(request))
    await disk.attach(node, drive, request, tally)
    report(tally)


def _address(request: ConnectRequest) -> str:
    address = request.peer
    return ":".join(map(str, address[:2])) if isinstance(address, tuple) else str(address)


async def run_client(
    node: Node, name: str, host: str, port: int, *, count: int, size: int
) -> Tally:
    """Is a client of a server.

    Parameters
    ----------
    name
        rping; a test of perftest: send, write or read; or the server of messages: sink or echo.
    count, size
        How many messages are sent, or turns of rping made, and octets of each.
    """
    tally = Tally(name, f"{host}:{port}")
    program = _PROGRAMS.get(name)
    channel = _channel(node, program)
    try:
        await node.connect(host, port, channel)
        with node.measured(tally):
            if program is None:
                server = host, port
                await perftest.run(channel, node, tally, name, server, count=count, size=size)
            elif name == "rping":
                await rping.run(channel, tally, count, size)
            else:
                await messages.send(channel, tally, count, size, echoed=name == "echo")
            await node.end(channel)
    finally:
        channel.close()
    return tally

"""A sink, an echo, and a client for both: messages whose octets both sides can work out."""

from __future__ import annotations

from ....sw_driver.cm.errors import Disconnected
from .channel import Channel, Tally
from .rping import pattern

#: Octets and number of the receive buffers.
SIZE, DEPTH = 65536, 32


async def sink(channel: Channel, tally: Tally) -> None:
    """Takes messages until the client closes the connection."""
    await _take(channel, tally, answer=False)


async def echo(channel: Channel, tally: Tally) -> None:
    """Sends each message back until the client closes the connection."""
    await _take(channel, tally, answer=True)


async def _take(channel: Channel, tally: Tally, *, answer: bool) -> None:
    """Takes messages. Those that are not of :func:`send` are not checked, beyond the model."""
    while True:
        try:
            message = await channel.message(None)
        except Disconnected:
            return
        if message != pattern(tally.messages, len(message)):
            tally.unchecked += len(message)
        tally.count(len(message))
        if answer:
            channel.send(message)


async def send(channel: Channel, tally: Tally, count: int, size: int, *, echoed: bool) -> None:
    """Sends messages; if the server is an echo, checks the messages that come back."""
    for turn in range(count):
        await channel.settled(DEPTH)
        channel.send(pattern(turn, size))
        if echoed and await channel.message() != pattern(turn, size):
            tally.errors.append(f"message {turn} came back changed")
        tally.count(size)
    await channel.settled()

"""The demonstration: an unmodified Linux and the gateware run each other's programs."""

from __future__ import annotations

import asyncio
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

from ....sw_driver.cm.errors import ConnectError
from ..guest.machine import HOST, Guest
from .channel import Tally
from .node import Node
from .serve import run_client, serve

#: The port of rping on the peer.
PORT = 7174
#: How many seconds a peer has to connect, or to listen.
_PATIENCE = 600.0
#: Seconds between two tries to connect, and until a server ends whose client has failed.
_PAUSE, _GRACE = 1.0, 10.0
#: perftest's clients: the words of the table, and the commands without address.
TESTS = {
    "send": "ib_send_bw -R -F",
    "write": "ib_write_bw -R -F",
    "read": "ib_read_lat -R -F",
}


@dataclass
class Row:
    """A line of the table."""

    test: str
    client: str
    tally: Tally
    expected: int
    status: str = ""  #: the exit status of the peer's program, where it is known
    complaints: list[str] = field(init=False)

    def __post_init__(self) -> None:
        tally = self.tally
        self.complaints = [*tally.errors, *tally.differences]
        if tally.messages != self.expected:
            self.complaints.append(f"{tally.messages} of {self.expected} messages")
        if tally.unchecked:
            self.complaints.append(f"{tally.unchecked} octets of unknown content")
        if self.status not in ("", "0"):
            self.complaints.append("the peer's program failed")

    @property
    def verified(self) -> bool:
        return not self.complaints


class Shell(ABC):
    """A Linux that runs commands.

    Attributes
    ----------
    here, there
        The address by which the peer reaches this machine; host and port of rping's server there.
    listen
        The address at which this machine listens.
    """

    here: str
    there: tuple[str, int]
    listen: str

    @abstractmethod
    async def start(self, command: str) -> None:
        """Starts a command."""

    @abstractmethod
    async def end(self) -> str:
        """Waits for the end of the command; returns its exit status, or nothing."""

    async def failure(self) -> str:
        """Returns the last words of the command if it has failed, or nothing."""
        return ""


class Virtual(Shell):
    """The shell of a guest."""

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        self.here, self.there, self.listen = HOST, guest.address(PORT), "127.0.0.1"

    async def start(self, command: str) -> None:
        await self._guest.run("rm -f /tmp/status")
        await self._guest.run(f"({command} > /tmp/output 2>&1; echo $? > /tmp/status) &")

    async def end(self) -> str:
        await self._guest.run("wait $!")
        return (await self._guest.run("cat /tmp/status")).text.strip()

    async def failure(self) -> str:
        failed = "test -s /tmp/status && test $(cat /tmp/status) != 0"
        ended = await self._guest.run(f"{failed} && tail -n 1 /tmp/output")
        return "" if ended.status else ended.text.strip() or "no output"


class Host(Shell):
    """A person at another machine."""

    def __init__(self, host: str, say: Callable[[str], object]) -> None:
        self._say = say
        self.there, self.listen = (host, PORT), "0.0.0.0"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((host, PORT))  # sends nothing
            except OSError as error:
                raise ConnectError(f"{host} cannot be reached: {error.strerror}") from None
            self.here = probe.getsockname()[0]
        say(
            f"on {host}, as root: modprobe siw; rdma link add siw0 type siw netdev eth0"
            " (with the name of its network device), and install rdmacm-utils and perftest"
        )

    async def start(self, command: str) -> None:
        self._say(f"on {self.there[0]}, run: {command}")

    async def end(self) -> str:
        return ""


async def demo(
    node: Node, shell: Shell, count: int, size: int, say: Callable[[str], object]
) -> list[Row]:
    """Runs all tests; returns the lines of the table."""
    command = f"rping -c -a {shell.here} -v -V -C {count} -S {size}"
    say("rping, with Linux as the client")
    rows = [await _served(node, shell, "rping", "rping", command, count)]
    say("rping, with Linux as the server")
    await shell.start(f"rping -s -v -V -C {count} -S {size} -p {PORT}")
    tally = await _connected(node, shell, count, size)
    # rping's server takes the end of the client for a failure.
    await shell.end()
    rows.append(Row("rping", "gateware", tally, count))
    for word, program in TESTS.items():
        say(f"perftest, {word}")
        command = f"{program} -n {count} -s {size} {shell.here}"
        rows.append(await _served(node, shell, f"perftest {word}", "perftest", command, count))
    return rows


async def _served(
    node: Node, shell: Shell, test: str, program: str, command: str, count: int
) -> Row:
    """Serves one command of the peer."""
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    tallies: list[Tally] = []
    serving = asyncio.create_task(
        serve(
            node, program, shell.listen, 0,
            count=1, report=tallies.append, listening=port.set_result,
        )
    )  # fmt: skip
    serving.add_done_callback(lambda _: port.cancel())
    try:
        await port
    except asyncio.CancelledError:
        if serving.done():
            await serving  # raises the reason why nothing listens
        raise
    await shell.start(f"{command} -p {await port}")
    if why := await given_up(serving, shell, program):
        return Row(test, "Linux", Tally(program, errors=[why]), count)
    await serving
    return Row(test, "Linux", tallies[0], count, await shell.end())


async def given_up(playing: asyncio.Task[None], shell: Shell, program: str) -> str:
    """Waits for the end of a task that plays with the peer's program.

    Returns why the task was cancelled: the program has failed, or nothing ends. Returns nothing if
    the task has ended.
    """
    deadline = time.monotonic() + _PATIENCE
    why = ""
    while not playing.done() and not why:
        failed = await shell.failure()
        # The end of a program that did connect is noticed here, too.
        await asyncio.wait({playing}, timeout=_GRACE if failed else _PAUSE)
        if failed:
            why = f"{program} failed: {failed}"
        elif time.monotonic() > deadline:
            why = "the peer did not connect, or did not end"
    if playing.done():
        return ""
    playing.cancel()
    await asyncio.wait({playing})
    return why


async def _connected(node: Node, shell: Shell, count: int, size: int) -> Tally:
    """Is a client of rping, as soon as the peer listens."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            return await run_client(node, "rping", *shell.there, count=count, size=size)
        except ConnectError:
            if failed := await shell.failure():
                raise ConnectError(f"rping failed: {failed}") from None
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(_PAUSE)

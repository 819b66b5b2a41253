"""A hostile program that shares a device, for teaching: it tries what a client can try."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from ...hdl.spec.commands import ring_send, take
from ...sw_driver import CQ, PD, CompletionOverrun, RnicError, Stream, StreamError
from ...sw_driver.prm import StreamStopped, connect, protocol
from ...sw_driver.prm.client import ClientContext
from .live import Peer, SimTransport

__all__ = ["Attempt", "Hostile"]

#: Handles that are tried, how many requests are a flood, and how many messages.
_HANDLES, _REQUESTS, _MESSAGES = 24, 500, 40


class Attempt(NamedTuple):
    """An attempt of the hostile program, who refused it, and why."""

    what: str
    by: str
    why: str

    def __str__(self) -> str:
        return f"{self.what}: {self.by}: {self.why}"


class Hostile:
    """A program that tries to harm another client of the same manager.

    Parameters
    ----------
    path
        The manager's socket.
    sim
        The simulated device, to which the program's accomplice on the network sends.
    victim
        Returns a Steering Tag of the other client and its Tagged Offset, or None while it has none.
    """

    def __init__(
        self, path: Path, sim: SimTransport, victim: Callable[[], tuple[int, int] | None]
    ) -> None:
        self._path, self._sim, self._victim = path, sim, victim

    def round(self) -> Iterator[Attempt]:
        """Yields each attempt, after it was made.

        Raises
        ------
        RuntimeError
            An attempt was not refused.
        """
        with connect(self._path) as context:
            assert isinstance(context, ClientContext)
            yield from self._objects(context)
            yield from self._doorbells(context)
            yield from self._greed(context)
            yield from self._streams(context)
            yield from self._memory(context)
        yield from self._connections()

    def _refused(self, what: str, attempt: Callable[[], object]) -> Attempt:
        try:
            attempt()
        except StreamError as error:
            return Attempt(what, "the device ends this stream alone", str(error.number))
        except (CompletionOverrun, StreamStopped) as error:
            why = re.sub(r"stream \d+ is stopped, because ", "", str(error)).partition(":")[0]
            return Attempt(what, "the manager stops this stream alone", why)
        except RnicError as error:
            return Attempt(what, "the manager refuses", str(error).partition(":")[0])
        raise RuntimeError(f"not refused: {what}")

    def _objects(self, context: ClientContext) -> Iterator[Attempt]:
        """Names what the other client may have, by its handles."""
        with PD(context) as pd, CQ(context) as cq:
            own = {pd.number, cq.handle}  # type: ignore[attr-defined]
            for handle in (each for each in range(1, _HANDLES) if each not in own):
                requests: dict[str, protocol.Request] = {
                    "reads the region": protocol.Sync(handle, False, 0, 1),
                    "overwrites the region": protocol.Sync(handle, True, 0, 1),
                    "resets the stream": protocol.Close(protocol.Object.STREAM, handle),
                    "revokes the region": protocol.Close(protocol.Object.REGION, handle),
                    "posts a buffer on the stream": protocol.Post(handle, 0, 0, 0, 0, 0, 1),
                    "takes the completions": protocol.Poll(handle, 1, False),
                    "registers the memory": protocol.Region(pd.number, handle, 0, 1, 3, 0, 0),
                }
                for what, request in requests.items():
                    found = self._refused(
                        f"{what} of another client",
                        lambda request=request: context.ask(request),  # type: ignore[misc]
                    )
                    if handle == _HANDLES - 1:
                        yield found

    def _doorbells(self, context: ClientContext) -> Iterator[Attempt]:
        """Rings every doorbell of the device through the program's own page."""
        page, there = context.doorbells(), context.capabilities
        for what, attempts in (
            ("has the device send for another client's stream",
             [ring_send(number, 1) for number in range(there.streams)]),
            ("takes and arms the completion queue of another client",
             [take(1, queue=number, arm=True) for number in range(there.cqs)]),
        ):  # fmt: skip
            found = [
                self._refused(what, lambda attempt=attempt: page.ring(attempt))  # type: ignore[misc]
                for attempt in attempts
            ]
            yield found[-1]._replace(by="the device ignores and counts it")

    def _greed(self, context: ClientContext) -> Iterator[Attempt]:
        """Takes all that can be had of each kind."""
        with PD(context) as pd, CQ(context) as cq:

            def all_of(take: Callable[[], object]) -> Callable[[], None]:
                def forever() -> None:
                    while True:
                        take()

                return forever

            yield self._refused("takes every stream", all_of(lambda: Stream(pd, cq)))
            yield self._refused("takes every protection domain", all_of(lambda: PD(context)))
            yield self._refused("takes every completion queue", all_of(lambda: CQ(context, 1)))
            for stream in [*context.streams.values()]:
                stream.close()
            for queue in context.cqs - {cq}:
                queue.close()
            for domain in context.pds - {pd}:
                domain.close()

    def _streams(self, context: ClientContext) -> Iterator[Attempt]:
        """Lets the accomplice send to streams of the program's own."""
        with PD(context) as pd, CQ(context, 16) as cq:
            if (there := self._victim()) is not None:
                with Stream(pd, cq) as stream:
                    Peer(self._sim, stream.number).write(*there, b"intrusion")
                    what = "writes by another client's Steering Tag"
                    yield self._refused(what, lambda: cq.wait(10))
            with Stream(pd, cq) as stream:
                Peer(self._sim, stream.number).send(b"to nobody")
                yield self._refused("posts nothing, and receives a message", lambda: cq.wait(10))
            with Stream(pd, cq) as stream, pd.register(context.allocate(8)) as region:
                peer = Peer(self._sim, stream.number)
                for _ in range(_MESSAGES):
                    peer.write(region.stag, 0, b"flood")
                what = "takes no completion of a flood of messages"

                def take() -> None:
                    while True:
                        cq.wait(10)

                while self._sim.sending:
                    context.events()
                yield self._refused(what, take)

    def _memory(self, context: ClientContext) -> Iterator[Attempt]:
        """Passes memory that the program could take away while the device writes to it."""
        descriptor = os.memfd_create("hostile", os.MFD_ALLOW_SEALING)
        with closing(os.fdopen(descriptor, "wb")) as file:
            file.truncate(4096)
            yield self._refused(
                "passes memory that it can take away",
                lambda: context.link.ask(protocol.Memory(), descriptor).result(),
            )
        for _ in range(_REQUESTS):
            context.link.ask(protocol.Events())
        yield self._refused("sends a flood of requests, then a wrong one", lambda: context.ask(
            protocol.State(1 << 40)
        ))  # fmt: skip

    def _connections(self) -> Iterator[Attempt]:
        """Breaks the protocol of the connection."""
        for what, octets in (
            ("sends octets that are no request", b"\xff" * 4096),
            ("asks to write a register, as no request can", protocol.frame(99, 1, b"doorbell")),  # type: ignore[arg-type]
        ):
            with socket.socket(socket.AF_UNIX) as raw:
                raw.settimeout(10)
                raw.connect(str(self._path))
                with suppress(BrokenPipeError, ConnectionResetError):
                    raw.sendall(octets)
                yield Attempt(what, "the manager closes the connection", _last_words(raw))
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(str(self._path))
            raw.sendall(protocol.encode(1, protocol.Hello())[:5])
        with connect(self._path):
            why = "the next client is served"
        yield Attempt("leaves amid a request", "the manager revokes all that it had", why)


def _last_words(raw: socket.socket) -> str:
    """Returns the sentence with which the manager closes a connection."""
    decoder = protocol.Decoder(protocol.LONGEST_ANSWER)
    while octets := raw.recv(1 << 16):
        decoder.feed(octets)
    taken = decoder.take()
    if taken is None:
        raise RuntimeError("the manager closed the connection without a sentence")
    return str(protocol.decode_error(taken[2]))

"""A device with its golden model, which the connections of one command share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from ....hdl.spec.config import RnicConfig
from ....sw_driver import PD, Device
from ....sw_driver.base.errors import RnicError
from ....sw_driver.cm import ConnectRequest, Endpoint, connect
from ....sw_driver.cm.errors import ConnectError, ConnectTimeout
from ....sw_driver.cm.pump import Pump
from .channel import Channel, Tally, Wrong
from .lockstep import Differs, LockStep
from .record import Recorder

#: Seconds that this side's first message waits: Linux's siw can miss one right after its reply.
_DELAY = 0.5


class Node:
    """An open device in lock step with the model. ``with`` opens and closes it.

    Parameters
    ----------
    width
        Width of the datapath in bits.
    crc, markers
        What this side asks for in MPA's start-up.
    recorder
        Takes the octets of all connections; None: nobody does.
    """

    def __init__(
        self,
        width: int = 64,
        *,
        crc: bool = True,
        markers: bool = False,
        recorder: Recorder | None = None,
    ) -> None:
        self.config = RnicConfig(width=width, transmit=True, responder=True)
        self.settings: dict[str, Any] = {"crc": crc, "markers": markers}
        self.recorder = recorder

    def __enter__(self) -> Self:
        self.sim = LockStep(self.config)
        try:
            self._context = Device(self.sim).open()
            self.sim.watch(self._context)
            self.pd = PD(self._context)
        except BaseException:
            self.sim.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._context.close()
        finally:
            self.sim.close()

    def tap(self) -> None:
        """Lets the recorder see the octets of all connections of the running event loop."""
        if self.recorder is not None:
            Pump.of(self._context).tap = self.recorder.record

    async def accept(self, request: ConnectRequest, channel: Channel) -> Endpoint:
        """Accepts a request."""
        self.tap()
        endpoint = await request.accept(prepare=channel.prepare, **self.settings)
        channel.begin(endpoint)
        return endpoint

    async def connect(self, host: str, port: int, channel: Channel) -> Endpoint:
        """Connects to a server."""
        self.tap()
        endpoint = await connect(
            self.pd, host, port, prepare=channel.prepare, delay=_DELAY, **self.settings
        )
        channel.begin(endpoint)
        return endpoint

    async def end(self, channel: Channel) -> None:
        """Closes a connection. Raises ConnectTimeout if the peer does not."""
        try:
            await channel.endpoint.disconnect()
        except ConnectTimeout:
            raise  # the peer may lack octets
        except ConnectError:
            pass
        finally:
            channel.close()

    @contextmanager
    def measured(self, tally: Tally) -> Iterator[None]:
        """Measures a connection, and notes in its tally why it failed."""
        start, cycle = time.monotonic(), self.sim.cycle
        try:
            yield
            self.sim.compare_counters()
        except Differs as difference:
            tally.differences.append(str(difference))
        except (Wrong, RnicError) as error:
            tally.errors.append(str(error))
        finally:
            tally.seconds = time.monotonic() - start
            tally.cycles = self.sim.cycle - cycle


#: Takes the tally of a connection that has ended.
Report = Callable[[Tally], object]

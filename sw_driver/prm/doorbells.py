"""The doorbell page of a client."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from typing import Any

from ...hdl.spec import regs
from ...hdl.spec.commands import Write
from ..base.closing import Closing
from . import protocol
from .protocol import DESCRIPTOR, Request


class DoorbellPage(Closing):
    """A client's doorbell page: the client maps it, or asks the manager to write there.

    Parameters
    ----------
    ask
        Returns the manager's answer to a request.

    Attributes
    ----------
    number
        The page's number, from 1.
    mapped
        Whether the client writes to the device itself.
    """

    def __init__(self, ask: Callable[[Request], bytes]) -> None:
        self._ask, self._words = ask, None
        answer = ask(protocol.Page())
        size = protocol.PAGE.size
        self.number, self.mapped = protocol.PAGE.unpack(answer[:size])
        if self.mapped:
            (descriptor,) = DESCRIPTOR.unpack(answer[size:])
            try:
                self._map = mmap.mmap(descriptor, regs.PAGE_SIZE)
            finally:
                os.close(descriptor)
            # A forked child would keep the page from other clients.
            self._map.madvise(mmap.MADV_DONTFORK)
            words: Any = ctypes.c_uint32 * (regs.PAGE_SIZE // 4)
            self._words = words.from_buffer(self._map)

    def ring(self, command: tuple[Write, ...]) -> None:
        """Rings a doorbell in the page."""
        for register, value, _ in command:
            if self._words is not None:
                self._words[regs.address(register) // 4] = value
            else:
                self._ask(protocol.Bell(regs.DOORBELLS.index(register), value))

    def close(self) -> None:
        if self._words is not None:
            self._words = None
            self._map.close()

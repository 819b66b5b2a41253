"""The reasons why there is no connection, or no longer one: an exception for each."""

from __future__ import annotations

import socket
from typing import NamedTuple

from ...hdl.spec.ddp import ErrorNumber, ErrorType
from ..base.errors import InvalidRequest, RnicError, RnicTimeout
from ..rdmap import Terminate

__all__ = [
    "ConnectError",
    "ConnectTimeout",
    "ConnectionLost",
    "Disconnected",
    "InsufficientIrd",
    "InvalidStartup",
    "LeftTcp",
    "LocalFailure",
    "NoCommonRtr",
    "PrivateDataTooLong",
    "Refused",
    "Rejected",
    "Terminated",
    "Unreachable",
]


class ConnectError(RnicError):
    """There is no connection, or the connection has ended."""


class Unreachable(ConnectError, OSError):
    """TCP reaches no host at the address."""


class Refused(ConnectError, ConnectionRefusedError):
    """The host refuses TCP connections at the port."""


class LeftTcp(NamedTuple):
    """Holds a TCP connection that stayed open after a refusal, for another use (RFC 5044 section
    7.1.2). It belongs to whoever gets it.
    """

    sock: socket.socket  #: without blocking, as asyncio needs it
    octets: bytes  #: that came after the peer's start-up frame


class Rejected(ConnectError):
    """The peer has rejected the request.

    Parameters
    ----------
    private_data
        The octets that the peer sent with its answer.
    octets
        Octets that came after the answer.
    ird, ord
        The responder's IRD and ORD in the answer (RFC 6581 section 9.1); None where it has none,
        or leaves them open.

    Attributes
    ----------
    tcp
        The TCP connection, if the caller has asked for it by ``keep_tcp``.
    """

    tcp: LeftTcp | None = None

    def __init__(
        self,
        private_data: bytes,
        octets: bytes = b"",
        ird: int | None = None,
        ord: int | None = None,
    ) -> None:
        said = f", with the private data {private_data!r}" if private_data else ""
        super().__init__(
            f"the peer refuses the connection{said}: ask for a service and settings that it offers"
        )
        self.private_data, self.octets = private_data, octets
        self.ird, self.ord = ird, ord


class LocalFailure(ConnectError):
    """This side could not set up its queue pair; ``failure`` is the reason."""

    def __init__(self, failure: Exception) -> None:
        super().__init__(f"this side could not set up its queue pair: {failure}")
        self.failure = failure


class ConnectTimeout(ConnectError, RnicTimeout):
    """The peer did not answer in time."""


class InvalidStartup(ConnectError):
    """The peer's start-up frame is not one of MPA, or not one that can stand here."""

    #: RFC 5044 section 8: "Invalid MPA Request Frame or MPA Response Frame"
    number = ErrorNumber(ErrorType.LLP, 0x04)


class InsufficientIrd(ConnectError):
    """The peer wants more outstanding RDMA Reads than this side accepts (RFC 6581)."""


class NoCommonRtr(ConnectError):
    """The two sides have no ready-to-receive message in common (RFC 6581)."""


class ConnectionLost(ConnectError):
    """TCP has failed, or the peer has closed it where it must not."""


class Terminated(ConnectError):
    """A Terminate ended the connection.

    Parameters
    ----------
    message
        The text.
    terminate
        The Terminate.
    by_peer
        Whether the peer sent it.
    """

    def __init__(self, message: str, terminate: Terminate, by_peer: bool) -> None:
        super().__init__(message)
        self.terminate, self.by_peer = terminate, by_peer


class Disconnected(ConnectError):
    """The connection has ended gracefully, and all its completions were taken."""


class PrivateDataTooLong(ConnectError, InvalidRequest):
    """The private data do not fit a start-up frame; nothing was sent."""

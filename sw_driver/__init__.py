"""The host's side: a driver for the device, with the names of verbs where they have one."""

from .context import Capabilities, Context, Device
from .cq import CQ, WC, Opcode, WcStatus
from .errors import (
    CompletionOverrun,
    ErrorEvent,
    InvalidRequest,
    ResourceExhausted,
    RnicError,
    RnicTimeout,
    StateError,
    StreamError,
    TransportError,
    TransportTimeout,
    UnsupportedDevice,
)
from .pd import MR, PD, Access
from .stream import Stream, StreamState
from .transport import Transport

__all__ = [
    "CQ",
    "MR",
    "PD",
    "WC",
    "Access",
    "Capabilities",
    "CompletionOverrun",
    "Context",
    "Device",
    "ErrorEvent",
    "InvalidRequest",
    "Opcode",
    "ResourceExhausted",
    "RnicError",
    "RnicTimeout",
    "StateError",
    "Stream",
    "StreamError",
    "StreamState",
    "Transport",
    "TransportError",
    "TransportTimeout",
    "UnsupportedDevice",
    "WcStatus",
]

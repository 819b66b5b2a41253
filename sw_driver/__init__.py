"""The driver that runs on the host. Its classes have the names of verbs where verbs has them."""

# Absolute, as pytest also imports this file by the name that its folder has in a checkout.

from ddp_rnic.sw_driver.association import Association, Report
from ddp_rnic.sw_driver.context import Capabilities, Context, Device
from ddp_rnic.sw_driver.cq import CQ, WC, Opcode, WcStatus
from ddp_rnic.sw_driver.errors import (
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
    WrongType,
)
from ddp_rnic.sw_driver.pd import MR, PD, Access
from ddp_rnic.sw_driver.stream import Stream, StreamState
from ddp_rnic.sw_driver.transport import Transport

__all__ = [
    "CQ",
    "MR",
    "PD",
    "WC",
    "Access",
    "Association",
    "Capabilities",
    "CompletionOverrun",
    "Context",
    "Device",
    "ErrorEvent",
    "InvalidRequest",
    "Opcode",
    "Report",
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
    "WrongType",
]

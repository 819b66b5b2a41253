"""The driver that runs on the host. Its classes have the names of verbs where verbs has them."""

# Absolute, as pytest also imports this file by the name that its folder has in a checkout.

from ddp_rnic.sw_driver.base.errors import (
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
from ddp_rnic.sw_driver.transports.transport import Transport
from ddp_rnic.sw_driver.verbs.association import Association, Report
from ddp_rnic.sw_driver.verbs.chunks import AssociationSender
from ddp_rnic.sw_driver.verbs.context import Capabilities, Context, Device
from ddp_rnic.sw_driver.verbs.cq import CQ, WC, Opcode, WcStatus
from ddp_rnic.sw_driver.verbs.known import StreamState
from ddp_rnic.sw_driver.verbs.pd import MR, PD, Access
from ddp_rnic.sw_driver.verbs.stream import Stream

__all__ = [
    "CQ",
    "MR",
    "PD",
    "WC",
    "Access",
    "Association",
    "AssociationSender",
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

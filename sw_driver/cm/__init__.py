"""Connects RDMA peers over TCP sockets of the host (MPA, RFC 5044 and RFC 6581), for asyncio."""

# Absolute, as pytest also imports this file by the name that its folder has in a checkout.

from ddp_rnic.sw_driver.cm.blocking import ConnectionManager
from ddp_rnic.sw_driver.cm.connection import Connection
from ddp_rnic.sw_driver.cm.endpoint import Endpoint
from ddp_rnic.sw_driver.cm.errors import (
    ConnectError,
    ConnectionLost,
    ConnectTimeout,
    Disconnected,
    InsufficientIrd,
    InvalidStartup,
    LeftTcp,
    LocalFailure,
    NoCommonRtr,
    PrivateDataTooLong,
    Refused,
    Rejected,
    Terminated,
    Unreachable,
)
from ddp_rnic.sw_driver.cm.framing import MpaSource
from ddp_rnic.sw_driver.cm.listener import ConnectRequest, Listener, connect
from ddp_rnic.sw_driver.cm.startup import Enhanced, Rtr, StartupFrame

__all__ = [
    "ConnectError",
    "ConnectRequest",
    "ConnectTimeout",
    "Connection",
    "ConnectionLost",
    "ConnectionManager",
    "Disconnected",
    "Endpoint",
    "Enhanced",
    "InsufficientIrd",
    "InvalidStartup",
    "LeftTcp",
    "Listener",
    "LocalFailure",
    "MpaSource",
    "NoCommonRtr",
    "PrivateDataTooLong",
    "Refused",
    "Rejected",
    "Rtr",
    "StartupFrame",
    "Terminated",
    "Unreachable",
    "connect",
]

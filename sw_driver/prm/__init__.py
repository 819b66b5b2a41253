"""The Privileged Resource Manager (RFC 5041 section 8.3.2): one device, many programs.

A program that has the device to itself opens it; one that shares it asks the manager::

    with Device(transport).open() as context:    # the device is this program's
    with connect("/run/rnic.sock") as context:   # it is the manager's

and goes on with the same ``PD``, ``CQ`` and ``Stream``.
"""

from ddp_rnic.sw_driver.prm.client import connect
from ddp_rnic.sw_driver.prm.protocol import StreamStopped
from ddp_rnic.sw_driver.prm.quota import Limits
from ddp_rnic.sw_driver.prm.server import Manager, Policy

__all__ = ["Limits", "Manager", "Policy", "StreamStopped", "connect"]

"""The Privileged Resource Manager (RFC 5041 section 8.3.2): lets many programs share one device.

A program that owns the device opens it; a program that shares the device connects to its manager::

    with Device(transport).open() as context:    # this program owns the device
    with connect("/run/rnic.sock") as context:   # the manager owns the device

After that both use the same ``PD``, ``CQ`` and ``Stream``. With :class:`DirectCQ` and
:class:`SendRing` a client takes completions and posts messages without the manager, through a
doorbell page of its own.
"""

from ddp_rnic.sw_driver.prm.client import connect
from ddp_rnic.sw_driver.prm.protocol import StreamStopped
from ddp_rnic.sw_driver.prm.quota import Limits
from ddp_rnic.sw_driver.prm.rings import DirectCQ, SendRing
from ddp_rnic.sw_driver.prm.server import Manager, Policy

__all__ = ["DirectCQ", "Limits", "Manager", "Policy", "SendRing", "StreamStopped", "connect"]

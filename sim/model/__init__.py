"""The golden model: what the RFCs require, as a program that turns octets into typed events.

The model knows no time, no threads and no sockets. Its modules are:

* ``ddp``: RFC 5041, Direct Data Placement;
* ``mpa``: RFC 5044 and RFC 6581, the framing of DDP Segments in a TCP stream;
* ``tcp``: the part of RFC 9293 that a board implements;
* ``sctp``: the part of RFC 9260 that RFC 5043 needs;
* ``rdmap``: the part of RFC 5040 that decides where octets are placed;
* ``send``: work requests, of the layout that :mod:`~...hdl.spec.send` declares, as DDP Segments.

The model has its own codecs, written with ``struct``, so that it cannot share a mistake with the
gateware.
"""

# Absolute, as pytest also imports this file by the name that its folder has in a checkout.
from ddp_rnic.sim.model.ddp import DataSink, DataSource
from ddp_rnic.sim.model.events import DdpError, Delivered, LlpError, Placed
from ddp_rnic.sim.model.memory import Access, Memory, Region
from ddp_rnic.sim.model.mpa import MpaReceiver, MpaSender

__all__ = [
    "Access",
    "DataSink",
    "DataSource",
    "DdpError",
    "Delivered",
    "LlpError",
    "Memory",
    "MpaReceiver",
    "MpaSender",
    "Placed",
    "Region",
]

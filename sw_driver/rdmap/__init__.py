"""RDMAP (RFC 5040), the most common ULP of DDP: queue pairs with the names of verbs, on streams."""

# Absolute, as pytest also imports this file by the name that its folder has in a checkout.

from ddp_rnic.sw_driver.rdmap.cq import CQ, WC, Opcode
from ddp_rnic.sw_driver.rdmap.qp import QP, QPState, Source
from ddp_rnic.sw_driver.rdmap.wire import Layer, ReadRequest, Terminate

__all__ = ["CQ", "QP", "WC", "Layer", "Opcode", "QPState", "ReadRequest", "Source", "Terminate"]

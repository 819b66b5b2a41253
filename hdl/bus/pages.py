"""Decides which doorbells may ring that come through a doorbell page."""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..lib.blockram import BlockRam
from ..spec import regs

__all__ = ["DoorbellPage", "PageFence"]


class DoorbellPage(data.StructLayout):
    """The page (5) of an item (``index``), which is a stream or a queue; 0: it has none."""

    def __init__(self, items):
        super().__init__({"index": range(items), "page": regs.PAGE_BITS})


class PageFence(wiring.Component):
    """Compares the page through which a doorbell comes with the page of the item that it names.

    No flip-flop is spent on an item: the pages are a table in RAM.

    Latency: 3 cycles from ``index`` to ``allows``, of which ``page`` comes after 2. Throughput: a
    look-up per cycle. Reset: the pages stay; at first no item has one. Errors: an item that does
    not exist is not allowed, through any page. A look-up in the cycle in which the same item is
    set has no meaning.

    Parameters
    ----------
    items : int
        Streams or queues.

    Members
    -------
    set : In(stream.Signature(DoorbellPage(items), always_ready=True))
        Replaces the page of an item.
    index : In(16)
        The item that a doorbell names, two cycles before its page.
    page : In(PAGE_BITS)
        The page through which the doorbell comes; 0 is that of no doorbell.
    allows : Out(1)
        The item exists, and has this page.
    """

    def __init__(self, items):
        self.items = items
        super().__init__({
            "set": In(stream.Signature(DoorbellPage(items), always_ready=True)),
            "index": In(16),
            "page": In(regs.PAGE_BITS),
            "allows": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.pages = pages = BlockRam(regs.PAGE_BITS, self.items)
        exists = [Signal(name=f"exists_{k}") for k in range(2)]
        m.d.comb += [
            pages.write.valid.eq(self.set.valid),
            pages.write.payload.address.eq(self.set.payload.index),
            pages.write.payload.data.eq(self.set.payload.page),
            pages.address[0].eq(self.index),
        ]
        m.d.sync += [
            exists[0].eq(self.index < self.items),
            exists[1].eq(exists[0]),
            self.allows.eq(exists[1] & (pages.data[0] == self.page) & self.page.any()),
        ]
        return m

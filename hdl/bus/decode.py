"""Connects one AXI4-Lite manager to the windows that it sees."""

from amaranth import *
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..lib.stream import any_of
from .axi import AxiLite, Response

__all__ = ["AxiLiteDecoder", "Endpoint"]


class AxiLiteDecoder(wiring.Component):
    """Forwards each access to the subordinate whose window contains its address.

    Latency: 1 cycle before an access. Throughput: one access at a time, a write before a read.
    Reset: no access. Errors: DECERR for an address in no window.

    Parameters
    ----------
    windows : iterable of Window
        Each has a power of two of octets, and is at a multiple of its size.

    Members
    -------
    bus : In(AxiLite(32))
    For each window, by its name in lower case: Out(AxiLite(bits of an address in it)).
    """

    def __init__(self, windows):
        self.windows = list(windows)
        for window in self.windows:
            if window.size & (window.size - 1) or window.address % window.size:
                raise ValueError(
                    f"Window {window.name} must have a power of two of octets at a multiple of it,"
                    f" not {window.size:#x} at {window.address:#x}")
        super().__init__({
            "bus": In(AxiLite(32)),
            **{window.name.lower(): Out(AxiLite(window.size.bit_length() - 1))
               for window in self.windows},
        })

    def elaborate(self, platform):
        m = Module()
        bus = self.bus
        ports = [getattr(self, window.name.lower()) for window in self.windows]
        hit = Signal(len(ports))
        none, given = Signal(2), Signal(2)
        write, read = bus.aw.valid & bus.w.valid, bus.ar.valid

        def select(address):
            for bit, window in zip(hit, self.windows, strict=True):
                bits = window.size.bit_length() - 1
                m.d.sync += bit.eq(address[bits:] == window.address >> bits)

        for port in ports:
            m.d.comb += [
                port.aw.payload.addr.eq(bus.aw.payload.addr),
                port.ar.payload.addr.eq(bus.ar.payload.addr),
                port.w.payload.eq(bus.w.payload),
            ]
        with m.FSM():
            with m.State("Idle"):
                with m.If(write):
                    select(bus.aw.payload.addr)
                    m.next = "Write"
                with m.Elif(read):
                    select(bus.ar.payload.addr)
                    m.next = "Read"
            with m.State("Write"):
                for bit, port in zip(hit, ports, strict=True):
                    m.d.comb += [
                        port.aw.valid.eq(bit & bus.aw.valid),
                        port.w.valid.eq(bit & bus.w.valid),
                        port.b.ready.eq(bit & bus.b.ready),
                    ]
                m.d.comb += [
                    none.eq(Cat(~hit.any() & bus.aw.valid, ~hit.any() & bus.w.valid)),
                    bus.aw.ready.eq(none[0] | any_of(
                        bit & port.aw.ready for bit, port in zip(hit, ports, strict=True))),
                    bus.w.ready.eq(none[1] | any_of(
                        bit & port.w.ready for bit, port in zip(hit, ports, strict=True))),
                    bus.b.valid.eq(given.all() | any_of(
                        bit & port.b.valid for bit, port in zip(hit, ports, strict=True))),
                    bus.b.payload.resp.eq(Mux(hit.any(), any_of(
                        Mux(bit, port.b.payload.resp, 0)
                        for bit, port in zip(hit, ports, strict=True)), Response.DECERR)),
                ]
                m.d.sync += given.eq(given | none)
                with m.If(bus.b.valid & bus.b.ready):
                    m.d.sync += given.eq(0)
                    m.next = "Idle"
            with m.State("Read"):
                for bit, port in zip(hit, ports, strict=True):
                    m.d.comb += [
                        port.ar.valid.eq(bit & bus.ar.valid),
                        port.r.ready.eq(bit & bus.r.ready),
                    ]
                m.d.comb += [
                    none.eq(~hit.any() & bus.ar.valid),
                    bus.ar.ready.eq(none[0] | any_of(
                        bit & port.ar.ready for bit, port in zip(hit, ports, strict=True))),
                    bus.r.valid.eq(given[0] | any_of(
                        bit & port.r.valid for bit, port in zip(hit, ports, strict=True))),
                    bus.r.payload.eq(any_of(
                        Mux(bit, port.r.payload.as_value(), 0)
                        for bit, port in zip(hit, ports, strict=True))),
                ]
                with m.If(~hit.any()):
                    m.d.comb += bus.r.payload.resp.eq(Response.DECERR)
                m.d.sync += given.eq(given | none)
                with m.If(bus.r.valid & bus.r.ready):
                    m.d.sync += given.eq(0)
                    m.next = "Idle"
        return m


class Endpoint(wiring.Component):
    """Reduces an AXI4-Lite subordinate to the signals that a memory or a few registers need.

    Latency: a write takes 2 cycles to the response, a read ``latency`` + 1 cycles to the data.
    Throughput: one access at a time. Reset: no access. Errors: SLVERR where ``found`` is low.

    Parameters
    ----------
    bits : int
        Bits of an octet address.
    latency : int
        Cycles, at least 1, from ``read`` to ``answer`` and, for reads and writes, to ``found``.

    Members
    -------
    bus : In(AxiLite(bits))
    address : Out(bits - 2)
        Number of the word.
    write : Out(4)
        The octets of ``data`` to be written, for one cycle.
    data : Out(32)
    read : Out(1)
        The word is to be read; high for one cycle.
    answer : In(32), found : In(1)
        The word that was read; the address exists.
    """

    def __init__(self, bits, *, latency):
        if not isinstance(latency, int) or latency < 1:
            raise ValueError(f"Endpoint latency must be a positive integer, not {latency!r}")
        self.latency = latency
        super().__init__({
            "bus": In(AxiLite(bits)),
            "address": Out(bits - 2),
            "write": Out(4),
            "data": Out(32),
            "read": Out(1),
            "answer": In(32),
            "found": In(1),
        })

    def elaborate(self, platform):
        m = Module()
        bus = self.bus
        elapsed = Signal(self.latency + 1)
        writes = Signal()
        free = Signal()
        m.d.comb += free.eq(~elapsed.any() & ~bus.b.valid & ~bus.r.valid)
        m.d.sync += [
            self.write.eq(0), self.read.eq(0), elapsed.eq(elapsed << 1),
            bus.aw.ready.eq(0), bus.w.ready.eq(0), bus.ar.ready.eq(0),
        ]
        with m.If(free & bus.aw.valid & bus.w.valid & ~bus.aw.ready):
            m.d.sync += [
                self.address.eq(bus.aw.payload.addr[2:]),
                self.data.eq(bus.w.payload.data),
                self.write.eq(bus.w.payload.strb),
                bus.aw.ready.eq(1), bus.w.ready.eq(1), writes.eq(1), elapsed.eq(1),
            ]
        with m.Elif(free & bus.ar.valid & ~bus.ar.ready):
            m.d.sync += [
                self.address.eq(bus.ar.payload.addr[2:]),
                self.read.eq(1), bus.ar.ready.eq(1), writes.eq(0), elapsed.eq(1),
            ]
        with m.If(bus.b.ready):
            m.d.sync += bus.b.valid.eq(0)
        with m.If(bus.r.ready):
            m.d.sync += bus.r.valid.eq(0)
        with m.If(elapsed[-1]):
            resp = Mux(self.found, Response.OKAY, Response.SLVERR)
            m.d.sync += [
                bus.b.valid.eq(writes), bus.b.payload.resp.eq(resp),
                bus.r.valid.eq(~writes), bus.r.payload.resp.eq(resp),
                bus.r.payload.data.eq(self.answer),
            ]
        return m

"""Implements the registers of a board, :mod:`ddp_rnic.hdl.spec.board`."""

from amaranth import *
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..bus.axi import AxiLite
from ..bus.decode import Endpoint
from ..lib.stream import any_of
from ..spec import board

__all__ = ["BoardRegisters"]


class BoardRegisters(wiring.Component):
    """Decodes accesses to the board's registers, and to the text that names the board.

    Latency: a write takes effect 2 cycles after its address. Throughput: one access at a time.
    Reset: registers are 0. Errors: SLVERR for an address without a register or a character, and for
    a write to a read-only register; neither access has an effect.

    Parameters
    ----------
    identifier : str
        The text, in ASCII.
    tcp, sends : bool
        True adds the registers of TCP, and of a board that sends.

    Members
    -------
    bus : In(AxiLite(12))
    A port for each register, with its name in lower case: In(32) if it is read-only, Out(32) if it
    is read-write, Out(1) if it is write-only, high for one cycle when the host writes it.
    """

    def __init__(self, identifier, *, tcp=False, sends=False):
        if not identifier.isascii() or len(identifier) >= board.IDENTIFIER_WORDS:
            raise ValueError(
                f"BoardRegisters identifier must be ASCII of at most {board.IDENTIFIER_WORDS - 1}"
                f" characters, not {identifier!r}")
        self.identifier = identifier
        self.registers = board.registers_of(tcp=tcp, sends=sends)
        super().__init__({
            "bus": In(AxiLite(board.BOARD.size.bit_length() - 1)),
            **{register.name.lower(): {"ro": In(32), "rw": Out(32), "wo": Out(1)}[register.access]
               for register in self.registers},
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.end = end = Endpoint(board.BOARD.size.bit_length() - 1, latency=2)
        wiring.connect(m, wiring.flipped(self.bus), end.bus)
        ports = [(register, getattr(self, register.name.lower())) for register in self.registers]
        hit = Signal(len(ports))
        write, writes = Signal(4), Signal()
        named, character = Signal(), Signal(8)
        octets = self.identifier.encode() + b"\0"
        text = Const(int.from_bytes(octets, "little"), 8 * len(octets))
        first, words = board.IDENTIFIER // 4, board.IDENTIFIER_WORDS
        # After the text's end, this is zero.
        m.d.comb += character.eq(text.word_select(end.address % words, 8))
        m.d.sync += [
            write.eq(end.write), hit.eq(0), named.eq(end.address // words == first // words)]
        with m.Switch(end.address):
            for number, (register, _) in enumerate(ports):
                with m.Case(register.address >> 2):
                    m.d.sync += hit.eq(1 << number)
        m.d.comb += writes.eq(write.any())
        for bit, (register, port) in zip(hit, ports, strict=True):
            if register.access == "wo":
                m.d.sync += port.eq(bit & writes)
            elif register.access == "rw":
                with m.If(bit):
                    for lane in range(4):
                        with m.If(write[lane]):
                            m.d.sync += port.word_select(lane, 8).eq(end.data.word_select(lane, 8))
        readable = [(bit, port) for bit, (register, port) in zip(hit, ports, strict=True)
                    if register.access != "wo"]
        fixed = Cat(bit for bit, (register, _) in zip(hit, ports, strict=True)
                    if register.access == "ro")
        m.d.sync += [
            end.answer.eq(any_of([
                Mux(named, character, 0), *(Mux(bit, port, 0) for bit, port in readable)])),
            end.found.eq(Mux(named | fixed.any(), ~writes, hit.any())),
        ]
        return m

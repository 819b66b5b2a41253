"""Implements a UART, and a bridge from its octets to a bus, in LiteX's protocol "uartbone".

A command consists of one octet for the kind of access: 1 writes and 2 reads words at successive
addresses, 3 and 4 write and read all words at one address; one octet with the number of words, 1 to
255; 32 bits of address, which counts words of 32 bits; and, for a write, the words. All numbers are
sent most significant octet first. The answer to a read is the words; a write has no answer.
"""

from fractions import Fraction
from types import SimpleNamespace

from amaranth import *
from amaranth.lib import enum, stream, wiring
from amaranth.lib.cdc import FFSynchronizer
from amaranth.lib.wiring import In, Out

from ..bus.axi import AxiLite, Response
from ..lib.stream import Queue
from ..spec import board

__all__ = ["Opcode", "UartBridge", "UartReceive", "UartTransmit", "phase_step"]

FRACTION = 16  #: bits of a phase; 2**16 are one bit on the line
#: The largest relative error of a rate: over ten bits it adds up to a tenth of a bit.
TOLERANCE = Fraction(1, 100)


class Opcode(enum.Enum, shape=8):
    """The first octet of a command."""

    WRITE = 1
    READ = 2
    WRITE_FIXED = 3
    READ_FIXED = 4


def phase_step(clock, baud):
    """Returns the phase's increment per cycle.

    Raises :exc:`ValueError` if the rate cannot be made from the clock.
    """
    for name, value in (("clock", clock), ("baud rate", baud)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"UART {name} must be a positive integer, not {value!r}")
    if clock < 8 * baud:
        raise ValueError(f"UART baud rate must be at most an eighth of {clock}, not {baud!r}")
    exact = Fraction(baud << FRACTION, clock)
    if abs(round(exact) - exact) > TOLERANCE * exact:
        raise ValueError(
            f"UART baud rate must be one that {clock} Hz give to {int(100 * TOLERANCE)} %,"
            f" not {baud!r}: try 115200 or 9600")
    return round(exact)


class UartReceive(wiring.Component):
    """Receives octets from a line: 8 data bits, no parity, 1 stop bit.

    Latency: 3 cycles from the middle of the stop bit. Throughput: that of the line. Reset: idle.
    Errors: ``broken`` for an octet with a stop bit of 0, as in a break; the octet is discarded.

    Parameters
    ----------
    clock, baud : int
        In Hz; the clock is at least 8 times the baud rate.

    Members
    -------
    line : In(1)
        Asynchronous to the clock.
    o : Out(stream.Signature(8, always_ready=True))
    broken : Out(1)
        High for one cycle.
    """

    def __init__(self, *, clock, baud):
        self.step = phase_step(clock, baud)
        super().__init__({
            "line": In(1, init=1),
            "o": Out(stream.Signature(8, always_ready=True)),
            "broken": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        line, before = Signal(init=1), Signal(init=1)
        m.submodules.line = FFSynchronizer(self.line, line, init=1)
        phase = Signal(FRACTION)
        tick = Signal()
        bits = Signal(10)  # with start and stop bit, the first one lowest
        left = Signal(range(11))
        m.d.sync += [before.eq(line), self.o.valid.eq(0), self.broken.eq(0)]
        m.d.comb += self.o.payload.eq(bits[1:9])
        with m.If(left == 0):
            m.d.sync += phase.eq(1 << FRACTION - 1)  # in the middle of a bit
            with m.If(before & ~line):
                m.d.sync += left.eq(10)
        with m.Else():
            m.d.sync += Cat(phase, tick).eq(phase + self.step)
        with m.If(tick):
            m.d.sync += [tick.eq(0), bits.eq(Cat(bits[1:], line)), left.eq(left - 1)]
            with m.If(left != 0):
                m.d.sync += Cat(phase, tick).eq(phase + self.step)
            with m.If((left == 10) & line):
                m.d.sync += left.eq(0)  # a spike, not a start bit
            with m.Elif(left == 1):
                m.d.sync += [self.o.valid.eq(line), self.broken.eq(~line)]
        return m


class UartTransmit(wiring.Component):
    """Sends octets to a line, in the format of :class:`UartReceive`.

    Latency: 1 cycle. Throughput: that of the line. Reset: idle. Errors: none.

    Members
    -------
    i : In(stream.Signature(8))
    line : Out(1)
    """

    def __init__(self, *, clock, baud):
        self.step = phase_step(clock, baud)
        super().__init__({"i": In(stream.Signature(8)), "line": Out(1, init=1)})

    def elaborate(self, platform):
        m = Module()
        phase = Signal(FRACTION)
        tick = Signal()
        bits = Signal(9, init=-1)
        left = Signal(range(11))
        m.d.comb += self.i.ready.eq(left == 0)
        with m.If(left == 0):
            m.d.sync += [phase.eq(0), tick.eq(0)]
            with m.If(self.i.valid):
                m.d.sync += [self.line.eq(0), bits.eq(Cat(self.i.payload, C(1, 1))), left.eq(10)]
        with m.Else():
            m.d.sync += Cat(phase, tick).eq(phase + self.step)
            with m.If(tick):
                m.d.sync += [self.line.eq(bits[0]), bits.eq(Cat(bits[1:], C(1, 1))),
                             left.eq(left - 1)]
        return m


class UartBridge(wiring.Component):
    """Carries out commands that arrive as octets, by accesses to a bus.

    An octet that is no opcode is skipped. A command for 0 words, and a command that is interrupted
    by a break or by a silence, ends at that point, and the next octet is the first of a command. So
    whatever noise does, a silence synchronizes both ends again. Octets that arrive while an answer
    is sent wait, up to 16 of them.

    Latency: 1 cycle from a word's last octet to the bus; 1 from the bus to the answer. Throughput:
    one access at a time. Reset: between commands. Errors: ``error`` is raised for each of the
    above, for every access that the bus answers with an error, where the word read is ``NOTHING``,
    and for octets that cannot wait.

    Parameters
    ----------
    patience : int
        Cycles between two octets of a command after which the command is abandoned.

    Members
    -------
    i : In(stream.Signature(8, always_ready=True))
    broken : In(1)
        That of :class:`UartReceive`.
    o : Out(stream.Signature(8))
    bus : Out(AxiLite(32))
    error : Out(1)
        High for one cycle.
    """

    def __init__(self, *, patience):
        if not isinstance(patience, int) or isinstance(patience, bool) or patience < 1:
            raise ValueError(f"UartBridge patience must be a positive integer, not {patience!r}")
        self.patience = patience
        super().__init__({
            "i": In(stream.Signature(8, always_ready=True)),
            "broken": In(1),
            "o": Out(stream.Signature(8)),
            "bus": Out(AxiLite(32)),
            "error": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.queue = queue = Queue(8, depth=16)
        bus, octet = self.bus, queue.o
        opcode = Signal(8)
        words = Signal(8)
        address = Signal(30)
        word = Signal(32)
        octets = Signal(2)
        quiet = Signal(range(self.patience + 1))
        addressed, given = Signal(), Signal()
        open_, stop = Signal(), Signal()
        writes, fixed = Signal(), Signal()
        following = Signal.like(address)

        m.d.comb += [
            queue.i.valid.eq(self.i.valid),
            queue.i.payload.eq(self.i.payload),
            writes.eq((opcode == Opcode.WRITE) | (opcode == Opcode.WRITE_FIXED)),
            fixed.eq((opcode == Opcode.WRITE_FIXED) | (opcode == Opcode.READ_FIXED)),
            following.eq(address + ~fixed),
            bus.aw.payload.addr.eq(Cat(C(0, 2), address)),
            bus.ar.payload.addr.eq(Cat(C(0, 2), address)),
            bus.w.payload.data.eq(word),
            bus.w.payload.strb.eq(0b1111),
            self.o.payload.eq(word[24:]),
            stop.eq(self.broken | (quiet == self.patience)),
        ]
        m.d.sync += self.error.eq(self.i.valid & ~queue.i.ready)

        s = SimpleNamespace(
            opcode=opcode, words=words, address=address, word=word, octets=octets, octet=octet,
            addressed=addressed, given=given, open_=open_, stop=stop, writes=writes,
            following=following)
        with m.FSM():
            self._receive(m, s)
            self._access(m, s)
            with m.State("Broken Off"):
                m.d.sync += self.error.eq(1)
                m.next = "Opcode"
        m.d.sync += quiet.eq(0)
        with m.If(open_ & ~octet.valid):
            m.d.sync += quiet.eq(quiet + 1)
        return m

    def _receive(self, m, s):
        """Adds the states that receive a command, octet by octet."""
        with m.State("Opcode"):
            m.d.comb += s.octet.ready.eq(1)
            m.d.sync += [s.opcode.eq(s.octet.payload), s.octets.eq(0)]
            with m.If(s.octet.valid):
                with m.If(any_opcode(s.octet.payload)):
                    m.next = "Length"
                with m.Else():
                    m.d.sync += self.error.eq(1)
        with m.State("Length"):
            m.d.comb += [s.octet.ready.eq(1), s.open_.eq(1)]
            m.d.sync += s.words.eq(s.octet.payload)
            with m.If(s.octet.valid):
                m.next = "Address"
                with m.If(s.octet.payload == 0):
                    m.d.sync += self.error.eq(1)
                    m.next = "Opcode"
            with m.If(s.stop):
                m.next = "Broken Off"
        for state, register, following in (
                ("Address", s.address, "Read"), ("Word", s.word, "Write")):
            with m.State(state):
                m.d.comb += [s.octet.ready.eq(1), s.open_.eq(1)]
                with m.If(s.octet.valid):
                    m.d.sync += [
                        register.eq(Cat(s.octet.payload, register)), s.octets.eq(s.octets + 1)]
                    with m.If(s.octets == 3):
                        m.next = following
                        if state == "Address":
                            with m.If(s.writes):
                                m.next = "Word"
                with m.If(s.stop):
                    m.next = "Broken Off"

    def _access(self, m, s):
        """Adds the states that access the bus, one word at a time, and send the words read."""
        bus = self.bus
        with m.State("Write"):
            m.d.comb += [
                bus.aw.valid.eq(~s.addressed), bus.w.valid.eq(~s.given), bus.b.ready.eq(1)]
            with m.If(bus.aw.ready):
                m.d.sync += s.addressed.eq(1)
            with m.If(bus.w.ready):
                m.d.sync += s.given.eq(1)
            with m.If(bus.b.valid):
                m.d.sync += [
                    s.addressed.eq(0), s.given.eq(0), s.words.eq(s.words - 1),
                    s.address.eq(s.following)]
                with m.If(bus.b.payload.resp != Response.OKAY):
                    m.d.sync += self.error.eq(1)
                m.next = "Word"
                with m.If(s.words == 1):
                    m.next = "Opcode"
        with m.State("Read"):
            m.d.comb += [bus.ar.valid.eq(~s.addressed), bus.r.ready.eq(1)]
            with m.If(bus.ar.ready):
                m.d.sync += s.addressed.eq(1)
            with m.If(bus.r.valid):
                m.d.sync += [
                    s.addressed.eq(0), s.words.eq(s.words - 1), s.address.eq(s.following),
                    s.word.eq(bus.r.payload.data)]
                with m.If(bus.r.payload.resp != Response.OKAY):
                    m.d.sync += [self.error.eq(1), s.word.eq(board.NOTHING)]
                m.next = "Answer"
        with m.State("Answer"):
            m.d.comb += self.o.valid.eq(1)
            with m.If(self.o.ready):
                m.d.sync += [s.word.eq(s.word << 8), s.octets.eq(s.octets + 1)]
                with m.If(s.octets == 3):
                    m.next = "Read"
                    with m.If(s.words == 0):
                        m.next = "Opcode"


def any_opcode(octet):
    """Returns whether an octet is an opcode."""
    return (octet != 0) & (octet <= Opcode.READ_FIXED.value)

"""The window of a stream's DDP-SSNs: what comes in order is taken, whatever other streams do."""

from amaranth import *
from amaranth.hdl import Cover
from amaranth.utils import exact_log2

from ..ddp.item import Verdict
from ..lib.stream import any_of
from ..sctp.window import Window
from .harness import Harness, if_

__all__ = ["Gaps", "Taken"]


class Gaps:
    """Counts which DDP-SSNs of a stream came, without a table of the gateware.

    Parameters
    ----------
    m : Module
    window : int
    name : str
    comes : Value
        An item with DDP-SSN ``ssn`` came; ``final`` (1).
    clear : Value
        Nothing came.

    Attributes
    ----------
    next : 16
        The first DDP-SSN that has not come.
    ahead : window
        Of that one and those after it, which have come.
    tip : 16
        The DDP-SSN after the highest one that came.
    ended : 1
        A final item came, with DDP-SSN ``last`` (16).
    far : 16
        How far ``ssn`` is ahead of ``next``.
    fits, twice : Value
        That is less than the window; it came before, if it fits.
    """

    def __init__(self, m, window, *, name, comes, ssn, final, clear):
        self.next, self.last = Signal(16, name=f"{name}_next"), Signal(16, name=f"{name}_last")
        self.ahead = ahead = Signal(window, name=f"{name}_ahead")
        self.ended = Signal(name=f"{name}_ended")
        self.far = far = Signal(16, name=f"{name}_far")
        self.tip = Signal(16, name=f"{name}_tip")
        bits = exact_log2(window)
        place = far[:bits]
        self.fits = ~far[bits:].any()
        self.twice = self.fits & ahead.bit_select(place, 1)
        marked, moved = Signal(window), Signal(range(window + 1))
        m.d.comb += [
            far.eq(ssn - self.next),
            marked.eq(ahead | Mux(self.fits, 1 << place, 0)),
            self.tip.eq(self.next),
        ]
        for k in range(window):
            with m.If(ahead[k]):
                m.d.comb += self.tip.eq(self.next + k + 1)
            with m.If(marked[:k + 1].all()):
                m.d.comb += moved.eq(k + 1)
        with m.If(clear):
            m.d.sync += [self.next.eq(0), ahead.eq(0), self.ended.eq(0)]
        with m.Elif(comes):
            m.d.sync += [self.next.eq(self.next + moved), ahead.eq(marked >> moved)]
            with m.If(final):
                m.d.sync += [self.ended.eq(1), self.last.eq(ssn)]


class Taken(Harness):
    """The next DDP-SSN of a stream is taken.

    That is: of any stream, an item that its session would take, and before which all DDP-SSNs of
    the session were taken, is FRESH. It is never OUTSIDE, DUPLICATE or ILLEGAL. Excepted is what
    the rules of a session forbid: an item was ILLEGAL before, which ended the session; the item
    follows the final one, or is final itself and another one after it was taken.

    Beside that: no DDP-SSN is taken twice, and none that is ``window`` or more ahead of the first
    gap, so that an item finds its place free. An item that is a DUPLICATE was taken before.

    One stream, any one, is followed; the others do what they want. Assumes that a stream is cleared
    while no item is on its way, and that ``clear`` is held. Bounded: for the first ``DEPTH`` cycles
    after reset, in the tests of ``--long`` for ``LONG`` cycles. An item may come in each of them.
    With a window of 4 that fills gaps and uses each place again; a stream that was cleared has no
    time to go on.
    """

    DEPTH, LONG = 14, 17

    def rules(self, m):
        dut = self.dut
        window = dut.window
        mine = self.any(range(dut.streams), name="mine", constant=True)
        self.polite(dut.clear)
        came_last = [dut.i.valid]
        for _ in range(Window.LATENCY):
            came_last.append(self.past(came_last[-1]))
        self.assume(if_(dut.clear.valid, ~any_of(came_last)))

        # What comes out, of what went in.
        judged, shape = dut.o.payload, dut.i.payload.shape()
        item = shape(self.past(dut.i.payload, Window.LATENCY))
        own = dut.o.valid & (item.stream == mine)
        fresh = own & (judged.verdict == Verdict.FRESH)
        open_ = item.verdict == Verdict.FRESH
        cleared = dut.clear.valid & dut.clear.ready & (dut.clear.payload == mine)
        came = Gaps(m, window, name="came", comes=fresh, ssn=item.ssn, final=item.final,
                    clear=cleared)
        dead = Signal()
        with m.If(cleared):
            m.d.sync += dead.eq(0)
        with m.Elif(own & judged.aborts):
            m.d.sync += dead.eq(1)
        legal = ~dead & ~(came.ended & (item.ssn == (came.last + 1)[:16])) & ~(
            item.final & came.ahead.any())
        turn = own & open_ & (came.far == 0)
        self.always(dut.o.valid == came_last[-1], "a verdict for each")
        self.always(if_(turn & legal, fresh), "the next one is taken")
        self.always(if_(fresh, came.fits), "what is taken is less than the window ahead")
        self.always(if_(fresh, ~came.twice), "none is taken twice")
        self.always(if_(fresh, open_), "what its session does not take is not taken")
        again = own & open_ & (judged.verdict == Verdict.DUPLICATE)
        # Half of all DDP-SSNs are behind, the last few with what was known when they came.
        apart = came.far >= (1 << 15) - window - Window.LATENCY
        self.always(if_(again, apart | came.twice), "a duplicate was taken before")
        ticket = judged.ticket
        for name in ("lib.stream", "ssn", "final"):
            self.always(if_(own, ticket[name] == item[name]), f"its ticket: {name}")
        late = (came.tip - item.ssn)[:16]
        self.always(if_(fresh, ticket.fills == ((late != 0) & ~late[15])), "its ticket: fills")
        m.d.comb += Cover(turn & legal & came.ahead[1], "a gap is filled")
        for place in range(window):
            again = turn & (item.ssn == window + place)
            m.d.comb += Cover(again, f"place {place} is used again")

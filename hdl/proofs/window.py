"""Proves that the window takes the next DDP-SSN of a stream, whatever other streams do."""

from amaranth import *
from amaranth.hdl import Cover
from amaranth.utils import exact_log2

from ..ddp.item import Verdict
from ..lib.stream import any_of
from ..sctp.window import Window
from .harness import Harness, if_

__all__ = ["Gaps", "Taken"]


class Gaps:
    """Records which DDP-SSNs of a stream arrived, without a table of the gateware.

    Parameters
    ----------
    m : Module
    window : int
    name : str
    comes : Value
        An item with DDP-SSN ``ssn`` arrived; ``final`` (1).
    clear : Value
        Forget all items.

    Attributes
    ----------
    next : 16
        The first DDP-SSN that is missing.
    ahead : window
        Bit k: DDP-SSN ``next`` + k has arrived.
    tip : 16
        The DDP-SSN after the highest one that arrived.
    ended : 1
        A final item arrived, with DDP-SSN ``last`` (16).
    far : 16
        How far ``ssn`` is ahead of ``next``.
    fits, twice : Value
        That is less than the window; ``ssn`` arrived before, if it fits.
    """

    def __init__(self, m, window, *, name, comes, ssn, final, clear):
        self.next, self.last = Signal(16, name=f"{name}_next"), Signal(16, name=f"{name}_last")
        self.ahead = ahead = Signal(window, name=f"{name}_ahead")
        self.ended = Signal(name=f"{name}_ended")
        self.far = far = Signal(16, name=f"{name}_far")
        self.tip = Signal(16, name=f"{name}_tip")
        bits = exact_log2(window)
        slot = far[:bits]
        self.fits = ~far[bits:].any()
        self.twice = self.fits & ahead.bit_select(slot, 1)
        marked, moved = Signal(window), Signal(range(window + 1))
        m.d.comb += [
            far.eq(ssn - self.next),
            marked.eq(ahead | Mux(self.fits, 1 << slot, 0)),
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
    """Proves that the next DDP-SSN of a stream is taken.

    On any stream, an item that its session would take, and before which all DDP-SSNs of the session
    were taken, is FRESH. It is never OUTSIDE, DUPLICATE or ILLEGAL. The rules of a session make
    these exceptions: an item before was ILLEGAL, which ended the session; the item follows the
    final one, or is final itself and a later one was already taken.

    In addition: no DDP-SSN is taken twice, and none that is ``window`` or more ahead of the first
    gap, so that an item finds its slot free. An item that is a DUPLICATE was taken before.

    Any one stream is followed; the others do anything. Assumes that a stream is cleared while no
    item is on its way, and that ``clear`` is held. Bounded: for the first ``DEPTH`` cycles after
    reset, and for ``LONG`` cycles in the tests of ``--long``. An item may arrive in each of them.
    With a window of 4, that is enough to fill gaps and use each slot again, but not to continue
    after a stream was cleared.
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

        # The output, and the item that it belongs to.
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
        # Half of all DDP-SSNs are in the past; the last few as known when they arrived.
        apart = came.far >= (1 << 15) - window - Window.LATENCY
        self.always(if_(again, apart | came.twice), "a duplicate was taken before")
        ticket = judged.ticket
        for name in ("stream", "ssn", "final"):
            self.always(if_(own, ticket[name] == item[name]), f"its ticket: {name}")
        late = (came.tip - item.ssn)[:16]
        self.always(if_(fresh, ticket.fills == ((late != 0) & ~late[15])), "its ticket: fills")
        m.d.comb += Cover(turn & legal & came.ahead[1], "a gap is filled")
        for slot in range(window):
            again = turn & (item.ssn == window + slot)
            m.d.comb += Cover(again, f"slot {slot} is used again")

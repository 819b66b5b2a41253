"""Cuts messages into DDP Segments, and says which octets each segment has (RFC 5041 section 5.2).

The data's way::

    entries ─ WorkReader ┬ messages ─ Preparation ─ Cutter ┬ segments ─────────► ReadDma.segments
                         │                                 ├ results
                         │                                 └ shares ┐  reserved ◄─ ReadDma
                         ├ pieces ────────────────────── PieceCutter ┴ parts ─► checks ─► ReadDma
                         └ inline ─► inline memory

Budget of cycles, at every width: a segment each 2 cycles, a part of a piece each 2 cycles, and a
piece each cycle into the queue. From an entry to its first segment 9, and from there to its first
part 3. So a segment of one part costs no more than its beats if it has two of them.
"""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..dma.jobs import LENGTH_BITS
from ..dma.read import ReadSegment
from ..dma.staging import TAG_BITS
from ..lib.blockram import ForwardedTable
from ..lib.stream import Skid, Store, counted, delayed
from ..rdmap.requester import ReadSlots, Sink, read_ports
from ..spec.ddp import TAGGED_HEADER, UNTAGGED_HEADER, VERSION
from ..spec.sctp import FUNCTION, SSN
from ..spec.send import ENTRY, Waits
from .alternation import goes_on
from .associations import (
    OCTETS,
    SEGMENTS,
    AssociationCredit,
    AssociationLimit,
    AssociationStart,
    Front,
    Refund,
)
from .credit import PLENTY, CreditAccounts, CreditLimit, CreditStart, enough
from .pieces import PieceCutter, SendPart, Share
from .repeats import SLOT_BITS, Repeat
from .work import QUANTUM, QUEUES, LocalPiece, SendMessage, WorkEntry, WorkReader

__all__ = ["Cutter", "SegmentTag", "Segmenter", "TurnResult"]

QUEUE = 16
#: Octets of a turn that a segment costs beside its payload: its headers, length and CRC.
OVERHEAD = 24
#: Octets of a turn that a segment costs at least: those of an entry of the ring and as many of
#: payload. Messages that short take about as many cycles as the same cost in long segments.
LEAST = 2 * ENTRY
#: Beats of a turn that a segment costs at least if it is compared with the credit: it takes a cycle
#: more.
COMPARED = 3


class SegmentTag(data.StructLayout):
    """The tag of a segment: facts that are needed when it leaves.

    Members
    -------
    stream : 12
    ends : 1
        The last segment of a message.
    entries : 8, signaled : 1
        Of the message, as in :class:`~.work.SendMessage`; of a segment that is sent again, its slot
        of :class:`~.repeats.Repeats`.
    response : 1
        The message is a Read Response, and ``entries`` is 0.
    stops : 1
        The message stops, and the segment has no octet.
    repeat : 1
        The segment is sent again.
    """

    def __init__(self):
        super().__init__({
            "stream": 12, "entries": 8, "signaled": 1, "ends": 1, "stops": 1, "response": 1,
            "repeat": 1})


class _Prepared(data.StructLayout):
    """A message to be cut.

    Members
    -------
    stream, tagged, control, read, rsvdulp, qn, refused, signaled, fence, entries, partial, last
        As in :class:`~.work.SendMessage`, and so is ``turn``.
    further
        Its pieces after the first.
    name : 32
        The STag or the Queue Number.
    at : 64
        Tagged Offset or Message Offset of the next segment.
    left : 33
        Octets of the message that are not cut yet, and of one header.
    done : 32
        Octets of the message that were sent in earlier turns.
    """

    def __init__(self, streams):
        message = SendMessage(streams)
        super().__init__({
            **{name: message[name].shape for name in (
                "stream", "tagged", "control", "read", "rsvdulp", "qn", "refused", "signaled",
                "fence", "entries", "partial", "last", "turn")},
            "further": message["pieces"].shape, "name": 32, "at": 64, "left": 33, "done": 32})


class NextMsn(data.StructLayout):
    """The MSN of the next message on a queue: ``stream``, ``qn`` and ``msn`` (32)."""

    def __init__(self, streams):
        super().__init__({"stream": range(streams), "qn": range(QUEUES), "msn": 32})


class Mulpdu(data.StructLayout):
    """The MULPDU of a stream: ``stream`` and ``mulpdu`` (16), the octets of the longest segment."""

    def __init__(self, streams):
        super().__init__({"stream": range(streams), "mulpdu": 16})


class _Mulpdu(data.StructLayout):
    """A MULPDU: ``octets`` (16), and whether a segment with these headers has room for an octet:
    ``tagged`` (1), ``untagged`` (1), ``control`` (1).
    """

    def __init__(self):
        super().__init__({"octets": 16, "tagged": 1, "untagged": 1, "control": 1})


def credit_ports(streams, associations=0):
    """Returns the members ``opens`` and ``limits``, with which the host gives credit, and
    ``closes``; with ``associations`` those of :class:`~.associations.AssociationCredit`, too.
    """
    shared = {
        "begun": In(stream.Signature(AssociationStart(streams, associations))),
        "allowed": In(stream.Signature(AssociationLimit(associations), always_ready=True)),
        "refunds": In(stream.Signature(Refund(associations), always_ready=True)),
        "queue": Out(range(associations)),
        "front": In(Front(streams)),
    } if associations else {}
    return {
        "opens": In(stream.Signature(CreditStart(streams, associations))),
        "limits": In(stream.Signature(CreditLimit(streams), always_ready=True)),
        "closes": In(stream.Signature(range(streams), always_ready=True)),
        **shared,
    }


class TurnResult(data.StructLayout):
    """The result of a turn.

    Members
    -------
    stream : range(streams)
    entries : 8
        Entries of the messages that were sent to their end.
    done : 32
        Octets of the message after these that were sent.
    needs : 8
        Entries of the message after these, if that is known; else 0.
    stopped : 1
        The octets of the turn were used up, and a message stopped.
    over : range(QUANTUM)
        Octets beyond those of the turn; see :class:`~.scheduler.Scheduler`.
    spent : 1
        The turn has no octets left.
    again : 1
        The stream has more to send, as far as is known.
    response : 1
        The messages were Read Responses.
    waits : 2
        What the message after these waits for: a :class:`~..spec.send.Waits`.
    association : range(associations), sent : 1
        In a device with ``associations``: that of a stream over SCTP, and whether the turn has a
        segment.
    """

    def __init__(self, streams, associations=0):
        over_sctp = {"association": range(associations), "sent": 1} if associations else {}
        super().__init__({
            "stream": range(streams), "entries": 8, "done": 32, "needs": 8, "stopped": 1,
            "over": range(QUANTUM), "spent": 1, "again": 1, "response": 1, "waits": 2,
            **over_sctp})


def _header_octets(message, sctp):
    """Returns the octets before the payload of a message's segments."""
    return Mux(
        message.control & sctp, FUNCTION, Mux(message.tagged, TAGGED_HEADER, UNTAGGED_HEADER))


class Preparation(wiring.Component):
    """Computes where a message continues: its offset, and the octets that are left.

    Latency: 2 cycles. Throughput: one message per cycle. Reset: empty. Errors: a message of which
    more octets were sent than it has is refused.

    Members
    -------
    i : In(stream.Signature(SendMessage(streams)))
    o : Out(stream.Signature(_Prepared(streams)))
    """

    def __init__(self, streams, *, sctp=False):
        self.streams, self.sctp = streams, sctp
        super().__init__({
            "i": In(stream.Signature(SendMessage(streams))),
            "o": Out(stream.Signature(_Prepared(streams))),
        })

    def elaborate(self, platform):
        m = Module()
        message = self.i.payload
        # The output is a register, because the cutter looks up tables for the message that waits.
        m.submodules.skid = skid = Skid(_Prepared(self.streams))
        wiring.connect(m, skid.o, wiring.flipped(self.o))
        half = Signal(_Prepared(self.streams), reset_less=True)
        begun, carry, then = Signal(32), Signal(), skid.i.payload
        same = ("stream", "tagged", "control", "read", "rsvdulp", "qn", "signaled", "fence",
                "entries", "partial", "last", "turn")
        m.d.comb += [
            self.i.ready.eq(skid.i.ready),
            then.eq(half),
            then.at[32:].eq(half.at[32:] + (carry & half.tagged)),
            then.left.eq(half.left + _header_octets(half, self.sctp)),
            begun.eq(Mux(message.turn.first, message.turn.done, 0)),
        ]
        with m.If(skid.i.ready):
            m.d.sync += [
                skid.i.valid.eq(self.i.valid),
                *(half[name].eq(message[name]) for name in same),
                half.further.eq(Mux(message.pieces.any(), message.pieces - 1, 0)),
                half.refused.eq(message.refused | (begun > message.length)),
                half.name.eq(Mux(message.tagged, message.stag, message.qn)),
                Cat(half.at[:32], carry).eq(Mux(message.tagged, message.to[:32], 0) + begun),
                half.at[32:].eq(Mux(message.tagged, message.to[32:], 0)),
                half.left.eq(message.length - begun),
                half.done.eq(begun),
            ]
        return m


class Cutter(wiring.Component):
    """Cuts messages into segments, each as long as its stream's MULPDU allows.

    The MULPDU is read for each segment, so a change holds from the next one on. A message whose
    stream has a MULPDU without room for an octet of payload is refused.

    A segment begins only if it is the first one of its turn, or if the turn has octets left. It
    costs its payload and ``OVERHEAD``, but at least ``LEAST`` and the cycles that it takes here;
    each piece of a message after the first costs as many octets as an entry has. If the turn has no
    octets left, the message stops, and so do all later messages of the turn; they continue in
    another turn. Each of them has one refused segment with the mark ``stops``, with which its
    pieces are dropped.

    An untagged message gets the next MSN of its queue, which is written back with the message's
    last segment: a message that stopped has the same MSN when it continues.

    A message of a stream whose sending half has failed is given up as a whole, as one segment.

    A segment of a stream with a limit begins only if the stream has credit for all of its FPDU.
    Otherwise the message stops, and the turn ends; the stream gets another turn with new credit.

    Over SCTP its association needs credit for the chunk, too, see
    :class:`~.associations.AssociationQueues`.

    A Read Request takes a slot of its stream with its first segment, which says what the response
    has to be; :class:`~..rdmap.requester.ReadSlots` has them. Without a free one the message stops
    as for want of credit, and the stream gets another turn once a slot is free; before that, if
    Read Responses are to be sent: they never wait for the stream's own Reads. So does a message
    with a ``fence`` while a Read of its stream is outstanding.

    A session control message has one segment, with its Function Code as header, and no MSN. It is
    refused on a stream over MPA, or if it is longer than the MULPDU.

    A turn for a segment that is sent again has that segment alone, as long as it was, with its old
    MSN. It needs no credit, changes no account, and has no result. If the message is shorter now,
    the segment is refused.

    Latency: 4 cycles. Throughput: one segment in 2 cycles, without a bubble between messages; in 3
    cycles if its stream has a limit and less than 128 KiB of credit left, or over SCTP less credit
    for chunks, or its association less for any, than a turn can take. A turn over SCTP takes 6
    cycles more if the stream has a limit. Reset: no message; MULPDUs and MSNs stay. Errors: none.

    Parameters
    ----------
    width, streams : int
    associations : int
        Those of SCTP, over which streams may send; or 0.
    reads : int
        Slots of each stream's Reads; 0: no Read takes one.

    Members
    -------
    mulpdus : In(stream.Signature(Mulpdu(streams), always_ready=True))
        To be written at any time, for segments that are cut 3 cycles later or after.
    msns : In(stream.Signature(NextMsn(streams)))
        To be written while no message of the stream is under way.
    opens, limits, closes, look
        ``set``, ``limits``, ``closes`` and ``look`` of :class:`~.credit.CreditAccounts`.
    begun, allowed, refunds, queue, front
        With ``associations`` only: ``set``, ``limits``, ``refunds``, ``look`` and ``front`` of
        :class:`~.associations.AssociationCredit`.
    ords, cleared, stopped, freed, expected, wake, reading
        With ``reads`` only, as the next one: those of :class:`~..rdmap.requester.ReadSlots`.
    sinks : In(stream.Signature(Sink(), always_ready=True))
        The sink of each Read Request, before it comes; at most 16 of them.
    i : In(stream.Signature(_Prepared(streams)))
    go : In(1)
        There is room for two segments.
    segments : Out(stream.Signature(ReadSegment(), always_ready=True))
        The tag is a SegmentTag.
    shares : Out(stream.Signature(Share(streams), always_ready=True))
        The same segments, and the octets that were sent before.
    results : Out(stream.Signature(TurnResult(streams), always_ready=True))
        One for each turn.
    answered : Out(stream.Signature(range(streams), always_ready=True))
        A Read Response of the stream was cut whole, for the first time.
    slot : Out(SLOT_BITS), repeat : In(Repeat(streams))
        Look-up of a segment that is sent again, answered in the same cycle.
    """

    def __init__(self, width, streams, *, associations=0, reads=0):
        self.width, self.streams = width, streams
        self.associations, self.sctp = associations, associations > 0
        self.slots = ReadSlots(streams, reads) if reads else None
        super().__init__({
            "mulpdus": In(stream.Signature(Mulpdu(streams), always_ready=True)),
            "msns": In(stream.Signature(NextMsn(streams))),
            **credit_ports(streams, associations),
            **read_ports(streams, reads),
            **({"sinks": In(stream.Signature(Sink(), always_ready=True))} if reads else {}),
            "look": In(stream.Signature(range(streams), always_ready=True)),
            "i": In(stream.Signature(_Prepared(streams))),
            "go": In(1),
            "segments": Out(stream.Signature(ReadSegment(), always_ready=True)),
            "shares": Out(stream.Signature(Share(streams), always_ready=True)),
            "results": Out(stream.Signature(TurnResult(streams, associations), always_ready=True)),
            "answered": Out(stream.Signature(range(streams), always_ready=True)),
            "slot": Out(SLOT_BITS),
            "repeat": In(Repeat(streams)),
        })

    def elaborate(self, platform):
        m = Module()
        now, valid = Signal(_Prepared(self.streams), name="now"), Signal(name="valid")
        fresh = Signal(2)
        first = Signal()  # the message is fresh, and its turn's first one
        # A segment is weighed, then, if its stream has not plenty of credit, tested, and then cut.
        weighs, tests, cuts, cut, sends, ends, bad = (
            Signal(name=name) for name in (
                "weighs", "tests", "cuts", "cut", "sends", "ends", "bad"))  # ``cut``: not skipped
        skips, stops, leaves, loads, takes, passes, offered, wrong, shared = (
            Signal(name=name) for name in (
                "skips", "stops", "leaves", "loads", "takes", "passes", "offered", "wrong",
                "shared"))  # ``shared``: its association may lack credit for some of the turn
        beyond = Signal(signed(34))  # octets that do not fit, less one
        over = Signal(signed(34), reset_less=True)
        room, rest = Signal(LENGTH_BITS, reset_less=True), Signal(LENGTH_BITS, reset_less=True)
        length, again = Signal(LENGTH_BITS), now.turn.repeat
        length_again, msn_again = Signal(16, reset_less=True), Signal(32, reset_less=True)
        most, roomy = self._mulpdu(m, now, takes | fresh[0])
        mulpdu = Mux(again, length_again, most)
        msn = self._msn(m, now, fresh, cuts, sends & ends & ~bad)
        header = _header_octets(now, self.sctp)
        accounts, has_credit, scarce, scant, marked, failed, sctp = self._credit(
            m, first, tests, mulpdu, now, sends, ends, bad, shared)
        holds, short = self._share(m, first, tests, accounts, mulpdu, now, sends, ends, bad, shared)
        lacks = self._reads(m, first, now, takes, sends, bad, leaves)
        why, fits = self._why(m, has_credit, short, lacks)
        may = self._turn(
            m, now, fresh, first, sends, ends, length, leaves, stops, scant, marked, why)
        # Without plenty of credit it is compared first; a segment that is sent again needs none.
        compares, goes = Signal(), Signal()  # ``goes``: it is cut in the next cycle
        control = now.control & self.sctp
        m.d.comb += [
            weighs.eq(valid & self.go & ~cuts & ~tests & ~now.partial & ~holds),
            # The first step of a message that continues is to skip octets.
            stops.eq(cut & ~(may & (fits | bad))),
            sends.eq(cut & may & (fits | bad)),
            leaves.eq((cut & (ends | ~may | ~fits)) | passes),
            compares.eq(scarce & ~again),
            goes.eq((weighs & ~compares) | tests),
            length.eq(Mux(bad, 0, Mux(ends, rest, room))),
            loads.eq(~valid | leaves),
            beyond.eq(now.left - mulpdu - 1),
            wrong.eq(now.refused | (control & ~sctp) | Mux(
                again, (length_again < header) | (now.left < length_again), failed | ~roomy)),
            self.i.ready.eq(offered & loads),
            takes.eq(self.i.ready),
        ]
        m.d.sync += [
            tests.eq(weighs & compares),
            cuts.eq(goes),
            cut.eq(goes & ~skips),
            passes.eq(takes & self.i.payload.partial),
            fresh.eq(Cat(takes, fresh)),
            first.eq(takes & self.i.payload.turn.first),
            # The message at the input was there in the last cycle, and so was its turn's credit.
            offered.eq(self.i.valid & ~takes & (accounts.there | ~self.i.payload.turn.first)),
        ]
        with m.If(~tests):  # the MULPDU may change between weighing and cutting
            m.d.sync += [
                over.eq(beyond),
                bad.eq(wrong | (control & ~beyond[-1])),
                ends.eq(beyond[-1] | wrong | control),
                room.eq(mulpdu - header),
                rest.eq(now.left - header),
            ]
        with m.If(takes):
            m.d.sync += [valid.eq(1), skips.eq(self.i.payload.done.any())]
        with m.Elif(leaves):
            m.d.sync += valid.eq(0)
        with m.Elif(cuts):
            m.d.sync += skips.eq(0)

        # The upper half of the offset is added up one cycle after the lower one.
        carry, low = Signal(name="carry"), now.at[:32] + room
        with m.If(sends):
            m.d.sync += [
                now.at[:32].eq(low), carry.eq(low[32] & now.tagged), now.left.eq(over + 1 + header)]
        with m.Else():
            m.d.sync += [now.at[32:].eq(now.at[32:] + carry), carry.eq(0)]
        with m.If(loads):  # ``valid`` does not gate the wide register
            m.d.sync += [
                now.eq(self.i.payload), carry.eq(0),
                length_again.eq(self.repeat.length), msn_again.eq(self.repeat.msn)]

        segment = self.segments.payload
        m.d.sync += [
            self.segments.valid.eq(sends | stops),
            self.shares.valid.eq(cuts),
            segment.header.eq(self._header(now, Mux(again, msn_again, msn), ends)),
            segment.lead.eq(header),
        ]
        self._describe(m, now, Mux(stops, 0, length), skips, stops, sends & ends, sends & bad)
        m.d.comb += [
            accounts.octets.eq(segment.lead + segment.length),
            accounts.cuts.eq(delayed(m, 1, sends & ~bad, "sent")),
            accounts.ends.eq(delayed(m, 1, leaves & now.last & ~again, "last")),
            self.slot.eq(self.i.payload.turn.slot),
        ]
        return m

    def _describe(self, m, now, length, skips, stops, ends, bad):
        """Writes the tag of the segment that is cut, its share of the message's pieces, and whether
        it ends a Read Response.

        ``length``: its octets; ``ends``: it is the message's last one; ``bad``: it is refused.
        """
        segment, share, again = self.segments.payload, self.shares.payload, now.turn.repeat
        tag = data.View(SegmentTag(), segment.tag[:SegmentTag().size])
        m.d.sync += [
            segment.length.eq(length),
            tag.stream.eq(now.stream),
            tag.entries.eq(Mux(again, now.turn.slot, Mux(now.turn.response, 0, now.entries))),
            tag.repeat.eq(again),
            tag.signaled.eq(now.signaled),
            tag.ends.eq(ends),
            tag.stops.eq(stops),
            tag.response.eq(now.turn.response),
            share.response.eq(now.turn.response),
            share.stream.eq(now.stream),
            share.length.eq(Mux(skips, now.done, length)),
            share.ends.eq(stops | ends),
            share.refused.eq(stops | bad),
            share.skip.eq(skips),
            self.answered.valid.eq(ends & now.turn.response & ~again),
            self.answered.payload.eq(now.stream),
        ]

    def _why(self, m, has_credit, short, lacks):
        """Returns what the segment to be cut lacks, and whether it lacks nothing.

        ``has_credit``: its stream has credit; ``short``: its association has none; ``lacks``: it
        lacks a slot.
        """
        why = Signal(Waits)
        m.d.comb += why.eq(Mux(~has_credit, Waits.CREDIT, Mux(short, Waits.ASSOCIATION, Mux(
            lacks, Waits.READS, Waits.NOTHING))))
        return why, has_credit & ~short & ~lacks

    def _credit(self, m, first, tests, mulpdu, now, sends, ends, bad, shared):
        """Adds the accounts of credit. ``shared``: the segment is compared with the association's
        credit.

        Returns them; whether the segment to be cut has credit or needs none; whether the segment
        that is weighed, and the one to be cut, are compared with it; whether the stream has
        markers; and, for the segment that is weighed, whether it has failed and sends over SCTP.
        """
        m.submodules.accounts = accounts = CreditAccounts(
            self.streams, associations=self.associations)
        for name, port in (
            ("opens", accounts.set), ("limits", accounts.limits), ("closes", accounts.closes),
            ("look", accounts.look),
        ):
            wiring.connect(m, wiring.flipped(getattr(self, name)), port)
        left, markers, limited, failed, sctp = (
            Signal(bits, name=name) for name, bits in (
                ("credit", 30), ("markers", 1), ("limited", 1), ("failed", 1), ("sctp", 1)))
        # Words of a segment that is cut, as two numbers that are added up one cycle later.
        words = data.StructLayout({"plain": 15, "marked": 8})
        whole, final = Signal(words), Signal(words)
        needs, fits, scarce, scant = Signal(15), Signal(), Signal(), Signal()
        m.d.comb += needs.eq(
            Mux(ends, final.plain + final.marked, whole.plain + whole.marked))
        m.d.comb += scarce.eq(shared | Mux(
            first, accounts.limited & ~accounts.plenty,
            limited & ~Mux(sctp, left[SEGMENTS:], left[PLENTY:]).any()))
        m.d.comb += accounts.begins.eq(first)
        with m.If(first):
            m.d.sync += [
                left.eq(accounts.words), limited.eq(accounts.limited), markers.eq(accounts.markers),
                failed.eq(accounts.failed), sctp.eq(accounts.sctp)]
        with m.Elif(sends & ~bad):
            m.d.sync += left.eq(left - needs)
        chunks = Mux(first, accounts.sctp, sctp)
        with m.If(~tests):
            has_markers = Mux(first, accounts.markers, markers)
            m.d.sync += scant.eq(scarce)
            for segment, octets in ((whole, mulpdu), (final, now.left[:17])):
                plain, marked = enough(octets, has_markers)
                m.d.sync += [
                    segment.plain.eq(Mux(chunks, 1, plain)),
                    segment.marked.eq(Mux(chunks, 0, marked)),
                ]
        m.d.sync += fits.eq(Mux(tests, needs <= left, ~scarce | now.turn.repeat))
        return (accounts, fits, scarce, scant, markers,
                Mux(first, accounts.failed, failed), chunks)

    def _share(self, m, first, tests, accounts, mulpdu, now, sends, ends, bad, scarce):
        """Adds the credit of associations, and sets ``scarce`` if it may not suffice for all of the
        turn.

        Returns whether it is not known yet for the turn, and whether the segment to be cut lacks
        it.
        """
        if not self.associations:
            return C(0), C(0)
        m.submodules.shared = shared = AssociationCredit(self.streams, self.associations)
        for name, port in (
            ("begun", shared.set), ("allowed", shared.limits), ("refunds", shared.refunds)
        ):
            wiring.connect(m, wiring.flipped(getattr(self, name)), port)
        begins, shares, segment = Signal(), Signal(), self.segments.payload
        most, least = Signal(OCTETS), Signal(OCTETS)  # octets of a chunk, and of the last one
        with m.If(first):
            m.d.sync += shares.eq(begins)
        with m.If(~tests):
            m.d.sync += [most.eq(mulpdu + SSN), least.eq(now.left + SSN)]
        m.d.comb += [
            begins.eq(accounts.limited & accounts.sctp & ~now.turn.repeat),
            shared.begins.eq(first),
            shared.stream.eq(now.stream),
            shared.association.eq(accounts.association),
            self.queue.eq(shared.look),
            shared.front.eq(self.front),
            shared.needs.eq(Mux(ends, least, most)),
            shared.cuts.eq(delayed(m, 1, sends & shares, "charged")),
            shared.bad.eq(delayed(m, 1, bad, "given_up")),
            shared.octets.eq(segment.lead + segment.length + SSN),
        ]
        m.d.comb += scarce.eq(~first & shares & ~shared.plenty)
        return Mux(first, begins, shares & ~shared.there), scarce & ~shared.fits

    def _reads(self, m, first, now, takes, sends, bad, leaves):
        """Adds the slots of Reads; returns whether the message to be cut needs one that is not
        free, or waits until all of them are.
        """
        if self.slots is None:
            return C(0)
        m.submodules.slots = slots = self.slots
        m.submodules.sinks_ = sinks = Store(Sink(), depth=QUEUE)
        # A sink comes with its message, which takes longer.
        m.d.sync += [sinks.i.valid.eq(self.sinks.valid), sinks.i.payload.eq(self.sinks.payload)]
        for name in ("ords", "cleared", "stopped", "freed"):
            wiring.connect(m, wiring.flipped(getattr(self, name)), getattr(slots, name))
        for name in ("expected", "wake"):
            wiring.connect(m, getattr(slots, name), wiring.flipped(getattr(self, name)))
        room, begins = Signal(slots.room.shape()), Signal()  # ``begins``: with its first segment
        with m.If(takes):
            m.d.sync += begins.eq(~self.i.payload.done.any())
        with m.Elif(sends):
            m.d.sync += begins.eq(0)
        starts = begins & ~now.turn.repeat
        needs = now.read & starts
        taken, lacks = needs & sends & ~bad, Signal(name="lacks")
        with m.If(first):
            m.d.sync += room.eq(slots.room)
        with m.Elif(taken):
            m.d.sync += [room.slots.eq(room.slots - 1), room.idle.eq(0)]
        found = data.View(room.shape(), Mux(first, slots.room, room))
        m.d.sync += [
            lacks.eq(found.bounded & (
                (needs & ~found.slots.any()) | (now.fence & starts & ~found.idle))),
            slots.taken.valid.eq(taken),
            slots.taken.payload.stream.eq(now.stream),
            slots.taken.payload.sink.eq(sinks.o.payload),
        ]
        m.d.comb += [
            self.reading.eq(slots.reading | slots.taken.valid),
            slots.look.valid.eq(self.look.valid),
            slots.look.payload.eq(self.look.payload),
            slots.begins.eq(first),
            sinks.o.ready.eq(leaves & now.read),
        ]
        return lacks

    def _mulpdu(self, m, now, takes):
        """Returns the MULPDU of the message that is being cut, and whether its segments have room
        for an octet.

        ``takes``: the message was taken in this cycle or in the last one. The MULPDU comes from the
        table's port for the message that waits until the message has been cut for two cycles,
        because the table takes two cycles.
        """
        m.submodules.mulpdu_table = table = ForwardedTable(
            _Mulpdu(), self.streams, reads=2)
        written, octets = table.write.payload, self.mulpdus.payload.mulpdu
        m.d.comb += [
            table.write.valid.eq(self.mulpdus.valid),
            written.address.eq(self.mulpdus.payload.stream),
            written.data.octets.eq(octets),
            written.data.tagged.eq(octets > TAGGED_HEADER),
            written.data.untagged.eq(octets > UNTAGGED_HEADER),
            written.data.control.eq(octets > FUNCTION),
            table.address[0].eq(now.stream),
            table.address[1].eq(self.i.payload.stream),
        ]
        found, recent = Signal(_Mulpdu()), Signal()
        m.d.sync += recent.eq(takes)
        m.d.comb += found.eq(Mux(recent, table.data[1], table.data[0]))
        return found.octets, Mux(now.control & self.sctp, found.control, Mux(
            now.tagged, found.tagged, found.untagged))

    def _msn(self, m, now, fresh, cuts, sent):
        """Returns the MSN of the message that is being cut; ``cuts``: one of its segments is, and
        ``sent``: its last one is.

        The look-up is that of the message at the input, as it becomes ``now``, and is there two
        cycles later, when the first segment can be cut.
        """
        m.submodules.msn_table = table = ForwardedTable(32, self.streams * QUEUES)
        kept, msn, own = Signal(32, reset_less=True), Signal(32), Signal()
        m.d.comb += [
            msn.eq(Mux(fresh[1], table.data[0], kept)),
            own.eq(sent & ~now.tagged & ~(now.control & self.sctp) & ~now.turn.repeat),
            self.msns.ready.eq(~cuts),
            table.address[0].eq(Cat(self.i.payload.qn, self.i.payload.stream)),
            table.write.valid.eq(own | (self.msns.valid & ~cuts)),
            table.write.payload.address.eq(Mux(
                cuts, Cat(now.qn, now.stream),
                Cat(self.msns.payload.qn, self.msns.payload.stream))),
            table.write.payload.data.eq(Mux(cuts, msn + 1, self.msns.payload.msn)),
        ]
        m.d.sync += kept.eq(msn)
        return msn

    def _turn(self, m, now, fresh, first, sends, ends, length, leaves, stops, scant, marked, why):
        """Counts the octets and entries of a turn, and reports its result.

        ``ends``: the segment is the message's last one; ``scant``: it was compared with its credit;
        ``marked``: its stream has markers; ``why``: what the segment to be cut lacks.
        Returns whether the turn has octets for a segment.
        """
        # Octets that the turn has left, less one. ``budget`` is the same where a segment is cut,
        # because none was cut one cycle ago.
        budget, left = Signal(signed(LENGTH_BITS + 2)), Signal(signed(LENGTH_BITS + 2))
        # ``spent`` is the cost of the segment that was cut one cycle ago.
        cost, spent = Signal(LENGTH_BITS + 1), Signal(LENGTH_BITS + 1)
        stopped, begun, may = Signal(name="stopped"), Signal(), Signal()
        entries, done, sent, needs = Signal(8), Signal(32, name="done"), Signal(32), Signal(8)
        finished = sends & ends
        # Entries of the turn's messages before this one, and with it.
        earlier, all_entries = Mux(first, 0, entries), Signal(8)
        m.d.comb += all_entries.eq(earlier + now.entries)
        least = Mux(scant, max(LEAST, COMPARED * self.width // 8), LEAST)
        m.d.comb += [
            cost.eq(Mux(length + OVERHEAD < least, least, length + OVERHEAD)),
            left.eq(budget - spent),
        ]
        upcoming = Signal(budget.shape())
        m.d.comb += upcoming.eq(Mux(
            fresh[0], Mux(first, now.turn.octets, left)
            - Cat(first, C(0, exact_log2(ENTRY) - 1), now.further), left))
        m.d.sync += [
            spent.eq(Mux(sends, cost, 0)),
            budget.eq(upcoming),
            may.eq(first | (~stopped & (~begun | ~upcoming[-1]))),
        ]
        with m.If(first):
            m.d.sync += [stopped.eq(0), entries.eq(0), begun.eq(0)]
        with m.Elif(sends):
            m.d.sync += begun.eq(1)
        # ``sent`` counts the octets of this message, those of earlier turns too.
        with m.If(fresh[0]):
            m.d.sync += sent.eq(now.done)
        with m.Elif(sends):
            m.d.sync += sent.eq(sent + length)
        with m.If(finished):
            m.d.sync += entries.eq(all_entries)
        with m.If(stops & ~stopped):
            m.d.sync += [stopped.eq(1), done.eq(sent), needs.eq(now.entries)]
        # The reason why the first message stopped, be it in this cycle.
        waits, earlier_waits = Signal(Waits), Signal(Waits)
        m.d.comb += waits.eq(Mux(stopped & ~first, earlier_waits, Mux(
            stops & may, why, Waits.NOTHING)))
        m.d.sync += earlier_waits.eq(waits)

        # A message without a segment leaves in its first cycle, before the turn's numbers are set.
        ended, untouched = Signal(), Signal()
        result = self.results.payload
        before = Signal(result.shape())
        m.d.sync += [
            ended.eq(leaves & now.last & ~now.turn.repeat),
            untouched.eq(first),
            before.stream.eq(now.stream),
            before.response.eq(now.turn.response),
            before.entries.eq(Mux(finished, all_entries, earlier)),
            before.done.eq(Mux(first, now.done, Mux(stopped, done, Mux(stops, sent, 0)))),
            before.needs.eq(Mux(stopped & ~first, needs, Mux(now.partial | stops, now.entries, 0))),
            before.stopped.eq(stops | (stopped & ~first)),
            # ``enough`` is exact for the first segment of a turn only, or without markers.
            before.again.eq((waits != Waits.ASSOCIATION) & Mux(
                waits == Waits.CREDIT, begun & marked, goes_on(
                    slotless=waits == Waits.READS, asked=now.turn.answers,
                    more=now.turn.more | now.partial | stops | (stopped & ~first)))),
            before.waits.eq(waits),
            self.results.valid.eq(ended),
            result.eq(before),
            result.spent.eq(~untouched & left[-1]),
            result.over.eq(Mux(untouched | ~left[-1], 0, Mux(
                left[exact_log2(QUANTUM):].all(), ~left[:exact_log2(QUANTUM)], QUANTUM - 1))),
        ]
        if self.associations:
            m.d.sync += [before.association.eq(self.queue), before.sent.eq(begun)]
        return may

    def _header(self, now, msn, ends):
        """Returns the DDP header (RFC 5041 sections 4.1 to 4.3), or the Function Code (RFC 5043
        section 5.2.3), the first octet lowest.
        """
        def wire(value):
            return Cat(value.word_select(k, 8) for k in reversed(range(len(value) // 8)))

        control = Cat(C(VERSION, 2), C(0, 4), ends, now.tagged)
        tagged = Cat(control, now.rsvdulp[:8], wire(now.name), wire(now.at))
        untagged = Cat(control, now.rsvdulp, wire(now.name), wire(msn), wire(now.at[:32]))
        return Mux(
            now.control & self.sctp, now.rsvdulp[:8 * FUNCTION],
            Mux(now.tagged, tagged, untagged))


class Segmenter(wiring.Component):
    """Turns work requests into segments, and into the parts of pieces that their octets are.

    A part names an STag: what checks the STag stands between ``parts`` and the reads. ``reserved``
    says that there is room for a segment; only then do its parts leave. A segment that is refused
    has its last part marked so. That is the fault of the ring's entries: they are not valid, the
    pieces do not add up to the length, or there is no MULPDU. All further segments of the message
    are refused too.

    Latency: 10 cycles from a message's first entry to its first segment; 1 from ``reserved`` to a
    part that was cut before. Throughput: one segment in 2 cycles, one part in 2 cycles. Reset:
    empty; MSNs and MULPDUs stay. Errors: ``refused``.

    Parameters
    ----------
    width : int
        Bits of a beat: a segment costs at least the cycles that it takes.
    streams : int
        DDP Streams, a power of two, up to 4096.
    inline : int
        Rows of the inline memory, a power of two. A row has the octets of an entry.
    receive : bool
        As in :class:`~.work.WorkReader`.
    associations, reads : int
        As in :class:`Cutter`.

    Members
    -------
    i : In(stream.Signature(WorkEntry(streams)))
        The entries of a turn follow each other.
    mulpdus, msns, opens, limits, closes, begun, allowed, refunds, queue, front, results, answered
        As in :class:`Cutter`.
    room : In(1)
        There is room for 4 items of ``answered``.
    ords, cleared, stopped, freed, expected, wake, reading
        As in :class:`Cutter`.
    segments : Out(stream.Signature(ReadSegment()))
    reserved : In(stream.Signature(TAG_BITS, always_ready=True))
        There is room for the next segment.
    parts : Out(stream.Signature(SendPart(streams)))
        The parts of reserved segments, one or more for each.
    inline : Out(stream.Signature(512))
        An entry with octets inline, for the next row of the inline memory.
    begins : Out(1)
        A message begins, which will have one segment with a mark.
    slot, repeat
        As in :class:`Cutter`.
    """

    def __init__(self, width, streams, *, inline=256, associations=0, receive=True, reads=0):
        for name, value, least, most in (("streams", streams, 2, 4096), ("inline", inline, 4, 256)):
            if not isinstance(value, int) or isinstance(value, bool):
                raise TypeError(f"Segmenter {name} must be an integer, not {value!r}")
            if not least <= value <= most or value & value - 1:
                raise ValueError(
                    f"Segmenter {name} must be a power of two from {least} to {most},"
                    f" not {value!r}")
        self.width, self.streams, self.rows = width, streams, inline
        self.associations, self.sctp = associations, associations > 0
        self.receive, self.reads = receive, reads
        super().__init__({
            **read_ports(streams, reads),
            "i": In(stream.Signature(WorkEntry(streams))),
            "mulpdus": In(stream.Signature(Mulpdu(streams), always_ready=True)),
            "msns": In(stream.Signature(NextMsn(streams))),
            **credit_ports(streams, associations),
            "segments": Out(stream.Signature(ReadSegment())),
            "reserved": In(stream.Signature(TAG_BITS, always_ready=True)),
            "parts": Out(stream.Signature(SendPart(streams))),
            "inline": Out(stream.Signature(512)),
            "results": Out(stream.Signature(TurnResult(streams, associations), always_ready=True)),
            "begins": Out(1),
            "answered": Out(stream.Signature(range(streams), always_ready=True)),
            "room": In(1, init=1),
            "slot": Out(SLOT_BITS),
            "repeat": In(Repeat(streams)),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.reader = reader = WorkReader(
            self.streams, inline=self.rows, sctp=self.sctp, receive=self.receive)
        m.submodules.messages = messages = Store(SendMessage(self.streams), depth=4, direct=True)
        m.submodules.pieces = pieces = Store(LocalPiece(), depth=QUEUE)
        m.submodules.preparation = preparation = Preparation(self.streams, sctp=self.sctp)
        m.submodules.cutter = cutter = Cutter(
            self.width, self.streams, associations=self.associations, reads=self.reads)
        m.submodules.segments = segments = Store(ReadSegment(), depth=QUEUE, direct=True)
        m.submodules.shares = shares = Store(Share(self.streams), depth=QUEUE, direct=True)
        m.submodules.parts = parts = PieceCutter(self.streams)
        wiring.connect(m, wiring.flipped(self.i), reader.i)
        wiring.connect(m, reader.inline, wiring.flipped(self.inline))
        wiring.connect(m, reader.messages, messages.i)
        wiring.connect(m, reader.turns, cutter.look)
        wiring.connect(m, reader.pieces, pieces.i)
        wiring.connect(m, messages.o, preparation.i)
        wiring.connect(m, preparation.o, cutter.i)
        shared = ("begun", "allowed", "refunds") if self.associations else ()
        for name in ("msns", "opens", "limits", "closes", *shared):
            wiring.connect(m, wiring.flipped(getattr(self, name)), getattr(cutter, name))
        wiring.connect(m, cutter.results, wiring.flipped(self.results))
        wiring.connect(m, cutter.answered, wiring.flipped(self.answered))
        if self.associations:
            m.d.comb += [self.queue.eq(cutter.queue), cutter.front.eq(self.front)]
        if self.reads:
            wiring.connect(m, reader.sinks, cutter.sinks)
            m.d.comb += self.reading.eq(cutter.reading)
            for name in ("ords", "cleared", "stopped", "freed"):
                wiring.connect(m, wiring.flipped(getattr(self, name)), getattr(cutter, name))
            for name in ("expected", "wake"):
                wiring.connect(m, getattr(cutter, name), wiring.flipped(getattr(self, name)))
        wiring.connect(m, wiring.flipped(self.mulpdus), cutter.mulpdus)
        wiring.connect(m, cutter.segments, segments.i)
        wiring.connect(m, cutter.shares, shares.i)
        wiring.connect(m, segments.o, wiring.flipped(self.segments))
        wiring.connect(m, pieces.o, parts.pieces)
        wiring.connect(m, shares.o, parts.shares)

        m.d.comb += [
            self.slot.eq(cutter.slot),
            cutter.repeat.eq(self.repeat),
            self.begins.eq(reader.messages.valid & ~reader.messages.payload.partial),
        ]
        # A segment's parts wait until there is room for it.
        reserved = Signal(range(513))
        m.d.comb += [
            self.parts.valid.eq(parts.o.valid & reserved.any()),
            self.parts.payload.eq(parts.o.payload),
            parts.o.ready.eq(self.parts.ready & reserved.any()),
        ]
        counted(m, reserved, self.reserved.valid,
                self.parts.valid & self.parts.ready & self.parts.payload.last)
        m.d.sync += [
            reader.go.eq(messages.half & pieces.half),
            cutter.go.eq(segments.half & shares.half & self.room),
        ]
        return m

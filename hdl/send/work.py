"""Takes apart the entries of the send ring: messages, and the pieces or octets that they have."""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..lib.stream import Skid, Stage
from ..rdmap import read_request
from ..rdmap.requester import Sink
from ..spec.sctp import MOST_PRIVATE
from ..spec.send import ENTRY, MESSAGE, PIECE, PIECE_OCTETS, Flag, Kind
from .repeats import SLOT_BITS

__all__ = ["QUANTUM", "QUEUES", "LocalPiece", "SendMessage", "Turn", "WorkEntry", "WorkReader"]

#: Untagged queues of a stream, from Queue Number 0 on, as on the receive side.
QUEUES = 4
#: Octets that a stream sends in a turn. No segment should be longer.
QUANTUM = 1 << 14
#: Pieces in an entry, and where those of a message's first entry begin.
SLOTS, FIRST_SLOT = ENTRY // PIECE_OCTETS, 2


class Turn(data.StructLayout):
    """The facts about a turn that its first message brings.

    Members
    -------
    first : 1
        The turn begins here. The other members are the same in all of the turn.
    octets : range(QUANTUM + 1)
        Octets that the stream may send in the turn.
    done : 32
        Octets of the first message that were sent in earlier turns.
    more : 1
        The stream has more to send, after the entries that were read for the turn.
    response : 1
        The messages are Read Responses, and each has one entry.
    answers : 1
        The messages are none, and Read Responses are to be sent, too.
    repeat : 1
        One segment is sent again, that of ``slot`` (SLOT_BITS), as :class:`~.repeats.Repeats` knows
        it.
    """

    def __init__(self):
        super().__init__({
            "first": 1, "octets": range(QUANTUM + 1), "done": 32, "more": 1, "response": 1,
            "answers": 1, "repeat": 1, "slot": SLOT_BITS})


class WorkEntry(data.StructLayout):
    """An entry of the send ring that was read for a turn.

    Members
    -------
    entry : 512
        The first octet lowest.
    stream : range(streams)
    rest : 8
        Entries that were read for the same turn, from this one on.
    turn : Turn()
    """

    def __init__(self, streams):
        super().__init__({
            "entry": 8 * ENTRY, "stream": range(streams), "rest": 8, "turn": Turn()})


class SendMessage(data.StructLayout):
    """A message to be cut into segments.

    Members
    -------
    stream : range(streams)
    tagged : 1
    rsvdulp : 40
        In the order of the wire, the first octet lowest; a tagged message has one octet.
    length : 32
    stag : 32, to : 64
        Of a tagged message: the peer's STag, and the Tagged Offset of the first octet.
    qn : range(QUEUES)
        Of an untagged message.
    control : 1
        A session control message of SCTP; ``rsvdulp`` begins with its Function Code.
    read : 1
        A Read Request, which has a sink.
    refused : 1
        The entries are not valid: the message has one segment, which is given up.
    signaled : 1
        Its success is reported.
    fence : 1
        It waits for the end of all earlier Reads of its stream.
    entries, pieces : 8
    partial : 1
        Not all entries of the message were read for the turn. It has no piece, and is not sent now.
    last : 1
        The last message of the turn.
    turn : Turn()
    """

    def __init__(self, streams):
        super().__init__({
            "stream": range(streams), "tagged": 1, "control": 1, "read": 1, "rsvdulp": 40,
            "length": 32, "stag": 32, "to": 64, "qn": range(QUEUES), "refused": 1, "signaled": 1,
            "fence": 1, "entries": 8, "pieces": 8, "partial": 1, "last": 1, "turn": Turn()})


class LocalPiece(data.StructLayout):
    """A piece of a message.

    Members
    -------
    stag : 32, to : 64, length : 32
        As :data:`~..spec.send.PIECE` declares.
    inline : 1
        The octets were inline: ``to`` is the number of the first one in the inline memory.
    last : 1
        The message's last piece. Each message has one at least.
    probe : 1
        The piece has no octets, but one octet there has to be readable.
    """

    def __init__(self):
        super().__init__({
            "stag": 32, "to": 64, "length": 32, "inline": 1, "last": 1, "probe": 1})


def _fields(octets, table):
    """Returns the values of the fields that a table of the specification declares, by name."""
    return {name: octets[8 * octet + bit:8 * octet + bit + bits]
            for name, octet, bit, bits, _ in table}


class _Step(data.StructLayout):
    """The facts about the rest of a message that decide about a cycle.

    Members
    -------
    stores : 1
        Its entries have octets inline, which are stored.
    plain : 1
        It has a piece: ``one`` (1), one and no more.
    alone : 1
        No entry of it follows.
    """

    def __init__(self):
        super().__init__({"stores": 1, "plain": 1, "one": 1, "alone": 1})


class _Compared(data.StructLayout):
    """An entry, with comparisons of its fields for the case that it is a message's first one.

    Members
    -------
    work : WorkEntry(streams)
    valid : 1
        A message of this kind can have such a Queue Number, length, number of pieces and flags, if
        it is no READ or has ``equal`` (1) lengths, of the message and of its sink.
    fits : 1
        Its entries are as many as its pieces, or its octets inline, need.
    beyond : 1
        They are more than were read for the turn.
    """

    def __init__(self, streams):
        super().__init__({
            "work": WorkEntry(streams), "valid": 1, "equal": 1, "fits": 1, "beyond": 1})


class _Judged(data.StructLayout):
    """An entry, and the decisions for the case that it is the first one of a message.

    Members
    -------
    work : WorkEntry(streams)
    bad : 1
        The message is not sent now: it is wrong, or ``partial`` (1), as in :class:`SendMessage`.
    entries : 8
        Its entries, one or more. A wrong message has no more than were read for the turn.
    inline : 1
        Its octets are in the entries, or made of them: ``read`` (1), a Read Request.
    step : _Step
        That of its first piece.
    final : 1
        The entry is the last one that was read for the turn.
    """

    def __init__(self, streams):
        super().__init__({
            "work": WorkEntry(streams), "bad": 1, "partial": 1, "entries": 8, "inline": 1,
            "read": 1, "step": _Step(), "final": 1})


class WorkReader(wiring.Component):
    """Takes apart the entries of messages.

    A message whose entries are not valid (kind, Queue Number, or the number of entries) has the
    flag ``refused``, and a piece of no octets. So has a message whose octets inline have more
    entries than half of the inline memory has rows. A READ becomes a message of its own: a Read
    Request, inline. If a message has more entries than were read for the turn, the others are
    dropped, and the turn ends.

    Latency: 2 cycles to ``messages``, ``pieces`` and ``inline``. Throughput: one piece per cycle,
    and one entry per cycle with no more than one piece. Reset: the next entry begins a message.
    Errors: ``refused``.

    Parameters
    ----------
    streams : int
    inline : int
        Rows of the inline memory, a power of two. A row has the octets of an entry.
    sctp : bool
        The device sends over SCTP, too: session control messages are valid.
    receive : bool
        The device receives, too: READs are valid.

    Members
    -------
    i : In(stream.Signature(WorkEntry(streams)))
        Those of a turn follow each other.
    go : In(1)
        There is room for two messages and two pieces.
    messages : Out(stream.Signature(SendMessage(streams), always_ready=True))
    pieces : Out(stream.Signature(LocalPiece(), always_ready=True))
    sinks : Out(stream.Signature(Sink(), always_ready=True))
        The sink of each message that is a ``read``, with the message.
    inline : Out(stream.Signature(512))
        An entry with octets inline, for the next row of the inline memory.
    turns : Out(stream.Signature(range(streams), always_ready=True))
        The stream of each turn, at least one cycle before its first message.
    """

    def __init__(self, streams, *, inline, sctp=False, receive=True):
        self.streams, self.rows, self.sctp, self.receive = streams, inline, sctp, receive
        super().__init__({
            "i": In(stream.Signature(WorkEntry(streams))),
            "go": In(1),
            "messages": Out(stream.Signature(SendMessage(streams), always_ready=True)),
            "pieces": Out(stream.Signature(LocalPiece(), always_ready=True)),
            "sinks": Out(stream.Signature(Sink(), always_ready=True)),
            "inline": Out(stream.Signature(8 * ENTRY)),
            "turns": Out(stream.Signature(range(streams), always_ready=True)),
        })

    def elaborate(self, platform):
        m = Module()
        stage = self._take(m)
        judged, now = stage.o.payload, stage.o.payload.work
        entry = now.entry
        head = {name: Value.cast(value) for name, value in _fields(entry, MESSAGE).items()}
        # Of the message whose entries come: entries after this one, pieces from this one on.
        first, entries, pieces = Signal(init=1), Signal(8), Signal(8)
        kept_inline, kept_bad = Signal(), Signal()
        more, left, inline, bad = Signal(8), Signal(8), Signal(), Signal()
        now_is, later = Signal(_Step()), Signal(_Step())
        sink = _fields(entry.word_select(FIRST_SLOT, 8 * PIECE_OCTETS), PIECE)
        read, partial = Signal(), Signal()
        m.d.comb += [
            # The entries of a partial message are dropped as those of a wrong one.
            partial.eq(first & judged.partial),
            read.eq(first & judged.read),
            more.eq(Mux(first, judged.entries - 1, entries)),
            left.eq(Mux(first, head["pieces"], pieces)),
            inline.eq(Mux(first, judged.inline, kept_inline)),
            bad.eq(Mux(first, judged.bad, kept_bad)),
            now_is.eq(Mux(first, judged.step, later)),
        ]

        # One piece leaves per cycle. An entry that has none takes one cycle too.
        open, kept_open = Signal(), Signal()  # room stays until it is used
        slot, at = Signal(range(SLOTS)), Signal(range(SLOTS))
        begun = Signal()  # pieces of this entry have left
        plain = now_is.plain
        ends_entry, step, row = Signal(), Signal(), Signal(range(self.rows))
        may, may_first = Signal(), Signal()  # there is room; also for octets of a first entry
        m.d.comb += [
            at.eq(Mux(begun, slot, Mux(first, FIRST_SLOT, 0))),
            ends_entry.eq(~plain | now_is.one | (begun & (slot == SLOTS - 1))),
            open.eq(self.go | kept_open),
            may.eq(stage.o.valid & open),
            may_first.eq(may & (self.inline.ready | ~judged.step.stores)),
            self.inline.valid.eq(may & now_is.stores),
            self.inline.payload.eq(Mux(read, Cat(
                C(0, 8 * FIRST_SLOT * PIECE_OCTETS),
                read_request.encode(
                    sink["stag"], sink["to"], sink["length"], head["stag"], head["to"])), entry)),
            step.eq(may & (self.inline.ready | ~now_is.stores)),
            stage.o.ready.eq(step & ends_entry),
        ]
        m.d.sync += kept_open.eq(open & stage.o.valid & ~step)
        with m.If(step):
            m.d.sync += [
                begun.eq(~ends_entry), slot.eq(at + 1), pieces.eq(left - plain),
                first.eq(ends_entry & (now_is.alone | judged.final)),
                later.stores.eq(now_is.stores),
                later.plain.eq(plain & ~now_is.one),
                later.one.eq(left == 2),
                later.alone.eq(Mux(ends_entry, more == 1, now_is.alone)),
                entries.eq(more - ends_entry),
                kept_inline.eq(inline), kept_bad.eq(bad),
            ]
            with m.If(now_is.stores):
                m.d.sync += row.eq(row + 1)

        message, piece = self.messages.payload, self.pieces.payload
        chosen = _fields(entry.word_select(at, 8 * PIECE_OCTETS), PIECE)
        m.d.comb += [
            self.messages.valid.eq(may_first & first),
            message.stream.eq(now.stream),
            message.tagged.eq(head["kind"] == Kind.TAGGED),
            message.control.eq((head["kind"] == Kind.CONTROL) & self.sctp),
            message.read.eq(read & ~bad),
            self.sinks.valid.eq(self.messages.valid & message.read),
            *(self.sinks.payload[name].eq(sink[name]) for name, _ in Sink()),
            message.refused.eq(bad),
            message.signaled.eq((head["flags"] & Flag.SIGNALED).any()),
            message.fence.eq((head["flags"] & Flag.FENCE).any()),
            message.entries.eq(judged.entries),
            message.pieces.eq(head["pieces"]),
            message.partial.eq(partial),
            message.last.eq(partial | (judged.entries >= now.rest)),
            message.turn.eq(now.turn),
            *(message[name].eq(head[name]) for name in ("rsvdulp", "stag", "to")),
            message.length.eq(Mux(read, read_request.OCTETS, head["length"])),
            message.qn.eq(Mux(read, read_request.QN, head["qn"])),
            # A message without a piece gets one of no octets, and so does a refused one.
            self.pieces.valid.eq(Mux(first, may_first & ~judged.partial, may & later.plain)),
            piece.stag.eq(chosen["stag"]),
            piece.inline.eq(now_is.stores),
            piece.to.eq(Mux(inline, (row << 6) | FIRST_SLOT * PIECE_OCTETS, chosen["to"])),
            piece.length.eq(
                Mux(now_is.stores, message.length, Mux(plain, chosen["length"], 0))),
            piece.last.eq(~plain | now_is.one),
            piece.probe.eq(now.turn.response & plain & (left == 2)),
        ]
        return m

    def _take(self, m):
        """Registers entries with the comparisons of their fields, and then with decisions.

        Returns the second register.
        """
        m.submodules.compared = compared = Skid(_Compared(self.streams))
        m.submodules.stage = stage = Stage(_Judged(self.streams))
        m.d.comb += [
            compared.i.valid.eq(self.i.valid),
            self.i.ready.eq(compared.i.ready),
            compared.i.payload.work.eq(self.i.payload),
            stage.i.valid.eq(compared.o.valid),
            compared.o.ready.eq(stage.i.ready),
            self.turns.valid.eq(
                compared.o.valid & stage.i.ready & compared.o.payload.work.turn.first),
            self.turns.payload.eq(compared.o.payload.work.stream),
            stage.i.payload.work.eq(compared.o.payload.work),
        ]
        self._compare(m, compared.i.payload)
        self._judge(m, compared.o.payload, stage.i.payload)
        return stage

    def _compare(self, m, compared):
        """Compares the fields of an entry, for the case that it is the first one of a message."""
        entry = compared.work.entry
        head = {name: Value.cast(value) for name, value in _fields(entry, MESSAGE).items()}
        sink = _fields(entry.word_select(FIRST_SLOT, 8 * PIECE_OCTETS), PIECE)
        inline = (head["flags"] & Flag.INLINE).any()
        read = (head["kind"] == Kind.READ) & self.receive
        untagged = head["kind"] == Kind.UNTAGGED
        control = (head["kind"] == Kind.CONTROL) & (head["length"] <= MOST_PRIVATE) & self.sctp
        m.d.comb += [
            compared.valid.eq(
                ((head["kind"] == Kind.TAGGED) | (untagged & (head["qn"] < QUEUES)) | control
                 | (read & (head["pieces"] == 1) & ~inline))
                & ~(inline & (head["pieces"].any() | (head["entries"] > self.rows // 2)))),
            compared.equal.eq(head["length"] == sink["length"]),
            # The pieces, or the octets that have half of the first entry, say how many entries
            # there are. Octets inline are fewer than 2**13: half of the inline memory.
            compared.fits.eq(Mux(
                inline,
                ((head["length"][:13] + 95) >> 6 == head["entries"]) & ~head["length"][13:].any(),
                (head["pieces"] + 5) >> 2 == head["entries"])),
            compared.beyond.eq(head["entries"] > compared.work.rest),
        ]

    def _judge(self, m, compared, judged):
        """Decides about an entry, for the case that it is the first one of a message."""
        head = {name: Value.cast(value)
                for name, value in _fields(judged.work.entry, MESSAGE).items()}
        inline = (head["flags"] & Flag.INLINE).any()
        read = (head["kind"] == Kind.READ) & self.receive
        wrong, beyond = Signal(), compared.beyond
        m.d.comb += [
            # All entries of a message that is repeated were read, if they are still the same.
            wrong.eq(~compared.valid | ~compared.fits | (read & ~compared.equal)
                     | (judged.work.turn.repeat & beyond)),
            judged.partial.eq(~wrong & beyond),
            judged.bad.eq(wrong | beyond),
            # A wrong message ends with the entries that are dropped as its own. If it had none,
            # the turns of its stream would not come to an end.
            judged.entries.eq(Mux(wrong & beyond, judged.work.rest, Mux(
                head["entries"].any(), head["entries"], 1))),
            judged.inline.eq(inline | read),
            judged.read.eq(read),
            judged.step.stores.eq(judged.inline & ~judged.bad),
            judged.step.plain.eq(~judged.inline & ~judged.bad & head["pieces"].any()),
            judged.step.one.eq(head["pieces"] == 1),
            judged.step.alone.eq(Mux(wrong & beyond, judged.final, head["entries"] <= 1)),
            judged.final.eq(judged.work.rest == 1),
        ]

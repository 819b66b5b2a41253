"""Cuts the pieces of messages where segments end."""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..dma.jobs import LENGTH_BITS
from ..lib.stream import Store
from .work import LocalPiece

__all__ = ["PieceCutter", "SendPart", "Share"]

QUEUE = 8


class Share(data.StructLayout):
    """The share of a message's octets that a segment has: the next ``length`` (32).

    ``ends`` (1): the message's last segment. ``refused`` (1): the segment is given up. ``skip``
    (1): the octets are those of no segment, because they were sent in an earlier turn.
    ``response`` (1): the message is a Read Response.
    """

    def __init__(self, streams):
        super().__init__({
            "stream": range(streams), "length": 32, "ends": 1, "refused": 1, "skip": 1,
            "response": 1})


class SendPart(data.StructLayout):
    """A part of a piece: the next octets of a segment.

    Members
    -------
    stream : range(streams)
    stag : 32, to : 64, inline : 1, probe : 1
        As in :class:`~.work.LocalPiece`, of the part's first octet.
    response : 1
        The peer reads the octets.
    length : 17
        May be 0.
    last, refused : 1
        As in :class:`~..dma.read.ReadPiece`.
    """

    def __init__(self, streams):
        super().__init__({
            "stream": range(streams), "stag": 32, "to": 64, "inline": 1, "length": LENGTH_BITS,
            "last": 1, "refused": 1, "probe": 1, "response": 1})


class PieceCutter(wiring.Component):
    """Cuts the pieces of messages into parts that belong to one segment.

    If the pieces of a message do not add up to its length, the segment where that shows is refused,
    and so is each later segment of the message.

    Latency: 4 cycles from a share to its part. Throughput: one part in 2 cycles. Reset: empty.
    Errors: ``refused``.

    Members
    -------
    shares : In(stream.Signature(Share(streams)))
        In the order of the messages.
    pieces : In(stream.Signature(LocalPiece()))
        The pieces of the same messages, one or more for each.
    o : Out(stream.Signature(SendPart(streams)))
    """

    def __init__(self, streams):
        self.streams = streams
        super().__init__({
            "shares": In(stream.Signature(Share(streams))),
            "pieces": In(stream.Signature(LocalPiece())),
            "o": Out(stream.Signature(SendPart(streams))),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.queue = queue = Store(
            SendPart(self.streams), depth=QUEUE, direct=True)
        wiring.connect(m, queue.o, wiring.flipped(self.o))
        share, piece = Signal(Share(self.streams)), Signal(LocalPiece())
        has_share, has_piece = Signal(), Signal()
        # The pieces of a message were wrong; the rest of them are dropped.
        broken, drops = Signal(), Signal()
        # A part takes two steps: piece and segment are compared, and then cut.
        weighs, cuts = Signal(), Signal()
        rest = Signal(signed(34))  # octets of the piece after the segment's end
        beyond, short = Signal(signed(34), reset_less=True), Signal(32, reset_less=True)
        # They end with the same octet. The piece covers the rest of the segment: a message's last
        # segment takes all pieces that are left, even if they have no octets.
        exact, covered, final = Signal(), Signal(), Signal()
        covers, bad, ends, passes = (Signal(reset_less=True) for _ in range(4))
        wrong = broken | share.refused
        m.d.comb += [
            weighs.eq(has_share & has_piece & queue.half & ~cuts & ~drops),
            rest.eq(piece.length - share.length),
            exact.eq(piece.length == share.length),
            covered.eq(~rest[-1] & ~(exact & share.ends & ~piece.last)),
            final.eq(covered | wrong | piece.last),
        ]
        m.d.sync += [
            cuts.eq(weighs),
            beyond.eq(rest),
            short.eq(share.length - piece.length),
            covers.eq(covered),
            bad.eq(wrong | Mux(covered, share.ends & ~exact, piece.last)),
            ends.eq(final),
            passes.eq(~final | share.ends | (exact & ~piece.last)),
        ]

        leaves_share, leaves_piece = Signal(), Signal()
        carry, low = Signal(), Signal(33)
        m.d.comb += [
            low.eq(piece.to[:32] + share.length),
            leaves_share.eq(cuts & ends),
            leaves_piece.eq(drops | (cuts & passes)),
            self.shares.ready.eq(~has_share | leaves_share),
            self.pieces.ready.eq(~has_piece | leaves_piece),
        ]
        self._load(m, self.shares, share, has_share, leaves_share)
        self._load(m, self.pieces, piece, has_piece, leaves_piece)
        with m.If(cuts):
            m.d.sync += [
                broken.eq(bad & ~share.ends),
                drops.eq(ends & share.ends & ~piece.last),
            ]
            with m.If(~ends):
                m.d.sync += share.length.eq(short)
            # Where pieces are wrong, the piece stays: past its end are rows of later messages.
            with m.If(~leaves_piece & ~bad):
                m.d.sync += [piece.length.eq(beyond), Cat(piece.to[:32], carry).eq(low)]
        # The upper half of the offset is added up one cycle after the lower one.
        with m.If(carry):
            m.d.sync += [piece.to[32:].eq(piece.to[32:] + 1), carry.eq(0)]
        with m.If(drops & has_piece):
            m.d.sync += drops.eq(~piece.last)

        part = queue.i.payload
        m.d.sync += [
            queue.i.valid.eq(cuts & ~share.skip),
            part.stream.eq(share.stream),
            *(part[name].eq(piece[name]) for name in ("stag", "to", "inline", "probe")),
            part.response.eq(share.response),
            part.length.eq(Mux(bad, 0, Mux(covers, share.length, piece.length))),
            part.last.eq(ends),
            part.refused.eq(bad),
        ]
        return m

    def _load(self, m, port, item, has, leaves):
        """Takes the next item when the current one leaves."""
        # ``valid`` does not gate the wide register: its payload is loaded in any case.
        with m.If(port.ready):
            m.d.sync += [has.eq(port.valid), item.eq(port.payload)]

"""Finds the chunks of the SCTP packets in Ethernet frames (RFC 9260, RFC 5043)."""

from amaranth import *
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from ..dma.buffer import Store
from ..lib.crc32c import Checksum, Slice
from ..lib.stream import Queue, any_of, nibbles
from ..spec.sctp import DATA_HEADER, LAST_OF_PACKET, SSN, ChunkType, DataFlag, Ppid
from .chunks import HEADER_WORDS, ChunkScan
from .frame import FrameBeat

__all__ = ["Kind", "PacketChecksum", "PacketJudge", "SctpSegment", "SctpWalker"]


class Kind(enum.Enum, shape=3):
    """The kind of an item of a frame."""

    SEGMENT = 0  # a DDP Segment Chunk, RFC 5043 section 5.2.2, of any length
    CONTROL = 1  # a DDP Stream Session Control message, section 5.2.3, of any length
    REFUSED = 2  # another DATA chunk
    CHUNK = 3  # another chunk, or any chunk after one that ends its packet
    FRAME = 4  # the end of the frame
    FRAGMENT = 5  # a fragment of one of the first two: unordered, without B or E, of any length


class SctpSegment(data.StructLayout):
    """A chunk that has begun, or the end of a frame.

    Positions count 32-bit words in the packet buffer, modulo its size. A member is meaningless for
    the kinds that its description does not name.

    Members
    -------
    kind : Kind
    header : 160
        SEGMENT: length of the DDP Segment in octets, as an ULPDU_Length, and the DDP header as
        received, first octet lowest; after the chunk's end it holds the octets that follow.
        CONTROL: length of Function Code and Private Data, and the Function Code in the first two
        octets after that length.
    ssn : 16
        SEGMENT, CONTROL: DDP-SSN.
    tsn : 32
        SEGMENT, CONTROL, REFUSED, FRAGMENT: Transmission Sequence Number.
    stream : 16
        SEGMENT, CONTROL, REFUSED, FRAGMENT: SCTP Stream Identifier.
    start : position
        First word of the chunk, or of the frame.
    payload : position
        SEGMENT: the word after the DDP header. CONTROL: the word after the Function Code.
        FRAME: the word after the frame's last one.
    length : 16
        Length of the chunk in octets, from its header. FRAME: octets in its last word, less one.
    chunks : 16
        Items of the frame before this one.
    sctp : 1
        FRAME: the frame had an SCTP packet, for which a checksum is output.
    framing : 1
        FRAME: the lengths of the packet's chunks do not add up, or the frame is shorter than the
        packet.
    oversize : 1
        FRAME: the frame does not fit the packet buffer and was not stored whole.
    """

    def __init__(self, config):
        position = range(config.buffer_octets // 4)
        super().__init__(
            {
                "kind": Kind,
                "header": 160,
                "ssn": 16,
                "tsn": 32,
                "stream": 16,
                "start": position,
                "payload": position,
                "length": 16,
                "chunks": 16,
                "sctp": 1,
                "framing": 1,
                "oversize": 1,
            }
        )


class PacketChecksum(data.StructLayout):
    """The checksum of an SCTP packet as received.

    Members
    -------
    expected : 32
        First octet lowest, as in :class:`~..lib.crc32c.Checksum`.
    odd : 1
        The packet's length is not allowed, so that no checksum is right.
    """

    def __init__(self):
        super().__init__({"expected": 32, "odd": 1})


class SctpWalker(wiring.Component):
    """Walks over the beats of all frames, and from chunk to chunk of SCTP packets.

    In each cycle, the walker handles one chunk or moves on to the next beat. A beat is written to
    the packet buffer once, as received, and is given to the CRC unit if it has words of an SCTP
    packet. A chunk may begin at any word. Each chunk becomes an item, up to and including the first
    one whose length is wrong, and so does the end of each frame. After a chunk that ends its packet
    (see Chunks that end a packet in :mod:`~..spec.sctp`), all chunks of the packet have the kind
    CHUNK.

    Latency: from a beat to its slice 7 cycles; to the items that begin in it 9 at 64 and 128 bits,
    and 10 at 256 and 512, once the five beats after it or the rest of the frame have arrived.
    Throughput: one beat per cycle, or one item per cycle where a beat has more than one, the
    frame's end counted.
    Reset: empty; unfinished chunks are forgotten.
    Errors: the frame's item has ``framing`` set if a chunk is shorter than 4 octets, a DATA chunk
    is shorter than 17, a chunk reaches past the packet, the packet reaches past the frame, or the
    packet's length is less than 12 or not a multiple of four octets. A frame that does not fit the
    packet buffer has ``oversize`` set, and its later beats are not stored.

    Members
    -------
    i : In(stream.Signature(FrameBeat(width)))
    go : In(1)
        There is room for one more beat and one more item.
    store : Out(stream.Signature(Store, always_ready=True))
    slices : Out(stream.Signature(Slice(width, 4), always_ready=True))
        To the CRC unit: each SCTP packet, zeros for its checksum (RFC 9260 section 6.8).
    checksums : Out(stream.Signature(PacketChecksum, always_ready=True))
        In step with ``slices``: together with the slice that closes a packet.
    segments : Out(stream.Signature(SctpSegment, always_ready=True))
    beats : Out(range(beats of the buffer))
        Address at which the next beat will be stored.
    busy : Out(1)
        The block holds beats.
    """

    #: Beats of the packet buffer that a frame never fills: the margin of ``space``, and one of the
    #: frame before.
    SPARE = 8

    def __init__(self, config):
        self.config = config
        self.depth = config.buffer_octets // config.octets
        super().__init__(
            {
                "i": In(stream.Signature(FrameBeat(config.width))),
                "go": In(1),
                "store": Out(stream.Signature(Store(config), always_ready=True)),
                "slices": Out(stream.Signature(Slice(config.width, 4), always_ready=True)),
                "checksums": Out(stream.Signature(PacketChecksum(), always_ready=True)),
                "segments": Out(stream.Signature(SctpSegment(config), always_ready=True)),
                "beats": Out(range(self.depth)),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        words = self.config.words
        m.submodules.scan = scan = ChunkScan(self.config)
        m.submodules.items = items = _Items(self.config)
        wiring.connect(m, wiring.flipped(self.i), scan.i)
        wiring.connect(m, items.o, wiring.flipped(self.segments))
        beat = scan.o

        # The loop: where a chunk begins, or how far the present one continues, and one select of
        # the bounds. All other outputs follow one register later.
        landing = Signal(words + 1)
        cut = Signal(range(words))  # the same as a number; the end of a chunk that continues
        near, far = Signal(), Signal()
        beats = Signal.like(beat.bounds[0].beats)

        def chosen(name):
            """Returns a field of the bound of the chunk that begins in the beat; 0 if none does."""
            return any_of(Mux(landing[w], beat.bounds[w][name], 0) for w in range(words))

        fire = Signal()
        stay = Signal()  # the walker has more to do in the beat
        again = far & beat.on
        ends_next = near & beat.on
        m.d.comb += [
            scan.go.eq(self.go),
            scan.hold.eq(stay),
            fire.eq(scan.valid & scan.turn),
        ]
        with m.If(scan.turn):
            m.d.sync += [
                landing.eq(
                    chosen("landing")
                    | (landing[words] & beat.on)
                    | Cat(
                        0,
                        *(ends_next & (cut == p) for p in range(1, words)),
                        ends_next & (cut == 0),
                    )
                    | Mux(stay, 0, scan.begin)
                ),
                cut.eq(
                    chosen("cut")
                    | Mux(again | ends_next, cut, 0)
                    | Mux(stay, 0, scan.begin_at)
                ),
                near.eq(chosen("near") | (again & (beats == 2))),
                far.eq(chosen("far") | (again & (beats != 2))),
                beats.eq(Mux(far, beats - 1, chosen("beats"))),
                stay.eq(
                    chosen("stay")
                    | (landing[words] & beat.on & scan.stay[0])
                    | (ends_next & cut.any() & scan.stay.bit_select(cut, 1))
                    | (scan.begin_stay & ~stay)
                ),
            ]

        done = Signal()
        m.d.comb += done.eq(fire & ~stay)
        oversize, start = self._leave(m, beat, done)

        # The packet's lengths add up if a chunk, or the common header alone, ends with it. The
        # result stays valid while the beat waits.
        event = items.event
        m.d.comb += [
            event.chunk.eq(fire & (landing[:words] & beat.body).any()),
            event.frame.eq(done & beat.last),
            event.sctp.eq(beat.sctp),
            event.closed.eq(
                chosen("closes")
                | (beat.ended & landing[1:].any() & (cut == (beat.end + 1)[: len(cut)]))
                | beat.void
            ),
            event.oversize.eq(oversize),
            event.beats.eq(self.beats),
            event.cut.eq(cut),
            event.origin.eq(start),
            event.count.eq(Mux(oversize, 0, beat.count)),
            event.ends.eq(beat.ends),
            items.window.eq(beat.window),
            self.busy.eq(scan.busy | items.busy | self.slices.valid),
        ]
        return m

    def _leave(self, m, beat, done):
        """Outputs a beat when it is ``done``.

        Returns whether its frame does not fit the buffer, and where the frame begins.
        """
        words = self.config.words
        oversize = Signal()
        stored = Signal(range(self.depth))
        fresh = Signal(init=1)
        origin, start = Signal.like(self.beats), Signal.like(self.beats)
        m.d.comb += start.eq(Mux(fresh, self.beats, origin))
        m.d.sync += origin.eq(start)
        with m.If(done):
            m.d.sync += fresh.eq(beat.last)
            with m.If(beat.last):
                m.d.sync += [stored.eq(0), oversize.eq(0)]
            with m.Elif(~oversize):
                m.d.sync += [
                    stored.eq(stored + 1),
                    oversize.eq(stored == self.depth - self.SPARE - 1),
                ]
            with m.If(~oversize):
                m.d.sync += self.beats.eq(self.beats + 1)
        data_in = [beat.window.word_select(w, 32) for w in range(words)]
        with m.If(beat.checksum.any()):
            m.d.sync += self.checksums.payload.expected.eq(
                any_of(Mux(beat.checksum[w], data_in[w], 0) for w in range(words))
            )
        with m.If(beat.sctp):
            m.d.sync += self.checksums.payload.odd.eq(beat.odd)
        m.d.sync += [
            self.store.valid.eq(done & ~oversize),
            self.store.payload.address.eq(self.beats),
            self.store.payload.data.eq(Cat(data_in)),
            self.slices.valid.eq(done & beat.active),
            self.slices.payload.data.eq(
                Cat(Mux(beat.checksum[w], 0, data_in[w]) for w in range(words))
            ),
            self.slices.payload.lo.eq(beat.at),
            self.slices.payload.first.eq(beat.sctp),
            self.slices.payload.cut.eq(beat.cut),
            self.slices.payload.close.eq(beat.close),
            self.slices.payload.end.eq(words),
            self.checksums.valid.eq(done & beat.close),
        ]
        return oversize, start


class _Event(data.StructLayout):
    """The walker's findings in one cycle.

    Members
    -------
    chunk, frame : 1
        A chunk begins; a frame ends. Never both.
    sctp : 1
        An SCTP packet begins.
    closed : 1
        A chunk ends where its packet does.
    oversize : 1
    beats : range(beats of the buffer)
        Address of the beat.
    cut : range(words)
        The word in the beat where the chunk begins.
    origin : range(beats of the buffer)
        Address of the frame's first beat.
    count : range(words + 1)
        Words of the beat that belong to the frame.
    ends : 2
        Octets in the last of these words, less one.
    """

    def __init__(self, config):
        beats = range(config.buffer_octets // config.octets)
        super().__init__(
            {
                "chunk": 1,
                "frame": 1,
                "sctp": 1,
                "closed": 1,
                "oversize": 1,
                "beats": beats,
                "cut": range(config.words),
                "origin": beats,
                "count": range(config.words + 1),
                "ends": 2,
            }
        )


class _Items(wiring.Component):
    """Extracts a chunk's header from the window in which it begins, and sums up each frame.

    Latency: 3 cycles at up to 128 bits, otherwise 4. Throughput: one item per cycle. Reset: empty.
    Errors: none.
    """

    def __init__(self, config):
        self.config = config
        super().__init__(
            {
                "event": In(_Event(config)),
                "window": In(32 * (config.words + HEADER_WORDS - 1)),
                "o": Out(stream.Signature(SctpSegment(config), always_ready=True)),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        words = self.config.words
        item = self.o.payload

        # Shift the window: first by multiples of four words, if a beat has more, then by words.
        event = Signal(_Event(self.config))
        exact = Signal(32 * HEADER_WORDS, reset_less=True)
        m.d.sync += event.eq(self.event)
        if words > 4:
            coarse = Signal(32 * (HEADER_WORDS + 3), reset_less=True)
            later = Signal(_Event(self.config))
            m.d.sync += [
                coarse.eq(self.window >> (128 * self.event.cut[2:])),
                exact.eq(coarse >> (32 * event.cut[:2])),
                later.eq(event),
            ]
        else:
            later = event
            m.d.sync += exact.eq(self.window >> (32 * self.event.cut))
        valid = Signal()
        m.d.sync += [
            valid.eq(later.chunk | later.frame),
            self.o.valid.eq(valid),
        ]
        m.d.comb += self.busy.eq(
            event.chunk | event.frame | later.chunk | later.frame | valid | self.o.valid)

        # Facts of the whole frame.
        sctp, closed = Signal(), Signal()
        chunks = Signal(16)
        any_sctp, any_closed = sctp | later.sctp, closed | later.closed
        m.d.sync += [sctp.eq(any_sctp & ~later.frame), closed.eq(any_closed & ~later.frame)]
        with m.If(later.frame):
            m.d.sync += chunks.eq(0)
        with m.Elif(later.chunk):
            m.d.sync += chunks.eq(chunks + 1)

        # The fields, and parts of the conditions that decide the chunk's kind.
        plain = Signal(SctpSegment(self.config), reset_less=True)
        octets = [exact.word_select(k, 8) for k in range(4 * HEADER_WORDS)]

        def number(at, size):
            return Cat(octets[at : at + size][::-1])

        whole = DataFlag.BEGINNING | DataFlag.ENDING
        length = number(2, 2)
        frame, is_data, is_unordered, is_whole, fits, is_control = (Signal() for _ in range(6))
        ends_packet, over = Signal(), Signal()
        ppid = Signal(4)
        rest = length - (DATA_HEADER + SSN)
        control = octets[15][0]
        word = Mux(later.frame, 0, later.cut)
        # Words of SSN and DDP header, or SSN and Function Code, after the header of a DATA chunk.
        words_before = Mux(control, 1, Mux(octets[DATA_HEADER + SSN][7], 4, 5))
        m.d.sync += [
            frame.eq(later.frame),
            is_data.eq(octets[0] == ChunkType.DATA),
            ends_packet.eq(~octets[0][7] & (octets[0][4:7].any() | any_of(
                octets[0][:4] == kind for kind in (*LAST_OF_PACKET, 15)))),
            is_unordered.eq((octets[1] & DataFlag.UNORDERED).any()),
            is_whole.eq((octets[1] & whole) == whole),
            fits.eq(length[5:].any() | (length[4] & length[1:4].any())),
            ppid.eq(Cat(*(~octet.any() for octet in octets[12:15]),
                        octets[15][1:] == Ppid.SEGMENT >> 1)),
            is_control.eq(control),
            plain.header.eq(Cat(rest[8:16], rest[:8], octets[DATA_HEADER + SSN :])),
            plain.ssn.eq(number(DATA_HEADER, 2)),
            plain.tsn.eq(number(4, 4)),
            plain.stream.eq(number(8, 2)),
            plain.start.eq(Cat(word, Mux(later.frame, later.origin, later.beats))),
            plain.payload.eq(
                Cat(word, later.beats)
                + Mux(later.frame, later.count, DATA_HEADER // 4 + words_before)
            ),
            plain.length.eq(Mux(later.frame, later.ends, length)),
            plain.chunks.eq(chunks),
            plain.sctp.eq(any_sctp),
            plain.framing.eq(any_sctp & ~any_closed),
            plain.oversize.eq(later.oversize),
        ]
        m.d.sync += item.eq(plain)
        with m.If(valid):
            m.d.sync += over.eq(~frame & (over | ends_packet))
        with m.If(frame):
            m.d.sync += item.kind.eq(Kind.FRAME)
        with m.Elif(~is_data | over):
            m.d.sync += item.kind.eq(Kind.CHUNK)
        with m.Elif(is_unordered & ~is_whole & ppid.all()):
            m.d.sync += item.kind.eq(Kind.FRAGMENT)
        with m.Elif(~(is_unordered & fits & ppid.all())):
            m.d.sync += item.kind.eq(Kind.REFUSED)
        with m.Elif(is_control):
            m.d.sync += item.kind.eq(Kind.CONTROL)
        with m.Else():
            m.d.sync += item.kind.eq(Kind.SEGMENT)
        return m


class PacketJudge(wiring.Component):
    """Gives the verdict on the checksum of each SCTP packet (RFC 9260 section 6.8).

    Latency: 2 cycles from the CRC unit's result. Throughput: one verdict per cycle. Reset: empty.
    Errors: none. The inputs may be up to 14 packets apart, which is more than the CRC unit holds.

    Members
    -------
    expected : In(stream.Signature(PacketChecksum(), always_ready=True))
    checksums : In(stream.Signature(Checksum(), always_ready=True))
        In the same order, each at least 3 cycles after the one it is compared with.
    o : Out(stream.Signature({good: 1}, always_ready=True))
    """

    def __init__(self):
        verdict = data.StructLayout({"good": 1})
        super().__init__(
            {
                "expected": In(stream.Signature(PacketChecksum(), always_ready=True)),
                "checksums": In(stream.Signature(Checksum(), always_ready=True)),
                "o": Out(stream.Signature(verdict, always_ready=True)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.queue = queue = Queue(PacketChecksum(), depth=16)
        valid, odd = Signal(), Signal()
        match = Signal(8)
        m.d.comb += [
            queue.i.valid.eq(self.expected.valid),
            queue.i.payload.eq(self.expected.payload),
            queue.o.ready.eq(self.checksums.valid),
        ]
        # Compared in two steps.
        crc, expected = self.checksums.payload.crc, queue.o.payload.expected
        m.d.sync += [
            valid.eq(self.checksums.valid),
            match.eq(nibbles(crc, expected)),
            odd.eq(queue.o.payload.odd),
            self.o.valid.eq(valid),
            self.o.payload.good.eq(match.all() & ~odd),
        ]
        return m

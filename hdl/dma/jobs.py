"""Computes the slots, beats, bursts and rotation of a placement before it starts."""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .sequencer import Job

__all__ = ["BurstBody", "Geometry", "JobMaker", "Placement", "SlotBody"]

LENGTH_BITS = 17


class Placement(data.StructLayout):
    """A run of octets in the packet buffer, and its destination.

    Parameters
    ----------
    config : RnicConfig
    sources : int
        Number of packet buffers that runs may be in: 1 or 2.

    Members
    -------
    start : range(buffer_octets)
        Octet offset into the packet buffer; a run wraps at its end.
    length : 17
        Number of octets; 0 moves nothing.
    address : 64
        Destination address in host memory.
    exception : 1
        The octets go to the exception stream, as a packet; ``address`` is then meaningless.
    reason : 12
        Reason for an exception, as in Heading.
    stream : range(origins)
    sequence : 32
        The LLP's sequence number.
    last : 1
        The run is the last piece of its segment, which is then complete. A segment of more than one
        piece does not end with a piece of 0 octets.
    release : range(2 * buffer_octets // 8)
        Pointer that is handed back once the run was read; not used otherwise.
    sctp : 1
        With two packet buffers only: the run is in the second one, which is SCTP's.
    """

    def __init__(self, config, *, sources=1):
        super().__init__({
            "start": range(config.buffer_octets),
            "length": LENGTH_BITS,
            "address": 64,
            "exception": 1,
            "reason": 12,
            "stream": range(config.origins),
            "sequence": 32,
            "last": 1,
            "release": range(2 * config.buffer_octets // 8),
            **({"sctp": 1} if sources == 2 else {}),
        })

    @property
    def names(self):
        """The members that travel along with a run and are not computed with."""
        return tuple(name for name in
                     ("exception", "reason", "stream", "sequence", "release", "sctp")
                     if name in self.members)


class Geometry:
    """Computes the bit widths that follow from the configuration.

    Attributes
    ----------
    octets : int
        Octets in a beat.
    lane : int
        Bits of a lane number.
    ring : int
        Bits of a beat number in the packet buffer.
    burst : int
        Bits of a beat number between two addresses where a burst must end: 4 KiB apart, or
        256 beats when that is less.
    page : int
        Bits of an address above those of a lane and a beat.
    slots, bursts : int
        Bits to count the slots, the bursts of a placement.
    """

    def __init__(self, config):
        self.octets = config.octets
        self.lane = (self.octets - 1).bit_length()
        self.ring = (config.buffer_octets // self.octets - 1).bit_length()
        self.burst = (min(4096 // self.octets, 256) - 1).bit_length()
        self.page = 64 - self.lane - self.burst
        self.slots = LENGTH_BITS - self.lane + 1
        self.bursts = self.slots + 1 - self.burst


class SlotBody(data.StructLayout):
    """The part of a placement that the data path needs.

    Members
    -------
    start : ring beat of the first octet
    position : beat of the first octet between two burst boundaries
    rotate : lanes to rotate left by
    ahead : 1
        An outgoing beat needs the incoming beat after it (else: the one before it).
    first_lane, last_lane : lane of the first, of the last octet
    silent : 1
        No outgoing beat belongs to the last slot.
    exception, reason, stream, sequence, release, sctp : as in Placement
    """

    def __init__(self, geometry, placement):
        super().__init__({
            "start": geometry.ring,
            "position": geometry.burst,
            "rotate": geometry.lane,
            "ahead": 1,
            "first_lane": geometry.lane,
            "last_lane": geometry.lane,
            "silent": 1,
            **{name: placement[name].shape for name in placement.names},
        })


class BurstBody(data.StructLayout):
    """The part of a placement that the address channel needs.

    Members
    -------
    page : address bits above the burst boundary
    position : beat of the first octet between two burst boundaries
    first : beats in the first burst, less one
    final : beats in the last burst when it is not the first one, less one
    last, stream : as in Placement
    """

    def __init__(self, geometry, placement):
        super().__init__({
            "page": geometry.page,
            "position": geometry.burst,
            "first": geometry.burst,
            "final": geometry.burst,
            **{name: placement[name].shape for name in ("last", "stream")},
        })


class JobMaker(wiring.Component):
    """Turns a placement into a job for the data path and a job for the address channel.

    A placement of ``n_in`` ring beats and ``n_out`` bus beats takes max(n_in, n_out) slots; the two
    differ by one at most. This block never waits: the block that drives ``i`` makes sure that both
    queues have room. An exception and an empty placement have no address job.

    Latency: 4 cycles to ``slots``, 5 to ``bursts``. Throughput: one placement per cycle. Reset:
    empty. Errors: none.

    Parameters
    ----------
    config : RnicConfig

    Members
    -------
    i : In(stream.Signature(Placement, always_ready=True))
    slots : Out(stream.Signature(Job(SlotBody), always_ready=True))
    bursts : Out(stream.Signature(Job(BurstBody), always_ready=True))
    """

    def __init__(self, config, *, sources=1):
        self.geometry = geometry = Geometry(config)
        placement = Placement(config, sources=sources)
        self.slot_job = Job(SlotBody(geometry, placement), geometry.slots)
        self.burst_job = Job(BurstBody(geometry, placement), geometry.bursts)
        super().__init__({
            "i": In(stream.Signature(placement, always_ready=True)),
            "slots": Out(stream.Signature(self.slot_job, always_ready=True)),
            "bursts": Out(stream.Signature(self.burst_job, always_ready=True)),
        })

    def elaborate(self, platform):
        m = Module()
        lane, burst = self.geometry.lane, self.geometry.burst
        valid = Signal(5)
        # Stage n's registers are named with n; members that are only delayed are in ``along``.
        along = [Signal(self.i.payload.shape(), name=f"along{n}", reset_less=True)
                 for n in range(1, 6)]
        less1 = Signal(LENGTH_BITS, reset_less=True)
        empty = [Signal(name=f"empty{n}", reset_less=True) for n in range(1, 6)]
        target1 = Signal(lane, reset_less=True)
        target2 = Signal(lane, reset_less=True)
        low_in2 = Signal(lane + 1, reset_less=True)
        low_out2 = Signal(lane + 1, reset_less=True)
        high2 = Signal(LENGTH_BITS - lane, reset_less=True)
        rotation = [Signal(data.StructLayout({"rotate": lane, "ahead": 1}), name=f"rotation{n}",
                       reset_less=True) for n in range(2, 5)]
        ends = [Signal(data.StructLayout({"first": lane, "last": lane, "silent": 1}),
                       name=f"ends{n}", reset_less=True) for n in range(3, 5)]
        slots3 = Signal(self.geometry.slots, reset_less=True)
        beats = [Signal(self.geometry.slots, name=f"beats{n}", reset_less=True)
                 for n in range(3, 5)]
        reach4 = Signal(burst + self.geometry.bursts, reset_less=True)
        position = [self.address_position(one.address) for one in along]
        carry = Signal()

        m.d.sync += valid.eq(Cat(self.i.valid, valid))
        for n in range(1, 5):
            with m.If(valid[n - 1]):
                m.d.sync += [stages[n].eq(stages[n - 1]) for stages in (along, empty)]

        # 1: octets less one; the lane of the first octet's destination.
        with m.If(self.i.valid):
            m.d.sync += [
                along[0].eq(self.i.payload),
                empty[0].eq(~self.i.payload.length.any()),
                less1.eq(self.i.payload.length - 1),
                target1.eq(Mux(self.i.payload.exception, 0, self.i.payload.address[:lane])),
            ]
        # 2: whether the odd octets reach into one more beat, on either side; the rotation.
        source1 = along[0].start[:lane]
        with m.If(valid[0]):
            m.d.sync += [
                low_in2.eq(source1 + less1[:lane]),
                low_out2.eq(target1 + less1[:lane]),
                high2.eq(Mux(empty[0], 0, less1[lane:])),
                Cat(rotation[0].rotate, rotation[0].ahead).eq(target1 - source1),
                target2.eq(target1),
            ]
        # 3: slots and outgoing beats, less one.
        m.d.comb += carry.eq((low_in2[-1] | low_out2[-1]) & ~empty[1])
        with m.If(valid[1]):
            m.d.sync += [
                rotation[1].eq(rotation[0]),
                slots3.eq(high2 + carry),
                beats[0].eq(high2 + low_out2[-1]),
                ends[0].first.eq(target2),
                ends[0].last.eq(low_out2[:lane]),
                ends[0].silent.eq(empty[1] | (low_in2[-1] & ~low_out2[-1])),
            ]
        # 4: flags of the job; the beat of the last octet's destination, from the boundary.
        slots, bursts = self.slots.payload, self.bursts.payload
        with m.If(valid[2]):
            m.d.sync += [
                rotation[2].eq(rotation[1]),
                ends[1].eq(ends[0]),
                beats[1].eq(beats[0]),
                slots.more.eq(slots3),
                slots.one.eq(slots3 == 0),
                slots.two.eq(slots3 == 1),
                reach4.eq(position[2] + beats[0]),
            ]
        m.d.comb += [
            self.slots.valid.eq(valid[3]),
            slots.body.start.eq(along[3].start[lane:]),
            slots.body.position.eq(position[3]),
            slots.body.rotate.eq(rotation[2].rotate),
            slots.body.ahead.eq(rotation[2].ahead),
            slots.body.first_lane.eq(ends[1].first),
            slots.body.last_lane.eq(ends[1].last),
            slots.body.silent.eq(ends[1].silent),
        ]
        m.d.comb += [slots.body[name].eq(along[3][name])
                     for name in self.i.payload.shape().names]
        # 5: bursts.
        m.d.sync += self.bursts.valid.eq(valid[3] & ~empty[3] & ~along[3].exception)
        with m.If(valid[3]):
            m.d.sync += [
                bursts.more.eq(reach4[burst:]),
                bursts.one.eq(reach4[burst:] == 0),
                bursts.two.eq(reach4[burst:] == 1),
                bursts.body.first.eq(Mux(reach4[burst:] == 0, beats[1], ~position[3])),
                bursts.body.final.eq(reach4[:burst]),
            ]
        m.d.comb += [
            bursts.body.page.eq(along[4].address[lane + burst:]),
            bursts.body.position.eq(position[4]),
        ]
        m.d.comb += [bursts.body[name].eq(along[4][name])
                     for name in ("last", "stream")]
        return m

    def address_position(self, address):
        """Returns the number of the address's beat between two burst boundaries."""
        return address[self.geometry.lane:self.geometry.lane + self.geometry.burst]

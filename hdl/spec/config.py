"""Declares the parameters of an RNIC and checks them, once for gateware, model and driver."""

import inspect
import re
from dataclasses import dataclass, fields
from typing import NamedTuple

from .net import SCTP_UDP_PORT

WIDTHS = (64, 128, 256, 512)
#: The least and the largest value of each parameter that has to be a power of two.
LIMITS = {
    "stags": (16, 1 << 20),
    "streams": (2, 1 << 12),
    "buffer_octets": (4096, 1 << 17),
    "outstanding": (8, 256),
    "queue_depth": (4, 1 << 12),
    "buffers": (16, 1 << 16),
    "pages": (16, 1 << 16),
    "backlog": (64, 1 << 14),
    "completion_queues": (2, 16),
    "exception_octets": (4096, 1 << 17),
    "associations": (2, 1 << 10),
    "window": (4, 1 << 14),
    "initiates": (1, 1 << 10),
}
#: The least and the largest value of each other parameter that is a number.
SPANS = {"address": (12, 64), "udp_port": (1, (1 << 16) - 1)}
#: The most slots, of all streams together, for items that wait for earlier ones.
MOST_PLACES = 1 << 16
#: The largest product of ``streams`` and ``queue_depth``. Each stream has four queues, and the
#: device has a slot for each buffer that a queue may hold.
MOST_POSTED = 1 << 18
#: Base-2 logarithm of the octets of a completion.
_ENTRY_BITS = 5


def _check_integer(name: str, value: int) -> None:
    """Raises TypeError for any other number, such as 64.0, although that is equal to 64."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, not {value!r}")


def power_of_two(name: str, value: int, low: int, high: int) -> None:
    """Raises an error unless ``value`` is a power of two from ``low`` to ``high``."""
    _check_integer(name, value)
    if not low <= value <= high or value & (value - 1):
        raise ValueError(f"{name} must be a power of two from {low} to {high}, not {value!r}")


@dataclass(frozen=True, kw_only=True)
class RnicConfig:
    """Parameters of :class:`~ddp_rnic.hdl.rnic.Rnic`.

    Parameters
    ----------
    width
        Datapath width in bits: 64, 128, 256 or 512.
    stags
        Entries in the Steering Tag table.
    streams
        DDP Streams.
    buffer_octets
        Octets of the packet buffer. It must hold a whole FPDU, so this bounds the MULPDU.
    outstanding
        AXI4 bursts of writes that may be waiting for their response, and in a device that sends as
        many of reads.
    queue_depth
        Buffers that an untagged queue holds; every stream has four queues. Times the number of
        streams it is at most ``MOST_POSTED``.
    buffers
        Slots of the buffer table: how many buffers all queues together may hold.
    pages
        Slots of the page table.
    backlog
        Completions that may wait for the octets of their messages. From half of that number on,
        segments wait too.
    completion_queues
        Completion queues for clients. In a device that receives over SCTP, its owner has one more.
    exception_octets
        Size of the exception queue.
    address
        Bits of a host address that are used; higher bits are taken to be 0. In a device that
        receives over SCTP, the completion queue of its owner must fit in that memory.
    relaxed
        True for a slow clock: leaves out registers that only a fast clock needs, for less area.
    mpa
        DDP over MPA (RFC 5044), with a port for packets of FPDUs.
    receive
        The device receives: it places DDP Segments, and has the ports for packets, frames and
        exceptions. Without it ``buffer_octets``, ``queue_depth``, ``buffers``, ``backlog``,
        ``exception_octets``, ``window``, ``initiates`` and ``udp_port`` do not count.
    transmit
        The device sends: it takes work requests, and has a port for FPDUs, and with ``sctp`` one
        for frames. RDMA Reads need ``receive`` too, since their responses have to be received; the
        device bounds those over MPA, and the host those over SCTP.
    responder
        The device answers RDMA Read Requests (RFC 5040) by itself, on the streams for which the
        host asks for that. It needs ``receive`` and ``transmit``.
    sctp
        DDP over SCTP (RFC 5043), with a port for Ethernet frames. Only with it do
        ``associations``, ``window``, ``initiates`` and ``udp_port`` count.
    associations
        SCTP associations that the device can have.
    window
        DDP-SSNs of a stream that may arrive ahead of the next one. Each stream has a slot for each
        of them, which no other stream can take: at most ``MOST_PLACES`` slots in all.
    initiates
        Session Initiates of each association that may wait for the host's answer.
    udp_port
        Destination port of SCTP packets in UDP (RFC 6951).
    full_counters
        True for tests: all counters but those of sending begin with all bits set, so that the first
        event of each carries through every bit.
    """

    width: int = 64
    stags: int = 1024
    streams: int = 64
    buffer_octets: int = 32768
    outstanding: int = 64
    queue_depth: int = 64
    buffers: int = 2048
    pages: int = 2048
    backlog: int = 512
    completion_queues: int = 16
    exception_octets: int = 16384
    address: int = 64
    relaxed: bool = False
    mpa: bool = True
    receive: bool = True
    transmit: bool = False
    responder: bool = False
    sctp: bool = False
    associations: int = 64
    window: int = 16
    initiates: int = 16
    udp_port: int = SCTP_UDP_PORT
    full_counters: bool = False

    def __post_init__(self) -> None:
        _check_integer("width", self.width)
        if self.width not in WIDTHS:
            raise ValueError(
                f"width must be one of {', '.join(map(str, WIDTHS))}, not {self.width!r}"
            )
        for name, (low, high) in LIMITS.items():
            power_of_two(name, getattr(self, name), low, high)
        for name in (
            "relaxed", "mpa", "receive", "transmit", "responder", "sctp", "full_counters",
        ):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise TypeError(f"{name} must be True or False, not {value!r}")
        for name, (low, high) in SPANS.items():
            value = getattr(self, name)
            _check_integer(name, value)
            if not low <= value <= high:
                raise ValueError(f"{name} must be from {low} to {high}, not {value!r}")
        if not self.mpa and not self.sctp:
            raise ValueError("mpa or sctp must be True")
        if not self.receive and not self.transmit:
            raise ValueError("receive or transmit must be True")
        if self.transmit and self.streams < 16:
            raise ValueError(f"transmit needs at least 16 streams, not {self.streams!r}")
        if self.responder and not self.transmit:
            raise ValueError("responder needs transmit: Read Responses are sent")
        if self.responder and not self.receive:
            raise ValueError("responder needs receive: Read Requests are received")
        if self.sctp and self.streams * self.window > MOST_PLACES:
            raise ValueError(
                f"window must be at most {MOST_PLACES // self.streams} with {self.streams} streams,"
                f" not {self.window!r}"
            )
        if self.receive and self.streams * self.queue_depth > MOST_POSTED:
            raise ValueError(
                f"queue_depth must be at most {MOST_POSTED // self.streams} with {self.streams}"
                f" streams, not {self.queue_depth!r}"
            )
        if self.owned and self.address < (least := self.owner_size + _ENTRY_BITS):
            raise ValueError(
                f"address must be at least {least} for the queue of SCTP's owner with"
                f" {self.streams} streams, not {self.address!r}"
            )

    @property
    def reader(self) -> bool:
        """True if the device sends RDMA Reads over MPA, and bounds them."""
        return self.receive and self.transmit and self.mpa

    @property
    def rdmap(self) -> bool:
        """True if the device looks at delivered messages for those of RDMA Reads."""
        return self.reader or self.responder

    @property
    def owned(self) -> bool:
        """True if the device receives over SCTP, whose owner then has a completion queue."""
        return self.receive and self.sctp

    @property
    def owner_entries(self) -> int:
        """Entries that the queue of SCTP's owner must have free for a frame to be taken.

        They are the most that frames taken before can still make, beside the records of items that
        Admission has admitted, which the device counts: a CHUNK or PACKET for each of 46 items that
        Admission has not admitted yet (8 between the receiver and Admission, 20 in its queue, 18 in
        its pipeline); 16 records whose place is being looked up; a SESSION for each of those 46
        items, of the 32 that the window found illegal, and of the 17 that wait; a CONTROL for the
        first message and for the Terminate of each stream, since a session opens only when no item
        of the earlier one is on its way, and 40 that were delivered. This is 197 and two for each
        stream, and some to spare.
        """
        return 2 * self.streams + 224

    @property
    def owner_size(self) -> int:
        """Base-2 logarithm of the entries that the queue of SCTP's owner has at least."""
        return self.owner_entries.bit_length()

    @property
    def senders(self) -> int:
        """SCTP associations that the device can send on, or 0."""
        return self.associations if self.sctp and self.transmit else 0

    @property
    def both(self) -> bool:
        """True if DDP comes over MPA and over SCTP."""
        return self.mpa and self.sctp

    @property
    def octets(self) -> int:
        """Octets in a beat of the datapath."""
        return self.width // 8

    @property
    def stream_bits(self) -> int:
        """Bits of a stream's number."""
        return (self.streams - 1).bit_length()

    @property
    def origins(self) -> int:
        """Returns the number of streams, or with SCTP of associations, whichever is larger.

        An exception names one of them as its origin.
        """
        return max(self.streams, self.associations * self.sctp)

    @property
    def words(self) -> int:
        """32-bit words in a beat of the datapath."""
        return self.width // 32

    @property
    def longest_fpdu(self) -> int:
        """Words of the longest FPDU, without markers, that the packet buffer takes.

        The buffer holds the FPDU whole, with the beats that it shares with its neighbours, the
        beats on their way into the buffer, and its markers, one in 128 words.
        """
        return (self.buffer_octets // 4 - 8 * self.words) * 127 // 128 - 2


class Parameter(NamedTuple):
    """Describes one parameter of :class:`RnicConfig`: its meaning, its default and its range."""

    name: str
    doc: str
    default: int | bool

    @property
    def range(self) -> str:
        """Returns the values that the parameter may have, as words that follow "must be"."""
        if self.name in LIMITS:
            return "a power of two from {} to {}".format(*LIMITS[self.name])
        if self.name in SPANS:
            return "from {} to {}".format(*SPANS[self.name])
        return f"one of {', '.join(map(str, WIDTHS))}" if self.name == "width" else "true or false"

    def next_to(self, value: int | bool) -> int | bool:
        """Returns the next larger value of the parameter, or below the largest one the next
        smaller.
        """
        if isinstance(value, bool):
            return not value
        step = (lambda by: value + by) if self.name in SPANS else (lambda by: int(value * 2.0**by))
        largest = WIDTHS[-1] if self.name == "width" else (LIMITS | SPANS)[self.name][1]
        return step(1) if value < largest else step(-1)


def parameters() -> tuple[Parameter, ...]:
    """Returns the parameters of :class:`RnicConfig`, in the order of their declaration."""
    text = inspect.getdoc(RnicConfig) or ""
    for name, value in (("MOST_PLACES", MOST_PLACES), ("MOST_POSTED", MOST_POSTED)):
        text = text.replace(f"``{name}``", str(value))
    text = text.replace("``", "")
    docs = dict(re.findall(r"^(\w+)\n((?:    .+\n?)+)", text, re.MULTILINE))
    return tuple(
        Parameter(each.name, " ".join(docs[each.name].split()), default)
        for each in fields(RnicConfig)
        if isinstance(default := each.default, int)
    )

"""Declares items: the chunks and packets that an LLP hands to Commit in any order."""

from amaranth import *
from amaranth.lib import data, enum

from .segment import HEADER_WORDS

__all__ = ["Action", "Admitted", "Ticket", "Verdict"]


class Verdict(enum.Enum, shape=3):
    """The outcome of an item; the numbers are those of :class:`..spec.completion.ChunkStatus`."""

    #: New, and taken.
    FRESH = 0
    #: Received before. No error: a retransmission.
    DUPLICATE = 1
    #: Ahead of the window: dropped. The peer must send it again.
    OUTSIDE = 2
    #: Fits no legal sequence: its session is aborted.
    ILLEGAL = 3
    #: Dropped, because its session was aborted.
    SILENT = 4
    #: Not final: no session takes it. It becomes DUPLICATE if it was received before, else ILLEGAL.
    REFUSED = 5
    #: Overtook the answer to this end's Initiate: the host keeps it.
    HELD = 7


class Ticket(data.StructLayout):
    """The facts about a taken item that are kept until it is delivered.

    Members
    -------
    stream, ssn, final
        Those of :class:`~..sctp.window.Arrival`.
    fills : 1
        An item of the same session with a later DDP-SSN was taken before it.
    """

    def __init__(self, streams):
        super().__init__({"stream": range(streams), "ssn": 16, "final": 1, "fills": 1})


class Action(enum.Enum, shape=2):
    """The action for an item's octets."""

    SKIP = 0  # drop them and free their words
    PLACE = 1  # a DDP Segment: place them if the checks pass
    PASS = 2  # forward them to the host, on the exception stream
    NONE = 3  # nothing, and no words to free


class Admitted(data.StructLayout):
    """An item and the action for it.

    Positions count 32-bit words in the packet buffer.

    Members
    -------
    action : Action
    header : 160
        PLACE: length of the DDP Segment and DDP header, as in a :class:`~..ddp.segment.Segment`.
        ``control``: the Function Code in octets 2 and 3.
    stream : 16
        DDP Stream.
    association : range(associations)
    sequence : 32
        TSN; ``packet``: number of chunks in the packet.
    start : position
        First word of the chunk or frame.
    payload : position
        PLACE: the word after the DDP header.
    octets : 17
        Octets of the chunk or frame.
    release : position
        Words before this one are free once the item was handled.
    reason : 12
        PASS: a Diversion.
    report : 1
        The host gets a record of the chunk or, with ``packet``, of the packet.
    packet, control : 1
        The item is the end of a packet; a control message.
    ends : 1
        The item is a chunk with a record, and the record also reports the end of its packet.
    ticket : Ticket, status : Verdict
        Result of the window, for a chunk with a record; the ticket is valid if it is FRESH.
    """

    def __init__(self, config):
        position = range(config.buffer_octets // 4)
        super().__init__({
            "action": Action, "header": 32 * HEADER_WORDS, "stream": 16,
            "association": range(config.associations), "sequence": 32, "start": position,
            "payload": position, "octets": 17, "release": position, "reason": 12, "report": 1,
            "packet": 1, "control": 1, "ends": 1, "ticket": Ticket(config.streams),
            "status": Verdict,
        })

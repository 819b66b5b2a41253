"""Declares what leaves a device that sends: packets, and the record beside each."""

from amaranth.lib import data

from ..lib.stream import Beat
from ..spec.send import RECORD, RECORD_OCTETS

__all__ = ["SentBeat", "SentRecord"]


class SentRecord(data.FlexibleLayout):
    """The record of an FPDU or a chunk: 8 octets with the fields of :data:`~..spec.send.RECORD`."""

    def __init__(self):
        super().__init__(8 * RECORD_OCTETS, {
            name: data.Field(bits, 8 * octet + bit) for name, octet, bit, bits, _ in RECORD})


class SentBeat(data.StructLayout):
    """One beat of a packet that is one FPDU, or one frame.

    Members
    -------
    beat : Beat(width)
    stream : 16
    sequence : 32
        LLP sequence number of the packet's first octet, or its TSN.
    record : SentRecord()

    All but ``beat`` are the same on all beats of a packet.
    """

    def __init__(self, width):
        super().__init__({
            "beat": Beat(width), "stream": 16, "sequence": 32, "record": SentRecord()})

"""Declares the Steering Tag table and its entry."""

from amaranth.lib import data

from ..lib.table import Table

__all__ = ["StagEntry", "StagTable"]


class StagEntry(data.StructLayout):
    """An entry of the Steering Tag table: the region that the STag names.

    Members
    -------
    valid : 1
    key : 8
        The lower 8 bits of the STag.
    tag : 24 - log2(entries)
        The bits of the STag's index above those that select the entry.
    remote_write, remote_read : 1
        Access rights.
    bound : 1
        ``owner`` is a DDP Stream; otherwise it is a Protection Domain (RFC 5041 section 8.2).
    owner : 16
        Number of that DDP Stream or Protection Domain.
    to : 64
        Tagged Offset of the region's first octet.
    length : 64
        Octets in the region.
    address : 64
        Host address of the first octet; for a region in pages, its linear address.
    pages : 4
        Page code, see :mod:`~..dma.pages`.
    """

    def __init__(self, entries):
        super().__init__(
            {
                "valid": 1,
                "key": 8,
                "tag": 24 - (entries.bit_length() - 1),
                "remote_write": 1,
                "remote_read": 1,
                "bound": 1,
                "owner": 16,
                "to": 64,
                "length": 64,
                "address": 64,
                "pages": 4,
            }
        )


class StagTable(Table):
    """Holds the entries of all Steering Tags.

    An STag is a 24-bit index and an 8-bit key. The lower bits of the index select the entry; its
    upper bits are compared together with the key. So any STag can be registered, but never two at
    the same time whose indices agree in the lower bits.

    Latency, Throughput, Reset, Errors, Members: those of :class:`Table`.
    """

    def __init__(self, entries, *, lookups=1):
        super().__init__(StagEntry(entries), entries, live="valid", lookups=lookups)

"""Declares the Steering Tag table and its entry."""

from amaranth.lib import data

from ..lib.table import Table
from ..spec.stag import FIELDS

__all__ = ["StagEntry", "StagTable"]


class StagEntry(data.StructLayout):
    """An entry of the Steering Tag table: the region that the STag names.

    Members
    -------
    tag : 24 - log2(entries)
        The bits of the STag's index above those that select the entry.
    The fields that :data:`~..spec.stag.FIELDS` declares. ``address`` is a linear address if the
    region is in pages, and ``pages`` is the page code of :mod:`~..dma.pages`. ``bound`` and
    ``owner`` follow RFC 5041 section 8.2.
    """

    def __init__(self, entries):
        valid, key, *others = ((field.name, field.bits) for field in FIELDS)
        tag = 24 - (entries.bit_length() - 1)
        super().__init__(dict([valid, key, ("tag", tag), *others]))


class StagTable(Table):
    """Holds the entries of all Steering Tags.

    An STag is a 24-bit index and an 8-bit key. The lower bits of the index select the entry; its
    upper bits are compared together with the key. So any STag can be registered, but never two at
    the same time whose indices agree in the lower bits.

    Latency, Throughput, Reset, Errors, Members: those of :class:`Table`.
    """

    def __init__(self, entries, *, lookups=1):
        super().__init__(StagEntry(entries), entries, live="valid", lookups=lookups)

"""Declares an entry of a completion queue as a layout, and fills it in for a message."""

from amaranth import *
from amaranth.lib import data

from ..spec import completion

__all__ = ["MESSAGE", "CompletionEntry", "of_message"]


class CompletionEntry(data.FlexibleLayout):
    """An entry of a completion queue, with the fields of :mod:`ddp_rnic.hdl.spec.completion`."""

    def __init__(self):
        super().__init__(8 * completion.OCTETS, {
            field.name: data.Field(field.bits, 8 * field.octet + field.bit)
            for field in completion.FIELDS
        })


#: The fields of a completion that describe a message, with their widths.
MESSAGE = {
    "tagged": 1, "stream": 16, "qn": 2, "tag": 32, "rsvdulp": 40, "length": 32, "cookie": 32,
}


def of_message(entry, message):
    """Returns the statements that fill in ``entry`` for ``message``."""
    return [
        *(entry[name].eq(message[name]) for name in MESSAGE),
        entry.status.eq(Mux(message.failed, completion.Status.NOT_PLACED,
                            completion.Status.DELIVERED)),
    ]

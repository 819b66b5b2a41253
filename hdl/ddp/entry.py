"""An entry of the completion ring in gateware, and what a message puts in it."""

from amaranth import *
from amaranth.lib import data

from ..spec import completion

__all__ = ["MESSAGE", "CompletionEntry", "of_message"]


class CompletionEntry(data.FlexibleLayout):
    """An entry of the completion ring, as ``spec.completion`` has it."""

    def __init__(self):
        super().__init__(8 * completion.OCTETS, {
            field.name: data.Field(field.bits, 8 * field.octet + field.bit)
            for field in completion.FIELDS
        })


#: What a completion says of a message.
MESSAGE = {
    "tagged": 1, "stream": 16, "qn": 2, "tag": 32, "rsvdulp": 40, "length": 32, "cookie": 32,
}


def of_message(entry, message):
    """Statements that make a completion of a message."""
    return [
        *(entry[name].eq(message[name]) for name in MESSAGE),
        entry.status.eq(Mux(message.failed, completion.Status.NOT_PLACED,
                            completion.Status.DELIVERED)),
    ]

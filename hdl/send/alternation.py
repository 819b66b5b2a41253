"""Decides between a stream's own messages and its Read Responses.

Responses never wait for the stream's own Reads: two peers that both have as many Reads outstanding
as they may, and more to send, would never stop waiting for each other (see :mod:`~..proofs.reads`).
"""

from amaranth import *

__all__ = ["goes_on", "is_for_responses"]


def is_for_responses(*, asked, answering, begun, own, last):
    """Returns whether a turn is for Read Responses.

    Parameters
    ----------
    asked, answering : Value
        There are Read Requests to be answered; the first response was begun.
    begun, own : Value
        A message of the stream's own was begun; it has one to send.
    last : Value
        The last turn was for responses.
    """
    return asked & ~begun & (answering | ~own | ~last)


def goes_on(*, slotless, asked, more):
    """Returns whether a stream gets another turn as soon as its turn ends.

    Parameters
    ----------
    slotless : Value
        Its own message waits for a slot, which wakes the stream when it is free.
    asked : Value
        There are Read Requests to be answered.
    more : Value
        It has more to send.
    """
    return Mux(slotless, asked, more)

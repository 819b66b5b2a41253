"""Checks of a caller's values. Each public call makes them first, before it does anything."""

from __future__ import annotations

import math
import operator
import os
import reprlib
import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ...hdl.spec.send import Flag, Kind, Message, Piece
from .errors import InvalidRequest, WrongType

#: The fields of a message that the caller gives.
_FIELDS = ("rsvdulp", "qn", "stag", "to")
#: The queue of RDMA Read Requests (RFC 5040).
_READS = 1
_repr = reprlib.Repr()
_repr.maxother = _repr.maxstring = _repr.maxlong = 80


def shown(value: object) -> str:
    """Returns a value as error messages show it; a long value is shortened."""
    return _repr.repr(value)


def any_integer(name: str, value: object, rule: str = "an integer") -> int:
    """Returns an integer of any type (numpy's, too) as an int."""
    if type(value) is int:
        return value
    if isinstance(value, bool):
        raise WrongType(f"{name} must be {rule}, not the bool {value!r}")
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError as error:
        raise WrongType(f"{name} must be {rule}, not {shown(value)}") from error


def integer(name: str, value: object, low: int, high: float, rule: str | None = None) -> int:
    """Returns an integer of any type as an int, if it is from low to high.

    Parameters
    ----------
    rule
        The message's words for the range, where "from low to high" would not describe it.
    """
    if type(value) is int and low <= value <= high:
        return value
    rule = rule or f"from {low} to {high}"
    number = any_integer(name, value, f"{rule}, and an integer")
    if not low <= number <= high:
        raise InvalidRequest(f"{name} must be {rule}, not {number!r}")
    return number


def flag(name: str, value: object) -> bool:
    """Returns a bool of any type (numpy's, too) as a bool."""
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise WrongType(f"{name} must be True or False, not {shown(value)}")


def instance(name: str, value: object, kind: Any, order: str = "", *, called: str = "") -> None:
    """Raises `WrongType` unless a value is of a class.

    Parameters
    ----------
    order
        A sample call for the message, where arguments are easily given in another order.
    called
        The name of the class for users, if it differs from the class's own.
    """
    if isinstance(value, kind):
        return
    call = f": call {order}" if order else ""
    called = called or kind.__name__
    article = "an" if called[0] in "AEIOM" else "a"
    raise WrongType(f"{name} must be {article} {called}, not {shown(value)}{call}")


def seconds(name: str, value: object) -> float | None:
    """Returns a time in seconds, or None where the time has no limit."""
    if value is None:
        return None
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise WrongType(f"{name} must be seconds, or None, not {shown(value)}")
    number = float(value)
    if math.isnan(number):
        raise InvalidRequest(f"{name} must be seconds, or None, not {number!r}")
    # Python's own waits accept no longer time.
    return None if number >= threading.TIMEOUT_MAX else max(number, 0.0)


def file_path(name: str, value: object) -> Path:
    """Returns a value as the path of a file; raises where no file can have that path."""
    if not isinstance(value, (str, os.PathLike)):
        raise WrongType(f"{name} must be a file's path, not {shown(value)}")
    path = Path(value)
    if "\0" in str(path):
        raise InvalidRequest(f"{name} must be a file's path, not {shown(str(path))}")
    return path


def message(
    kind: Kind,
    flags: Flag,
    fields: Mapping[str, int],
    *,
    queues: Collection[int],
    sctp: bool = False,
    pieces: tuple[Piece, ...] = (),
    octets: bytes = b"",
) -> tuple[Message, bytes]:
    """Returns a message to send, and its entries in the send ring.

    Parameters
    ----------
    kind, flags, fields, pieces, octets
        As :class:`~....hdl.spec.send.Message` declares.
    queues
        The Queue Numbers that are valid on the message's stream.
    sctp
        Whether the stream is over SCTP, and has session control messages.
    """
    instance("a message's kind", kind, Kind)
    for name in fields:
        if name not in _FIELDS:
            raise WrongType(f"a message's fields are {', '.join(_FIELDS)}, and not {shown(name)}")
    values: dict[str, Any] = {name: any_integer(name, value) for name, value in fields.items()}
    pieces = tuple(
        Piece(*(any_integer(f"a piece's {name}", value) for name, value in vars(piece).items()))
        for piece in pieces
    )
    if kind is Kind.CONTROL and not sctp:
        raise InvalidRequest("a CONTROL message must be sent on a stream over SCTP")
    # The device knows the next MSN of these queues alone.
    if kind is Kind.UNTAGGED and (qn := values.get("qn", 0)) not in queues:
        raise InvalidRequest(
            f"qn must be one that the stream was opened with, {sorted(queues)}, not {qn!r}"
        )
    if kind is Kind.READ and _READS not in queues:
        raise InvalidRequest(
            f"a READ must be sent on a stream that was opened with queue {_READS}, not with"
            f" {sorted(queues)}"
        )
    try:
        made = Message(kind, flags, pieces, octets, **values)
        return made, made.encode()
    except ValueError as error:
        raise InvalidRequest(f"the message cannot be sent: {error}") from error

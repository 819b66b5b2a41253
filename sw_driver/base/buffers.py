"""Checks of the buffers that a caller passes: those the device may write, and those that are
sent.
"""

from __future__ import annotations

import ctypes
import re
from typing import Any

from .errors import InvalidRequest, WrongType

#: Codes of items that refer to other memory, which Python or ctypes would follow (PEP 3118, and
#: ctypes' own).
_REFERENCES = re.compile("[OPXzZ&]")
#: Harmless parts of a format that are no item codes: names of fields, and numpy's complex numbers.
_HARMLESS = re.compile(":[^:]*:|Z[fdg]")
#: The base of all types of ctypes.
_CTYPE = ctypes.c_ubyte.__mro__[-2]


def octets_of(buffer: object) -> memoryview:
    """Returns the octets of a buffer that the device can write, whatever its items are.

    While this view lives the buffer can be neither resized nor freed.
    """
    view = _view_of(
        buffer, "a buffer must be writable memory, as a bytearray, a numpy array or a mmap is"
    )
    if view.readonly:
        raise InvalidRequest(
            f"a buffer must be writable, and this {type(buffer).__name__} is read-only"
        )
    if not view.c_contiguous:
        if view.f_contiguous and hasattr(buffer, "T"):
            raise InvalidRequest(
                "a buffer must be contiguous in C's order: register the array's transpose, .T"
            )
        raise InvalidRequest("a buffer must be contiguous: copy the array, or take rows of it")
    if not view.nbytes:
        raise InvalidRequest("a buffer must have at least one octet")
    try:
        return view.cast("B")
    except TypeError:
        # A memoryview does not cast from every format, so this goes through ctypes. For each length
        # this makes a type, which only the garbage collector frees.
        return memoryview((ctypes.c_ubyte * view.nbytes).from_buffer(view)).cast("B")


def copy_of(buffer: object) -> bytes:
    """Returns a copy of a message's octets."""
    if isinstance(buffer, bytes | bytearray):
        return bytes(buffer)
    return _view_of(buffer, "a message must be octets").tobytes()


def _view_of(buffer: object, rule: str) -> memoryview:
    """Returns a view of a buffer whose items are plain octets."""
    name, dtype = type(buffer).__name__, getattr(buffer, "dtype", None)
    if getattr(dtype, "hasobject", False):
        raise _references(f"{name} of dtype {dtype}")
    try:
        view = memoryview(buffer)  # type: ignore[arg-type]
    except TypeError as error:
        raise WrongType(f"{rule}, not {name}") from error
    except (ValueError, BufferError) as error:
        if dtype is None:
            raise InvalidRequest(f"{rule}; this {name} exposes no buffer: {error}") from error
        # NumPy exposes no buffer for dates and a few other dtypes, although their items are plain
        # octets.
        plain = "i8" if getattr(dtype, "kind", "") in "mM" else "u1"
        raise InvalidRequest(
            f"{rule}, and numpy exposes no buffer of dtype {dtype} ({error}): pass the array's"
            f" .view('{plain}'), which is the same memory"
        ) from error
    _check_items(view)
    return view


def _check_items(view: memoryview) -> None:
    """Raises if the items of a view, or of the object below the view, are references."""
    if _REFERENCES.search(_HARMLESS.sub("", view.format)):
        raise _references(f"{type(view.obj).__name__} of format {view.format!r}")
    # A view of octets, such as numpy.frombuffer makes, may lie over memory that others read as
    # objects.
    owner: Any = view.obj
    while owner is not None:
        dtype = getattr(owner, "dtype", None)
        if getattr(dtype, "hasobject", False):
            raise _references(f"{type(owner).__name__} of dtype {dtype}")
        if isinstance(owner, memoryview):
            _check_items(owner)
            return
        if isinstance(owner, _CTYPE) and _holds_references(type(owner)):
            raise _references(type(owner).__name__)
        owner = None if dtype is None else getattr(owner, "base", None)


def _holds_references(kind: Any) -> bool:
    """Returns whether values of a ctypes type hold references. Their format alone does not always
    show it.

    The format of a union, or of a packed structure, is B.
    """
    if issubclass(kind, ctypes.Array):
        return _holds_references(kind._type_)
    if issubclass(kind, (ctypes.Structure, ctypes.Union)):
        return any(
            _holds_references(field[1])
            for base in kind.__mro__
            for field in base.__dict__.get("_fields_", ())
        )
    # All other types are simple types, whose code this is, or pointers.
    code = getattr(kind, "_type_", None)
    return not isinstance(code, str) or bool(_REFERENCES.fullmatch(code))


def _references(what: str) -> InvalidRequest:
    return InvalidRequest(
        f"a buffer's items must be plain octets, but this {what} holds references, which a peer's"
        " octets would overwrite: use an array of numbers"
    )

"""Writes the layouts of entries in host memory as structures of C."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum, IntFlag

from ..hdl.spec import completion, ddp, sctp, send, stag
from ..hdl.spec.completion import Field

__all__ = ["NUMBERS", "header"]

#: The numbers that registers and entries hold, by the prefix of their names in C.
NUMBERS: dict[str, type[IntEnum] | type[IntFlag]] = {
    "KIND": completion.Kind,
    "MESSAGE_STATUS": completion.Status,
    "SENT_STATUS": completion.SentStatus,
    "CHUNK_STATUS": completion.ChunkStatus,
    "SESSION_REASON": sctp.Reason,
    "SESSION_STATE": sctp.State,
    "FUNCTION": sctp.Function,
    "DIVERSION": sctp.Diversion,
    "ERROR_TYPE": ddp.ErrorType,
    "ACCESS": stag.Access,
    "SEND": send.Kind,
    "SEND_FLAG": send.Flag,
    "WAITS": send.Waits,
}


def _members(octets: int, fields: Sequence[Field]) -> Iterable[tuple[str, int, int, str]]:
    """Yields name, first octet, number of octets, and text of each member, gaps included."""
    at = 0
    for field in fields:
        if field.octet < at:  # a further field of the same octet, which has a mask of its own
            continue
        if field.octet > at:
            yield f"reserved_{at}", at, field.octet - at, "Zero."
        size = -(-(field.bit + field.bits) // 8)
        shared = [each.name for each in fields if each.octet == field.octet]
        name = field.name if len(shared) == 1 else "bits"
        yield name, field.octet, size, field.doc if len(shared) == 1 else ", ".join(shared) + "."
        at = field.octet + size
    if at < octets:
        yield f"reserved_{at}", at, octets - at, "Zero."


def _structure(name: str, octets: int, fields: Sequence[Field], doc: str) -> Iterable[str]:
    """Yields a structure, the masks of fields smaller than their member, and static asserts."""
    members = list(_members(octets, fields))
    yield from ("", f"/* {doc} */", f"struct rnic_{name} {{")
    for member, at, size, text in members:
        whole = size in (1, 2, 4, 8) and at % size == 0 and not member.startswith("reserved")
        kind, count = (f"uint{8 * size}_t", "") if whole else ("uint8_t", f"[{size}]")
        yield f"    {kind} {member}{count}; /* {text} */"
    yield "};"
    for field in fields:
        if field.bits % 8:
            prefix = f"RNIC_{name}_{field.name}".upper()
            yield f"#define {prefix}_SHIFT {field.bit} /* {field.doc} */"
            yield f"#define {prefix}_MASK {(1 << field.bits) - 1 << field.bit:#04x}u"
    yield f'RNIC_ASSERT(sizeof(struct rnic_{name}) == {octets}, "rnic_{name}");'
    for member, at, _, _ in members:
        yield (
            f'RNIC_ASSERT(offsetof(struct rnic_{name}, {member}) == {at}, "rnic_{name}.{member}");'
        )


def _numbers() -> Iterable[str]:
    for prefix, numbers in NUMBERS.items():
        text = (numbers.__doc__ or "").split("\n\n")[0]
        yield from ("", f"/* {' '.join(text.split())} */")
        for name, each in numbers.__members__.items():
            yield f"#define RNIC_{prefix}_{name} {each.value:#x}u"


def header() -> list[str]:
    """Returns the lines of the layouts. All numbers are little-endian."""
    return [
        "",
        "/* Entries in host memory, little-endian. */",
        "#include <stddef.h>",
        "#include <stdint.h>",
        "#if defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L",
        "#define RNIC_ASSERT(condition, text) _Static_assert(condition, text)",
        "#elif defined(__cplusplus) && __cplusplus >= 201103L",
        "#define RNIC_ASSERT(condition, text) static_assert(condition, text)",
        "#else",
        "#define RNIC_ASSERT(condition, text) struct rnic_assert",
        "#endif",
        *_structure(
            "completion", completion.OCTETS, completion.FIELDS, "A completion, in a ring."
        ),
        "",
        "/* Entries of the send ring, which a device reads that sends. */",
        *_structure("piece", send.PIECE_OCTETS, send.PIECE, "A piece of a message to send."),
        *_structure(
            "message", send.ENTRY // 2, send.MESSAGE,
            "The first half of a message's first entry; two pieces or 32 octets follow.",
        ),
        *_structure(
            "record", send.RECORD_OCTETS, send.RECORD,
            "The record of an FPDU, from bit 32 of TUSER on.",
        ),
        *_numbers(),
        "",
        "#undef RNIC_ASSERT",
    ]  # fmt: skip

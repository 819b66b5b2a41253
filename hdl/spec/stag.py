"""Declares the entry of the Steering Tag table, once for registers, gateware, driver and model."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntFlag

__all__ = ["FIELDS", "FLAGS", "RIGHTS", "Access", "EntryField", "decode", "encode"]


class Access(IntFlag):
    """Rights to a region. The numbers are those of verbs, but for LOCAL_READ: in verbs every region
    has that right, and 8 is a right to atomic operations, which RDMAP has not.

    A right that the device checks is a field of the entry, with the same name in lower case.
    """

    NONE = 0
    LOCAL_WRITE = 1  #: receive buffers may be posted in the region; every region has this right
    REMOTE_WRITE = 2  #: tagged messages may be placed in the region
    REMOTE_READ = 4  #: RDMA Reads may read the region
    LOCAL_READ = 8  #: the device may send octets of the region


@dataclass(frozen=True)
class EntryField:
    """A field of the entry: ``bits`` bits, which the host writes to a register from ``low`` up.

    ``register`` is the register's name without ``STAG_``. A field of 64 bits has two registers,
    whose names end with ``_LO`` and ``_HI``.
    """

    name: str
    bits: int
    register: str
    low: int
    doc: str

    @property
    def registers(self) -> tuple[str, ...]:
        """The full names of the field's registers, the lower half first."""
        halves = ("_LO", "_HI") if self.bits > 32 else ("",)
        return tuple(f"STAG_{self.register}{half}" for half in halves)


#: All fields but the index, which selects the entry. Those of one bit, and the key, share a
#: register.
FIELDS = (
    EntryField("valid", 1, "FLAGS", 8, "The entry is in use."),
    EntryField("key", 8, "FLAGS", 0, "The lower 8 bits of the STag."),
    EntryField("remote_write", 1, "FLAGS", 9, "Tagged segments may be placed."),
    EntryField("remote_read", 1, "FLAGS", 10, "An RDMA Read may read from the region."),
    EntryField("local_read", 1, "FLAGS", 12, "The device may send octets of the region."),
    EntryField(
        "bound",
        1,
        "FLAGS",
        11,
        "The entry belongs to one DDP Stream rather than to a Protection Domain.",
    ),
    EntryField(
        "owner",
        16,
        "OWNER",
        0,
        "The DDP Stream (if bound) or the Protection Domain (16 bits) that the entry belongs to.",
    ),
    EntryField("to", 64, "TO", 0, "Tagged Offset of the region's first octet"),
    EntryField("length", 64, "LEN", 0, "Length of the region in octets"),
    EntryField("address", 64, "ADDR", 0, "Host address of the region's first octet"),
    EntryField(
        "pages",
        4,
        "PAGES",
        0,
        "Page size of a region in scattered pages: 2 to the power of 11 + n octets (n from 1 to"
        " 10); 0: the region is contiguous. With pages, STAG_ADDR is the page table's slot of the"
        " first page, times the page size, plus the offset of the first octet in that page.",
    ),
)

#: The fields in the register STAG_FLAGS, the lowest first.
FLAGS = sorted((each for each in FIELDS if each.register == "FLAGS"), key=lambda each: each.low)
#: The rights that are fields of the entry, by the field's name.
RIGHTS = {
    name: right
    for right in Access
    if (name := str(right.name).lower()) in {each.name for each in FIELDS}
}


def encode(access: Access, **fields: int) -> dict[str, int]:
    """Returns the values of the STAG registers, by name, for an entry with these rights.

    ``fields`` are the values of the other fields; those that are missing are 0.
    """
    fields |= {name: right in access for name, right in RIGHTS.items()}
    values: dict[str, int] = {}
    for field in FIELDS:
        value = int(fields.get(field.name, 0)) << field.low
        for at, name in enumerate(field.registers):
            values[name] = values.get(name, 0) | value >> 32 * at & 0xFFFFFFFF
    return values


def decode(registers: Mapping[str, int]) -> tuple[Access, dict[str, int]]:
    """Returns rights and fields from the values of the STAG registers; a missing one is 0."""
    fields = {
        field.name: sum(
            registers.get(name, 0) << 32 * at for at, name in enumerate(field.registers)
        )
        >> field.low
        & (1 << field.bits) - 1
        for field in FIELDS
    }
    access = sum((right for name, right in RIGHTS.items() if fields[name]), Access.NONE)
    return Access(access), fields

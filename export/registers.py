"""Writes the register map as a page, as SystemRDL 2.0, and as headers for C and Verilog."""

from __future__ import annotations

from ..hdl.spec import regs
from ..hdl.spec.config import RnicConfig
from ..hdl.spec.regs import Field, Register
from . import layouts

#: The values that every device returns for these registers.
CONSTANTS = {"ID": regs.ID, "VERSION": regs.VERSION}
#: The number of doorbell pages, and the octets of each, which is also the address of page 1.
PAGES = {"PAGES": regs.PAGES, "PAGE_SIZE": regs.PAGE_SIZE}
PAGE_TEXT = (
    "A doorbell page. Its registers can only be written, and ring the streams and completion queues"
    " of that page alone. PAGE[0] here is the page with the number 1."
)

#: Keywords of SystemRDL 2.0 (its table 3) that this map may use as names, with a backslash before.
_RESERVED = frozenset(
    "abstract accesstype addressingtype addrmap alias all bit boolean bothedge compact"
    " componentwidth constraint default encode enum external false field fullalign hw inside"
    " internal level longint mem na negedge nonsticky number onreadtype onwritetype posedge"
    " property r rclr ref reg regalign regfile rset ruser rw rw1 signal string struct sw this true"
    " type unsigned w w1 wclr woclr woset wot wr wset wuser wzc wzs wzt".split()
)
#: For each access: how software accesses a field, and how hardware does.
_ACCESS = {"ro": ("r", "w"), "rw": ("rw", "r"), "wo": ("w", "r")}


def registers(config: RnicConfig) -> tuple[Register, ...]:
    """Returns the registers of a device with these parameters."""
    return tuple(regs.registers_of(config))


def fields(register: Register) -> tuple[Field, ...]:
    """Returns a register's fields; a register without fields has a single one, ``value``."""
    return register.fields or (Field("value", 0, 32, register.doc),)


def page(config: RnicConfig) -> str:
    """Returns the map as Markdown; ``hdl/spec/registers.md`` is that of a device with all."""
    there = sorted(registers(config), key=lambda each: each.address)
    lines = [
        "# Registers",
        "",
        "The host reaches these registers through `s_axil`. Each has 32 bits; addresses count",
        "octets. Access is ro, rw or wo (a write is a command, a read returns 0). S: only with",
        "SCTP. P: only in a device that receives, and so places octets. T: only in one that",
        "sends. R: only in one that answers RDMA Reads. This page is generated; `rnic export`",
        "writes one for any configuration.",
        "",
        f"Doorbell pages 1 to {regs.PAGES} follow, page n at n times {regs.PAGE_SIZE:#x}. One has",
        "`CQ_DOORBELL` and, in a device that sends, `SEND_DOORBELL`; their offsets are their",
        "addresses here. They can only be written, and ring streams and queues of that page alone.",
        "",
        "| address | register | access | |",
        "|---|---|---|---|",
    ]
    for register in there:
        parts = [register.doc]
        for field in register.fields:
            high = field.low + field.bits - 1
            bits = f"{high}:{field.low}" if field.bits > 1 else f"{high}"
            parts.append(f"{bits} `{field.name}`: {field.doc}")
        text = "<br>".join(parts).replace("|", "\\|")
        sends = "R" if register.responder else "T" * register.transmit
        only = "S" * register.sctp + "P" * register.receive + sends
        access = register.access + f", {only}" * bool(only)
        lines.append(f"| {register.address:#05x} | `{register.name}` | {access} | {text} |")
    return "\n".join([*lines, ""])


def doorbells(config: RnicConfig) -> tuple[Register, ...]:
    """Returns the registers that each doorbell page has, at the offsets of their addresses."""
    return tuple(each for each in registers(config) if each.name in regs.DOORBELLS)


def rdl(config: RnicConfig) -> str:
    """Returns the map as SystemRDL, as ``addrmap rnic``; its doorbell pages are ``PAGE``."""
    lines = [
        "// The registers of ddp-rnic on s_axil. Addresses count octets.",
        "addrmap rnic {",
        '    name = "ddp-rnic";',
        "    default regwidth = 32;",
        "    default accesswidth = 32;",
        "    littleendian;",
        "",
    ]
    for register in registers(config):
        lines += [*_rdl_register(register), ""]
    lines += ["    regfile {", f"        desc = {_quoted(PAGE_TEXT)};"]
    for register in doorbells(config):
        lines += [f"    {line}" for line in _rdl_register(register)]
    size = f"{regs.PAGE_SIZE:#x}"
    lines.append(f"    }} PAGE[{regs.PAGES}] @ {size} += {size};")
    return "\n".join([*lines, "};", ""])


def _rdl_register(register: Register) -> list[str]:
    software, hardware = _ACCESS[register.access]
    lines = ["    reg {", f"        desc = {_quoted(register.doc)};"]
    for field in fields(register):
        # Hardware only provides a value that is constant; it does not change it.
        known, drives = "", hardware
        if register.name in CONSTANTS:
            value = CONSTANTS[register.name] >> field.low & (1 << field.bits) - 1
            known, drives = f" = {field.bits}'h{value:x}", "r"
        doc = f" desc = {_quoted(field.doc)};" if register.fields else ""
        high = field.low + field.bits - 1
        lines.append(
            f"        field {{ sw = {software}; hw = {drives};{doc} }}"
            f" {_name(field.name)}[{high}:{field.low}]{known};"
        )
    return [*lines, f"    }} {_name(register.name)} @ {register.address:#x};"]


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _name(name: str) -> str:
    return f"\\{name}" if name in _RESERVED else name


def header(config: RnicConfig) -> str:
    """Returns the map as a C header: octet addresses, and lowest bit and mask of each field.

    The layouts of entries in host memory follow, and the numbers in registers and entries.
    """
    lines = [
        "/* The registers of ddp-rnic on s_axil. Addresses count octets. */",
        "#ifndef RNIC_H",
        "#define RNIC_H",
        "",
        f"#define RNIC_SIZE {1 << regs.ADDRESS_BITS:#x}u",
        *(f"#define RNIC_{name} {value:#x}u" for name, value in PAGES.items()),
        *(f"#define RNIC_{name}_VALUE {value:#010x}u" for name, value in CONSTANTS.items()),
    ]
    for register in registers(config):
        lines += ["", f"/* {register.access}: {register.doc} */"]
        lines.append(f"#define RNIC_{register.name} {register.address:#05x}u")
        for field in register.fields:
            name = f"RNIC_{register.name}_{field.name.upper()}"
            mask = (1 << field.bits) - 1 << field.low
            lines.append(f"#define {name}_SHIFT {field.low} /* {field.doc} */")
            lines.append(f"#define {name}_MASK {mask:#010x}u")
    return "\n".join([*lines, *layouts.header(), "", "#endif", ""])


def verilog_header(config: RnicConfig) -> str:
    """Returns the map as constants to include in a Verilog module, with the names of the C header.

    Entries in host memory, and the numbers in registers and entries, are in the C header alone.
    """
    lines = [
        "// The registers of ddp-rnic on s_axil, to include in a module. Addresses count octets.",
        "// verilator lint_off UNUSED",
        f"localparam [17:0] RNIC_SIZE = 18'h{1 << regs.ADDRESS_BITS:05x};",
        *(f"localparam [16:0] RNIC_{name} = 17'h{value:05x};" for name, value in PAGES.items()),
        *(f"localparam [31:0] RNIC_{name}_VALUE = 32'h{value:08x};"
          for name, value in CONSTANTS.items()),
    ]  # fmt: skip
    for register in registers(config):
        lines.append(f"localparam [16:0] RNIC_{register.name} = 17'h{register.address:05x};")
        for field in register.fields:
            name = f"RNIC_{register.name}_{field.name.upper()}"
            mask = (1 << field.bits) - 1 << field.low
            lines.append(f"localparam {name}_SHIFT = {field.low};")
            lines.append(f"localparam [31:0] {name}_MASK = 32'h{mask:08x};")
    return "\n".join([*lines, "// verilator lint_on UNUSED", ""])

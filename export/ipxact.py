"""Writes the IP-XACT description (IEEE 1685-2014) of the exported Verilog.

Buses are those of the AMBA 4 library, ``amba.com``. Clock, reset and interrupt have no common
definition; this file uses Vivado's, with its parameters ``ASSOCIATED_BUSIF``, ``ASSOCIATED_RESET``,
``POLARITY`` and ``SENSITIVITY``.
"""

from __future__ import annotations

from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from ..hdl.spec import regs
from ..hdl.spec.config import RnicConfig
from ..hdl.spec.regs import Register
from .interface import MODULE, Bus, buses, ports
from .registers import CONSTANTS, PAGE_TEXT, doorbells, fields, registers

NAMESPACE = "http://www.accellera.org/XMLSchema/IPXACT/1685-2014"

#: Vendor, library and version of a bus, and of its signals at register-transfer level.
_AMBA = {
    "AXI4": ("amba.com", "AMBA4", "r0p0_0"),
    "AXI4-Lite": ("amba.com", "AMBA4", "r0p0_0"),
    "AXI4Stream": ("amba.com", "AMBA4", "r0p0_1"),
}
_SIGNAL = ("xilinx.com", "signal", "1.0")
_ACCESS = {"ro": "read-only", "rw": "read-write", "wo": "write-only"}
_MAP, _SPACE, _FILES, _BODY = "registers", "host_memory", "verilog", "rtl"


def component(config: RnicConfig) -> str:
    """Returns ``component.xml``, which belongs beside ``rnic.v``."""
    ElementTree.register_namespace("ipxact", NAMESPACE)
    root = Element(_tag("component"))
    major, minor = regs.VERSION >> 16, regs.VERSION & 0xFFFF
    _texts(root, vendor="ddp-rnic", library="ddp-rnic", name=MODULE, version=f"{major}.{minor}")
    _buses(root, config)
    space = _add(_add(root, "addressSpaces"), "addressSpace")
    _texts(space, name=_SPACE, range=f"'h{1 << 64:x}", width=64)
    _registers(root, config)
    _model(root, config)
    files = _add(_add(root, "fileSets"), "fileSet")
    _texts(files, name=_FILES)
    _texts(_add(files, "file"), name=f"{MODULE}.v", fileType="verilogSource")
    sides = ("receive side", config.receive), ("send side", config.transmit)
    way = " and the ".join(side for side, there in sides if there)
    _texts(root, description=f"Direct Data Placement (RFC 5041), the {way} of an RNIC.")
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _buses(root: Element, config: RnicConfig) -> None:
    interfaces = _add(root, "busInterfaces")
    all_buses = buses(config)
    for bus in all_buses:
        vendor, library, version = _AMBA[bus.kind]
        signals = {logical: port.name for logical, port in bus.ports.items()}
        interface = _interface(
            interfaces, bus.name, bus.doc, (vendor, library, bus.kind, version), signals
        )
        _mode(interface, bus)
    together = ":".join(bus.name for bus in all_buses)
    for name, logical, role, master, parameters in (
        ("clk", "CLK", "clock", False, {"ASSOCIATED_BUSIF": together, "ASSOCIATED_RESET": "rst"}),
        ("rst", "RST", "reset", False, {"POLARITY": "ACTIVE_HIGH"}),
        ("irq", "INTERRUPT", "interrupt", True, {"SENSITIVITY": "LEVEL_HIGH"}),
    ):
        vendor, library, version = _SIGNAL
        docs = {
            "clock": "The only clock.",
            "reset": "Synchronous to clk, active high.",
            "interrupt": "High while an event or completions wait that IRQ_MASK does not hide.",
        }
        interface = _interface(
            interfaces, name, docs[role], (vendor, library, role, version), {logical: name}
        )
        _add(interface, "master" if master else "slave")
        own = _add(interface, "parameters")
        for key, value in parameters.items():
            parameter = _add(own, "parameter")
            parameter.set("parameterId", f"{name}.{key}")
            _texts(parameter, name=key, value=f'"{value}"')


def _interface(
    parent: Element,
    name: str,
    doc: str,
    bus: tuple[str, str, str, str],
    signals: dict[str, str],
) -> Element:
    """Adds a bus interface without its mode; ``bus`` is vendor, library, name and version."""
    vendor, library, kind, version = bus
    interface = _add(parent, "busInterface")
    _texts(interface, name=name, description=doc)
    _refer(interface, "busType", vendor, library, kind, version)
    abstraction = _add(_add(interface, "abstractionTypes"), "abstractionType")
    _refer(abstraction, "abstractionRef", vendor, library, f"{kind}_rtl", version)
    maps = _add(abstraction, "portMaps")
    for logical, physical in signals.items():
        pair = _add(maps, "portMap")
        _texts(_add(pair, "logicalPort"), name=logical)
        _texts(_add(pair, "physicalPort"), name=physical)
    return interface


def _mode(interface: Element, bus: Bus) -> None:
    mode = _add(interface, "master" if bus.master else "slave")
    if bus.kind == "AXI4":
        _add(mode, "addressSpaceRef").set("addressSpaceRef", _SPACE)
    elif bus.kind == "AXI4-Lite":
        _add(mode, "memoryMapRef").set("memoryMapRef", _MAP)


def _registers(root: Element, config: RnicConfig) -> None:
    memory_map = _add(_add(root, "memoryMaps"), "memoryMap")
    _texts(memory_map, name=_MAP)
    block = _add(memory_map, "addressBlock")
    _texts(block, name=MODULE, baseAddress="'h0", range=f"'h{1 << regs.ADDRESS_BITS:x}", width=32)
    _texts(block, usage="register")
    for register in registers(config):
        _register(block, register)
    size = f"'h{regs.PAGE_SIZE:x}"
    page = _add(block, "registerFile")
    _texts(page, name="PAGE", description=PAGE_TEXT, dim=regs.PAGES, addressOffset=size, range=size)
    for register in doorbells(config):
        _register(page, register)
    _texts(memory_map, addressUnitBits=8)


def _register(block: Element, register: Register) -> None:
    entry = _add(block, "register")
    access, volatile = _ACCESS[register.access], str(register.access == "ro").lower()
    _texts(
        entry,
        name=register.name,
        description=register.doc,
        addressOffset=f"'h{register.address:x}",
        size=32,
        volatile=volatile,
        access=access,
    )
    for each in fields(register):
        field = _add(entry, "field")
        _texts(field, name=each.name, description=each.doc, bitOffset=each.low)
        if register.name in CONSTANTS:
            value = CONSTANTS[register.name] >> each.low & (1 << each.bits) - 1
            _texts(_add(_add(field, "resets"), "reset"), value=f"'h{value:x}")
        _texts(field, bitWidth=each.bits)


def _model(root: Element, config: RnicConfig) -> None:
    model = _add(root, "model")
    view = _add(_add(model, "views"), "view")
    _texts(view, name=_BODY, envIdentifier=":*Synthesis:", componentInstantiationRef=_BODY)
    instance = _add(_add(model, "instantiations"), "componentInstantiation")
    _texts(instance, name=_BODY, language="verilog", moduleName=MODULE)
    _texts(_add(instance, "fileSetRef"), localName=_FILES)
    all_ports = _add(model, "ports")
    for port in ports(config):
        entry = _add(all_ports, "port")
        _texts(entry, name=port.name)
        wire = _add(entry, "wire")
        _texts(wire, direction="out" if port.output else "in")
        if port.width > 1:
            vector = _add(_add(wire, "vectors"), "vector")
            _texts(vector, left=port.width - 1, right=0)


def _tag(name: str) -> str:
    return f"{{{NAMESPACE}}}{name}"


def _add(parent: Element, name: str) -> Element:
    return SubElement(parent, _tag(name))


def _texts(parent: Element, **texts: object) -> None:
    """Adds children that contain text."""
    for name, text in texts.items():
        _add(parent, name).text = str(text)


def _refer(parent: Element, tag: str, vendor: str, library: str, name: str, version: str) -> None:
    """Adds a reference to a definition by its vendor, library, name and version."""
    reference = _add(parent, tag)
    for key, value in (
        ("vendor", vendor),
        ("library", library),
        ("name", name),
        ("version", version),
    ):
        reference.set(key, value)

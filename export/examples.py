"""Writes minimal uses of the exported Verilog: a LiteX SoC, and a script for Vivado."""

from __future__ import annotations

from collections.abc import Iterator
from string import Template

from ..hdl.spec import regs
from ..hdl.spec.config import RnicConfig
from .interface import MODULE, NOT_BUFFERABLE, Bus, buses

_LITEX = Template('''\
"""A minimal LiteX SoC around rnic.v: registers and memory through a UART, packets at pins.

Without a board: 'python litex_rnic.py' writes the SoC's Verilog, rnic_soc.v. With one, give Soc its
platform, and connect your receiver instead of the pins.
"""

import argparse
from pathlib import Path

from litex.build.generic_platform import Pins, Subsignal
from litex.build.sim import SimPlatform
from litex.gen import ClockSignal, Instance, LiteXModule, ResetSignal, Signal
from litex.soc.integration.soc import SoCRegion
from litex.soc.integration.soc_core import SoCMini
from litex.soc.interconnect.axi import AXIInterface, AXILiteInterface, AXIStreamInterface
${imports}from migen.genlib.io import CRG

HERE = Path(__file__).resolve().parent
REGISTERS = 0x3000_0000
HOST_MEMORY = 0x4000_0000
IO = [
    ("sys_clk", 0, Pins(1)),
    ("serial", 0, Subsignal("tx", Pins(1)), Subsignal("rx", Pins(1))),
    ("irq", 0, Pins(1)),
]


class Rnic(LiteXModule):
    """rnic.v with LiteX's buses."""

    def __init__(self, platform):
$interfaces
        self.irq = Signal()
        # LiteX's bus has 32 bits of address, and the RNIC 64. Of its writes, $writes
$addresses
${reads}        self.specials += Instance(
            "$module",
            i_clk=ClockSignal("sys"),
            i_rst=ResetSignal("sys"),
            o_irq=self.irq,
$connections
        )
        platform.add_source(str(HERE / "$module.v"))

    def connect(self, soc):
        """Adds the registers to the SoC's bus, and the RNIC's writes to its masters."""
        region = SoCRegion(REGISTERS, $size, cached=False)
        soc.bus.add_slave("rnic", self.s_axil, region)
$masters


class Soc(SoCMini):
    """The RNIC, the memory that it writes, and a UART (LiteX's uartbone) that reaches both."""

    def __init__(self, platform, clock=62_500_000, memory=0x4000):
        super().__init__(
            platform, clock, bus_standard="axi", bus_data_width=$width,
            ident="ddp-rnic",
        )
        self.crg = CRG(platform.request("sys_clk"))
        self.add_uartbone(baudrate=1_000_000)
        self.rnic = rnic = Rnic(platform)
        rnic.connect(self)
        self.add_ram("host_memory", HOST_MEMORY, memory)
        self.comb += platform.request("irq").eq(rnic.irq)
        for name, mode in $streams:
            pins = getattr(rnic, name)
            platform.add_extension(pins.get_ios(name))
            self.comb += pins.connect_to_pads(platform.request(name), mode=mode)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("rnic_soc.v"), help="The SoC's Verilog.")
    arguments = parser.parse_args()
    platform = SimPlatform("SIM", IO)
    soc = Soc(platform)
    soc.finalize()
    platform.get_verilog(soc, name=arguments.out.stem).write(str(arguments.out))


if __name__ == "__main__":
    main()
''')


#: The IDs of reads. LiteX's interconnect cuts IDs to one bit, and answers reads in their order.
_READS = Template("""\
        # LiteX's interconnect cuts IDs to one bit. On it all reads have ID 0, and are answered in
        # order, so that their own IDs wait here.
        self.reads = reads = SyncFIFO([("id", $ids)], 1 << $ids)
        ${bus}_arvalid, ${bus}_arready = Signal(), Signal()
        self.comb += [
            self.$bus.ar.valid.eq(${bus}_arvalid & reads.sink.ready),
            ${bus}_arready.eq(self.$bus.ar.ready & reads.sink.ready),
            reads.sink.valid.eq(${bus}_arvalid & self.$bus.ar.ready),
            reads.source.ready.eq(
                self.$bus.r.valid & self.$bus.r.ready & self.$bus.r.last),
        ]
""")


def litex(config: RnicConfig) -> str:
    """Returns ``litex_rnic.py``, which belongs beside ``rnic.v``."""
    all_buses = buses(config)
    masters = [bus for bus in all_buses if bus.kind == "AXI4"]
    streams = [
        f'("{bus.name}", "{"master" if bus.master else "slave"}")'
        for bus in all_buses
        if bus.kind == "AXI4Stream"
    ]
    return _LITEX.substitute(
        module=MODULE,
        width=config.width,
        imports="from litex.soc.interconnect.stream import SyncFIFO\n" * config.transmit,
        writes=NOT_BUFFERABLE,
        size=f"{1 << regs.ADDRESS_BITS:#x}",
        interfaces=_indented(2, (f"self.{bus.name} = {_litex_bus(bus)}" for bus in all_buses)),
        addresses=_indented(
            2,
            (
                line
                for bus in masters
                for way in _ways(bus)
                for line in (
                    f"{bus.name}_{way}addr = Signal(64)",
                    f"self.comb += self.{bus.name}.{way}.addr.eq({bus.name}_{way}addr)",
                )
            ),
        ),
        reads="".join(
            _READS.substitute(bus=bus.name, ids=bus.ports["ARID"].width)
            for bus in masters
            if "ARID" in bus.ports
        ),
        connections=_indented(3, (line for bus in all_buses for line in _connections(bus))),
        masters=_indented(
            2, (f'soc.bus.add_master("rnic_{bus.name}", self.{bus.name})' for bus in masters)
        ),
        streams=f"({', '.join(streams)})",
    )


def _litex_bus(bus: Bus) -> str:
    """Returns the code that makes LiteX's bus of the same widths."""
    width = {logical: port.width for logical, port in bus.ports.items()}
    if bus.kind == "AXI4Stream":
        named = {"data": "TDATA", "id": "TID", "user": "TUSER"}
        widths = (f"{name}_width={width[its]}" for name, its in named.items() if its in width)
        return f"AXIStreamInterface({', '.join(widths)})"
    if bus.kind == "AXI4":
        return f"AXIInterface(data_width={width.get('WDATA') or width['RDATA']})"
    return f"AXILiteInterface(data_width={width['WDATA']})"


def _ways(bus: Bus) -> list[str]:
    """Returns the prefixes of the channels with addresses."""
    return [way for way in ("aw", "ar") if f"{way.upper()}ADDR" in bus.ports]


def _connections(bus: Bus) -> Iterator[str]:
    for logical, port in bus.ports.items():
        name = logical.lower()
        if bus.kind == "AXI4Stream":
            signal = name.removeprefix("t")
        else:
            channel = name[:2] if name.startswith("a") else name[0]
            signal = f"{channel}.{name.removeprefix(channel)}"
        expression = f"self.{bus.name}.{signal}"
        if name.endswith("addr"):
            # The SoC's bus gives the whole address; a slave uses only its own bits.
            whole = f"{bus.name}_{name}"
            expression = whole if bus.master else f"{expression}[:{port.width}]"
        elif bus.kind == "AXI4" and "ARID" in bus.ports:
            # The bus has no IDs of this width: see _READS. Writes have no use for theirs.
            expression = {
                "arid": "reads.sink.id",
                "arvalid": f"{bus.name}_arvalid",
                "arready": f"{bus.name}_arready",
                "rid": "reads.source.id",
                "awid": f"Signal({port.width})",
                "bid": f"Signal({port.width})",
            }.get(name, expression)
        yield f"{'o' if port.output else 'i'}_{port.name}={expression},"


def _indented(levels: int, lines: Iterator[str]) -> str:
    return "\n".join(" " * 4 * levels + line for line in lines)


_VIVADO = Template("""\
# Of rnic.v: an IP for Vivado's block designs, in vivado/ip, and a synthesis of it alone, with its
# area and clock. Of its writes, $writes
# Run beside it:  vivado -mode batch -source vivado.tcl [-tclargs PART [NS]]
set part [expr {$$argc > 0 ? [lindex $$argv 0] : "xc7k325tffg900-2"}]
set period [expr {$$argc > 1 ? [lindex $$argv 1] : 8.0}]

create_project -force -part $$part $module vivado
add_files $module.v
set_property top $module [current_fileset]
update_compile_order -fileset sources_1

ipx::package_project -root_dir vivado/ip -vendor ddp-rnic -library user -taxonomy /UserIP \\
    -import_files -force
foreach bus {$names} {
    ipx::associate_bus_interfaces -busif $$bus -clock clk [ipx::current_core]
}
set reset [ipx::get_bus_interfaces rst -of_objects [ipx::current_core]]
set polarity [ipx::get_bus_parameters POLARITY -of_objects $$reset]
if {$$polarity eq ""} { set polarity [ipx::add_bus_parameter POLARITY $$reset] }
set_property value ACTIVE_HIGH $$polarity
ipx::save_core [ipx::current_core]

synth_design -top $module -part $$part -mode out_of_context
create_clock -name clk -period $$period [get_ports clk]
report_utilization -file vivado/utilization.txt
report_timing_summary -file vivado/timing.txt
""")


def vivado(config: RnicConfig) -> str:
    """Returns ``vivado.tcl``, which belongs beside ``rnic.v``."""
    return _VIVADO.substitute(
        module=MODULE,
        writes=NOT_BUFFERABLE,
        names=" ".join(bus.name for bus in buses(config)),
    )

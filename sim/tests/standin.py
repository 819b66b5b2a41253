"""A module with the RNIC's ports, 64 bits wide, that breaks a rule of a bus when told to.

A write to any register tells it how. It then writes one burst, or breaks down in doing so; 60
cycles later it says that it is idle.
"""

from __future__ import annotations

(
    GOOD,
    CROSSES_A_PAGE,
    ENDS_EARLY,
    CHANGES_ITS_ADDRESS,
    TAKES_DATA_BACK,
    NEVER_IDLE,
    LEAVES_A_HOLE,
    REFUSES_READS,
) = range(1, 9)

_PORTS = """
    input clk; input rst; input [63:0] s_axis_tdata; input [7:0] s_axis_tkeep; input s_axis_tvalid;
    output s_axis_tready; input s_axis_tlast; input [15:0] s_axis_tid; input [32:0] s_axis_tuser;
    output m_axi_awid; output [63:0] m_axi_awaddr; output [7:0] m_axi_awlen;
    output [2:0] m_axi_awsize; output [1:0] m_axi_awburst; output m_axi_awlock;
    output [3:0] m_axi_awcache; output [2:0] m_axi_awprot; output m_axi_awvalid;
    input m_axi_awready; output [63:0] m_axi_wdata; output [7:0] m_axi_wstrb; output m_axi_wlast;
    output m_axi_wvalid; input m_axi_wready; input m_axi_bid; input [1:0] m_axi_bresp;
    input m_axi_bvalid; output m_axi_bready; input [11:0] s_axil_awaddr; input [2:0] s_axil_awprot;
    input s_axil_awvalid; output s_axil_awready; input [31:0] s_axil_wdata;
    input [3:0] s_axil_wstrb; input s_axil_wvalid; output s_axil_wready; output [1:0] s_axil_bresp;
    output s_axil_bvalid; input s_axil_bready; input [11:0] s_axil_araddr;
    input [2:0] s_axil_arprot; input s_axil_arvalid; output s_axil_arready;
    output [31:0] s_axil_rdata; output [1:0] s_axil_rresp; output s_axil_rvalid;
    input s_axil_rready; output [63:0] m_axis_exc_tdata; output [7:0] m_axis_exc_tkeep;
    output m_axis_exc_tvalid; input m_axis_exc_tready; output m_axis_exc_tlast;
    output [15:0] m_axis_exc_tid; output [31:0] m_axis_exc_tuser; output irq;
"""

_BODY = """
  reg [31:0] mode = 0;
  reg [15:0] age = 0;
  reg written = 0, read = 0, announced = 0, told = 0;
  reg [2:0] beat = 0;
  always @(posedge clk) begin
    if (rst) begin
      mode <= 0; age <= 0; written <= 0; read <= 0; announced <= 0; told <= 0; beat <= 0;
    end else begin
      written <= s_axil_awvalid & s_axil_wvalid & ~written;
      read <= s_axil_arvalid & ~read;
      if (s_axil_awvalid & s_axil_wvalid & ~written) mode <= s_axil_wdata;
      if (mode != 0 && age != 16'hffff) age <= age + 1;
      if (m_axi_awvalid & m_axi_awready) announced <= 1;
      if (m_axi_wvalid & m_axi_wready) beat <= beat + 1;
      if (m_axis_exc_tvalid & m_axis_exc_tready) told <= 1;
    end
  end
  assign s_axil_awready = s_axil_awvalid & s_axil_wvalid & ~written;
  assign s_axil_wready = s_axil_awready;
  assign s_axil_bvalid = written;
  assign s_axil_bresp = 0;
  assign s_axil_arready = s_axil_arvalid & ~read;
  assign s_axil_rvalid = read;
  assign s_axil_rresp = (mode == 8) ? 2 : 0;
  assign s_axil_rdata = (age > 60 && mode != 6) ? 2 : 0;
  assign s_axis_tready = 1;
  assign m_axi_awvalid = mode != 0 & ~announced;
  assign m_axi_awaddr = (mode == 2) ? 64'hff0 : (mode == 4) ? {45'h1, age, 3'h0} : 64'h40;
  assign m_axi_awlen = 3;
  assign m_axi_awsize = 3;
  assign m_axi_awburst = 1;
  assign m_axi_wvalid = announced & beat < 4 & (mode != 5 | age[0]);
  assign m_axi_wdata = 64'h0101010101010101 * (beat + 1);
  assign m_axi_wstrb = (beat == 0) ? 8'he0 : 8'hff;
  assign m_axi_wlast = beat == ((mode == 3) ? 2 : 3);
  assign m_axi_bready = 1;
  assign m_axis_exc_tvalid = mode != 0 & ~told;
  assign m_axis_exc_tdata = 64'h8877665544332211;
  assign m_axis_exc_tkeep = (mode == 7) ? 8'h05 : 8'h07;
  assign m_axis_exc_tlast = 1;
  assign m_axis_exc_tid = 9;
  assign m_axis_exc_tuser = 77;
  assign {m_axi_awid, m_axi_awlock, m_axi_awcache, m_axi_awprot, irq} = 0;
"""


def verilog() -> str:
    """Its Verilog, written as Amaranth writes it."""
    ports = [" ".join(port.split()) for port in _PORTS.split(";") if port.strip()]
    names = ", ".join(port.split()[-1] for port in ports)
    declared = "".join(f"  {port};\n" for port in ports)
    return f"module rnic({names});\n{declared}{_BODY}endmodule\n"

"""A module with the RNIC's ports that breaks a rule of a bus on request.

A write to SCRATCH selects the fault. The module then writes one burst, or breaks down in doing so;
60 cycles later it reports that it is idle. A write to :data:`PRODUCE` makes it write that number of
completions, which have their number as their cookie; one to :data:`RAISE` makes it raise an error
event, whose registers read as their own addresses. A revocation takes 50 cycles.

The module is 64 bits wide, or, for echoes only, wider.

In the mode :data:`ECHOES` packets and frames leave on the exception stream in the cycle in which
they arrive, with the value last written to :data:`MARK` as the reason. A packet keeps stream and
sequence, a frame has stream :data:`FRAME`. The counters FRAMES and FRAMES_DROPPED are the number of
frames, and bits that show which were damaged; FRAMES_DIVERTED is the number of beats that should
not have arrived.
"""

from __future__ import annotations

from ddp_rnic.hdl.spec import regs
from ddp_rnic.hdl.spec.config import RnicConfig

(
    GOOD,
    CROSSES_A_PAGE,
    ENDS_EARLY,
    CHANGES_ITS_ADDRESS,
    TAKES_DATA_BACK,
    NEVER_IDLE,
    LEAVES_A_HOLE,
    REFUSES_READS,
    OVERWRITES,
    KEEPS_THE_PHASE,
    SKIPS_AN_ENTRY,
    LEAVES_OUT_AN_OCTET,
    CHANGES_A_COMPLETION,
    IDLE_TOO_SOON,
    COUNTS_KINDS,
    ECHOES,
    ANNOUNCES_ON,
) = range(1, 18)

MODE = regs.address("SCRATCH")
PRODUCE = regs.address("BUFFER_POST")
RAISE = regs.address("STREAM_COMMIT")
MARK = regs.address("STREAM_INDEX")
FRAME = 0xFFFF  #: the stream of a frame's echo

_WRITE_PORT = """
    output {0}_awid; output [63:0] {0}_awaddr; output [7:0] {0}_awlen;
    output [2:0] {0}_awsize; output [1:0] {0}_awburst; output {0}_awlock;
    output [3:0] {0}_awcache; output [2:0] {0}_awprot; output {0}_awvalid;
    input {0}_awready; output [D:0] {0}_wdata; output [K:0] {0}_wstrb; output {0}_wlast;
    output {0}_wvalid; input {0}_wready; input {0}_bid; input [1:0] {0}_bresp;
    input {0}_bvalid; output {0}_bready;
"""
_PORTS = f"""
    input clk; input rst; input [D:0] s_axis_tdata; input [K:0] s_axis_tkeep; input s_axis_tvalid;
    output s_axis_tready; input s_axis_tlast; input [15:0] s_axis_tid; input [32:0] s_axis_tuser;
    {_WRITE_PORT.format("m_axi")} {_WRITE_PORT.format("m_axi_cq")}
    input [16:0] s_axil_awaddr; input [2:0] s_axil_awprot;
    input s_axil_awvalid; output s_axil_awready; input [31:0] s_axil_wdata;
    input [3:0] s_axil_wstrb; input s_axil_wvalid; output s_axil_wready; output [1:0] s_axil_bresp;
    output s_axil_bvalid; input s_axil_bready; input [16:0] s_axil_araddr;
    input [2:0] s_axil_arprot; input s_axil_arvalid; output s_axil_arready;
    output [31:0] s_axil_rdata; output [1:0] s_axil_rresp; output s_axil_rvalid;
    input s_axil_rready; output [D:0] m_axis_exc_tdata; output [K:0] m_axis_exc_tkeep;
    output m_axis_exc_tvalid; input m_axis_exc_tready; output m_axis_exc_tlast;
    output [15:0] m_axis_exc_tid; output [43:0] m_axis_exc_tuser; output irq;
"""

_FRAME_PORT = """
    input [D:0] s_axis_eth_tdata; input [K:0] s_axis_eth_tkeep; input s_axis_eth_tvalid;
    output s_axis_eth_tready; input s_axis_eth_tlast; input s_axis_eth_tuser;
"""
_NO_FRAME_PORT = """
  wire [D:0] s_axis_eth_tdata = 0;
  wire [K:0] s_axis_eth_tkeep = 0;
  wire s_axis_eth_tvalid = 0, s_axis_eth_tlast = 0, s_axis_eth_tuser = 0;
  wire s_axis_eth_tready;
"""

# Names in capitals are addresses of registers and the modes above.
_BODY = """
  reg [31:0] mode;
  reg [15:0] age;
  reg written, read, announced, told;
  reg [2:0] beat;
  reg [16:0] asked;
  reg [5:0] revoking;
  reg [7:0] events;
  reg [11:0] mark;
  reg [31:0] frames, damaged, wrong;
  // Completions: to be written, their addresses taken, their responses come, given back.
  reg [15:0] pending, issued, answered, consumer;
  reg enable, masked, writing, waiting;
  reg [1:0] word;
  reg [31:0] base;
  reg [3:0] size;
  wire store = s_axil_awready;
  wire room = (issued - consumer) < (16'd1 << size) || mode == OVERWRITES;
  wire completion = answered != consumer;
  wire [15:0] entry = issued + (mode == SKIPS_AN_ENTRY && issued == 1);
  wire phase = ~|(issued & (16'd1 << size)) | (mode == KEEPS_THE_PHASE);
  wire done = !(pending != 0 && enable && room) && !writing && !waiting;
  wire echoes = mode == ECHOES;
  wire frame = s_axis_eth_tvalid & s_axis_eth_tready;
  wire stays = mode == NEVER_IDLE || mode == ANNOUNCES_ON;
  wire idle = age > 60 && !stays && (done || mode == IDLE_TOO_SOON);
  initial begin
    mode = 0; age = 0; written = 0; read = 0; announced = 0; told = 0; beat = 0; revoking = 0;
    events = 0; pending = 0; issued = 0; answered = 0; consumer = 0; enable = 0; masked = 0;
    writing = 0; waiting = 0; word = 0; base = 0; size = 0;
    mark = 0; frames = 0; damaged = 0; wrong = 0;
  end
  always @(posedge clk) begin
    if (rst) begin
      mode <= 0; age <= 0; written <= 0; read <= 0; announced <= 0; told <= 0; beat <= 0;
      revoking <= 0; events <= 0; pending <= 0; issued <= 0; answered <= 0; consumer <= 0;
      enable <= 0; masked <= 0; writing <= 0; waiting <= 0; word <= 0;
      mark <= 0; frames <= 0; damaged <= 0; wrong <= 0;
    end else begin
      written <= store;
      read <= s_axil_arvalid & ~read;
      if (s_axil_arvalid) asked <= s_axil_araddr;
      if (store && s_axil_awaddr == SCRATCH) mode <= s_axil_wdata;
      if (store && s_axil_awaddr == CQ_BASE_LO) base <= s_axil_wdata;
      if (store && s_axil_awaddr == CQ_SIZE) size <= s_axil_wdata;
      if (store && s_axil_awaddr == CQ_ENABLE) enable <= s_axil_wdata;
      if (store && s_axil_awaddr == CQ_DOORBELL) consumer <= s_axil_wdata;
      if (store && s_axil_awaddr == IRQ_MASK) masked <= s_axil_wdata[2];
      if (store && s_axil_awaddr == MARK) mark <= s_axil_wdata;
      if (frame & s_axis_eth_tlast) begin
        frames <= frames + 1;
        damaged[frames[4:0]] <= s_axis_eth_tuser;
      end
      wrong <= wrong + (s_axis_eth_tvalid & s_axis_tvalid)
               + (frame & s_axis_eth_tuser & ~s_axis_eth_tlast);
      if (revoking != 0) revoking <= revoking - 1;
      if (store && s_axil_awaddr == REVOKE_STAG) revoking <= 50;
      if (store && s_axil_awaddr == RAISE) events <= events + 1;
      if (store && s_axil_awaddr == EVENT_POP) events <= events - 1;
      if (mode != 0 && age != 16'hffff) age <= age + 1;
      if (m_axi_awvalid & m_axi_awready) announced <= 1;
      if (m_axi_wvalid & m_axi_wready) beat <= beat + 1;
      if (m_axis_exc_tvalid & m_axis_exc_tready) told <= 1;
      pending <= pending + ((store && s_axil_awaddr == PRODUCE) ? s_axil_wdata : 0)
                 - (m_axi_cq_awvalid & m_axi_cq_awready);
      if (m_axi_cq_awvalid & m_axi_cq_awready) begin writing <= 1; word <= 0; end
      if (m_axi_cq_wvalid & m_axi_cq_wready) begin
        word <= word + 1;
        if (word == 3) begin writing <= 0; waiting <= 1; issued <= issued + 1; end
      end
      if (m_axi_cq_bvalid & m_axi_cq_bready) begin waiting <= 0; answered <= answered + 1; end
    end
  end
  assign s_axil_awready = s_axil_awvalid & s_axil_wvalid & ~written;
  assign s_axil_wready = s_axil_awready;
  assign s_axil_bvalid = written;
  assign s_axil_bresp = 0;
  assign s_axil_arready = s_axil_arvalid & ~read;
  assign s_axil_rvalid = read;
  assign s_axil_rresp = (mode == REFUSES_READS) ? 2 : 0;
  assign s_axil_rdata = (asked == STATUS) ? {revoking != 0, completion, idle, events != 0}
                      : (asked == CQ_STATE) ? 0
                      : (asked == FRAMES) ? frames
                      : (asked == FRAMES_DROPPED) ? damaged
                      : (asked == FRAMES_DIVERTED) ? wrong
                      : (asked >= PLACED_SEGMENTS) ? 0 : asked;
  assign s_axis_tready = ~echoes | m_axis_exc_tready;
  assign s_axis_eth_tready = s_axis_tready & ~s_axis_tvalid;
  assign m_axi_awvalid = mode != 0 & (~announced | mode == ANNOUNCES_ON);
  assign m_axi_awaddr = (mode == CROSSES_A_PAGE) ? 64'hff0
                      : (mode == CHANGES_ITS_ADDRESS) ? {45'h1, age, 3'h0} : 64'h40;
  assign m_axi_awlen = 3;
  assign m_axi_awsize = $clog2(K + 1);
  assign m_axi_awburst = 1;
  assign m_axi_wvalid = announced & beat < 4 & (mode != TAKES_DATA_BACK | age[0]);
  assign m_axi_wdata = 64'h0101010101010101 * (beat + 1);
  assign m_axi_wstrb = (beat == 0) ? 8'he0 : 8'hff;
  assign m_axi_wlast = beat == ((mode == ENDS_EARLY) ? 2 : 3);
  assign m_axi_bready = 1;
  assign m_axi_cq_awvalid = pending != 0 & enable & room & ~writing & ~waiting;
  assign m_axi_cq_awaddr = base + (entry & ~(16'hffff << size)) * 32;
  assign m_axi_cq_awlen = 3;
  assign m_axi_cq_awsize = 3;
  assign m_axi_cq_awburst = 1;
  assign m_axi_cq_wvalid = writing;
  assign m_axi_cq_wdata = (word == 1) ? {16'd0, issued, 32'd0}
                        : (word == 3) ? {7'd0, phase, 56'd0}
                        : (word == 2 && mode == CHANGES_A_COMPLETION) ? age
                        : (word == 0 && mode == COUNTS_KINDS) ? {issued, 4'd0} : 0;
  assign m_axi_cq_wstrb = (mode == LEAVES_OUT_AN_OCTET && word == 2) ? 8'hf7 : 8'hff;
  assign m_axi_cq_wlast = word == 3;
  assign m_axi_cq_bready = 1;
  assign m_axis_exc_tvalid = echoes ? s_axis_tvalid | s_axis_eth_tvalid : mode != 0 & ~told;
  assign m_axis_exc_tdata = !echoes ? 64'h8877665544332211
                          : s_axis_tvalid ? s_axis_tdata : s_axis_eth_tdata;
  assign m_axis_exc_tkeep = !echoes ? ((mode == LEAVES_A_HOLE) ? 8'h05 : 8'h07)
                          : s_axis_tvalid ? s_axis_tkeep : s_axis_eth_tkeep;
  assign m_axis_exc_tlast = ~echoes | (s_axis_tvalid ? s_axis_tlast : s_axis_eth_tlast);
  assign m_axis_exc_tid = !echoes ? 9 : s_axis_tvalid ? s_axis_tid : FRAME;
  assign m_axis_exc_tuser = !echoes ? {12'h203, 32'd77}
                          : {mark, s_axis_tvalid ? s_axis_tuser[31:0] : 32'd0};
  assign irq = events != 0 | (completion & ~masked);
  assign {m_axi_awid, m_axi_awlock, m_axi_awcache, m_axi_awprot} = 0;
  assign {m_axi_cq_awid, m_axi_cq_awlock, m_axi_cq_awcache, m_axi_cq_awprot} = 0;
"""


def verilog(config: RnicConfig) -> str:
    """Returns its Verilog in Amaranth's style; with ``sctp`` it has the port for frames."""
    size = {"D": config.width - 1, "K": config.octets - 1}
    text = _PORTS + _FRAME_PORT * config.sctp
    ports = [" ".join(port.split()) for port in text.split(";") if port.strip()]
    names = ", ".join(port.split()[-1] for port in ports)
    declared = "".join(f"  {port};\n" for port in ports)
    for name, value in size.items():
        declared = declared.replace(f"[{name}:0]", f"[{value}:0]")
    values = {register.name: register.address for register in regs.REGISTERS}
    values |= {name: value for name, value in globals().items() if name.isupper()} | size
    constants = "".join(
        f"  localparam {name} = {value};\n"
        for name, value in values.items()
        if isinstance(value, int)
    )
    body = _BODY if config.sctp else _NO_FRAME_PORT + _BODY
    return f"module rnic({names});\n{declared}{constants}{body}endmodule\n"

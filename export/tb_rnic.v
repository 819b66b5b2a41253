// A testbench for rnic.v in plain Verilog. If the export receives, the testbench sends two RDMA Writes
// and a Send over each of its LLPs, and checks that host memory and the completion ring hold these
// and nothing else. If the export sends, the testbench has it send a Write and a Send on two streams,
// and compares the FPDUs. The last line that it prints is PASS, or the difference.
//
//   $ iverilog -g2012 -o tb_rnic tb_rnic.v rnic.v && vvp tb_rnic
//   $ verilator --binary -Wall --top-module tb_rnic rnic.vlt tb_rnic.v rnic.v && obj_dir/Vtb_rnic
//
// Icarus takes -g2005 too. Inputs change at the falling edge of the clock, and outputs are sampled
// at the rising edge, so that the order of events within an edge does not matter.

module tb_rnic;
  // CONSTANTS

  localparam OCTETS = WIDTH / 8;
  localparam [7:0] PAINT = 8'hEE;  // octets of memory without a placement
  localparam integer PATIENCE = 40000;  // cycles for the whole run

  reg clk = 1'b0, rst = 1'b1;
  always #5 clk = ~clk;

  reg failed = 1'b0;
  integer errors = 0;

  task fail(input [8*64-1:0] what, input [255:0] wanted, input [255:0] got);
    begin
      $display("FAIL: %0s: expected %0h, got %0h, at %0t", what, wanted, got, $time);
      failed = 1'b1;
      errors = errors + 1;
      if (errors == 10) $finish;
    end
  endtask

  task check(input [8*64-1:0] what, input [255:0] wanted, input [255:0] got);
    if (got !== wanted) fail(what, wanted, got);
  endtask

  initial begin
    repeat (PATIENCE) @(negedge clk);
    $display("FAIL: not done after %0d cycles", PATIENCE);
    $finish;
  end

  // -- registers ----------------------------------------------------------------------------------

  reg [16:0] s_axil_awaddr = 17'h00000, s_axil_araddr = 17'h00000;
  reg s_axil_awvalid = 1'b0, s_axil_wvalid = 1'b0, s_axil_arvalid = 1'b0;
  reg [31:0] s_axil_wdata = 32'h00000000;
  wire s_axil_awready, s_axil_wready, s_axil_bvalid, s_axil_arready, s_axil_rvalid;
  wire [1:0] s_axil_bresp, s_axil_rresp;
  wire [31:0] s_axil_rdata;
  reg got_address, got_data;

  // Like all tasks, this begins and ends at the falling edge.
  task write_register(input [16:0] address, input [31:0] value);
    begin
      s_axil_awaddr = address;
      s_axil_wdata = value;
      s_axil_awvalid = 1'b1;
      s_axil_wvalid = 1'b1;
      while (s_axil_awvalid || s_axil_wvalid) begin
        @(posedge clk);
        got_address = s_axil_awready;
        got_data = s_axil_wready;
        @(negedge clk);
        if (got_address) s_axil_awvalid = 1'b0;
        if (got_data) s_axil_wvalid = 1'b0;
      end
      while (s_axil_bvalid !== 1'b1) @(negedge clk);
      check("response to a register's write", 0, s_axil_bresp);
      @(negedge clk);
    end
  endtask

  reg [31:0] value;  // the result of the last read

  task read_register(input [16:0] address);
    begin
      s_axil_araddr = address;
      s_axil_arvalid = 1'b1;
      got_address = 1'b0;
      while (!got_address) begin
        @(posedge clk);
        got_address = s_axil_arready;
        @(negedge clk);
      end
      s_axil_arvalid = 1'b0;
      while (s_axil_rvalid !== 1'b1) @(negedge clk);
      value = s_axil_rdata;
      check("response to a register's read", 0, s_axil_rresp);
      @(negedge clk);
    end
  endtask

  task expect_register(input [8*64-1:0] name, input [16:0] address, input [31:0] wanted);
    begin
      read_register(address);
      check(name, wanted, value);
    end
  endtask

  // -- host memory: placements, and the rings of the completion queues -----------------------------

`ifdef RNIC_RECEIVE
  wire m_axi_awvalid, m_axi_awready, m_axi_wvalid, m_axi_wready, m_axi_wlast;
  wire m_axi_bvalid, m_axi_bready, m_axi_awlock;
  wire [ID_BITS-1:0] m_axi_awid;
  wire [63:0] m_axi_awaddr;
  wire [7:0] m_axi_awlen;
  wire [2:0] m_axi_awsize, m_axi_awprot;
  wire [1:0] m_axi_awburst;
  wire [3:0] m_axi_awcache;
  wire [WIDTH-1:0] m_axi_wdata;
  wire [OCTETS-1:0] m_axi_wstrb;

  // Slower than the ring, so that a completion would overtake octets on their way into memory.
  tb_memory #(.WIDTH(WIDTH), .BASE(MEMORY), .OCTETS(MEMORY_OCTETS), .LATENCY(300)) placed (
    .clk(clk),
    .awaddr(m_axi_awaddr), .awlen(m_axi_awlen), .awsize(m_axi_awsize), .awburst(m_axi_awburst),
    .awcache(m_axi_awcache), .awvalid(m_axi_awvalid), .awready(m_axi_awready),
    .wdata(m_axi_wdata), .wstrb(m_axi_wstrb), .wlast(m_axi_wlast), .wvalid(m_axi_wvalid),
    .wready(m_axi_wready), .bvalid(m_axi_bvalid), .bready(m_axi_bready)
  );
`else
  // The device has no port that writes here.
  wire [2:0] no_port;
  tb_memory #(.WIDTH(WIDTH), .BASE(MEMORY), .OCTETS(MEMORY_OCTETS)) placed (
    .clk(clk),
    .awaddr(64'd0), .awlen(8'd0), .awsize(3'd0), .awburst(2'd0), .awcache(4'd0), .awvalid(1'b0),
    .awready(no_port[0]), .wdata({WIDTH{1'b0}}), .wstrb({OCTETS{1'b0}}), .wlast(1'b0), .wvalid(1'b0),
    .wready(no_port[1]), .bvalid(no_port[2]), .bready(1'b0)
  );
`endif

`ifdef RNIC_TRANSMIT
  wire m_axi_arvalid, m_axi_arlock, m_axi_rready;
  wire [ID_BITS-1:0] m_axi_arid;
  wire [63:0] m_axi_araddr;
  wire [7:0] m_axi_arlen;
  wire [2:0] m_axi_arsize, m_axi_arprot;
  wire [1:0] m_axi_arburst;
  wire [3:0] m_axi_arcache;
  reg m_axi_arready = 1'b1, m_axi_rvalid = 1'b0, m_axi_rlast = 1'b0;
  reg [ID_BITS-1:0] m_axi_rid = 0;
  reg [WIDTH-1:0] m_axi_rdata = 0;

  // The same memory's read channels. Up to two bursts wait, each for READ_LATENCY cycles at least;
  // of two with different IDs, the younger one is answered first.
  localparam integer READ_LATENCY = 30;
  reg [63:0] read_address[0:1];
  reg [7:0] read_left[0:1];
  reg [ID_BITS-1:0] read_id[0:1];
  integer read_wait[0:1];
  integer reads = 0, which = 0, octet_read;
  reg answering = 1'b0;

  always @(posedge clk) begin
    if (reads > 0 && read_wait[0] > 0) read_wait[0] = read_wait[0] - 1;
    if (reads > 1 && read_wait[1] > 0) read_wait[1] = read_wait[1] - 1;
    if (m_axi_arvalid && m_axi_arready) begin
      if (m_axi_arsize != $clog2(OCTETS) || m_axi_arburst != 2'b01
          || m_axi_araddr[11:0] + (m_axi_arlen + 13'd1) * OCTETS > 13'h1000
          || m_axi_araddr % OCTETS != 64'd0)
        fail("burst of a read", 0, {m_axi_arsize, m_axi_arburst, m_axi_arlen, m_axi_araddr});
      read_address[reads] = m_axi_araddr;
      read_left[reads] = m_axi_arlen;
      read_id[reads] = m_axi_arid;
      read_wait[reads] = READ_LATENCY;
      reads = reads + 1;
    end
    if (!m_axi_rvalid || m_axi_rready) begin
      if (!answering) begin
        which = reads == 2 && read_id[0] != read_id[1] ? 1 : 0;
        answering = reads > 0 && read_wait[which] == 0;
      end
      m_axi_rvalid <= answering;
      if (answering) begin
        for (octet_read = 0; octet_read < OCTETS; octet_read = octet_read + 1)
          m_axi_rdata[8*octet_read +: 8]
            <= placed.octets[read_address[which] - MEMORY + octet_read];
        m_axi_rid <= read_id[which];
        m_axi_rlast <= read_left[which] == 8'd0;
        answering = read_left[which] != 8'd0;
        read_address[which] = read_address[which] + OCTETS;
        read_left[which] = read_left[which] - 8'd1;
        if (!answering) begin
          reads = reads - 1;
          if (which == 0) begin
            read_address[0] = read_address[1];
            read_left[0] = read_left[1];
            read_id[0] = read_id[1];
            read_wait[0] = read_wait[1];
          end
        end
      end
    end
    m_axi_arready <= reads < 2;
  end
`endif

  wire m_axi_cq_awvalid, m_axi_cq_awready, m_axi_cq_wvalid, m_axi_cq_wready, m_axi_cq_wlast;
  wire m_axi_cq_bvalid, m_axi_cq_bready, m_axi_cq_awid, m_axi_cq_awlock;
  wire [63:0] m_axi_cq_awaddr;
  wire [7:0] m_axi_cq_awlen;
  wire [2:0] m_axi_cq_awsize, m_axi_cq_awprot;
  wire [1:0] m_axi_cq_awburst;
  wire [3:0] m_axi_cq_awcache;
  wire [WIDTH-1:0] m_axi_cq_wdata;
  wire [OCTETS-1:0] m_axi_cq_wstrb;

  tb_memory #(.WIDTH(WIDTH), .BASE(RING), .OCTETS(RINGS_OCTETS), .LATENCY(60)) ring (
    .clk(clk),
    .awaddr(m_axi_cq_awaddr), .awlen(m_axi_cq_awlen), .awsize(m_axi_cq_awsize),
    .awburst(m_axi_cq_awburst), .awcache(m_axi_cq_awcache), .awvalid(m_axi_cq_awvalid),
    .awready(m_axi_cq_awready), .wdata(m_axi_cq_wdata), .wstrb(m_axi_cq_wstrb),
    .wlast(m_axi_cq_wlast), .wvalid(m_axi_cq_wvalid), .wready(m_axi_cq_wready),
    .bvalid(m_axi_cq_bvalid), .bready(m_axi_cq_bready)
  );

  // The expected memory: painted, and each message, by tag and length, at its place.
  reg [7:0] expected[0:MEMORY_OCTETS-1];
  integer at, k;

  function [7:0] octet(input [7:0] tag, input integer index);
    octet = tag + 8'd7 * index[7:0];
  endfunction

  task expect_message(input [63:0] address, input [7:0] tag, input integer length);
    for (k = 0; k < length; k = k + 1) expected[address - MEMORY + k] = octet(tag, k);
  endtask

  task check_memory(input [63:0] address, input integer length);
    for (k = 0; k < length; k = k + 1)
      if (placed.octets[address - MEMORY + k] !== expected[address - MEMORY + k])
        fail("octet in memory", expected[address - MEMORY + k],
             placed.octets[address - MEMORY + k]);
  endtask

  wire irq;
  reg [8*ENTRY_OCTETS-1:0] entry;  // of a ring
  integer produced[0:1], consumed[0:1];

  // Waits for the next entry of a queue, and reads it: 0, that of messages, or 1, that of SCTP's
  // owner, whose ring follows.
  task next_entry(input integer ring_number);
    begin
      entry = 0;
      write_register(CQ_INDEX, ring_number ? OWNER : 0);
      while (consumed[ring_number] == produced[ring_number]) begin
        while (irq !== 1'b1) @(negedge clk);
        read_register(CQ_PRODUCER);
        produced[ring_number] = value;
      end
      for (k = 0; k < ENTRY_OCTETS; k = k + 1)
        entry[8*k +: 8] = ring.octets[ENTRY_OCTETS*((ring_number << RING_SIZE)
                                                    + consumed[ring_number]) + k];
      consumed[ring_number] = consumed[ring_number] + 1;
      check("phase of a completion", 1, entry[ENTRY_PHASE]);
      write_register(CQ_DOORBELL, ARM | (ring_number ? OWNER << 16 : 0) | consumed[ring_number]);
    end
  endtask

  reg [8*ENTRY_OCTETS-1:0] complete;  // an expected entry

`ifdef RNIC_TRANSMIT
  // FPDUs that the device sends, or without MPA frames: those of each stream in order, with pauses
  // of the receiver.
  wire [WIDTH-1:0] m_axis_tdata;
  wire [OCTETS-1:0] m_axis_tkeep;
  wire m_axis_tlast, m_axis_tvalid;
  wire [15:0] m_axis_tid;
  wire [95:0] m_axis_tuser;
  reg m_axis_tready = 1'b0;
  reg [7:0] pauses = 8'h5A;
  wire [WIDTH+OCTETS+113:0] offer =
    {m_axis_tvalid, m_axis_tlast, m_axis_tid, m_axis_tuser, m_axis_tkeep, m_axis_tdata};
  reg [WIDTH+OCTETS+113:0] held = 0;  // the beat that was not taken
  reg [FPDUS-1:0] sent = 0;
  integer fpdu = 0, fpdu_at = 0, fpdu_octets, index;

  always @(negedge clk) begin
    pauses = {pauses[6:0], ^(pauses & 8'hB8)};
    m_axis_tready = pauses[0];
  end

  always @(posedge clk) begin
    if (held != 0 && offer !== held) fail("beat of an FPDU that waits", 0, 1);
    held = m_axis_tvalid && !m_axis_tready ? offer : 0;
    if (m_axis_tvalid && m_axis_tready) begin
      if (fpdu_at == 0) begin
        fpdu = 0;
        while (fpdu < FPDUS && (sent[fpdu] || FPDU_STREAMS[16*fpdu +: 16] != m_axis_tid))
          fpdu = fpdu + 1;
      end
      if (fpdu == FPDUS) fail("stream of an FPDU", 0, m_axis_tid);
      else begin
        fpdu_octets = FPDU_OCTETS[16*fpdu +: 16];
        check("TID of an FPDU", FPDU_STREAMS[16*fpdu +: 16], m_axis_tid);
        check("TUSER of an FPDU", FPDU_TUSERS[96*fpdu +: 96], m_axis_tuser);
        check("TLAST of an FPDU", fpdu_at + OCTETS >= fpdu_octets, m_axis_tlast);
        for (index = 0; index < OCTETS; index = index + 1) begin
          check("TKEEP of an FPDU", fpdu_at + index < fpdu_octets, m_axis_tkeep[index]);
          if (fpdu_at + index < fpdu_octets)
            check("octet of an FPDU",
                  FPDU_TEXT[8*(FPDU_ENDS[16*fpdu +: 16] - fpdu_at - index) +: 8],
                  m_axis_tdata[8*index +: 8]);
        end
        sent[fpdu] = m_axis_tlast;
      end
      fpdu_at = m_axis_tlast ? 0 : fpdu_at + OCTETS;
    end
  end

  integer sent_completions = 0;

  // Checks the entry of a queue that says that all messages of a stream were sent.
  task take_sent;
    begin
      complete = 0;
      complete[ENTRY_PHASE] = 1'b1;
      complete[ENTRY_KIND +: 4] = KIND_SENT;
      if (entry[ENTRY_STREAM +: 16] == SENDER_1) begin
        complete[ENTRY_STREAM +: 16] = SENDER_1;
        complete[ENTRY_TAG +: 32] = SENDER_1_ENTRIES;
      end else begin
        complete[ENTRY_STREAM +: 16] = SENDER_2;
        complete[ENTRY_TAG +: 32] = SENDER_2_ENTRIES;
      end
      check("completion of what was sent", complete, entry);
      for (k = 0; k < FPDUS; k = k + 1)
        if (FPDU_STREAMS[16*k +: 16] == complete[ENTRY_STREAM +: 16])
          check("FPDU before its completion", 1, sent[k]);
      sent_completions = sent_completions + 1;
    end
  endtask

  // Writes the entries of a ring to host memory.
  task write_ring(input [63:0] address, input [8*LONGEST_RING-1:0] entries, input integer length);
    for (k = 0; k < length; k = k + 1) begin
      placed.octets[address - MEMORY + k] = entries[8*(LONGEST_RING-1-k) +: 8];
      expected[address - MEMORY + k] = entries[8*(LONGEST_RING-1-k) +: 8];
    end
  endtask
`endif

`ifdef RNIC_RECEIVE
  task expect_completion(
    input is_tagged, input [15:0] stream, input [31:0] tag, input [31:0] length, input [31:0] cookie
  );
    begin
      next_entry(0);
`ifdef RNIC_TRANSMIT
      while (entry[ENTRY_KIND +: 4] == KIND_SENT) begin
        take_sent;
        next_entry(0);
      end
`endif
      complete = 0;
      complete[ENTRY_PHASE] = 1'b1;
      complete[ENTRY_TAGGED] = is_tagged;
      complete[ENTRY_STREAM +: 16] = stream;
      complete[ENTRY_TAG +: 32] = tag;
      complete[ENTRY_LENGTH +: 32] = length;
      complete[ENTRY_COOKIE +: 32] = cookie;
      check("completion", complete, entry);
    end
  endtask

  // -- packets ------------------------------------------------------------------------------------

  reg [WIDTH-1:0] beat;
  reg [OCTETS-1:0] keep;
  reg last;

  // The beat of a packet from octet at on; the packet's first octet is the highest.
  task take_beat(input [8*LONGEST-1:0] packet, input integer length);
    begin
      last = at + OCTETS >= length;
      for (k = 0; k < OCTETS; k = k + 1) begin
        keep[k] = at + k < length;
        beat[8*k +: 8] = keep[k] ? packet[8*(LONGEST-1-at-k) +: 8] : 8'h00;
      end
    end
  endtask

`ifdef RNIC_MPA
  reg [WIDTH-1:0] s_axis_tdata = 0;
  reg [OCTETS-1:0] s_axis_tkeep = 0;
  reg s_axis_tlast = 1'b0, s_axis_tvalid = 1'b0;
  reg [15:0] s_axis_tid = 16'd0;
  reg [32:0] s_axis_tuser = 33'd0;
  wire s_axis_tready;
  reg [31:0] sequence_number = 32'd0;

  task send_fpdu(input [8*LONGEST-1:0] packet, input integer length);
    begin
      at = 0;
      while (at < length) begin
        take_beat(packet, length);
        s_axis_tdata = beat;
        s_axis_tkeep = keep;
        s_axis_tlast = last;
        s_axis_tid = MPA_STREAM;
        s_axis_tuser = {1'b0, sequence_number};
        s_axis_tvalid = 1'b1;
        @(posedge clk);
        if (s_axis_tready) at = at + OCTETS;
        @(negedge clk);
      end
      s_axis_tvalid = 1'b0;
      sequence_number = sequence_number + length;
    end
  endtask
`endif

`ifdef RNIC_SCTP
  reg [WIDTH-1:0] s_axis_eth_tdata = 0;
  reg [OCTETS-1:0] s_axis_eth_tkeep = 0;
  reg s_axis_eth_tlast = 1'b0, s_axis_eth_tvalid = 1'b0;
  wire s_axis_eth_tready;

  task send_frame(input [8*LONGEST-1:0] packet, input integer length);
    begin
      at = 0;
      while (at < length) begin
        take_beat(packet, length);
        s_axis_eth_tdata = beat;
        s_axis_eth_tkeep = keep;
        s_axis_eth_tlast = last;
        s_axis_eth_tvalid = 1'b1;
        @(posedge clk);
        if (s_axis_eth_tready) at = at + OCTETS;
        @(negedge clk);
      end
      s_axis_eth_tvalid = 1'b0;
    end
  endtask
`endif

  // Number of packets forwarded to the host, and the reason of the last one.
  wire [WIDTH-1:0] m_axis_exc_tdata;
  wire [OCTETS-1:0] m_axis_exc_tkeep;
  wire m_axis_exc_tlast, m_axis_exc_tvalid;
  wire [15:0] m_axis_exc_tid;
  wire [43:0] m_axis_exc_tuser;
  integer exceptions = 0;
  reg [11:0] reason = 12'd0;
  always @(posedge clk)
    if (m_axis_exc_tvalid && m_axis_exc_tlast) begin
      exceptions = exceptions + 1;
      reason = m_axis_exc_tuser[43:32];
    end
`endif

`ifdef RNIC_TRANSMIT
`ifdef RNIC_MPA
`ifdef RNIC_SCTP
  wire [WIDTH+OCTETS+113:0] unused;  // frames of a device that sends FPDUs here
`endif
`endif
`endif

  rnic dut (
`ifdef RNIC_TRANSMIT
`ifdef RNIC_MPA
    .m_axis_tdata(m_axis_tdata), .m_axis_tkeep(m_axis_tkeep), .m_axis_tlast(m_axis_tlast),
    .m_axis_tid(m_axis_tid), .m_axis_tuser(m_axis_tuser), .m_axis_tvalid(m_axis_tvalid),
    .m_axis_tready(m_axis_tready),
`ifdef RNIC_SCTP
    .m_axis_eth_tdata(unused[WIDTH-1:0]), .m_axis_eth_tkeep(unused[WIDTH+:OCTETS]),
    .m_axis_eth_tid(unused[WIDTH+OCTETS+:16]), .m_axis_eth_tuser(unused[WIDTH+OCTETS+16+:96]),
    .m_axis_eth_tlast(unused[WIDTH+OCTETS+112]), .m_axis_eth_tvalid(unused[WIDTH+OCTETS+113]),
    .m_axis_eth_tready(1'b1),
`endif
`else
    .m_axis_eth_tdata(m_axis_tdata), .m_axis_eth_tkeep(m_axis_tkeep),
    .m_axis_eth_tlast(m_axis_tlast), .m_axis_eth_tid(m_axis_tid),
    .m_axis_eth_tuser(m_axis_tuser), .m_axis_eth_tvalid(m_axis_tvalid),
    .m_axis_eth_tready(m_axis_tready),
`endif
    .m_axi_arid(m_axi_arid), .m_axi_araddr(m_axi_araddr), .m_axi_arlen(m_axi_arlen),
    .m_axi_arsize(m_axi_arsize), .m_axi_arburst(m_axi_arburst), .m_axi_arlock(m_axi_arlock),
    .m_axi_arcache(m_axi_arcache), .m_axi_arprot(m_axi_arprot), .m_axi_arvalid(m_axi_arvalid),
    .m_axi_arready(m_axi_arready), .m_axi_rid(m_axi_rid), .m_axi_rdata(m_axi_rdata),
    .m_axi_rresp(2'b00), .m_axi_rlast(m_axi_rlast), .m_axi_rvalid(m_axi_rvalid),
    .m_axi_rready(m_axi_rready),
`endif
`ifdef RNIC_RECEIVE
`ifdef RNIC_MPA
    .s_axis_tdata(s_axis_tdata), .s_axis_tkeep(s_axis_tkeep), .s_axis_tlast(s_axis_tlast),
    .s_axis_tid(s_axis_tid), .s_axis_tuser(s_axis_tuser), .s_axis_tvalid(s_axis_tvalid),
    .s_axis_tready(s_axis_tready),
`endif
`ifdef RNIC_SCTP
    .s_axis_eth_tdata(s_axis_eth_tdata), .s_axis_eth_tkeep(s_axis_eth_tkeep),
    .s_axis_eth_tlast(s_axis_eth_tlast), .s_axis_eth_tuser(1'b0),
    .s_axis_eth_tvalid(s_axis_eth_tvalid), .s_axis_eth_tready(s_axis_eth_tready),
`endif
    .m_axis_exc_tdata(m_axis_exc_tdata), .m_axis_exc_tkeep(m_axis_exc_tkeep),
    .m_axis_exc_tlast(m_axis_exc_tlast), .m_axis_exc_tid(m_axis_exc_tid),
    .m_axis_exc_tuser(m_axis_exc_tuser), .m_axis_exc_tvalid(m_axis_exc_tvalid),
    .m_axis_exc_tready(1'b1),
    .m_axi_awid(m_axi_awid), .m_axi_awaddr(m_axi_awaddr), .m_axi_awlen(m_axi_awlen),
    .m_axi_awsize(m_axi_awsize), .m_axi_awburst(m_axi_awburst), .m_axi_awlock(m_axi_awlock),
    .m_axi_awcache(m_axi_awcache), .m_axi_awprot(m_axi_awprot), .m_axi_awvalid(m_axi_awvalid),
    .m_axi_awready(m_axi_awready), .m_axi_wdata(m_axi_wdata), .m_axi_wstrb(m_axi_wstrb),
    .m_axi_wlast(m_axi_wlast), .m_axi_wvalid(m_axi_wvalid), .m_axi_wready(m_axi_wready),
    .m_axi_bid({ID_BITS{1'b0}}), .m_axi_bresp(2'b00), .m_axi_bvalid(m_axi_bvalid),
    .m_axi_bready(m_axi_bready),
`endif
    .m_axi_cq_awid(m_axi_cq_awid), .m_axi_cq_awaddr(m_axi_cq_awaddr),
    .m_axi_cq_awlen(m_axi_cq_awlen), .m_axi_cq_awsize(m_axi_cq_awsize),
    .m_axi_cq_awburst(m_axi_cq_awburst), .m_axi_cq_awlock(m_axi_cq_awlock),
    .m_axi_cq_awcache(m_axi_cq_awcache), .m_axi_cq_awprot(m_axi_cq_awprot),
    .m_axi_cq_awvalid(m_axi_cq_awvalid), .m_axi_cq_awready(m_axi_cq_awready),
    .m_axi_cq_wdata(m_axi_cq_wdata), .m_axi_cq_wstrb(m_axi_cq_wstrb),
    .m_axi_cq_wlast(m_axi_cq_wlast), .m_axi_cq_wvalid(m_axi_cq_wvalid),
    .m_axi_cq_wready(m_axi_cq_wready), .m_axi_cq_bid(1'b0), .m_axi_cq_bresp(2'b00),
    .m_axi_cq_bvalid(m_axi_cq_bvalid), .m_axi_cq_bready(m_axi_cq_bready),
    .s_axil_awaddr(s_axil_awaddr), .s_axil_awprot(3'b000), .s_axil_awvalid(s_axil_awvalid),
    .s_axil_awready(s_axil_awready), .s_axil_wdata(s_axil_wdata), .s_axil_wstrb(4'hF),
    .s_axil_wvalid(s_axil_wvalid), .s_axil_wready(s_axil_wready), .s_axil_bresp(s_axil_bresp),
    .s_axil_bvalid(s_axil_bvalid), .s_axil_bready(1'b1), .s_axil_araddr(s_axil_araddr),
    .s_axil_arprot(3'b000), .s_axil_arvalid(s_axil_arvalid), .s_axil_arready(s_axil_arready),
    .s_axil_rdata(s_axil_rdata), .s_axil_rresp(s_axil_rresp), .s_axil_rvalid(s_axil_rvalid),
    .s_axil_rready(1'b1),
    .irq(irq), .clk(clk), .rst(rst)
  );

  // After the reset, no control output may be unknown.
  wire [8:0] control = {
    m_axi_cq_awvalid, m_axi_cq_wvalid, m_axi_cq_bready, s_axil_awready, s_axil_wready,
    s_axil_bvalid, s_axil_arready, s_axil_rvalid, irq
  };
  always @(posedge clk) if (!rst && ^control === 1'bx) fail("control outputs", 0, control);
`ifdef RNIC_RECEIVE
  wire [3:0] receiving = {m_axi_awvalid, m_axi_wvalid, m_axi_bready, m_axis_exc_tvalid};
  always @(posedge clk) if (!rst && ^receiving === 1'bx) fail("outputs of receiving", 0, receiving);
`endif
`ifdef RNIC_TRANSMIT
  wire [2:0] sending = {m_axis_tvalid, m_axi_arvalid, m_axi_rready};
  always @(posedge clk) if (!rst && ^sending === 1'bx) fail("outputs of sending", 0, sending);
`endif

  // -- the test -----------------------------------------------------------------------------------

`ifdef RNIC_RECEIVE
  // Checks the two Writes and the Send of an LLP as soon as their completions are there. A Write's
  // completion has its length, and the lower half of its first Tagged Offset.
  task expect_messages(
    input [15:0] stream, input [7:0] tag, input [63:0] first, input [63:0] second,
    input [63:0] buffer
  );
    begin
      expect_completion(
        1'b1, stream, STAG, FIRST_OCTETS, REGION_TO[31:0] + first[31:0] - REGION[31:0]);
      expect_message(first, tag, FIRST_OCTETS);
      check_memory(first, FIRST_OCTETS);
      expect_completion(
        1'b1, stream, STAG, SECOND_OCTETS, REGION_TO[31:0] + second[31:0] - REGION[31:0]);
      expect_message(second, tag + 8'd1, SECOND_OCTETS);
      check_memory(second, SECOND_OCTETS);
      expect_completion(1'b0, stream, 32'd1, SEND_OCTETS, COOKIE_VALUE + stream);
      expect_message(buffer, tag + 8'd2, SEND_OCTETS);
      check_memory(buffer, SEND_OCTETS);
    end
  endtask

  integer messages = 0;
`endif

  initial begin
    for (at = 0; at < MEMORY_OCTETS; at = at + 1) begin
      expected[at] = PAINT;
      placed.octets[at] = PAINT;
    end
    for (at = 0; at < RINGS_OCTETS; at = at + 1) ring.octets[at] = 8'h00;
    for (at = 0; at < 2; at = at + 1) begin
      produced[at] = 0;
      consumed[at] = 0;
    end
    repeat (8) @(negedge clk);
    rst = 1'b0;
    @(negedge clk);

    expect_register("ID", ID, ID_VALUE);
    expect_register("CAP_WIDTH", CAP_WIDTH, WIDTH);

    // COMMANDS RING

`ifdef RNIC_RECEIVE
    // COMMANDS REGION

`ifdef RNIC_MPA
    // COMMANDS MPA_STREAM
`endif
`endif

`ifdef RNIC_TRANSMIT
    // What the device sends leaves while it receives.
    expect_register("CAP_SENDS", CAP_SENDS, SENDS);
    expect_message(SOURCE, SOURCE_TAG, SOURCE_OCTETS);
    for (k = 0; k < SOURCE_OCTETS; k = k + 1)
      placed.octets[SOURCE - MEMORY + k] = octet(SOURCE_TAG, k);
    write_ring(SENDER_1_RING, SENDER_1_WORK, 64 * SENDER_1_ENTRIES);
    write_ring(SENDER_2_RING, SENDER_2_WORK, 64 * SENDER_2_ENTRIES);
    // COMMANDS SOURCE
    // COMMANDS SENDER_1
    // COMMANDS SENDER_2
    // COMMANDS DOORBELLS
`endif

`ifdef RNIC_RECEIVE
`ifdef RNIC_MPA
    send_fpdu(MPA_WRITE_1, MPA_WRITE_1_OCTETS);
    send_fpdu(MPA_WRITE_2, MPA_WRITE_2_OCTETS);
    send_fpdu(MPA_SEND, MPA_SEND_OCTETS);
    messages = messages + 3;
    expect_messages(MPA_STREAM, MPA_TAG, MPA_FIRST, MPA_SECOND, MPA_BUFFER);
    check("packets for the host", 0, exceptions);
`endif

`ifdef RNIC_SCTP
    // COMMANDS ASSOCIATION
    // COMMANDS SCTP_STREAM
    // COMMANDS FORGET
    check("session forgotten", ANSWER_TAKEN, value & ANSWER_TAKEN);
    // COMMANDS INITIATE
    check("session message taken", ANSWER_TAKEN, value & ANSWER_TAKEN);
    send_frame(SCTP_ACCEPT, SCTP_ACCEPT_OCTETS);
    next_entry(1);
    while (entry[ENTRY_KIND +: 4] == KIND_CHUNK) next_entry(1);
    check("kind of the session message", KIND_CONTROL, entry[ENTRY_KIND +: 4]);
    check("its Function Code", FUNCTION_ACCEPT, entry[ENTRY_TAG +: 32]);
    send_frame(SCTP_WRITE_1, SCTP_WRITE_1_OCTETS);
    send_frame(SCTP_WRITE_2, SCTP_WRITE_2_OCTETS);
    send_frame(SCTP_SEND, SCTP_SEND_OCTETS);
    messages = messages + 3;
    expect_messages(SCTP_STREAM, SCTP_TAG, SCTP_FIRST, SCTP_SECOND, SCTP_BUFFER);
    for (at = 0; at < 3; at = at + 1) begin
      next_entry(1);
      check("kind of a chunk's record", KIND_CHUNK, entry[ENTRY_KIND +: 4]);
      check("status of a chunk", 0, entry[ENTRY_STATUS +: 8]);
    end
    check("packets for the host", 1, exceptions);
    check("reason of the session message", REASON_CONTROL, reason);
`endif
`endif

`ifdef RNIC_TRANSMIT
    while (sent_completions < 2) begin
      next_entry(0);
      take_sent;
    end
    expect_register("SENT", SENT, FPDUS);
    expect_register("SEND_DROPPED", SEND_DROPPED, 32'd0);
    // A doorbell through the page of another stream was ignored.
    expect_register("DOORBELLS_IGNORED", DOORBELLS_IGNORED, 32'd1);
`endif

    // Nothing else was placed, and no error was reported.
    read_register(STATUS);
    while ((value & STATUS_IDLE) == 32'd0) read_register(STATUS);
    check("error events", 0, value & STATUS_EVENT);
    check_memory(MEMORY, MEMORY_OCTETS);
`ifdef RNIC_RECEIVE
    expect_register("PLACED_SEGMENTS", PLACED_SEGMENTS, messages);
    expect_register("ERRORS", ERRORS, 32'd0);
    expect_register("DROPPED", DROPPED, 32'd0);
`endif
    if (!failed) $display("PASS");
    $finish;
  end
endmodule

// A memory with AXI4's write channels, one burst at a time. A beat is in memory LATENCY cycles
// after it was taken. The response follows that; but to a burst that AWCACHE[0] marks as
// bufferable, it comes immediately, as from an interconnect.
module tb_memory #(
  parameter WIDTH = 64,
  parameter [63:0] BASE = 64'd0,
  parameter OCTETS = 4096,
  parameter LATENCY = 1
) (
  input clk,
  input [63:0] awaddr,
  input [7:0] awlen,
  input [2:0] awsize,
  input [1:0] awburst,
  input [3:0] awcache,
  input awvalid,
  output reg awready,
  input [WIDTH-1:0] wdata,
  input [WIDTH/8-1:0] wstrb,
  input wlast,
  input wvalid,
  output reg wready,
  output reg bvalid,
  input bready
);
  reg [7:0] octets[0:OCTETS-1];

  reg [63:0] address = 64'd0;
  reg [7:0] left = 8'd0;
  reg bufferable = 1'b0;
  integer k;
  integer wait_for = 0;  // cycles until the response

  // Beats on their way into memory.
  reg [WIDTH-1:0] data[0:LATENCY-1];
  reg [WIDTH/8-1:0] strobes[0:LATENCY-1];
  reg [63:0] place[0:LATENCY-1];
  integer now = 0;

  initial begin
    awready = 1'b1;
    wready = 1'b0;
    bvalid = 1'b0;
    for (k = 0; k < LATENCY; k = k + 1) strobes[k] = 0;
  end

  always @(posedge clk) begin
    for (k = 0; k < WIDTH / 8; k = k + 1)
      if (strobes[now][k]) begin
        if (place[now] + k - BASE >= OCTETS) begin
          $display("FAIL: octet written at %h, outside memory", place[now] + k);
          $finish;
        end
        octets[place[now] + k - BASE] = data[now][8*k +: 8];
      end
    strobes[now] = 0;
    if (wvalid && wready) begin
      data[now] = wdata;
      strobes[now] = wstrb;
      place[now] = address;
    end
    now = (now + 1) % LATENCY;
  end

  always @(posedge clk) begin
    if (awvalid && awready) begin
      address <= awaddr & ~(WIDTH / 8 - 64'd1);
      left <= awlen;
      bufferable <= awcache[0];
      awready <= 1'b0;
      wready <= 1'b1;
      if (awsize != $clog2(WIDTH / 8) || awburst != 2'b01 || awcache[3:1] != 3'b001) begin
        $display("FAIL: AWSIZE %0d, AWBURST %b, AWCACHE %b", awsize, awburst, awcache);
        $finish;
      end
    end
    if (wvalid && wready) begin
      address <= address + WIDTH / 8;
      left <= left - 8'd1;
      if (wlast != (left == 8'd0)) begin
        $display("FAIL: WLAST is %b with %0d beats to come", wlast, left);
        $finish;
      end
      if (left == 8'd0) begin
        wready <= 1'b0;
        wait_for <= bufferable ? 1 : LATENCY + 1;
      end
    end
    if (wait_for > 0) begin
      wait_for <= wait_for - 1;
      if (wait_for == 1) bvalid <= 1'b1;
    end
    if (bvalid && bready) begin
      bvalid <= 1'b0;
      awready <= 1'b1;
    end
  end
endmodule

// Has an RDMA Write placed in memory. Beside this file lie rnic.v and rnic.vh of 'rnic export'.
module tb;
  `include "rnic.vh"
  reg clk = 1'b0, rst = 1'b1; always #5 clk = ~clk;

  reg [7:0] memory[0:511];  // Takes one burst after the other.
  reg [63:0] at; reg busy = 1'b0, done = 1'b0;
  wire awvalid, wvalid, wlast, bready; wire [63:0] awaddr, wdata; wire [7:0] wstrb;
  integer i, j;
  always @(posedge clk) begin
    if (!busy) begin busy <= awvalid && !done; at <= awaddr; end
    else if (wvalid) begin busy <= !wlast; at <= at + 64'd8; end
    for (i = 0; i < 8; i = i + 1)
      if (busy && wvalid && wstrb[i]) memory[at[8:0] + i[8:0]] <= wdata[8*i +: 8];
    done <= (busy && wvalid && wlast) || (done && !bready);
  end

  // An FPDU of MPA: octets of the segment; tagged, last of its message, RDMA Write; Steering Tag;
  // Tagged Offset; payload; a CRC, which a stream without CRC ignores.
  reg [8*40-1:0] fpdu = {16'd34, 16'hC140, 32'h511, 64'h20, "written by the wire.", 32'd0};
  wire [63:0] b = fpdu[319:256];  // The next beat. On the port, the first octet is the lowest.
  reg writes = 1'b0, sends = 1'b0; reg [48:0] access; wire accepted, answered, taken, ended;
  rnic rnic(.clk(clk), .rst(rst), .m_axis_exc_tready(1'b1),
    .s_axil_awaddr(access[48:32]), .s_axil_awvalid(writes), .s_axil_awready(accepted),
    .s_axil_wdata(access[31:0]), .s_axil_wstrb(4'hF), .s_axil_wvalid(writes), .s_axil_awprot(3'd0),
    .s_axil_bvalid(answered), .s_axil_bready(1'b1), .s_axil_araddr(17'd0), .s_axil_arprot(3'd0),
    .s_axil_arvalid(1'b0), .s_axil_rready(1'b1), .s_axis_tvalid(sends), .s_axis_tready(taken),
    .s_axis_tdata({b[7:0], b[15:8], b[23:16], b[31:24], b[39:32], b[47:40], b[55:48], b[63:56]}),
    .s_axis_tkeep(8'hFF), .s_axis_tlast(fpdu[255:0] == 0), .s_axis_tid(16'd1),
    .s_axis_tuser(33'd0), .m_axi_awaddr(awaddr), .m_axi_awvalid(awvalid),
    .m_axi_awready(!busy && !done), .m_axi_wdata(wdata), .m_axi_wstrb(wstrb), .m_axi_wlast(wlast),
    .m_axi_wvalid(wvalid), .m_axi_wready(busy), .m_axi_bid(1'b0), .m_axi_bresp(2'd0),
    .m_axi_bvalid(done), .m_axi_bready(bready), .m_axi_cq_awready(1'b1), .m_axi_cq_wready(1'b1),
    .m_axi_cq_wvalid(ended), .m_axi_cq_bid(1'b0), .m_axi_cq_bresp(2'd0), .m_axi_cq_bvalid(1'b0));

  task write(input [16:0] register, input [31:0] value);
    begin
      access = {register, value}; writes = 1'b1;
      @(posedge clk) while (!accepted) @(posedge clk);
      @(negedge clk) writes = 1'b0;
      while (!answered) @(negedge clk);
    end
  endtask
  initial begin
    repeat (4) @(negedge clk);
    rst = 1'b0; write(RNIC_CQ_SIZE, 2); write(RNIC_CQ_ENABLE, 1); write(RNIC_CQ_COMMIT, 1);
    write(RNIC_STAG_INDEX, 5); write(RNIC_STAG_OWNER, 7);
    write(RNIC_STAG_FLAGS, RNIC_STAG_FLAGS_VALID_MASK | RNIC_STAG_FLAGS_REMOTE_WRITE_MASK | 17);
    write(RNIC_STAG_ADDR_LO, 32'h100); write(RNIC_STAG_LEN_LO, 256); write(RNIC_STAG_COMMIT, 1);
    write(RNIC_STREAM_INDEX, 1); write(RNIC_STREAM_PD, 7);
    write(RNIC_STREAM_FLAGS, RNIC_STREAM_FLAGS_ENABLE_MASK); write(RNIC_STREAM_COMMIT, 1);
    for (sends = 1'b1; sends; sends = fpdu != 0) begin
      @(posedge clk) while (!taken) @(posedge clk);
      @(negedge clk) fpdu = fpdu << 64;
    end
    while (!ended) @(negedge clk);  // A completion comes after all octets of its message.
    for (j = 'h120; j < 'h134; j = j + 1) $write("%c", memory[j]);
    $display(""); $finish;
  end
endmodule

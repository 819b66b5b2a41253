// A block RAM of the ECP5 (DP16KD) as far as yosys uses it, for ddp_rnic.sim.devices.gates.
//
// It is 2048 lanes of 9 bits, whatever the widths of its sides; those of 4 bits and less use 8 bits
// of a lane. 36 bits wide, side A writes with both sides' data pins, and side B reads to both
// sides'. From 18 bits on the lowest bits of a side's address say which lanes it writes.
module BLOCK_RAM(CLKA, CEA, OCEA, WEA, RSTA, ADA, DIA, DOA, CLKB, CEB, OCEB, WEB, RSTB, ADB, DIB, DOB);
  parameter DATA_WIDTH_A = 18;
  parameter DATA_WIDTH_B = 18;
  parameter REGMODE_A = "NOREG";
  parameter REGMODE_B = "NOREG";
  parameter WRITEMODE_A = "NORMAL";
  parameter WRITEMODE_B = "NORMAL";
  parameter [20479:0] INIT = 0;  // two lanes in 20 bits
  input CLKA, CEA, OCEA, WEA, RSTA, CLKB, CEB, OCEB, WEB, RSTB;
  input [13:0] ADA, ADB;
  input [17:0] DIA, DIB;
  output [17:0] DOA, DOB;

  reg [8:0] lanes [0:2047];
  integer k;
  initial
    for (k = 0; k < 2048; k = k + 1)
      lanes[k] = INIT[20 * (k / 2) + 9 * (k % 2) +: 9];

  genvar p;
  generate
    for (p = 0; p < 2; p = p + 1) begin : side
      localparam WIDTH = p ? DATA_WIDTH_B : DATA_WIDTH_A;
      localparam OLD = p ? WRITEMODE_B == "READBEFOREWRITE" : WRITEMODE_A == "READBEFOREWRITE";
      wire [13:0] at = p ? ADB : ADA;
      wire [35:0] data = p ? {18'd0, DIB} : {DIB, DIA};
      reg [35:0] word, latch = 0, held = 0;
      always @(*)
        if (WIDTH == 36)
          word = {lanes[{at[13:5], 2'd3}], lanes[{at[13:5], 2'd2}],
                  lanes[{at[13:5], 2'd1}], lanes[{at[13:5], 2'd0}]};
        else if (WIDTH == 18) word = {lanes[{at[13:4], 1'd1}], lanes[{at[13:4], 1'd0}]};
        else if (WIDTH == 9) word = lanes[at[13:3]];
        else if (WIDTH == 4) word = lanes[at[13:3]][4 * at[2] +: 4];
        else if (WIDTH == 2) word = lanes[at[13:3]][2 * at[2:1] +: 2];
        else word = lanes[at[13:3]][at[2:0]];
      wire clock = p ? CLKB : CLKA, enable = p ? CEB : CEA, write = p ? WEB : WEA;
      wire reset = p ? RSTB : RSTA, output_enable = p ? OCEB : OCEA;
      always @(posedge clock) begin
        if (enable && write) begin
          if (WIDTH == 36) begin
            if (at[0]) lanes[{at[13:5], 2'd0}] <= data[8:0];
            if (at[1]) lanes[{at[13:5], 2'd1}] <= data[17:9];
            if (at[2]) lanes[{at[13:5], 2'd2}] <= data[26:18];
            if (at[3]) lanes[{at[13:5], 2'd3}] <= data[35:27];
          end else if (WIDTH == 18) begin
            if (at[0]) lanes[{at[13:4], 1'd0}] <= data[8:0];
            if (at[1]) lanes[{at[13:4], 1'd1}] <= data[17:9];
          end
          else if (WIDTH == 9) lanes[at[13:3]] <= data[8:0];
          else if (WIDTH == 4) lanes[at[13:3]][4 * at[2] +: 4] <= data[3:0];
          else if (WIDTH == 2) lanes[at[13:3]][2 * at[2:1] +: 2] <= data[1:0];
          else lanes[at[13:3]][at[2:0]] <= data[0];
        end
        if (reset) latch <= 0;
        else if (enable && (OLD || !write)) latch <= word;
        if (reset) held <= 0;
        else if (output_enable) held <= latch;
      end
    end
  endgenerate
  wire [35:0] a = REGMODE_A == "OUTREG" ? side[0].held : side[0].latch;
  wire [35:0] b = REGMODE_B == "OUTREG" ? side[1].held : side[1].latch;
  assign DOA = DATA_WIDTH_B == 36 ? b[17:0] : a[17:0];
  assign DOB = DATA_WIDTH_B == 36 ? b[35:18] : b[17:0];
endmodule

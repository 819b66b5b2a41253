// Cells of the ECP5 at a board's pins, of which yosys has no model, for ddp_rnic.sim.devices.board_gates.
// FPGA-TN-02032 (ECP5 High-Speed I/O Interface): generic DDR, gearing x1. Delays are 0.

// What was there at the last rising edge, and at the falling one behind it, a cycle later.
module IDDRX1F(input D, SCLK, RST, output reg Q0, Q1);
  parameter GSR = "ENABLED";
  reg rise, fall;
  initial {Q0, Q1, rise, fall} = 0;
  always @(posedge SCLK) begin
    rise <= D;
    Q0 <= rise;
    Q1 <= fall;
  end
  always @(negedge SCLK) fall <= D;
endmodule

// One value while the clock is high, the other while it is low.
module ODDRX1F(input SCLK, RST, D0, D1, output Q);
  parameter GSR = "ENABLED";
  reg high, low;
  initial {high, low} = 0;
  always @(posedge SCLK) begin
    high <= D0;
    low <= D1;
  end
  assign Q = SCLK ? high : low;
endmodule

module DELAYG(input A, output Z);
  parameter DEL_MODE = "USER_DEFINED";
  parameter DEL_VALUE = 0;
  assign Z = A;
endmodule

// Onto a global network.
module DCCA(input CLKI, CE, output CLKO);
  assign CLKO = CLKI & CE;
endmodule

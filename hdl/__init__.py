"""The gateware: blocks of the RNIC datapath, in Amaranth."""

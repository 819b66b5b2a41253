"""ddp-rnic: an open hardware RNIC datapath for iWARP's Direct Data Placement (RFC 5041)."""

__version__ = "0.2.0"

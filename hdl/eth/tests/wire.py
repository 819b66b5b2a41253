"""Makes frames as they are on the wire, in plain Python."""

import zlib


def with_fcs(frame):
    """Returns a frame, padded to 60 octets, and its FCS: zlib's CRC-32 is that of IEEE 802.3."""
    frame = frame.ljust(60, b"\0")
    return frame + zlib.crc32(frame).to_bytes(4, "little")


def on_wire(octets, *, preamble=7):
    """Returns the octets on the wire: preamble, delimiter, and ``octets``."""
    return b"\x55" * preamble + b"\xd5" + octets

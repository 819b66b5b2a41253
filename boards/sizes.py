"""Sizes of tables and memory for which a device has room.

An LFE5-85F has 208 block RAMs of 2 KiB and 83,640 LUT4, a -45F 108 and 43,848, a -25F 56 and
24,288. The RNIC needs most of its block RAMs for their width, not for their depth: smaller tables
save few of them, distributed RAM instead of them saves more. With SCTP and the smallest tables it
takes 31,000 LUT4 and 29,000 flip-flops: too many for a -25F, which has MPA and TCP. To send takes
16 streams or more, and 55,000 LUT4 in all, for which an -85F alone has room.
"""

from dataclasses import replace

from ..hdl.spec.config import RnicConfig

__all__ = ["LARGE", "MEDIUM", "SENDING", "SMALL"]

LARGE = dict(
    config=RnicConfig(
        mpa=False, sctp=True, stags=256, streams=16, buffer_octets=16384, outstanding=16,
        queue_depth=32, buffers=512, pages=512, backlog=256, exception_octets=8192, associations=16,
        window=16, initiates=8),
    memory=64 * 1024,
)
SENDING = dict(LARGE, config=replace(LARGE["config"], transmit=True))
MEDIUM = dict(
    config=RnicConfig(
        mpa=False, sctp=True, stags=64, streams=8, buffer_octets=4096, outstanding=8,
        queue_depth=16, buffers=128, pages=64, backlog=64, exception_octets=4096, associations=4,
        window=4, initiates=4),
    memory=16 * 1024,
    small=32,
)
SMALL = dict(
    config=RnicConfig(
        stags=16, streams=2, buffer_octets=4096, outstanding=8, queue_depth=4, buffers=32,
        pages=16, backlog=64, completion_queues=2, exception_octets=4096, address=16, relaxed=True),
    memory=16 * 1024,
    connections=2,
    window=4096,
    small=16,
)

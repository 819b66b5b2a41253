"""A disk for NVMe over Fabrics, and a Linux that keeps a file system on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ....examples.nvme_target import Disk, serve_queue
from ....sw_driver.cm import ConnectRequest, Listener
from ..guest.machine import HOST, Guest
from .channel import Tally
from .node import Node

__all__ = ["NAME", "attach", "keep_files"]

#: The NVMe Qualified Name of the disk.
NAME = "nqn.2026-11.org.ddp-rnic:disk"
#: Octets of the disk in the demonstration, and seconds that a step may take.
_SIZE, _PATIENCE = 64 << 20, 900.0
#: The steps of the demonstration, each with the commands that Linux runs.
_STEPS = {
    "connecting the disk": (
        "modprobe -a nvme-rdma ext4 && nvme connect -t rdma -a {host} -s {port} -n {name}"
        " --hostnqn nqn.2026-11.org.ddp-rnic:host"
    ),
    "making a file system": (
        "mkfs.ext4 -q /dev/nvme0n1 && mkdir /disk && mount /dev/nvme0n1 /disk"
    ),
    "copying a tree of 20 MB": (
        "mkdir /tmp/tree && cd /tmp/tree && for k in 0 1 2 3 4 5 6 7 8 9; do mkdir $k;"
        " dd if=/dev/urandom of=$k/large bs=1M count=2 2>/dev/null; for j in 1 2 3 4 5 6 7 8; do"
        " dd if=/dev/urandom of=$k/$j bs=777 count=$j 2>/dev/null; done; done;"
        " find . -type f | xargs sha256sum > /tmp/sums; cp -r . /disk && cd / && umount /disk"
    ),
    "checking the file system": "e2fsck -f -n /dev/nvme0n1",
    "comparing the tree": (
        "echo 3 > /proc/sys/vm/drop_caches; mount /dev/nvme0n1 /disk && cd /disk &&"
        " sha256sum -c /tmp/sums > /tmp/compared; result=$?; cd /; umount /disk; (exit $result)"
    ),
    "disconnecting the disk": "nvme disconnect -n {name}",
}


async def attach(node: Node, disk: Disk, request: ConnectRequest, tally: Tally) -> None:
    """Serves one queue of a host, and counts its commands and their octets of data."""
    node.tap()
    with node.measured(tally):
        queue = await serve_queue(disk, request, **node.settings)
        if queue is not None:
            tally.messages, tally.octets = queue.commands, queue.octets
            # Nobody knows what a host should keep on its disk.
            tally.unchecked = queue.octets


async def keep_files(node: Node, guest: Guest, say: Callable[[str], object]) -> Tally:
    """Lets the guest keep a file system on a disk, and compare all files after it was mounted
    again; returns the tally of all its queues.
    """
    total = Tally("nvme")
    async with Listener(node.pd, "127.0.0.1", 0) as listener, asyncio.TaskGroup() as group:
        disk = Disk(_SIZE, NAME)
        queues: set[asyncio.Task[None]] = set()

        async def serve(request: ConnectRequest) -> None:
            tally = Tally("nvme")
            await attach(node, disk, request, tally)
            total.messages += tally.messages
            total.octets += tally.octets
            total.cycles += tally.cycles
            total.seconds = max(total.seconds, tally.seconds)
            total.errors += tally.errors
            total.differences += tally.differences

        async def listen() -> None:
            async for request in listener:
                queues.add(group.create_task(serve(request)))

        listening = group.create_task(listen())
        for words, line in _STEPS.items():
            say(words)
            command = line.format(host=HOST, port=listener.port, name=NAME)
            output = await guest.run(command, _PATIENCE)
            if output.status:
                said = " ".join(output.text.split())
                total.errors.append(f"{words}: {said[-200:] or 'no output'}")
                # Linux keeps its connections.
                for queue in queues:
                    queue.cancel()
                break
        listening.cancel()
    return total

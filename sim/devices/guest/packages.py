"""The Debian packages that the guest is built from and runs with."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

from ....flow.tools import ToolError

#: The headers name the kernel of the guest.
HEADERS = "linux-headers-amd64"
PACKAGES = (
    HEADERS,
    *("busybox-static", "e2fsprogs", "ibverbs-providers", "iproute2", "kmod", "nvme-cli"),
    *("perftest", "rdmacm-utils"),
    *("cpio", "gcc", "libc6-dev", "make", "qemu-system-x86", "util-linux", "xz-utils", "zstd"),
)


def run(*command: str, cwd: Path | None = None, octets: bytes | None = None) -> bytes:
    """Runs a command to its end, and returns its output.

    An interruption of this program ends the command, with all processes that it has started.
    """
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    try:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL if octets is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise ToolError(f"{command[0]} is missing, which the guest needs") from None
    with process:
        try:
            output, errors = process.communicate(octets)
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)
            raise
    if process.returncode:
        last = (errors or output).decode(errors="replace").strip().rpartition("\n")[2]
        raise ToolError(f"{' '.join(command[:2])} failed with {process.returncode}: {last}")
    return output


def check_machine() -> None:
    """Raises :class:`ToolError` unless this is a Debian for x86-64, whose packages fit."""
    if shutil.which("apt-get") is None or os.uname().machine != "x86_64":
        raise ToolError("the guest needs Debian's packages for x86-64, and apt-get to get them")


def missing() -> list[str]:
    """Returns the packages that are not installed."""
    query = ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *PACKAGES]
    # dpkg-query fails if it does not know one of the packages, and prints the others.
    known = subprocess.run(query, capture_output=True, text=True).stdout.split("\n")
    return [name for name in PACKAGES if f"{name} installed" not in known]


def install(names: list[str]) -> None:
    """Installs packages, which only root may do."""
    order = f"apt-get install --no-install-recommends {' '.join(names)}"
    if os.geteuid():
        raise ToolError(f"packages of Debian are missing; install them as root: {order}")
    run("apt-get", "update", "-qq")
    run(*order.split(), "-y", "-qq")


def kernel() -> tuple[str, str]:
    """Returns the kernel's release, such as 6.1.0-9-amd64, and the version of its packages."""
    query = "dpkg-query", "-W", "-f"
    depends = run(*query, "${Depends}", HEADERS).decode().split()
    headers = next(name for name in depends if name.startswith("linux-headers-"))
    version = run(*query, "${Version}", headers).decode()
    return headers.removeprefix("linux-headers-"), version

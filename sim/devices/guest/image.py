"""Builds the guest: a kernel, and a file system that holds siw, the RDMA programs, and a relay for
SCTP.
"""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ....flow.tools import ToolError, cache_directory, digest, locked, remove_unused
from . import packages
from .packages import run

#: Takes the number of steps done, the number of all steps, and the step that begins.
Progress = Callable[[int, int, str], None]

_HERE = Path(__file__).parent
#: The programs of the guest, beside busybox.
_PROGRAMS = (
    *("ip", "kmod", "rdma", "rping", "tc", "ucmatose"),
    *("ib_send_bw", "ib_send_lat", "ib_write_bw", "ib_write_lat", "ib_read_bw", "ib_read_lat"),
    *("nvme", "mkfs.ext4", "e2fsck"),
)
#: The modules that are loaded by name; kmod finds those that they need.
_MODULES = (
    *("virtio_pci", "virtio_net", "crc32c_generic", "siw", "ib_uverbs", "rdma_ucm"),
    *("nvme-rdma", "ext4", "sch_netem", "sctp"),
)
_LIBRARIES = Path("/usr/lib/x86_64-linux-gnu")
#: What the guest takes from this machine unchanged: glibc's unwinder, which glibc opens by name
#: when a thread ends, and the user's half of siw, whose name has a version.
_FILES = (Path("/etc/libibverbs.d/siw.driver"), Path("/lib/x86_64-linux-gnu/libgcc_s.so.1"))
_PROVIDER = "libibverbs/libsiw-rdmav*.so"
#: A program of this folder, and the name of its source.
_RELAY = "sctp_relay"
_SOURCE = f"{_RELAY}.c"


class Image(NamedTuple):
    """The files that QEMU starts."""

    kernel: Path
    filesystem: Path


def _key() -> str:
    """Returns the name of the image: a digest of the recipe and the release of Debian.

    An update of a package does not build the guest again.
    """
    release = platform.freedesktop_os_release()
    recipe = (_HERE / name for name in ("image.py", "packages.py", "init", _SOURCE))
    return digest(
        release.get("ID", ""),
        release.get("VERSION_ID", ""),
        *(path.read_text(encoding="utf-8") for path in recipe),
    )


def kept() -> Path:
    """Returns the folder in which the image is kept, or will be."""
    return cache_directory() / "guest" / _key()


def load(progress: Progress) -> Image:
    """Returns the image, and builds it unless the cache has it.

    Raises :class:`ToolError` if a package is missing that this user cannot install.
    """
    folder = kept()
    with locked(folder):
        if not folder.exists():
            packages.check_machine()
            remove_unused(folder.parent)
            with tempfile.TemporaryDirectory(dir=folder.parent) as work:
                _build(Path(work), progress).rename(folder)
        os.utime(folder)
    return Image(folder / "vmlinuz", folder / "initramfs.zst")


def _build(work: Path, progress: Progress) -> Path:
    """Builds the image in a folder for work; returns the folder that holds it."""
    steps = (
        "installing Debian's packages",
        "downloading Debian's kernel and its source",
        "unpacking the kernel's source",
        "compiling the siw module",
        "packing the file system",
    )
    at = iter(range(len(steps)))

    def begin() -> None:
        done = next(at)
        progress(done, len(steps), steps[done])

    begin()
    if absent := packages.missing():
        packages.install(absent)
    release, version = packages.kernel()
    begin()
    source = f"linux-source-{'.'.join(release.split('.')[:2])}"
    debs = work / "debs"
    debs.mkdir()
    wanted = (f"{name}={version}" for name in (f"linux-image-{release}", source))
    run("apt-get", "download", "-qq", *wanted, cwd=debs)
    kernel = work / "kernel"
    for deb in debs.iterdir():
        run("dpkg", "-x", str(deb), str(kernel))
        deb.unlink()
    begin()
    siw = _unpack_siw(work, kernel / "usr" / "src" / f"{source}.tar.xz", source)
    begin()
    run("make", "-s", "-C", f"/lib/modules/{release}/build", f"M={siw}", "modules")
    begin()
    made = work / "image"
    made.mkdir()
    shutil.copy(kernel / "boot" / f"vmlinuz-{release}", made / "vmlinuz")
    extra = kernel / "lib" / "modules" / release / "extra"
    extra.mkdir()
    shutil.copy(siw / "siw.ko", extra)
    _pack(_root(work / "root", kernel, release), made / "initramfs.zst")
    return made


def _unpack_siw(work: Path, archive: Path, source: str) -> Path:
    """Unpacks siw from the kernel's source, so that it builds as a module of its own."""
    siw = Path(source) / "drivers" / "infiniband" / "sw" / "siw"
    run("tar", "-C", str(work), "-xf", str(archive), str(siw))
    makefile = work / siw / "Makefile"
    text = makefile.read_text(encoding="utf-8")
    makefile.write_text(text.replace("$(CONFIG_RDMA_SIW)", "m"), encoding="utf-8")
    return work / siw


def _root(root: Path, kernel: Path, release: str) -> Path:
    """Fills the guest's file system, and returns it."""
    for folder in ("dev", "proc", "sys", "tmp", "etc", "bin"):
        (root / folder).mkdir(parents=True)
    _copy(Path("/bin/busybox"), root / "bin" / "busybox")
    for applet in run("/bin/busybox", "--list").decode().split():
        if not (link := root / "bin" / applet).exists():
            link.symlink_to("busybox")
    needed: set[str] = set()
    for name in _PROGRAMS:
        found = shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin")
        if found is None:
            raise ToolError(f"the program {name} is missing, which the guest needs")
        (root / "bin" / name).unlink(missing_ok=True)
        _copy(Path(found), root / "bin" / name)
        needed |= _libraries(Path(found))
    for name in ("modprobe", "insmod", "lsmod"):
        (root / "bin" / name).unlink(missing_ok=True)
        (root / "bin" / name).symlink_to("kmod")
    relay = root / "bin" / _RELAY
    run("gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", str(relay), str(_HERE / _SOURCE))
    needed |= _libraries(relay)
    for path in (*_providers(), *_FILES):
        _copy(path, root / path.relative_to("/"))
        if ".so" in path.name:
            needed |= _libraries(path)
    for library in needed:
        _copy(Path(library), root / library[1:])
    (root / "etc" / "passwd").write_text("root:x:0:0:root:/:/bin/sh\n", encoding="utf-8")
    (root / "etc" / "hosts").write_text("127.0.0.1 localhost\n", encoding="utf-8")
    _copy(_HERE / "init", root / "init")
    (root / "init").chmod(0o755)
    _copy_modules(root, kernel, release)
    return root


def _providers() -> list[Path]:
    """Returns the files of the user's half of siw, which the packages bring."""
    if found := sorted(_LIBRARIES.glob(_PROVIDER)):
        return found
    raise ToolError(f"there is no {_LIBRARIES / _PROVIDER}, which the guest needs")


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)


def _libraries(program: Path) -> set[str]:
    """Returns the paths of the shared libraries that a program needs."""
    words = run("ldd", str(program)).decode().split()
    return {word for word in words if word.startswith("/")}


def _copy_modules(root: Path, kernel: Path, release: str) -> None:
    """Copies the guest's modules and those that they need."""
    run("depmod", "-b", str(kernel), release)
    for name in _MODULES:
        shown = run("modprobe", "-d", str(kernel), "-S", release, "--show-depends", name)
        for line in shown.decode().splitlines():
            if line.startswith("insmod "):
                path = Path(line.split()[1])
                _copy(path, root / path.relative_to(kernel))
    modules = Path("lib") / "modules" / release
    for name in ("modules.order", "modules.builtin", "modules.builtin.modinfo"):
        _copy(kernel / modules / name, root / modules / name)
    run("depmod", "-b", str(root), release)


def _pack(root: Path, target: Path) -> None:
    """Packs a file system as the kernel reads it at its start."""
    names = "\n".join(sorted(str(path.relative_to(root)) for path in root.rglob("*")))
    order = ("cpio", "-o", "-H", "newc", "-R", "0:0", "--quiet")
    archive = run(*order, cwd=root, octets=names.encode())
    target.write_bytes(run("zstd", "-q", "-10", "-T0", octets=archive))

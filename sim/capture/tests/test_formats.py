"""Tests of compressed captures, of files and of standard input."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import struct
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest
import zstandard
from ddp_rnic.sim.capture import piped
from ddp_rnic.sim.capture.pcap import CaptureError, Unread, read_frames
from ddp_rnic.sim.capture.piped import Piped

CAPTURE = Path(__file__).resolve().parents[2] / "data" / "workload.pcap"
OCTETS = CAPTURE.read_bytes()


def in_frames(octets: bytes) -> bytes:
    """Compresses with zstd, in several frames, as parallel compression does."""
    compress = zstandard.ZstdCompressor().compress
    return b"".join(compress(octets[at : at + 9000]) for at in range(0, len(octets), 9000))


def between_skippable_frames(octets: bytes) -> bytes:
    """Compresses with zstd, with metadata before and after, as pzstd does."""
    skippable = b"\x5a\x2a\x4d\x18" + struct.pack("<I", 3) + b"end"
    return skippable + in_frames(octets) + skippable


WAYS: list[Callable[[bytes], bytes]] = [
    bytes,
    gzip.compress,
    bz2.compress,
    lzma.compress,
    in_frames,
    between_skippable_frames,
]


def give(octets: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives octets as standard input, a few at a time."""
    end, pipe = os.pipe()

    def write() -> None:
        with open(pipe, "wb", buffering=0) as file:
            for at in range(0, len(octets), 7919):
                file.write(octets[at : at + 7919])

    Thread(target=write).start()
    given = Piped(end)
    monkeypatch.setattr(piped, "_standard_input", lambda: given)


@pytest.mark.parametrize("compress", WAYS, ids=lambda way: way.__name__)
def test_a_compressed_capture_has_the_same_frames(
    compress: Callable[[bytes], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "capture"
    path.write_bytes(compress(OCTETS))
    frames = [*read_frames(CAPTURE)]
    assert [*read_frames(path)] == frames

    os.mkfifo(fifo := tmp_path / "fifo")
    Thread(target=lambda: fifo.write_bytes(compress(OCTETS))).start()
    assert [*read_frames(fifo)] == [*read_frames(fifo)] == frames

    give(compress(OCTETS), monkeypatch)
    assert [*read_frames(Path("-"))] == [*read_frames(Path("-"))] == frames


# bzip2 has all of these octets in one block, of which nothing can be read once it is cut.
@pytest.mark.parametrize(
    "compress", [gzip.compress, lzma.compress, in_frames], ids=lambda way: way.__name__
)
def test_what_is_cut_off_is_reported(compress: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = tmp_path / "capture"
    whole = compress(OCTETS)
    path.write_bytes(whole[: len(whole) * 3 // 4])
    unread = Unread()
    frames = [*read_frames(path, unread)]
    assert len(frames) < len([*read_frames(CAPTURE)])
    (left,) = unread.left_out
    assert "its compressed data is damaged" in left.reason


@pytest.mark.parametrize(
    ("octets", "sentence"),
    [
        (b"", "^standard input is empty$"),
        (b"hello\n", "^standard input is not a capture: save its octets as a file"),
        (in_frames(OCTETS)[:60], "^standard input: its compressed data is damaged: it ends within"),
    ],
)
def test_bad_standard_input_is_named(
    octets: bytes, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(octets, monkeypatch)
    with pytest.raises(CaptureError, match=sentence):
        read_frames(Path("-"))


def test_standard_input_that_is_closed_or_a_directory_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(piped, "_standard_input", piped._standard_input.__wrapped__)
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(CaptureError, match="^standard input cannot be read: it is closed$"):
        read_frames(Path("-"))

    given = Piped(os.open(tmp_path, os.O_RDONLY))
    monkeypatch.setattr(piped, "_standard_input", lambda: given)
    with pytest.raises(CaptureError, match="^standard input cannot be read: Is a directory$"):
        read_frames(Path("-"))


def test_few_octets_that_become_many_take_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "capture"
    path.write_bytes(zstandard.ZstdCompressor().compress(OCTETS[:24] + bytes(1 << 30)))
    tracemalloc.start()
    assert not [*read_frames(path, Unread())]
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 1 << 27

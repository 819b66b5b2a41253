"""Tests of the segment explorer: its data, and the page in Chromium where that is installed."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import ddp_rnic
import numpy as np
import pytest
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.sim.capture.capture import capture_of, read_capture
from ddp_rnic.sim.capture.pcap import read_frames
from ddp_rnic.sim.capture.tests.frames import A, B, first_octet, frames, handshake, tcp_packet
from ddp_rnic.sim.capture.traffic import traffic_of
from ddp_rnic.sim.engines.engine import Outcome
from ddp_rnic.sim.engines.tests.fake_engine import FakeEngine
from ddp_rnic.sim.model.header import TaggedHeader
from ddp_rnic.sim.model.mpa import MpaSender
from ddp_rnic.sim.replay.plan import Plan, plan
from ddp_rnic.sim.replay.regions import Region, derive
from ddp_rnic.sim.reports import explorer
from ddp_rnic.sim.reports.explanation import Explainer
from ddp_rnic.sim.reports.outline import Outline
from ddp_rnic.sim.reports.report import Result, Run

SHIPPED = Path(ddp_rnic.__file__).parent / "sim" / "data" / "workload.pcap"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_SCRIPT = re.compile(r'<script type="text/plain" id="([a-z]+)-(\d+)">([^<]*)</script>')


def run(planned: Plan) -> Run:
    memory = planned.memory.copy()
    outcome: Outcome = FakeEngine().run(
        planned.config, planned.operations, memory, ring=planned.ring
    )
    return Run(planned, outcome, memory, [])


@pytest.fixture(scope="module")
def explainer() -> Explainer:
    capture = read_capture(SHIPPED)
    traffic = traffic_of(capture)
    found = derive(traffic)
    plans, _ = plan(traffic, found.regions, RnicConfig(), found.ends)
    explainer = Explainer(capture, traffic, plans)
    explainer.read(read_frames(SHIPPED))
    return explainer


@pytest.fixture(scope="module")
def result() -> Result:
    traffic = traffic_of(read_capture(SHIPPED))
    found = derive(traffic)
    plans, _ = plan(traffic, found.regions, RnicConfig(), found.ends)
    return Result(str(SHIPPED), "compiled", 64, True, [run(each) for each in plans])


@pytest.fixture(scope="module")
def text(explainer: Explainer, result: Result, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("explorer") / "explorer.html"
    explorer.write(result, explainer, path)
    return path.read_text()


def unpacked(text: str) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Returns the data of a page, and its pieces by name."""
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', text)
    assert match is not None
    pieces: dict[str, list[Any]] = {}
    for name, number, packed in _SCRIPT.findall(text):
        octets = zlib.decompress(base64.b64decode(packed), -zlib.MAX_WBITS)
        found = pieces.setdefault(name, [])
        assert int(number) == len(found)
        found.append(json.loads(octets))
    return json.loads(match[1]), pieces


def test_the_file_needs_no_other_and_has_every_segment(text: str, explainer: Explainer) -> None:
    assert not re.search(r"\b(src|href)=|https?://|@import|FIRST|REST|THEME", text)
    data, pieces = unpacked(text)
    assert data["count"] == len(explainer.judged) == 236
    (rows,) = pieces["rows"]
    assert {len(column) for column in rows} == {236} and len(rows) == 11
    assert rows[10] == [*range(236)] and data["explained"] == 236
    assert rows[0] == [each.arrival.frame for each in explainer.judged.values()]
    assert len(pieces["more"]) == -(-236 // data["segments"])
    # The first rows stand before the script that shows them.
    assert text.index('id="rows-0"') < text.index('"use strict"') < text.index('id="more-0"')


def test_the_data_are_those_of_the_explanations(text: str, explainer: Explainer) -> None:
    data, pieces = unpacked(text)
    (rows,) = pieces["rows"]
    for row, judged in enumerate(explainer.judged.values()):
        explanation = explainer.explain(judged)
        piece = pieces["more"][row // data["segments"]]
        segment = piece["segments"][row % data["segments"]]
        shown = [piece["frames"][at] for at in segment["frames"]]
        assert [each[:2] for each in shown] == [
            [each.number, each.octets.hex()] for each in explanation.shown
        ]
        layers = [*shown[-1][2], *segment["layers"]]
        assert [data["layers"][shape][0] for shape, _, _ in layers] == [
            layer.name for layer in explanation.layers
        ]
        upper = explanation.layers[len(shown[-1][2]) :]
        for (_, values, spans), layer in zip(segment["layers"], upper, strict=True):
            assert values == [each.value for each in layer.fields]
            for numbers, each in zip(spans, layer.fields, strict=True):
                frames = [segment["frames"][at] for at in numbers[::3]]
                assert [piece["frames"][at][0] for at in frames] == [s.frame for s in each.spans]
                assert numbers[1::3] == [s.start for s in each.spans]
        assert [result for result, _, _ in segment["steps"]] == [
            step.result.value for step in explanation.steps
        ]
        verdict = data["verdicts"][rows[7][row]]
        assert verdict.startswith(("refused", "failed")) == (judged.error is not None)
        assert ("terminate" in segment) == (judged.error is not None)
        if (placement := explanation.placement) is None:
            assert rows[8][row] == -1
        else:
            assert data["targets"][rows[8][row]][0] == str(placement.target)
            assert rows[9][row] == placement.offset


def test_pieces_follow_each_other_and_progress_is_reported(tmp_path: Path) -> None:
    sender = MpaSender()
    count = 4200
    header = TaggedHeader(0xABCD07, 0, True, 0x40).encode()
    octets = b"".join(sender.send(header + b"x") for _ in range(count))
    packets = handshake()
    for at in range(0, len(octets), 1 << 14):
        packets.append(tcp_packet(A, B, first_octet(1000) + at, octets[at : at + (1 << 14)]))
    captured = frames(packets)
    capture = capture_of(captured, Path("made"))
    traffic = traffic_of(capture)
    plans, _ = plan(traffic, [Region(B[0], 0xABCD07, 0, 1)], RnicConfig())
    explainer = Explainer(capture, traffic, plans)
    explainer.read(captured)
    seen: list[tuple[int, int]] = []
    path = tmp_path / "explorer.html"
    explorer.write(
        Result("made", "compiled", 64, True), explainer, path, lambda *at: seen.append(at)
    )
    data, pieces = unpacked(path.read_text(encoding="utf-8"))
    assert [len(each[0]) for each in pieces["rows"]] == [data["rows"], count - data["rows"]]
    assert sum(len(each["segments"]) for each in pieces["more"]) == count
    assert seen[-1] == (count, count) and seen == sorted(seen)


def dom(path: Path, address: str, *options: str) -> str:
    """Returns the elements of a page after its scripts have run."""
    assert CHROMIUM is not None
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000",
        f"--user-data-dir={path.parent / 'profile'}", *options, "--dump-dom",
        f"{path.as_uri()}{address}",
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_a_browser_shows_the_segment_of_an_address(text: str, tmp_path: Path) -> None:
    path = tmp_path / "explorer.html"
    path.write_text(text, encoding="utf-8")
    found = dom(path, "#305", "--window-size=1280,900")
    assert 'aria-rowcount="237"' in found and ">236 segments<" in found
    rows = re.findall(r'<div class="row" role="row" id="row-(\d+)"', found)
    assert 10 < len(rows) < 60
    (chosen,) = re.findall(r'id="row-(\d+)"[^>]*aria-selected="true"', found)
    assert f'aria-activedescendant="row-{chosen}"' in found
    assert "refused: 0x2/0x04 Invalid MO" in found
    assert re.search(r'<tr class="bad"[^>]*aria-current="true"><td>FAILS</td>', found)
    assert 'role="tree"' in found and ">MSN</span>" in found and "frame 305" in found
    # The second segment of the frame was dropped.
    assert "dropped silently: the stream is in error since frame 305" in dom(path, "#305.2")


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_a_browser_filters_as_one_types(text: str, tmp_path: Path) -> None:
    path = tmp_path / "explorer.html"
    typed = (
        "<script>addEventListener('load', () => setTimeout(() => { for (const words of"
        " ['refused', 'refused stag:', 'frame:305', 'qn:0 msn:1', 'stag:0x18072e8c', 'no such'])"
        " { by('filter').value = words; by('filter').dispatchEvent(new Event('input'));"
        " document.body.append(`[${words}=${shown()}]`); } }, 1000));</script>"
    )
    path.write_text(text.replace("</body>", f"{typed}</body>"), encoding="utf-8")
    found = dict(re.findall(r"\[([^=\]]+)=(\d+)\]", dom(path, "")))
    data, pieces = unpacked(text)
    (rows,) = pieces["rows"]
    cells = [
        (frame, tag, data["verdicts"][verdict])
        for frame, tag, verdict in zip(rows[0], rows[4], rows[7], strict=True)
    ]
    assert {words: int(count) for words, count in found.items()} == {
        "refused": sum("refused" in verdict for _, _, verdict in cells),
        "refused stag:": 0,
        "frame:305": sum(frame == 305 for frame, _, _ in cells),
        "qn:0 msn:1": sum(tag == "QN 0 MSN 1" for _, tag, _ in cells),
        "stag:0x18072e8c": sum(tag == "STag 0x18072e8c" for _, tag, _ in cells),
        "no such": 0,
    }


def test_a_capture_may_have_more_streams_than_16_bits_count(explainer: Explainer) -> None:
    judged = next(iter(explainer.judged.values()))
    stream = replace(judged.arrival.stream, number=70_000)
    outline = Outline([(replace(judged, arrival=replace(judged.arrival, stream=stream)), None)])
    assert [row.stream for row in outline.sorted()] == [70_000]


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_a_browser_lists_two_hundred_thousand_segments(
    explainer: Explainer, result: Result, tmp_path: Path
) -> None:
    outline = Outline((each, None) for each in explainer.judged.values())
    (rows,) = outline._rows
    outline._rows = [np.tile(rows, 850)]
    outline._rows[0]["order"] = np.arange(850 * len(rows)) + len(rows)
    run, *others = result.runs
    long, path = replace(result, runs=[replace(run, outline=outline), *others]), tmp_path / "long"
    explorer.write(long, explainer, path)
    total = 851 * 236
    typed = (
        "<script>const waits = setInterval(() => { if (loaded < data.count) return;"
        " clearInterval(waits); choose(data.count - 1, true);"
        " document.body.append(`[last=${by('details').textContent}]`);"
        " by('filter').value = 'qn:0 msn:1'; refilter();"
        " document.body.append(`[found=${shown()}]`); }, 10);</script>"
    )
    page = path.read_text(encoding="utf-8").replace("</body>", f"{typed}</body>")
    path = tmp_path / "explorer.html"
    path.write_text(page, encoding="utf-8")
    found = dom(path, "", "--window-size=1280,900")
    (frame,) = {each.arrival.frame for each in [*explainer.judged.values()][-1:]}
    assert f"rnic explain CAPTURE {frame}" in found and f"236 of {total:,}" in found
    first = [row.tag for row in outline].count("QN 0 MSN 1") // 850
    assert f"[found={851 * first}]" in found and first > 1

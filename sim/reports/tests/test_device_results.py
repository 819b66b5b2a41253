"""Tests of ``rnic compare``: the same vectors on the RTL and on a board, and the report."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pylibfst
import pytest
import serial
from ddp_rnic.boards.catalog import BOARDS
from ddp_rnic.cli import app, inputs
from ddp_rnic.hdl.lib.tests.long import long
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.sim.capture.capture import read_capture
from ddp_rnic.sim.capture.pcap import Frame, write_pcap
from ddp_rnic.sim.capture.tests.associations import A, B, Peers
from ddp_rnic.sim.capture.tests.frames import ethernet, first_octet, frames, handshake, tcp_packet
from ddp_rnic.sim.capture.tests.streams import SEND, Conversation
from ddp_rnic.sim.capture.traffic import traffic_of
from ddp_rnic.sim.devices import link, tcp_sender
from ddp_rnic.sim.devices.live import SimTransport
from ddp_rnic.sim.devices.room import Room, check_fits
from ddp_rnic.sim.devices.targets import Board, Simulated, Target
from ddp_rnic.sim.engines.engine import Await, Packet
from ddp_rnic.sim.engines.engine import Frame as FrameSent
from ddp_rnic.sim.engines.waves import Waves
from ddp_rnic.sim.model.mpa import StartupFrame
from ddp_rnic.sim.replay.plan import Plan, plan
from ddp_rnic.sim.replay.regions import Region, RegionError, derive
from ddp_rnic.sim.reports import page
from ddp_rnic.sim.reports.device_results import DeviceResult, DeviceResults, run
from ddp_rnic.sim.reports.timeline import occupancy, segments, throughput
from ddp_rnic.sw_driver import InvalidRequest, UnsupportedDevice
from ddp_rnic.sw_driver.tests.virtual_board import VirtualBoard
from ddp_rnic.sw_driver.tests.virtual_tcp import VirtualTcp
from typer.testing import CliRunner, Result

SHIPPED = Path(__file__).resolve().parents[2] / "data" / "workload.pcap"
SCTP = RnicConfig(sctp=True)


def compared(*arguments: object) -> Result:
    return CliRunner().invoke(app.app, ["compare", *map(str, arguments)])


class Page(HTMLParser):
    """The references of a page, its tags, and the text of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.references: list[str] = []
        self.open: list[str] = []
        self.scripts: dict[str, str] = {}
        self._script: str | None = None
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        self.references += [found[name] or "" for name in ("src", "href") if name in found]
        if tag not in ("meta", "br"):
            self.open.append(tag)
        if tag == "script":
            self._script = found.get("id") or "code"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self._script = None

    def handle_data(self, data: str) -> None:
        if self._script is not None:
            self.scripts[self._script] = self.scripts.get(self._script, "") + data


def data_of(text: str) -> dict[str, Any]:
    """Returns the data of a report, after checking that the file needs no other file."""
    found = Page(text)
    assert not found.references and "@import" not in text
    # Only a namespace looks like an address.
    assert set(re.findall(r"https?://[^\"'\s]+", found.scripts["code"])) == {
        "http://www.w3.org/2000/svg"
    }
    data: dict[str, Any] = json.loads(found.scripts["data"])
    return data


@pytest.fixture(scope="module")
def plans() -> list[Plan]:
    traffic = traffic_of(read_capture(SHIPPED))
    found = derive(traffic)
    return plan(traffic, found.regions, RnicConfig(), found.ends)[0]


def rtl(planned: Plan, waves: Waves | None) -> Simulated:
    return Simulated(Target.RTL, planned.config, waves=waves)


@pytest.fixture(scope="module")
def side(plans: list[Plan]) -> DeviceResult:
    return run("rtl", rtl, plans)


def test_the_rtl_agrees_on_the_shipped_capture(tmp_path: Path) -> None:
    result = compared(SHIPPED, "--on", "rtl", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "agree: rtl and golden model at 64 bits" in result.stdout
    assert f"report: {tmp_path / 'out' / 'report.html'}" in result.stdout
    data = data_of((tmp_path / "out" / "report.html").read_text(encoding="utf-8"))
    assert data["agrees"] and data["differences"] == [] and data["source"] == str(SHIPPED)
    (side,) = data["sides"]
    (shown,) = side["runs"]
    assert (side["name"], side["verdict"]) == ("rtl", "agrees")
    assert len(shown["timeline"]) == shown["segments"] == 236
    assert len(shown["throughput"]) == len(shown["occupancy"]) == 300
    (error,) = {each[10] for each in shown["timeline"] if each[10] and "Base or bounds" in each[10]}
    assert error.endswith("Base or bounds violation")


def test_segments_come_in_are_placed_and_delivered_in_that_order(side: DeviceResult) -> None:
    assert not side.differences
    (played,) = side.runs
    known = segments(played)
    golden = played.plan.golden
    assert len(known) == sum(counts.segments for counts in golden.counts.values())
    delivered = {id(each.arrival) for each in golden.deliveries}
    written = {id(each.arrival) for each in golden.placements}
    for each in known:
        assert each.first <= each.last
        assert (each.placed is not None) == (id(each.arrival) in written)
        assert (each.delivered is not None) == (id(each.arrival) in delivered)
        if each.placed is not None:
            assert each.first < each.placed[0] <= each.placed[1]
            # A message is delivered once the bus has answered for its last octet.
            assert each.delivered is None or each.delivered > each.placed[1]
    # Payload takes one cycle per beat, where markers do not cut it.
    whole = [
        each
        for each in known
        if each.placed is not None and each.octets > 1000 and not each.arrival.stream.markers
    ]
    assert whole
    for each in whole:
        assert each.placed is not None
        cycles = each.placed[1] - each.placed[0] + 1
        assert cycles <= each.octets // 8 + 3, each


def test_plots_hold_all_octets(side: DeviceResult) -> None:
    (played,) = side.runs
    known = segments(played)
    step, rates = throughput(played, known, 50)
    came = sum(len(packet.octets) for packet in played.plan.packets())
    assert sum(rate for _, rate, _ in rates) * step == pytest.approx(came)
    placed = played.outcome.counters["PLACED_OCTETS"]
    assert sum(rate for _, _, rate in rates) * step == pytest.approx(placed)
    inside = [octets for _, octets in occupancy(played, known, 50)]
    longest = max(len(packet.octets) for packet in played.plan.packets())
    assert longest <= max(inside) <= played.plan.config.buffer_octets


def small_plan() -> Plan:
    """Plans two Writes, the second of which is long, on an RNIC with default sizes."""
    talk = Conversation()
    for to, count in ((5, 9), (20, 200)):
        talk.write("10.7.0.2", 0x100, to, bytes(range(count)))
    traffic = talk.traffic()
    (planned,), notes = plan(traffic, derive(traffic).regions, RnicConfig())
    assert not notes
    return planned


@pytest.mark.parametrize("shown_in_waves", [False, *long(True)])
def test_a_difference_is_shown_with_octets_and_cycle(shown_in_waves: bool, tmp_path: Path) -> None:
    planned = small_plan()
    (first, spoilt) = planned.golden.placements
    payload = bytes(
        octet ^ 0x55 if k in (7, 8) else octet for k, octet in enumerate(spoilt.payload)
    )
    planned.golden.placements = [first, replace(spoilt, payload=payload)]
    waves = Waves(tmp_path / "rtl.fst") if shown_in_waves else None
    side = run("rtl", rtl, [planned], waves=waves)
    results = DeviceResults("<spoilt>", 64, [side])
    (row,) = results.rows()
    difference = row.got["rtl"]
    assert row.what == "memory" and row.expected.startswith(f"{payload[7]:#04x} (stream 0")
    assert difference.got == f"{7:#04x}" and difference.octets == ("525d", "0708")
    assert not results.agrees and side.waves == ([waves.path] if waves else [])

    data = data_of(page.html(results))
    assert data["source"] == "<spoilt>"
    (shown,) = data["differences"]
    assert shown["got"]["rtl"]["octets"] == ["525d", "0708"]
    assert data["sides"][0]["waves"] == ["rtl.fst"] * shown_in_waves
    # At that time the waveform has the octet on the bus.
    if waves is not None:
        beat = bus_at(waves.path, shown["got"]["rtl"]["time"])
        assert bytes([7, 8]) in beat or beat.endswith(bytes([7]))
    # The timeline assigns the cycle to that segment.
    (segment,) = [each for each in segments(side.runs[0]) if each.octets == 200]
    assert difference.cycle is not None and segment.placed is not None
    assert segment.placed[0] <= difference.cycle <= segment.placed[1]


def bus_at(waves: Path, time: int) -> bytes:
    """Returns the value of m_axi_wdata just before a time of a waveform."""
    fst, values = pylibfst.lib, list[bytes]()
    reader = fst.fstReaderOpen(str(waves).encode())
    _, signals = pylibfst.get_scopes_signals2(reader)
    fst.fstReaderSetFacProcessMask(reader, signals.by_name["rnic.m_axi_wdata [63:0]"].handle)

    def note(_: object, when: int, handle: int, value: Any) -> None:
        if when < time:
            values.append(int(pylibfst.string(value), 2).to_bytes(8, "little"))

    pylibfst.fstReaderIterBlocks(reader, note)
    fst.fstReaderClose(reader)
    return values[-1]


def test_a_device_that_stops_is_a_difference(
    plans: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "_PATIENCE", 0.3)
    (planned,) = plans
    more = replace(planned, operations=[*planned.operations, Await(10_000)])
    side = run("rtl", rtl, [more])
    assert side.failure == "10000 completions did not come" and side.verdict == "differs"
    (row,) = DeviceResults("", 64, [side]).rows()
    assert (row.what, row.got["rtl"].got) == ("device", "10000 completions did not come")
    assert "not come" in page.html(DeviceResults("", 64, [side]))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--on", "rtl,netlist"], "--on must name some of rtl, gates, board, each once"),
        (["--on", "rtl,rtl"], "--on must name some of rtl, gates, board, each once"),
        (["--on", "board"], "--on board and --port, the serial port of its host link"),
        (["--port", "/dev/ttyUSB0"], "--on board and --port"),
        (["--waves", "all"], "--waves needs --out"),
        (["--cycles", "1..2"], "--cycles needs --waves"),
        (["--waves", "walkr", "--out", "absent"], "--waves: the RNIC has no part 'walkr'"),
        (["--waves", "walker", "--on", "rtl,gates", "--out", "absent"], "--on gates has no parts"),
        (["--width", 65], "width must be one of 64, 128, 256, 512, not 65"),
        (["--out", SHIPPED], "is a file, not a directory"),
    ],
)
def test_bad_input_gets_a_sentence(
    arguments: list[object], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = compared(SHIPPED, *arguments)
    assert result.exit_code == 2 and sentence in result.stderr
    assert result.stderr.count("\n") == 1 and not [*tmp_path.iterdir()]


def test_a_port_without_a_board_is_reported(tmp_path: Path) -> None:
    result = compared(SHIPPED, "--on", "board", "--port", tmp_path / "none")
    assert result.exit_code == 1 and "cannot be opened" in result.stderr


# -- a board at its port --


@pytest.fixture(scope="module")
def sim() -> Iterator[SimTransport]:
    with SimTransport(SCTP) as sim:
        yield sim


def by_sctp() -> list[Frame]:
    """Makes Writes, a message, a Write in error, and a chunk that is not DDP's."""
    peers = Peers()
    peers.set_up()
    peers.open(3)
    peers.send(A, peers.write(A, 3, 0x100, 0, bytes(range(200))), peers.message(A, 3, b"message"))
    peers.send(B, peers.message(B, 3, bytes(99)))
    peers.send(A, peers.write(A, 3, 0x100, 150, bytes(range(100))))
    peers.close(3)
    return peers.frames


def test_a_board_agrees_through_its_port(sim: SimTransport, tmp_path: Path) -> None:
    path = tmp_path / "sctp.pcap"
    # A frame that is not for the RNIC, and too short for Ethernet.
    stranger = Frame(1, 0.0, 1, ethernet(tcp_packet((A, 1), (B, 2), 3))[:54])
    write_pcap((stranger, *(replace(each, number=each.number + 1) for each in by_sctp())), path)
    with VirtualBoard(sim) as board:
        before = board.control
        result = compared(path, "--on", "board", "--port", board.port, "--out", tmp_path)
        assert result.exit_code == 0, result.output
        assert "agree: board and golden model at 64 bits" in result.stdout
        assert board.control == before  # the PHY's setting is restored
        data = data_of((tmp_path / "report.html").read_text(encoding="utf-8"))
        (side,) = data["sides"]
        assert sum(each["octets"] for each in side["runs"]) == 406
        assert not any(each["cycles"] or each["timeline"] for each in side["runs"])

        # The same, with a PHY that ignores its setting.
        board.loops = False
        result = compared(path, "--on", "board", "--port", board.port)
        assert result.exit_code == 1 and "does not loop frames back" in result.stdout

        board.late = True
        result = compared(path, "--on", "board", "--port", board.port)
        assert result.exit_code == 1 and "without a start frame delimiter" in result.stdout

        board.phy = 99
        result = compared(path, "--on", "board", "--port", board.port)
        assert result.exit_code == 1 and "no PHY answers on MDIO" in result.stderr


def test_what_a_board_cannot_play_is_said(sim: SimTransport, tmp_path: Path) -> None:
    with VirtualBoard(sim) as board:
        result = compared(SHIPPED, "--on", "board", "--port", board.port)
        assert result.exit_code == 2
        assert "left out: 236 FPDUs (the board receives DDP over SCTP)" in result.stderr
        result = compared(SHIPPED, "--on", "board", "--port", board.port, "--width", 128)
        assert result.exit_code == 2 and "the board has 64 bits" in result.stderr
    path = tmp_path / "sctp.pcap"
    write_pcap(tuple(by_sctp()), path)
    with VirtualBoard(sim, memory=4096) as board:
        result = compared(path, "--on", "board", "--port", board.port)
        assert result.exit_code == 2 and "the board has 4096 octets of memory" in result.stderr


@pytest.mark.long
def test_the_port_has_the_rate_that_is_asked_for(
    sim: SimTransport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "sctp.pcap"
    write_pcap(tuple(by_sctp()), path)
    rates: list[int] = []
    opened = serial.serial_for_url

    def open_port(port: str, rate: int, **options: Any) -> Any:
        rates.append(rate)
        return opened(port, rate, **options)

    monkeypatch.setattr(serial, "serial_for_url", open_port)
    with VirtualBoard(sim) as board:
        for asked, rate in (((), 1_000_000), (("--baud", 115_200), 115_200)):
            del rates[:]
            result = compared(path, "--on", "board", "--port", board.port, *asked)
            assert result.exit_code == 0, result.output
            assert len(rates) >= 2 and set(rates) == {rate}
    result = compared(path, "--baud", 9600)
    assert result.exit_code == 2 and "--baud needs --port" in result.stderr


def test_without_a_capture_a_board_plays_what_fits_it(sim: SimTransport) -> None:
    with VirtualBoard(sim, memory=1 << 15) as board:
        result = compared("--on", "board", "--port", board.port)
        assert result.exit_code == 0, result.output
        assert "agree: board and golden model at 64 bits" in result.stdout


def test_a_board_without_room_for_any_workload_is_refused_with_the_reason(
    sim: SimTransport,
) -> None:
    with VirtualBoard(sim, memory=4096) as board:
        result = compared("--on", "board", "--port", board.port)
        assert result.exit_code == 2
        assert "the board has 4096 octets of memory, but this needs" in result.stderr


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_every_board_has_room_for_a_workload(board: Any) -> None:
    """Uses the facts that a host knows of a board: the RNIC's capabilities, memory, and TCP's."""
    has = board.config
    told = RnicConfig(
        width=has.width, stags=has.stags, streams=has.streams, buffer_octets=has.buffer_octets,
        queue_depth=has.queue_depth, buffers=has.buffers, pages=has.pages,
    )  # fmt: skip
    if has.sctp:
        told = replace(told, sctp=True, associations=has.associations, window=has.window)
    room = Room(board.memory, board.connections, board.window)
    plans, _ = inputs.planned(inputs.Asked(None, None, [], []), told, room)
    assert {plan.config for plan in plans} == {told}
    assert sum(len(each.golden.deliveries) for each in plans) >= 10


# -- a board with TCP --

WINDOW = 2048
HOST = "10.7.0.2"


def in_segments(talk: Conversation, *, markers: bool) -> list[bytes]:
    """Returns a conversation as frames of a capture, four FPDUs to a segment; connections
    one by one.
    """
    traffic = talk.traffic()
    startup = [StartupFrame(kind=kind, markers=markers).encode() for kind in ("request", "reply")]
    packets: list[bytes] = []
    for number, stream in enumerate(traffic.streams):
        back = any(
            stream.source == other.destination and stream.destination == other.source
            for other in traffic.streams[:number]
        )
        if not back:
            packets += handshake(
                stream.source, stream.destination, request=startup[0], reply=startup[1]
            )
        sequence = first_octet(5000 if back else 1000)
        raws = [each.raw for each in traffic.arrivals if each.stream is stream]
        for at in range(0, len(raws), 4):
            octets = b"".join(raws[at : at + 4])
            packets.append(tcp_packet(stream.source, stream.destination, sequence, octets))
            sequence += len(octets)
    return packets


def by_mpa(path: Path) -> None:
    """Makes a capture of three connections: with markers, with an error, with both directions.

    Some FPDUs are longer than a segment that the board sends, and some segments longer than its
    window.
    """
    packets: list[bytes] = []
    for side, markers in enumerate((False, True)):
        source, host = f"10.7.{side}.1", f"10.7.{side}.2"
        talk = Conversation(source, host, markers=markers)
        for number, count in enumerate((1900, 3, 0, 700, 640, 1999, 1)):
            talk.write(host, 0x100 << side, 2000 * number, bytes(k % 251 for k in range(count)))
            talk.message(host, SEND, bytes(range(256)) * 7, b"of two segments")
        if not markers:
            talk.message(source, SEND, b"and back")
            talk.message(host, SEND, b"another connection", connection=1)
            talk.segment(host, bytes(40), connection=1, spoil=True)
        packets += in_segments(talk, markers=markers)
    write_pcap(tuple(frames(packets)), path)


def test_a_board_with_tcp_agrees_through_its_port(tmp_path: Path) -> None:
    path = tmp_path / "mpa.pcap"
    by_mpa(path)
    tcp = VirtualTcp(4, WINDOW)
    with SimTransport() as sim, VirtualBoard(sim, tcp=tcp) as board:
        result = compared(path, "--on", "board", "--port", board.port, "--out", tmp_path)
        assert result.exit_code == 0, result.output
        assert "agree: board and golden model at 64 bits" in result.stdout
        data = data_of((tmp_path / "report.html").read_text(encoding="utf-8"))
        ((shown,),) = [side["runs"] for side in data["sides"]]
        assert shown["segments"] == 45
        # The closed connections are as new.
        assert [tcp.receiver.next(number) for number in range(4)] == [0] * 4


def test_without_a_capture_a_board_with_tcp_plays_what_fits_it() -> None:
    tcp = VirtualTcp(2, WINDOW)
    with SimTransport() as sim, VirtualBoard(sim, tcp=tcp, memory=1 << 14) as board:
        result = compared("--on", "board", "--port", board.port)
        assert result.exit_code == 0, result.output
        assert "agree: board and golden model at 64 bits" in result.stdout


def test_a_fault_of_a_board_with_tcp_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mpa.pcap"
    talk = Conversation()
    for number in range(3):
        talk.write(HOST, 0x100, 100 * number, bytes(range(100)))
    write_pcap(tuple(frames(in_segments(talk, markers=False))), path)
    tcp = VirtualTcp(4, WINDOW)
    with SimTransport() as sim, VirtualBoard(sim, tcp=tcp) as board:
        # The CRC is wrong then.
        board.spoil = lambda octets: octets[:30] + bytes([octets[30] ^ 1]) + octets[31:]
        result = compared(path, "--on", "board", "--port", board.port)
        assert result.exit_code == 1 and "error event" in result.stdout
        board.spoil = bytes

        monkeypatch.setattr(tcp_sender, "_PATIENCE", 0.1)
        monkeypatch.setattr(tcp.receiver, "receive", lambda frame: [])
        result = compared(path, "--on", "board", "--port", board.port)
        assert result.exit_code == 1
        assert "taken octets of stream 0 up to 0, not to 360" in result.stdout


def test_what_a_board_with_tcp_cannot_play_is_said(tmp_path: Path) -> None:
    mpa, sctp = tmp_path / "mpa.pcap", tmp_path / "sctp.pcap"
    by_mpa(mpa)
    write_pcap(tuple(by_sctp()), sctp)
    with SimTransport() as sim:
        for path, connections, window, sentence in (
            (sctp, 4, WINDOW, "SCTP packets (the board receives DDP over MPA)"),
            (mpa, 2, WINDOW, "the board takes 2 TCP connections, but this has 4"),
            (mpa, 4, 1024, "a TCP window of 1024 octets, but an FPDU has 2036"),
            (SHIPPED, 4, WINDOW, "the board is too small for this: 80 untagged queues need"),
        ):
            with VirtualBoard(sim, tcp=VirtualTcp(connections, window)) as board:
                result = compared(path, "--on", "board", "--port", board.port)
            assert result.exit_code == 2 and sentence in result.stderr, result.stderr
            assert result.stderr.count("\n") == 1
        with VirtualBoard(sim) as board:
            result = compared(mpa, "--on", "board", "--port", board.port)
            assert result.exit_code == 1
            assert "the board's RNIC has no SCTP, and no other port for frames" in result.stderr


def test_a_packet_that_would_come_to_the_host_must_fit_where_a_board_shows_it() -> None:
    talk = Conversation()
    talk.write(HOST, 0x700, 0, bytes(2048))
    (planned,), notes = plan(talk.traffic(), [Region(HOST, 0x100, 0, 8)], RnicConfig())
    with pytest.raises(RegionError, match="packets of up to 2048 octets, but one of 2068 would"):
        check_fits([planned], notes, planned.config, Room(1 << 20, 1, 4096))


def test_a_board_with_tcp_sends_what_tcp_can_bring(
    sim: SimTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    fpdu = b"\0\2abcdef"
    with SimTransport() as other, VirtualBoard(other, tcp=VirtualTcp(2, WINDOW)) as board:
        with Board(board.port, {3: False}) as link:
            link.send(Packet(3, 0, fpdu * 2))
            assert link.sending == 1
            for packet, sentence in (
                (Packet(3, 24, fpdu), "stream 3 continues at octet 24, not at 16: TCP cannot"),
                (Packet(3, 16, fpdu, error=True), "a damaged packet of stream 3 cannot be sent"),
            ):
                with pytest.raises(InvalidRequest, match=sentence):
                    link.send(packet)
            with pytest.raises(
                UnsupportedDevice, match="receives DDP over MPA, but this is for SCTP"
            ):
                link.send(FrameSent(bytes(60)))
    with VirtualBoard(sim) as board, Board(board.port) as link:
        with pytest.raises(UnsupportedDevice, match="receives DDP over SCTP, but this is for MPA"):
            link.send(Packet(0, 0, fpdu))

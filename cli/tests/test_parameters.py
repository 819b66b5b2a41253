"""Tests the parameters of the RNIC from a file and from options, and ``rnic config``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ddp_rnic.cli import config as command
from ddp_rnic.cli.app import app
from ddp_rnic.cli.outcome import BadInput
from ddp_rnic.cli.parameters import configured
from ddp_rnic.export.estimate import Area, Estimate, model
from ddp_rnic.hdl.spec.config import LIMITS, SPANS, WIDTHS, Parameter, RnicConfig, parameters
from typer.testing import CliRunner, Result


def rnic_config(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["config", *map(str, arguments)])


def written(folder: Path, text: str) -> Path:
    path = folder / "rnic.toml"
    path.write_text(text)
    return path


def test_a_file_and_settings_have_the_same_names_and_the_settings_win(tmp_path: Path) -> None:
    file = written(tmp_path, "streams = 128\nsctp = true\nudp_port = 0x1234\n")
    expected = RnicConfig(streams=128, sctp=True, udp_port=0x1234)
    assert configured(file, None) == expected
    assert configured(None, ["streams=128", "sctp=true", "udp_port=0x1234"]) == expected
    assert configured(file, ["streams=32", "sctp = false", "streams=256"]) == RnicConfig(
        streams=256, udp_port=0x1234
    )
    assert configured(None, None) == RnicConfig()


@pytest.mark.parametrize("each", parameters(), ids=lambda each: each.name)
def test_every_parameter_has_a_range_that_its_values_keep(each: Parameter) -> None:
    value = each.next_to(each.default)
    assert value != each.default and type(value) is type(each.default)
    needs = {
        "mpa": ["sctp=true"], "receive": ["transmit=true"], "responder": ["transmit=true"],
    }.get(each.name, [])  # fmt: skip
    chosen = configured(None, [*needs, f"{each.name}={str(value).lower()}"])
    assert getattr(chosen, each.name) == value
    for wrong in ("0.5", "''", "-1"):
        with pytest.raises(BadInput) as refused:
            configured(None, [f"{each.name}={wrong}"])
        assert str(refused.value).startswith(f"{each.name} must be {each.range}, not ")


@pytest.mark.parametrize("each", parameters(), ids=lambda each: each.name)
def test_a_number_with_a_point_is_refused_in_one_sentence(each: Parameter, tmp_path: Path) -> None:
    number = float(each.default)
    result = rnic_config("--config", written(tmp_path, f"{each.name} = {number}\n"))
    assert result.exit_code == 2 and "Traceback" not in result.output
    assert f"{each.name} must be {each.range}, not {number}" in " ".join(result.output.split())


def test_the_parameters_are_those_of_the_gateware_with_their_meaning() -> None:
    assert [each.name for each in parameters()] == list(vars(RnicConfig()))
    assert all(each.doc.endswith(".") and "``" not in each.doc for each in parameters())
    (width,) = (each for each in parameters() if each.name == "width")
    assert width.next_to(WIDTHS[-1]) == WIDTHS[-2] and width.next_to(WIDTHS[0]) == WIDTHS[1]
    for name, (low, high) in (LIMITS | SPANS).items():
        (each,) = (each for each in parameters() if each.name == name)
        assert f"from {low} to {high}" in each.range


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["stream=64"], "there is no parameter 'stream': the nearest name is 'streams'"),
        (["pagse=64"], "there is no parameter 'pagse': the nearest name is 'pages'"),
        (["streams=65"], "streams must be a power of two from 2 to 4096, not 65"),
        (["transmit=1"], "transmit must be true or false, not 1"),
        (["width=true"], "width must be one of 64, 128, 256, 512, not True"),
        (["streams"], "--set must be NAME=VALUE, as streams=128, not 'streams'"),
        (["responder=true"], "responder needs transmit: Read Responses are sent"),
        (["receive=false"], "receive or transmit must be True"),
        (["receive=0"], "receive must be true or false, not 0"),
        (
            ["receive=false", "transmit=true", "responder=true"],
            "responder needs receive: Read Requests are received",
        ),
    ],
)
def test_a_wrong_setting_is_one_sentence(settings: list[str], sentence: str) -> None:
    result = rnic_config(*(part for each in settings for part in ("--set", each)))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"rnic: {sentence}\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("streams = ", "is no TOML file: Invalid value"),
        ("[rnic]\nstreams = 64\n", "there is no parameter 'rnic'"),
        ("streams = 64.0\n", "streams must be a power of two from 2 to 4096, not 64.0"),
        ("streams = [64]\n", "not [64]"),
    ],
)
def test_a_wrong_file_is_one_sentence(text: str, words: str, tmp_path: Path) -> None:
    result = rnic_config("--config", written(tmp_path, text))
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr and result.stderr.count("\n") == 1


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    result = rnic_config("--config", tmp_path / "none.toml")
    assert result.exit_code == 2 and "none.toml: No such file" in result.stderr
    (tmp_path / "octets.toml").write_bytes(b"\xff")
    result = rnic_config("--config", tmp_path / "octets.toml")
    assert result.exit_code == 2 and "octets.toml is no TOML file" in result.stderr


def test_it_prints_each_parameter_and_the_verdict_on_each_device() -> None:
    result = rnic_config("--set", "streams=128")
    assert result.exit_code == 0 and not result.stderr
    lines = result.stdout.splitlines()
    for each in parameters():
        assert any(f"│ {each.name} " in line and each.range in line for line in lines)
    (streams,) = (line for line in lines if "│ streams " in line)
    assert "│ 128 " in streams and "│ 64 " in streams
    assert all(name in result.stdout for name in ("LFE5U-12F", "LFE5U-85F", "too large", "fits"))


def test_json_has_the_same_and_what_each_next_value_costs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def estimate(config: RnicConfig) -> Estimate:
        return Estimate(Area(10 * config.streams, config.width, config.stags), model())

    monkeypatch.setattr(command, "estimate", estimate)
    result = rnic_config("--set", "streams=32", "--costs", "--json")
    shown = json.loads(result.stdout)
    rows = {each["name"]: each for each in shown["parameters"]}
    assert rows["streams"]["value"] == 32 and rows["streams"]["default"] == 64
    assert rows["streams"]["next"] == {"value": 64, "area": [320, 0, 0], "reason": ""}
    assert rows["width"]["next"]["area"] == [0, 64, 0]
    assert rows["mpa"]["next"] == {
        "value": False, "area": None, "reason": "mpa or sctp must be True"
    }  # fmt: skip
    assert shown["estimate"] == {"lut4": 320, "ff": 64, "dp16kd": 1024}
    assert [each["device"][-3:] for each in shown["devices"]] == ["12F", "25F", "45F", "85F"]
    assert [each["fits"] for each in shown["devices"]] == [False] * 4
    text = rnic_config("--set", "streams=32", "--costs").stdout
    assert "64: +320 +0 +0" in text and "false: mpa or sctp must be True" in text


def test_the_measurement_stands_beside_the_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    run = {"set": {}, "counts": {}, "area": {"lut4": 7654, "ff": 8, "dp16kd": 9}, "tools": "yosys"}
    monkeypatch.setattr(command, "measure", lambda config: run)
    assert json.loads(rnic_config("--measure", "--json").stdout)["measured"] == run
    assert "measured" in (text := rnic_config("--measure").stdout) and "7654" in text

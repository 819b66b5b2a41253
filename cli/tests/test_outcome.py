"""Tests that each error of a command ends it with the right exit code and one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from ddp_rnic.cli.outcome import BadInput, check_directory, exits, make_directory, writing
from ddp_rnic.flow.tools import BuildError, ToolError
from ddp_rnic.sim.capture.capture import CaptureError
from ddp_rnic.sim.engines.engine import DeviceError
from ddp_rnic.sim.replay.regions import RegionError
from ddp_rnic.sw_driver import InvalidRequest, TransportError


def ends_with(error: BaseException, *bad_input: type[Exception]) -> int:
    @exits(*bad_input)
    def command() -> None:
        raise error

    with pytest.raises(typer.Exit) as exit:
        command()
    return exit.value.exit_code


@pytest.mark.parametrize(
    "error, code",
    [
        (DeviceError("it"), 1),
        (TransportError("it"), 1),
        (BuildError("it"), 1),
        (BadInput("it"), 2),
        (CaptureError("it"), 2),
        (RegionError("it"), 2),
        (InvalidRequest("it"), 2),
        (ToolError("it"), 3),
    ],
)
def test_each_error_has_its_exit_code(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ends_with(error) == code
    assert capsys.readouterr() == ("", "rnic: it\n")


def test_an_interrupted_command_has_an_exit_code_of_its_own() -> None:
    assert ends_with(KeyboardInterrupt()) == 130


def test_a_fault_of_the_program_is_no_bad_input_unless_the_command_says_so() -> None:
    assert ends_with(ValueError("it"), ValueError) == 2
    with pytest.raises(ValueError, match="it"):
        exits()(int)("it")


def test_what_a_command_returns_passes_and_its_signature_stays() -> None:
    @exits()
    def command(number: int) -> int:
        """Adds one."""
        return number + 1

    assert command(2) == 3 and command.__doc__ == "Adds one."


def test_a_file_in_the_place_of_a_directory_is_bad_input(tmp_path: Path) -> None:
    file = tmp_path / "file"
    check_directory(None)
    check_directory(tmp_path)
    check_directory(file)
    file.write_text("")
    for place in (file, file / "below" / "it"):
        with pytest.raises(BadInput, match=f"--out {place}: {file} is a file, not a directory"):
            check_directory(place)
    with pytest.raises(BadInput, match="cannot write to --out .*below: Not a directory"):
        make_directory(file / "below")
    make_directory(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    with pytest.raises(BadInput, match=f"cannot write to --out {file}: "), writing(file):
        (file / "more").write_text("")

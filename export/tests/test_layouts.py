"""Tests the structures of the C header with a C compiler."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from ddp_rnic.export.registers import header
from ddp_rnic.flow.tools import compiler
from ddp_rnic.hdl.spec.completion import Completion, SentStatus, decode
from ddp_rnic.hdl.spec.completion import Kind as CompletionKind
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.hdl.spec.send import Flag, Kind, Message, Piece

PROGRAM = r"""
#include <stdio.h>
#include <string.h>
#include "rnic.h"

int main(void)
{
    struct rnic_message message;
    struct rnic_piece pieces[2];
    struct rnic_completion sent;
    memset(&message, 0, sizeof message);
    memset(&sent, 0, sizeof sent);
    message.kind = RNIC_SEND_READ;
    message.flags = RNIC_SEND_FLAG_SIGNALED | RNIC_SEND_FLAG_FENCE;
    message.entries = 1;
    message.pieces = 1;
    message.length = 70000;
    memcpy(message.rsvdulp, "\x01\x02\x03\x04\x05", 5);
    message.qn = 1;
    message.stag = 0xA0B0C0D0u;
    message.to = UINT64_C(0x1122334455667788);
    memset(pieces, 0, sizeof pieces);
    pieces[0].stag = 0x501;
    pieces[0].length = 70000;
    pieces[0].to = UINT64_C(0xFFEEDDCCBBAA9988);
    sent.bits = RNIC_KIND_SENT << RNIC_COMPLETION_KIND_SHIFT;
    sent.status = RNIC_SENT_STATUS_FLUSHED;
    sent.stream = 513;
    sent.tag = 0x0304;
    sent.phase = RNIC_COMPLETION_PHASE_MASK;
    fwrite(&message, sizeof message, 1, stdout);
    fwrite(pieces, sizeof pieces, 1, stdout);
    fwrite(&sent, sizeof sent, 1, stdout);
    return 0;
}
"""


def compiled(folder: Path, source: str, text: str) -> subprocess.CompletedProcess[str]:
    (folder / "rnic.h").write_text(text, encoding="utf-8")
    (folder / "program.c").write_text(source, encoding="utf-8")
    command = [*compiler(), "-x", "c", "-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic"]
    command += [str(folder / "program.c"), "-o", str(folder / "program")]
    return subprocess.run(command, capture_output=True, text=True)


def test_a_program_in_c_writes_the_octets_that_python_does(tmp_path: Path) -> None:
    built = compiled(tmp_path, PROGRAM, header(RnicConfig()))
    assert built.returncode == 0, built.stderr
    octets = subprocess.run([str(tmp_path / "program")], capture_output=True, check=True).stdout
    message = Message(
        Kind.READ, Flag.SIGNALED | Flag.FENCE, (Piece(0x501, 70000, 0xFFEEDDCCBBAA9988),),
        rsvdulp=0x0102030405, qn=1, stag=0xA0B0C0D0, to=0x1122334455667788,
    )  # fmt: skip
    assert octets[:64] == message.encode()
    sent = Completion(
        kind=CompletionKind.SENT, status=SentStatus.FLUSHED, stream=513, tag=0x0304, phase=1
    )
    assert decode(octets[64:]) == sent


@pytest.mark.parametrize(
    "old, new",
    [
        ("uint16_t stream;", "uint32_t stream;"),
        ("uint8_t rsvdulp[5];", ""),
        ("uint8_t reserved_22[9];", "uint8_t reserved_22[10];"),
    ],
)
def test_a_structure_that_differs_does_not_compile(old: str, new: str, tmp_path: Path) -> None:
    text = header(RnicConfig())
    assert old in text
    built = compiled(tmp_path, '#include "rnic.h"\nint main(void) { return 0; }\n', text)
    assert built.returncode == 0, built.stderr
    built = compiled(
        tmp_path, '#include "rnic.h"\nint main(void) { return 0; }\n', text.replace(old, new)
    )
    assert built.returncode and "rnic_" in built.stderr and "assert" in built.stderr

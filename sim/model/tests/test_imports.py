"""The model shares nothing with the gateware except the names of errors."""

from __future__ import annotations

import ast
from pathlib import Path

MODEL = Path(__file__).resolve().parents[1]


def test_the_model_imports_of_the_package_only_the_error_numbers() -> None:
    files = sorted(MODEL.glob("*.py"))
    assert len(files) > 5
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                allowed = node.level == 1 or node.module == "hdl.spec.ddp"
                assert allowed, f"{path.name}: {node.module}"
            elif isinstance(node, ast.ImportFrom):
                name = node.module or ""
                own = name.startswith("ddp_rnic.sim.model.")
                assert own or not name.startswith("ddp_rnic"), f"{path.name}: {name}"

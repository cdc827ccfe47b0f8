"""The committed stub of the compiled module is what nanobind generates from it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

STUB = Path(__file__).parents[2] / "python/moe_ep/_core.pyi"


def test_stub_is_up_to_date(tmp_path: Path) -> None:
    made = tmp_path / "_core.pyi"
    subprocess.run(
        [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "moe_ep._core", "-o", made],
        check=True,
        timeout=100,
    )
    assert made.read_text() == STUB.read_text(), "run `make stub` and commit the result"

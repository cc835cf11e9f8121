"""Programs as users write them pass a type checker in strict mode, and wrong ones do not."""

from __future__ import annotations

from pathlib import Path

import pytest
from mypy import api

PROGRAM = Path(__file__).with_name("program.py")


def _check(source: str, tmp_path: Path) -> str:
    file = tmp_path / "program.py"
    file.write_text(source)
    cache = Path(__file__).parents[2] / ".mypy_cache"
    settings = tmp_path / "mypy.ini"
    settings.write_text("[mypy]\nplugins = asyncparl.mypy_plugin\n")
    options = ["--strict", "--config-file", str(settings), "--cache-dir", str(cache), "--no-error-summary"]
    out, err, _ = api.run([*options, str(file)])
    assert not err
    return out


def test_the_documented_program_is_well_typed(tmp_path: Path) -> None:
    assert _check(PROGRAM.read_text(), tmp_path) == ""


@pytest.mark.parametrize(
    ("right", "wrong", "complaint"),
    [
        ('Simulator("pong") for', "Simulator(7) for", 'incompatible type "int"'),
        ("num_cpus=2, max_concurrency=4", "num_cpu=2", 'Unexpected keyword argument "num_cpu"'),
        ("results = await", "results =", '"Coroutine[Any, Any, list[Any]]"'),
    ],
)
def test_mistakes_are_found(right: str, wrong: str, complaint: str, tmp_path: Path) -> None:
    source = PROGRAM.read_text()
    assert right in source
    assert complaint in _check(source.replace(right, wrong, 1), tmp_path)

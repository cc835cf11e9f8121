"""Programs as users write them pass a type checker in strict mode, and wrong ones do not."""

from __future__ import annotations

from pathlib import Path

import pytest
from mypy import api

PROGRAM = Path(__file__).with_name("program.py")
BLOCKING_PROGRAM = Path(__file__).with_name("blocking_program.py")


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


@pytest.mark.parametrize("program", [PROGRAM, BLOCKING_PROGRAM])
def test_the_documented_program_is_well_typed(program: Path, tmp_path: Path) -> None:
    assert _check(program.read_text(), tmp_path) == ""


@pytest.mark.parametrize(
    ("program", "right", "wrong", "complaint"),
    [
        (PROGRAM, 'Simulator("pong") for', "Simulator(7) for", 'incompatible type "int"'),
        (
            PROGRAM,
            "num_cpus=2, max_concurrency=4, call_timeout_s=60",
            "num_cpu=2",
            'Unexpected keyword argument "num_cpu"',
        ),
        (PROGRAM, "Buffer[int]([1])", 'Buffer[int](["1"])', 'expected "int"'),
        (PROGRAM, "results = await", "results =", '"Coroutine[Any, Any, list[Any]]"'),
        (BLOCKING_PROGRAM, 'Simulator("pong") for', "Simulator(7) for", 'incompatible type "int"'),
        (BLOCKING_PROGRAM, "gather(calls)", "gather(results)", 'Cannot determine type of "results"'),
        (BLOCKING_PROGRAM, "gather(calls)", "gather(sims)", 'expected "Iterable[Call['),
        (BLOCKING_PROGRAM, "timeout=5", 'timeout="5"', 'incompatible type "str"'),
    ],
)
def test_mistakes_are_found(program: Path, right: str, wrong: str, complaint: str, tmp_path: Path) -> None:
    source = program.read_text()
    assert right in source
    assert complaint in _check(source.replace(right, wrong, 1), tmp_path)

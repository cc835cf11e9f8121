"""Which rooms may import which, and how large a file may be. Read the table before you move a module."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "asyncparl"


class Room(NamedTuple):
    """What the modules of a room may import, besides the standard library and each other."""

    ours: str
    """Rooms of ours. `asyncparl` means its public names, not the modules behind them."""
    others: str
    """Packages of others."""


# A room is a folder or a file of the package. A file that may do what its room may not is a room of its own.
# Imports in functions, under TYPE_CHECKING and by `import_module("...")` count as well.
# fmt: off
ROOMS = {
    #                       ours                                    others
    "_version":        Room("",                                     ""),
    "errors":          Room("",                                     ""),
    "ids":             Room("",                                     ""),
    "machine":         Room("",                                     ""),
    "speaking":        Room("",                                     ""),
    "protocol":        Room("errors ids",                           "msgspec"),
    "protocol.values": Room("errors ids",                           "msgspec cloudpickle numpy torch"),
    "transport":       Room("errors speaking",                      "trio"),
    "transport.nng":   Room("errors",                               "trio pynng"),
    "transport.certificate": Room("",                               "cryptography"),
    "runtime":         Room("_version errors ids machine protocol speaking transport", "trio msgspec structlog"),
    "runtime.in_place": Room("",                                    "numpy"),
    "runtime.memory":  Room("",                                     "psutil"),
    "runtime.machine_figures": Room("protocol",                     "trio psutil"),
    # Serves the monitor of a block, if that asks for one.
    "runtime.connect": Room("errors machine protocol transport monitor", "trio msgspec"),
    "monitor":         Room("asyncparl errors ids protocol transport runtime", "trio"),
    "monitor.web":     Room("asyncparl errors",                     "starlette"),
    "monitor.event_response": Room("",                              "trio starlette"),
    "monitor.server":  Room("errors runtime speaking transport",    "trio hypercorn"),
    "monitor.prometheus": Room("asyncparl protocol",                "prometheus_client"),
    "monitor.top":     Room("protocol",                             "rich"),
    "blocking":        Room("_version errors protocol runtime rl",  "trio"),
    "algorithms":      Room("",                                     "torch numpy"),
    "rl":              Room("algorithms",                           "torch numpy"),
    "training":        Room("asyncparl errors machine rl algorithms", "trio outcome torch numpy gymnasium ale_py rich"),
    "training.event_file": Room("",                                 "tensorboard"),
    "training.plot":   Room("",                                     "matplotlib"),
    "training.video":  Room("",                                     "imageio imageio_ffmpeg numpy"),
    "bench":           Room("asyncparl errors rl algorithms training runtime",
                            "trio numpy torch psutil pynng"),
    # Run by interpreters that have not what we need, and what we need not.
    "bench.peers":     Room("",                                     "numpy psutil gymnasium ale_py "
                            "ray zmq cloudpickle sample_factory"),
    "cli":             Room("asyncparl errors machine protocol speaking transport runtime monitor bench rl "
                            "algorithms training",
                            "trio click msgspec structlog rich"),
    "mypy_plugin":     Room("",                                     "mypy"),
    "asyncparl":       Room("_version errors runtime rl",                    ""),
}

# The protocol takes messages and the time, and returns messages and events.
IMPURE = frozenset({
    "asyncio", "concurrent", "datetime", "fcntl", "multiprocessing", "os", "pathlib", "queue", "random", "secrets",
    "select", "selectors", "shutil", "signal", "socket", "socketserver", "ssl", "subprocess", "tempfile", "threading",
    "time", "uuid",
})
# fmt: on

# Imported in its own folder only.
HIDDEN = "asyncparl.transport.nng"

# What examples may import: the same as a user.
PUBLIC = frozenset({"asyncparl", "blocking", "rl", "algorithms", "training"})

CODE_FOLDERS = ("asyncparl", "benchmarks", "examples", "tests")
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 80


def test_rooms_import_only_what_the_table_allows() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {room} may not import {target}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for room in [room_of(module_name(path))]
        for target in imports(path.read_text(), module_name(path), is_package=path.name == "__init__.py")
        if not is_allowed(room, target)
    ]
    assert not wrong, "\n".join(wrong)


def test_every_room_of_the_table_exists() -> None:
    missing = [room for room in ROOMS if room != "asyncparl" and not is_module(f"asyncparl.{room}")]
    assert not missing


def test_the_protocol_imports_nothing_that_waits_reads_a_clock_or_draws_lots() -> None:
    wrong = [
        f"{path.name} imports {target}"
        for path in sorted(PACKAGE.joinpath("protocol").rglob("*.py"))
        for target in imports(path.read_text(), module_name(path), is_package=path.name == "__init__.py")
        if target.partition(".")[0] in IMPURE
    ]
    assert not wrong, "\n".join(wrong)


def test_examples_import_public_names_only() -> None:
    wrong = [
        f"{path.name} imports {target}"
        for path in sorted(ROOT.joinpath("examples").rglob("*.py"))
        for target in imports(path.read_text(), path.stem, is_package=False)
        if is_ours(target) and (room_of(target) not in PUBLIC or "._" in target)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("source", "room", "target"),
    [
        ("import asyncparl.runtime.link", "protocol", "asyncparl.runtime.link"),
        ("from asyncparl.runtime import link", "protocol", "asyncparl.runtime.link"),
        ("from asyncparl import runtime", "protocol", "asyncparl.runtime"),
        ("from asyncparl import connect", "runtime", "asyncparl"),
        ("from ..runtime import link", "protocol", "asyncparl.runtime.link"),
        ("def f():\n    import trio", "protocol", "trio"),
        ("if TYPE_CHECKING:\n    import torch", "runtime", "torch"),
        ("import importlib\nimportlib.import_module('numpy')", "protocol", "numpy"),
        ("import pynng", "transport", "pynng"),
        ("import asyncparl.transport.nng", "runtime", "asyncparl.transport.nng"),
        ("from asyncparl.transport.nng import dial", "runtime", "asyncparl.transport.nng"),
        ("import asyncparl.runtime", "training", "asyncparl.runtime"),
        ("import gymnasium", "algorithms", "gymnasium"),
    ],
)
def test_a_wrong_import_is_seen_however_it_is_written(source: str, room: str, target: str) -> None:
    found = list(imports(source, f"asyncparl.{room}.module", is_package=False))
    assert target in found
    assert not is_allowed(room, target)


@pytest.mark.parametrize(
    ("room", "target"),
    [
        ("protocol", "asyncparl.errors"),
        ("protocol", "asyncparl.protocol.messages"),
        ("protocol", "struct"),
        ("transport", "asyncparl.transport.nng"),
        ("runtime", "asyncparl.transport.base"),
        ("training", "asyncparl"),
        ("asyncparl", "asyncparl.rl"),
    ],
)
def test_a_right_import_is_allowed(room: str, target: str) -> None:
    assert is_allowed(room, target)


def test_importing_the_package_has_no_side_effects() -> None:
    """Neither torch, gymnasium nor numpy, no thread, descriptor, signal handler, start method or logging."""
    before, after, modules = run_fresh(
        """
        import json, logging, multiprocessing, os, signal, sys, warnings

        def state():
            return {
                "descriptors": sorted(os.listdir("/proc/self/fd")),
                "environment": dict(os.environ),
                "filters": len(warnings.filters),
                "logging": [repr(logging.getLogger().handlers), logging.getLogger().level],
                "signals": [repr(signal.getsignal(number)) for number in range(1, 32)],
                "start method": multiprocessing.get_start_method(allow_none=True),
                "threads": os.listdir("/proc/self/task"),
            }

        before = state()
        import asyncparl
        print(json.dumps([before, state(), sorted(sys.modules)]))
        """
    )
    assert after == before
    assert not {"gymnasium", "numpy", "pynng", "tensorboard", "torch"} & set(modules)


def test_no_file_is_too_long() -> None:
    long = {path: num for path in code_files() if (num := len(path.read_text().splitlines())) > MAX_FILE_LINES}
    assert not long


def test_no_function_is_too_long() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name} has {num_lines} lines"
        for path in code_files()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (num_lines := (node.end_lineno or 0) - node.lineno + 1) > MAX_FUNCTION_LINES
        # A training loop is read from top to bottom.
        and not (path.parent.name == "examples" and node.name == "main")
    ]
    assert not long, "\n".join(long)


def test_open_questions_are_kept_elsewhere() -> None:
    words = ("TO" + "DO", "FIX" + "ME")
    files = [*code_files(), *ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "pyproject.toml"]
    assert not [f"{path}: {word}" for path in files for word in words if word in path.read_text()]


def is_allowed(room: str, target: str) -> bool:
    """Whether a module of the room may import the target, the full name of a module."""
    allowed = ROOMS[room]
    if is_ours(target):
        folder = room_of(target).partition(".")[0]
        return in_same_folder(room, target) or (folder in allowed.ours.split() and target != HIDDEN)
    package = target.partition(".")[0]
    return package in sys.stdlib_module_names or package in allowed.others.split()


def in_same_folder(room: str, target: str) -> bool:
    return room != "asyncparl" and room_of(target).partition(".")[0] == room.partition(".")[0]


def is_ours(target: str) -> bool:
    return target.partition(".")[0] == "asyncparl"


def room_of(module: str) -> str:
    """The row of the table for one of our modules."""
    parts = module.split(".")
    if len(parts) == 1:
        return "asyncparl"
    exact = ".".join(parts[1:3])
    room = exact if exact in ROOMS else parts[1]
    assert room in ROOMS, f"{module} is in no room: give it a row in the table of {Path(__file__).name}"
    return room


def imports(source: str, module: str, *, is_package: bool) -> Iterator[str]:
    """The full names of all modules that the source imports, wherever it does."""
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=name, names=names, level=level):
                base = ".".join(filter(None, [*package.split(".")[: -(level - 1) or None], name])) if level else name
                for alias in names:
                    yield f"{base}.{alias.name}" if is_module(f"{base}.{alias.name}") else str(base)
            case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(name)), *_]):
                yield name


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return is_ours(name) and (path.with_suffix(".py").exists() or path.joinpath("__init__.py").exists())


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def code_files() -> list[Path]:
    return [path for folder in CODE_FOLDERS for path in sorted(ROOT.joinpath(folder).rglob("*.py"))]


def run_fresh(script: str) -> Any:
    """What a script prints as JSON, in an interpreter that has imported nothing."""
    lines = [line.removeprefix(" " * 8) for line in script.splitlines()]
    result = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        check=True,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    return json.loads(result.stdout)

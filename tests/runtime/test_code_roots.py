"""Which folders of a program hold its code. Real programs, each started in its own way, say what they see."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import types
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from asyncparl.runtime.code.roots import Root, find_roots, find_unit, import_of_any, imported_names

REPOSITORY = Path(__file__).parent.parent.parent

SHOW_ROOTS = """
import json, sys
from asyncparl.runtime.code.roots import find_roots
from asyncparl.runtime.main_module import describe_main
roots = find_roots(describe_main()[0], sys.path, sys.modules)
print(json.dumps([[root.path, sorted(root.modules), root.is_main, root.main] for root in roots]))
"""


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def run(cwd: Path, *arguments: str, path: Sequence[Path] = ()) -> list[Root]:
    """The roots that a program sees which is started as `python *arguments`."""
    python_path = os.pathsep.join(map(str, [*path, REPOSITORY]))
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        check=True,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": python_path},
    )
    found: list[tuple[str, list[str], bool, str | None]] = json.loads(result.stdout)
    return [Root(path, frozenset(modules), is_main, main) for path, modules, is_main, main in found]


def module(name: str, file: str | Path | None) -> dict[str, types.ModuleType]:
    made = types.ModuleType(name)
    made.__file__ = None if file is None else str(file)
    return {name: made}


# --- how programs are started -----------------------------------------------------------------------------------


def test_a_script_is_in_the_root_of_its_real_folder(tmp_path: Path) -> None:
    write(tmp_path, {"project/train.py": "import helper\n" + SHOW_ROOTS, "project/helper.py": ""})
    (tmp_path / "link.py").symlink_to(tmp_path / "project/train.py")
    expected = [Root(str(tmp_path / "project"), frozenset({"helper"}), is_main=True, main="train.py")]
    assert run(tmp_path, "project/train.py") == expected
    assert run(tmp_path, "link.py") == expected


def test_a_module_is_in_the_root_that_holds_its_package(tmp_path: Path) -> None:
    write(tmp_path, {"pkg/__init__.py": "", "pkg/sub/train.py": SHOW_ROOTS})
    assert run(tmp_path, "-m", "pkg.sub.train") == [
        Root(str(tmp_path), frozenset({"pkg"}), is_main=True, main="pkg/sub/train.py")
    ]


def test_a_package_that_is_started_has_its_main_module(tmp_path: Path) -> None:
    write(tmp_path, {"pkg/__init__.py": "", "pkg/__main__.py": SHOW_ROOTS})
    assert run(tmp_path, "-m", "pkg") == [Root(str(tmp_path), frozenset({"pkg"}), True, "pkg/__main__.py")]


def test_a_program_without_a_script_has_its_working_directory(tmp_path: Path) -> None:
    write(tmp_path, {"helper.py": ""})
    assert run(tmp_path, "-c", "import helper\n" + SHOW_ROOTS) == [
        Root(str(tmp_path), frozenset({"helper"}), True, None)
    ]


def test_a_working_directory_that_is_not_on_the_path_is_no_root(tmp_path: Path) -> None:
    assert run(tmp_path, "-P", "-c", SHOW_ROOTS) == []


def test_an_installed_command_has_no_root_of_its_own(tmp_path: Path) -> None:
    """What is found below `python -m pytest` are the modules that it imported, but not as those of a main script."""
    write(tmp_path, {"test_it.py": SHOW_ROOTS, "unused.py": ""})
    arguments = ["-qs", "-p", "no:cacheprovider", "test_it.py"]
    found = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", *arguments],
        cwd=tmp_path,
        check=False,  # there is no test in the file
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    ).stdout.decode()
    line = next(line for line in found.splitlines() if line.startswith("["))
    assert json.loads(line) == [[str(tmp_path), ["test_it"], False, None]]


def test_a_command_is_told_from_a_script_that_is_beside_it() -> None:
    folder = os.path.realpath(sysconfig.get_path("scripts"))
    assert find_roots(f"{folder}/tool", [folder], {}) == []
    assert find_roots(f"{folder}/train.py", [folder], {}) == [Root(folder, is_main=True, main="train.py")]


def test_a_started_part_of_asyncparl_is_no_root(tmp_path: Path) -> None:
    write(tmp_path, {"asyncparl/x.py": ""})
    main = types.ModuleType("__main__")
    main.__spec__ = types.SimpleNamespace(name="asyncparl.x")  # type: ignore[assignment]
    assert find_roots(str(tmp_path / "asyncparl/x.py"), [str(tmp_path)], {"__main__": main}) == []


# --- other roots ------------------------------------------------------------------------------------------------


def test_every_entry_of_the_path_that_something_was_imported_from_is_a_root_in_the_order_of_the_path(
    tmp_path: Path,
) -> None:
    write(tmp_path, {f"{name}/mod_{name}.py": "" for name in ("first", "second", "unused")})
    write(tmp_path, {"project/main.py": "import mod_second, mod_first\n" + SHOW_ROOTS})
    paths = [tmp_path / name for name in ("unused", "first", "second")]
    assert run(tmp_path, "project/main.py", path=paths) == [
        Root(str(tmp_path / "project"), frozenset(), is_main=True, main="main.py"),
        Root(str(tmp_path / "first"), frozenset({"mod_first"})),
        Root(str(tmp_path / "second"), frozenset({"mod_second"})),
    ]


def test_the_parts_of_a_namespace_package_are_in_their_own_roots(tmp_path: Path) -> None:
    write(
        tmp_path, {"one/space/a.py": "", "two/space/b.py": "", "main/main.py": "import space.a, space.b\n" + SHOW_ROOTS}
    )
    assert run(tmp_path, "main/main.py", path=[tmp_path / "one", tmp_path / "two"])[1:] == [
        Root(str(tmp_path / "one"), frozenset({"space.a"})),
        Root(str(tmp_path / "two"), frozenset({"space.b"})),
    ]


def test_an_editable_install_is_a_root_though_no_path_has_it(tmp_path: Path) -> None:
    write(tmp_path, {"src/lib/__init__.py": "", "project/helper.py": ""})
    modules = {**module("lib", tmp_path / "src/lib/__init__.py"), **module("helper", tmp_path / "project/helper.py")}
    assert find_roots(None, [str(tmp_path / "project")], modules) == [
        Root(str(tmp_path / "project"), frozenset({"helper"})),
        Root(str(tmp_path / "src"), frozenset({"lib"})),
    ]


def test_two_ways_to_a_folder_are_one_root(tmp_path: Path) -> None:
    write(tmp_path, {"real/a.py": "", "real/b.py": ""})
    (tmp_path / "link").symlink_to("real")
    modules = {**module("a", tmp_path / "real/a.py"), **module("b", tmp_path / "link/b.py")}
    assert find_roots(None, [str(tmp_path / "link")], modules) == [Root(str(tmp_path / "real"), frozenset("ab"))]


def test_what_is_installed_is_no_root(tmp_path: Path) -> None:
    """The standard library, and packages of any kind of site folder."""
    files: dict[str, str | Path] = {
        "json": json.__file__,
        "pytest": pytest.__file__,
        "a": tmp_path / "lib/python3/dist-packages/a.py",
        "b": tmp_path / "lib/site-packages/b.egg/b/__init__.py",
        "c": tmp_path / "site-packages.zip/c.py",
    }
    write(tmp_path, {"lib/python3/dist-packages/a.py": "", "lib/site-packages/b.egg/b/__init__.py": ""})
    with zipfile.ZipFile(tmp_path / "site-packages.zip", "w") as archive:
        archive.writestr("c.py", "")
    modules = {name: made for name, file in files.items() for made in module(name, file).values()}
    assert find_roots(None, [], modules) == []


def test_modules_that_tell_nothing_of_where_they_are_from_are_passed_over(tmp_path: Path) -> None:
    modules: dict[str, Any] = {
        **module("built_in", None),
        **module("renamed", tmp_path / "other.py"),
        **module("extension", tmp_path / "extension.so"),
        "number": 3,
        "without_attributes": object(),
    }
    assert find_roots(None, [], modules) == []


def test_looking_at_a_lazy_module_does_not_load_it(tmp_path: Path) -> None:
    class Lazy(types.ModuleType):
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(f"{name} was looked at")

    lazy = Lazy("lazy")
    object.__getattribute__(lazy, "__dict__")["__file__"] = str(tmp_path / "lazy.py")
    assert find_roots(None, [], {"lazy": lazy}) == [Root(str(tmp_path), frozenset({"lazy"}))]


# --- units ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "narrow", "wide"),
    [
        ("regular.sub.deep", "regular", "regular"),
        ("single", "single.py", "single.py"),
        ("space.part.x", "space/part", "space"),
        ("space.single", "space/single.py", "space"),
        ("space", None, "space"),
        ("nowhere", None, None),
        ("space.nowhere", None, "space"),
        ("asyncparl.x", None, None),
    ],
)
def test_a_unit_is_as_much_as_belongs_together(tmp_path: Path, name: str, narrow: str | None, wide: str | None) -> None:
    write(tmp_path, {"regular/__init__.py": "", "regular/sub/deep.py": "", "single.py": "", "asyncparl/x.py": ""})
    write(tmp_path, {"space/part/__init__.py": "", "space/part/x.py": "", "space/single.py": ""})
    assert find_unit(str(tmp_path), name, is_narrow=True) == narrow
    assert find_unit(str(tmp_path), name.partition(".")[0], is_narrow=False) == wide


def test_imports_are_found_wherever_they_are_written() -> None:
    source = b"""
import a, b.c as d
from e.f import (g,
    h)
from . import not_absolute
def later():
    from i import *
if True: import j
"""
    assert imported_names(source) == {"a", "b.c", "e.f", "e.f.g", "e.f.h", "i", "i.*", "j"}
    for name in ("a", "b", "e", "i", "j"):
        assert import_of_any([name, "unused"]).search(source)
    assert not import_of_any(["g", "later", "True"]).search(source.replace(b"(g,", b"("))
    assert not import_of_any([]).search(source)


def test_what_is_no_python_imports_nothing() -> None:
    assert imported_names(b"import a\nprint 'hello'") == set()
    assert imported_names(b"import a\0") == set()

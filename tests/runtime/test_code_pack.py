"""What is in a package, and what never is."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from asyncparl.runtime.code import MAX_BYTES, MAX_FILES, MAX_NAME_BYTES, fault_of_name
from asyncparl.runtime.code.pack import MAX_MAIN_FILES, Package, pack
from asyncparl.runtime.code.roots import Root

GOLDEN_DIGEST = "0b3c5c726810101d9f8de155ff6758c22935255f1007b882c517d9996de8f3b0"


def write(folder: Path, *names: str, text: str = "") -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def names(package: Package) -> set[str]:
    return {name for name, _ in package.files}


def code_of(root: Root) -> set[str]:
    """What is sent of one root, relative to it."""
    return {name.removeprefix("code/0/") for name in names(pack([root], cwd=root.path))}


def main_root(folder: Path, main: str | None = "main.py", modules: frozenset[str] = frozenset()) -> Root:
    return Root(str(folder), modules, is_main=True, main=main)


# --- code -------------------------------------------------------------------------------------------------------


def test_all_code_beside_and_below_the_main_script_is_sent(tmp_path: Path) -> None:
    sent = {"main.py", "helper.py", "pkg/__init__.py", "pkg/sub/x.py", "utils/y.py", "tests/data/z.py"}
    write(tmp_path, *sent, "README.md", "pkg/data.json", "pkg/py.typed", "pkg/stub.pyi")
    assert code_of(main_root(tmp_path)) == sent


def test_of_another_root_what_was_imported_is_sent_as_a_whole(tmp_path: Path) -> None:
    sent = {"pkg/__init__.py", "pkg/lazy/deep.py", "single.py", "space/a.py", "space/b/c.py"}
    write(tmp_path, *sent, "unused.py", "unused/__init__.py", "pkg/data.json")
    assert code_of(Root(str(tmp_path), frozenset({"pkg", "single", "space.a"}))) == sent


def test_a_main_script_may_have_any_ending(tmp_path: Path) -> None:
    write(tmp_path, "train", "other")
    package = pack([Root("/nowhere"), main_root(tmp_path, "train")])
    assert names(package) == {"code/1/train"}
    assert package.main == "code/1/train"


def test_a_program_without_a_script_sends_its_folder(tmp_path: Path) -> None:
    write(tmp_path, "helper.py", "pkg/x.py")
    package = pack([main_root(tmp_path, None)])
    assert names(package) == {"code/0/helper.py", "code/0/pkg/x.py"}
    assert package.main is None


@pytest.mark.parametrize(
    "name",
    [
        ".hidden.py",
        ".git/hook.py",
        ".venv/x.py",
        "env/x.py",
        "conda/x.py",
        "__pycache__/x.py",
        "pkg/__pycache__/x.py",
        "node_modules/x.py",
        "lib/site-packages/x.py",
        "build/lib/x.py",
        "dist/x.py",
        "pkg/build/x.py",
        "asyncparl/x.py",
        "asyncparl.py",
        "line\nbreak.py",
    ],
)
def test_what_is_no_code_of_the_users_is_left_out(tmp_path: Path, name: str) -> None:
    write(tmp_path, "main.py", "pkg/x.py", "env/pyvenv.cfg", "conda/conda-meta/history", name)
    assert code_of(main_root(tmp_path, modules=frozenset({"asyncparl", "pkg"}))) == {"main.py", "pkg/x.py"}


@pytest.mark.parametrize(
    ("files", "imported"),
    [
        ({"build/__init__.py", "build/x.py"}, set()),
        ({"build/x.py"}, {"build.x"}),
        ({"pkg/dist/x.py"}, {"pkg", "pkg.dist.x"}),
        ({"pkg/asyncparl/x.py"}, set()),
        ({"pkg/secrets.py", "pkg/my_secret.py"}, set()),
    ],
)
def test_names_of_things_to_leave_out_may_be_those_of_code(tmp_path: Path, files: set[str], imported: set[str]) -> None:
    write(tmp_path, "main.py", *files)
    assert code_of(main_root(tmp_path, modules=frozenset(imported))) == {"main.py", *files}


def test_a_virtual_environment_may_be_made_in_the_folder_of_the_program(tmp_path: Path) -> None:
    write(tmp_path, "main.py", "helper.py", "pyvenv.cfg", "lib/python3.11/site-packages/x.py")
    assert code_of(main_root(tmp_path)) == {"main.py", "helper.py"}


def test_links_are_followed_inside_of_the_root_only(tmp_path: Path) -> None:
    write(tmp_path, "root/main.py", "root/pkg/x.py", "outside/y.py")
    root = tmp_path / "root"
    (root / "inner").symlink_to("pkg")
    (root / "inner.py").symlink_to("pkg/x.py")
    (root / "outer").symlink_to(tmp_path / "outside")
    (root / "outer.py").symlink_to(tmp_path / "outside/y.py")
    (root / "gone.py").symlink_to("nowhere.py")
    assert code_of(main_root(root)) == {"main.py", "pkg/x.py", "inner/x.py", "inner.py"}


def test_an_imported_package_may_be_a_link_to_anywhere(tmp_path: Path) -> None:
    write(tmp_path, "root/main.py", "outside/pkg/x.py", "outside/y.py")
    (tmp_path / "root/pkg").symlink_to(tmp_path / "outside/pkg")
    (tmp_path / "outside/pkg/up.py").symlink_to(tmp_path / "outside/y.py")
    (tmp_path / "outside/pkg/inner.py").symlink_to("x.py")
    expected = {"main.py", "pkg/x.py", "pkg/inner.py"}
    assert code_of(main_root(tmp_path / "root", modules=frozenset({"pkg.x"}))) == expected


def test_links_in_circles_end(tmp_path: Path) -> None:
    write(tmp_path, "main.py", "a/x.py", "b/y.py")
    (tmp_path / "a/self").symlink_to("self")
    (tmp_path / "a/up").symlink_to("..")
    (tmp_path / "a/other").symlink_to("../b")
    (tmp_path / "b/other").symlink_to("../a")
    assert code_of(main_root(tmp_path)) == {"main.py", "a/x.py", "b/y.py", "a/other/y.py", "b/other/x.py"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_code_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, "main.py", "closed.py", "closed/x.py")
    (tmp_path / "closed.py").chmod(0)
    (tmp_path / "closed").chmod(0)
    try:
        assert code_of(main_root(tmp_path)) == {"main.py"}
    finally:
        (tmp_path / "closed").chmod(0o700)


def test_what_is_no_plain_file_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, "main.py", "folder.py/x.txt")
    os.mkfifo(tmp_path / "pipe.py")
    assert code_of(main_root(tmp_path)) == {"main.py"}


# --- folders that hold too much ---------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path, "unused.py", "unused/x.py", "other/deep/x.py", "imported.py")
    write(tmp_path, "near.py", text="def later():\n    from pkg.sub import thing")
    write(tmp_path, "pkg/__init__.py", "pkg/sub.py", "pkg/more/x.py")
    write(tmp_path, "pkg/sub.py", text="import space.part.x\nimport numpy")
    write(tmp_path, "space/part/__init__.py", "space/part/x.py", "space/other.py")
    write(tmp_path, "main.py", text="import near")
    return tmp_path


REACHED = {
    *("main.py", "near.py", "imported.py"),
    *("pkg/__init__.py", "pkg/sub.py", "pkg/more/x.py", "space/part/__init__.py", "space/part/x.py"),
}


def test_from_the_home_folder_goes_only_what_is_imported(home: Path) -> None:
    root = main_root(home, modules=frozenset({"imported", "other"}))
    assert code_of(root) == REACHED


def test_from_a_folder_above_the_home_folder_goes_only_what_is_imported(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(home / "users" / "me"))
    assert code_of(main_root(home, modules=frozenset({"imported"}))) == REACHED
    # and below it everything
    monkeypatch.setenv("HOME", str(home.parent))
    assert "unused.py" in code_of(main_root(home))


def test_from_the_temporary_folder_goes_only_what_is_imported(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(home / "me"))
    monkeypatch.setattr("tempfile.tempdir", str(home))
    assert code_of(main_root(home, modules=frozenset({"imported"}))) == REACHED


def test_from_a_tree_of_too_many_files_goes_only_what_is_imported(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/nowhere")
    num_more = MAX_MAIN_FILES - len(code_of(main_root(home)))
    write(home, *(f"many/x{i}.py" for i in range(num_more)))
    assert len(code_of(main_root(home))) == MAX_MAIN_FILES
    write(home, "many/one_more.py")
    assert code_of(main_root(home, modules=frozenset({"imported"}))) == REACHED


def test_a_notebook_in_the_home_folder_sends_what_it_has_imported(home: Path) -> None:
    assert code_of(main_root(home, None, frozenset({"imported", "space.other"}))) == {"imported.py", "space/other.py"}


# --- limits -----------------------------------------------------------------------------------------------------


def test_too_many_files_are_refused_with_the_folders_that_hold_most_of_them(tmp_path: Path) -> None:
    write(tmp_path, *(f"pkg/sub{i % 20}/x{i}.py" for i in range(MAX_FILES - 1)), "pkg/__init__.py")
    root = Root(str(tmp_path), frozenset({"pkg"}))
    assert len(pack([root]).files) == MAX_FILES
    write(tmp_path, "pkg/sub7/one_more.py")
    with pytest.raises(ValueError, match="more than the 10,000 files") as caught:
        pack([root])
    lines = str(caught.value).splitlines()
    assert f"files  {tmp_path}/pkg/sub" in lines[1]
    assert len(lines) == 12
    assert lines[-1].startswith("To leave things out:")


def test_too_many_bytes_are_refused_with_the_largest_files(tmp_path: Path) -> None:
    sizes = {f"assets/{i:02}.bin": i << 20 for i in range(11)}
    write(tmp_path, *sizes)
    for name, size in sizes.items():
        os.truncate(tmp_path / name, size)
    rest = MAX_BYTES - sum(sizes.values())
    write(tmp_path, "assets/rest.bin")
    os.truncate(tmp_path / "assets/rest.bin", rest)
    assert sum(size for _, size in pack([], ["assets"], str(tmp_path)).files) == MAX_BYTES

    os.truncate(tmp_path / "assets/rest.bin", rest + (1 << 20))
    with pytest.raises(ValueError, match=r"are 65\.0 MiB, and only 64\.0 MiB can be sent") as caught:
        pack([], ["assets"], str(tmp_path))
    lines = str(caught.value).splitlines()
    assert lines[1:3] == [f"    10.0 MiB  {tmp_path}/assets/{name}.bin" for name in ("10", "rest")]
    assert len(lines) == 12
    assert "01.bin" not in str(caught.value)


# --- extra files ------------------------------------------------------------------------------------------------

TREE = (
    *("configs/a.yaml", "configs/b.yaml", "configs/c.json", "configs/old/d.yaml"),
    *("assets/x.png", "assets/deep/down/y.png", "assets/node_modules/z.png", "assets/.hidden/z.png", "assets/.h.png"),
    *("top.yaml", "env/pyvenv.cfg", "env/share/z.yaml"),
)


@pytest.mark.parametrize(
    ("globs", "expected"),
    [
        (["configs/*.yaml"], {"configs/a.yaml", "configs/b.yaml"}),
        (["configs/?.json", "top.yaml"], {"configs/c.json", "top.yaml"}),
        (["configs/[ab].yaml", "./configs/a.yaml"], {"configs/a.yaml", "configs/b.yaml"}),
        (["assets/**"], {"assets/x.png", "assets/deep/down/y.png"}),
        (["assets"], {"assets/x.png", "assets/deep/down/y.png"}),
        (["assets/"], {"assets/x.png", "assets/deep/down/y.png"}),
        (["assets/**/*.png"], {"assets/x.png", "assets/deep/down/y.png"}),
        (["assets/*"], {"assets/x.png", "assets/deep/down/y.png"}),
        (["*/*/down"], {"assets/deep/down/y.png"}),
        (["**/*.yaml"], {"configs/a.yaml", "configs/b.yaml", "configs/old/d.yaml", "top.yaml"}),
        (["configs/../top.yaml"], {"top.yaml"}),
    ],
)
def test_globs_name_files_and_a_folder_stands_for_all_that_is_in_it(
    tmp_path: Path, globs: list[str], expected: set[str]
) -> None:
    write(tmp_path, *TREE)
    assert names(pack([], globs, str(tmp_path))) == {f"files/{name}" for name in expected}


def test_all_of_the_working_directory_can_be_named(tmp_path: Path) -> None:
    write(tmp_path, *TREE)
    everything = {"configs/a.yaml", "configs/b.yaml", "configs/c.json", "configs/old/d.yaml", "top.yaml"}
    for glob in ("**", "."):
        found = names(pack([], [glob], str(tmp_path)))
        assert found == {f"files/{name}" for name in everything | {"assets/x.png", "assets/deep/down/y.png"}}


@pytest.mark.parametrize(
    "glob", ["nothing.yaml", "configs/*.toml", "", "nowhere/**", "assets/node_modules", "env/share/z.yaml", "empty"]
)
def test_a_glob_that_matches_nothing_is_an_error_that_names_it(tmp_path: Path, glob: str) -> None:
    write(tmp_path, *TREE)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="matches no file") as caught:
        pack([], ["top.yaml", glob], str(tmp_path))
    assert repr(glob) in str(caught.value)


@pytest.mark.parametrize("glob", ["../outside.yaml", "/etc/hostname", "configs/../../outside.yaml", "..", "link.yaml"])
def test_a_glob_that_leads_out_of_the_working_directory_is_an_error_that_names_it(tmp_path: Path, glob: str) -> None:
    write(tmp_path, "outside.yaml", "here/configs/a.yaml")
    (tmp_path / "here/link.yaml").symlink_to("../outside.yaml")
    with pytest.raises(ValueError, match="leads out of") as caught:
        pack([], [glob], str(tmp_path / "here"))
    assert repr(glob) in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        *("server.pem", "SERVER.KEY", "id_rsa", "id_ed25519.pub", "id_rsa.py/x.key", "my_secrets.yaml", "node-secret"),
        *(".env", ".env.local", "deep/er/.env"),
    ],
)
def test_what_looks_like_a_secret_is_refused_by_name(tmp_path: Path, name: str) -> None:
    write(tmp_path, f"assets/{name}", "assets/x.png", "assets/secret.py")
    with pytest.raises(ValueError, match="looks like a secret and is never sent") as caught:
        pack([], [f"assets/{name}"], str(tmp_path))
    assert f"assets/{name}" in str(caught.value)
    if not name.rpartition("/")[2].startswith("."):
        with pytest.raises(ValueError, match="looks like a secret and is never sent"):
            pack([], ["assets/**"], str(tmp_path))


def test_code_may_be_about_secrets(tmp_path: Path) -> None:
    write(tmp_path, "tools/my_secret.py", "tools/id_rsa.py")
    assert names(pack([], ["tools"], str(tmp_path))) == {"files/tools/my_secret.py", "files/tools/id_rsa.py"}


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        (".hidden/x.yaml", "hidden"),
        ("line\nbreak.yaml", "control characters"),
        ("back\\slash.yaml", "backslashes"),
        ("C:drive.yaml", "no plain relative path"),
        ("/".join("d" * 31) + "/x.yaml", "too many folders"),
        ("/".join(["d" * 200] * 6), "too long"),
        (os.fsdecode(b"caf\xe9.yaml"), "not UTF-8"),
    ],
)
def test_an_extra_file_that_cannot_be_sent_is_an_error(tmp_path: Path, name: str, fault: str) -> None:
    write(tmp_path, name)
    with pytest.raises(ValueError, match=fault):
        pack([], [name], str(tmp_path))


def test_one_string_is_no_list_of_globs(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"\['top.yaml'\]"):
        pack([], "top.yaml", str(tmp_path))


def test_extra_files_in_a_root_are_beside_the_code_too(tmp_path: Path) -> None:
    write(tmp_path, "project/main.py", "project/pkg/__init__.py", "project/pkg/map.json", "project/asyncparl/x.json")
    write(tmp_path, "elsewhere/y.json")
    package = pack([main_root(tmp_path / "project")], ["**/*.json"], str(tmp_path))
    assert names(package) == {
        *("code/0/main.py", "code/0/pkg/__init__.py", "code/0/pkg/map.json"),
        *("files/project/pkg/map.json", "files/project/asyncparl/x.json", "files/elsewhere/y.json"),
    }


# --- the zip ----------------------------------------------------------------------------------------------------


def example(folder: Path) -> Package:
    write(folder, "main.py", text="import pkg.x\n")
    write(folder, "pkg/x.py", text="VALUE = 'ä'\n")
    write(folder, "data/ä.bin", "data/run.sh")
    (folder / "data/run.sh").chmod(0o755)
    return pack([main_root(folder)], ["data/*"], str(folder))


def test_a_package_is_a_zip_of_the_contents(tmp_path: Path) -> None:
    package = example(tmp_path)
    with zipfile.ZipFile(io.BytesIO(package.content)) as archive:
        assert archive.testzip() is None
        assert archive.read("code/0/pkg/x.py").decode() == "VALUE = 'ä'\n"
        assert [(info.filename, info.file_size) for info in archive.infolist()] == list(package.files)
        assert archive.getinfo("files/data/run.sh").external_attr >> 16 & 0o777 == 0o755
        assert archive.getinfo("code/0/main.py").external_attr >> 16 & 0o777 == 0o644
    assert package.size == len(package.content)
    assert package.main == "code/0/main.py"
    assert "import pkg" not in repr(package)


def test_the_same_content_is_the_same_package_wherever_and_whenever_it_is_made(tmp_path: Path) -> None:
    """The digest was written down: other versions of Python must come to the same."""
    package = example(tmp_path / "one")
    assert package.digest == GOLDEN_DIGEST
    other = tmp_path / "somewhere else"
    example(other)
    for path in other.rglob("*"):
        os.utime(path, (1, 1))
        path.chmod(path.stat().st_mode & 0o700)
    assert pack([main_root(other)], ["data/run.sh", "data/ä.bin"], str(other)) == package


def test_other_content_is_another_package(tmp_path: Path) -> None:
    first = example(tmp_path)
    (tmp_path / "pkg/x.py").write_text("VALUE = 'ö'\n")
    assert pack([main_root(tmp_path)], ["data/*"], str(tmp_path)).digest != first.digest


def test_nothing_at_all_is_a_package_too() -> None:
    package = pack([])
    assert package.files == ()
    assert zipfile.ZipFile(io.BytesIO(package.content)).namelist() == []


def test_a_project_of_500_files_is_packed_at_once(tmp_path: Path) -> None:
    """0.3 s of processor time at most, of which this machine may give us little."""
    source = "import os\n" * 200
    write(tmp_path, "main.py", *(f"pkg{i % 10}/sub{i % 7}/x{i}.py" for i in range(500)), text=source)
    root = main_root(tmp_path, modules=frozenset({"pkg1.sub1.x1"}))
    times = []
    for _ in range(3):
        start = time.process_time()
        pack([root])
        times.append(time.process_time() - start)
    assert min(times) < 0.3


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("code/0/a.py", ""),
        ("files/a b/ä.txt", ""),
        ("files/" + "n" * 255, ""),
        ("files/" + "n" * 256, "its name is too long"),
        ("files/" + "/".join(["n" * 249] * 5), "its name is too long"),
        ("files/" + "/".join("n" * 31), ""),
        ("files/" + "/".join("n" * 32), "it is in too many folders"),
        ("code/00/a.py", "it is neither in code/<number>/ nor in files/"),
        ("code/a.py", "it is neither in code/<number>/ nor in files/"),
        ("files/", "it is neither in code/<number>/ nor in files/"),
        ("files/a//b", "its name is no plain relative path"),
        ("files/a/", "its name is no plain relative path"),
    ],
)
def test_names_in_a_package(name: str, fault: str) -> None:
    assert fault_of_name(name) == fault
    assert fault or len(name.encode()) <= MAX_NAME_BYTES


def test_packing_imports_nothing_of_what_it_packs(tmp_path: Path) -> None:
    """Not even to find out what it imports."""
    write(tmp_path, "main.py", text="import boom")
    write(tmp_path, "boom.py", text="raise SystemExit(3)")
    code = (
        "from asyncparl.runtime.code.pack import pack; from asyncparl.runtime.code.roots import Root; "
        f"print(pack([Root({str(tmp_path)!r}, is_main=True, main='main.py')]).files)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent.parent), "HOME": str(tmp_path)}
    output = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, env=environment).stdout
    assert output == b"(('code/0/boom.py', 19), ('code/0/main.py', 11))\n"

"""Where secrets are kept and found, and that nobody else gets to see them."""

from __future__ import annotations

import os
import stat
import threading
import traceback
from pathlib import Path

import pytest

from asyncparl.errors import AuthenticationError
from asyncparl.runtime.state import ROLES, Role, create_secrets, find_secret, make_private_folder, state_folder

HEX = "00112233445566778899aabbccddeeff" * 2
SECRET = bytes.fromhex(HEX)
OTHER_HEX = "f" * 64


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state folder of every test, and no secret in the environment."""
    for name in ("ASYNCPARL_NODE_SECRET", "ASYNCPARL_DRIVER_SECRET", "ASYNCPARL_SECRET_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ASYNCPARL_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def write_secret(path: Path, text: str = HEX + "\n", mode: int = 0o600) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --- the folder -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"ASYNCPARL_STATE": "{tmp}/a", "XDG_STATE_HOME": "{tmp}/b", "HOME": "{tmp}/c"}, "a"),
        ({"XDG_STATE_HOME": "{tmp}/b", "HOME": "{tmp}/c"}, "b/asyncparl"),
        ({"ASYNCPARL_STATE": "", "XDG_STATE_HOME": "", "HOME": "{tmp}/c"}, "c/.local/state/asyncparl"),
        ({"XDG_STATE_HOME": "relative", "HOME": "{tmp}/c"}, "c/.local/state/asyncparl"),
    ],
)
def test_the_folder_is_where_the_environment_says(tmp_path: Path, environ: dict[str, str], expected: str) -> None:
    folder = state_folder({name: value.format(tmp=tmp_path) for name, value in environ.items()})
    assert folder == tmp_path / expected
    assert mode_of(folder) == 0o700


def test_the_folder_of_this_process_is_that_of_its_environment(state: Path) -> None:
    assert state_folder() == state
    assert state_folder() == state  # also when it exists


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_folder_that_others_can_write_to_is_refused(state: Path, mode: int) -> None:
    state.mkdir()
    state.chmod(mode)
    with pytest.raises(AuthenticationError, match=f"others can write to it: chmod 700 {state}$") as caught:
        state_folder()
    assert "\n" not in str(caught.value)
    state.chmod(0o755)
    assert state_folder() == state


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_somebody_else_is_refused(state: Path) -> None:
    state.mkdir(mode=0o700)
    os.chown(state, 12345, -1)
    with pytest.raises(AuthenticationError, match=f"{state} belongs to another user"):
        state_folder()


def test_a_folder_that_cannot_be_made_is_an_error_of_one_line(state: Path) -> None:
    state.write_text("a file")
    with pytest.raises(AuthenticationError, match=f"^secrets cannot be kept in {state}: File exists$"):
        state_folder()


def test_a_private_folder_is_made_with_those_above_it(tmp_path: Path) -> None:
    make_private_folder(tmp_path / "a/b/c")
    assert mode_of(tmp_path / "a/b/c") == 0o700


# --- making secrets ---------------------------------------------------------------------------------------------


def test_secrets_are_made_once_for_each_port(state: Path) -> None:
    first = create_secrets(8010)
    assert set(first) == set(ROLES)
    assert len({*first.values(), *create_secrets(8011).values()}) == 4
    assert create_secrets(8010) == first
    for role, secret in first.items():
        path = state / "8010" / f"{role}-secret"
        assert path.read_text() == secret.hex() + "\n" and len(secret) == 32
        assert mode_of(path) == 0o600
    assert mode_of(state / "8010") == 0o700
    assert sorted(os.listdir(state / "8010")) == ["driver-secret", "node-secret"]


def test_a_secret_that_is_missing_is_made_and_the_other_kept(state: Path) -> None:
    before = create_secrets(8010)
    (state / "8010/node-secret").unlink()
    after = create_secrets(8010)
    assert after["driver"] == before["driver"] and after["node"] != before["node"]


def test_masters_that_start_together_have_the_same_secrets(state: Path) -> None:
    num = 8
    for port in range(9000, 9010):
        barrier = threading.Barrier(num)
        found: list[dict[Role, bytes]] = []

        def start(
            port: int = port, barrier: threading.Barrier = barrier, found: list[dict[Role, bytes]] = found
        ) -> None:
            barrier.wait()
            found.append(create_secrets(port))

        threads = [threading.Thread(target=start) for _ in range(num)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [found[0]] * num
        assert sorted(os.listdir(state / str(port))) == ["driver-secret", "node-secret"]


@pytest.mark.parametrize("port", [-1, 0, 65536])
def test_there_are_no_secrets_of_a_port_that_does_not_exist(state: Path, port: int) -> None:
    with pytest.raises(ValueError, match=f"no port {port}"):
        create_secrets(port)
    assert not state.exists()


@pytest.mark.parametrize("text", ["", "half" + HEX[:20], HEX + OTHER_HEX])
def test_a_secret_that_was_damaged_is_named_and_not_replaced(state: Path, text: str) -> None:
    path = write_secret(state / "8010/node-secret", text)
    state.chmod(0o700)
    (state / "8010").chmod(0o700)
    with pytest.raises(AuthenticationError, match=f"{path} holds no secret"):
        create_secrets(8010)
    assert Path(path).read_text() == text


def test_secrets_in_a_folder_that_others_can_write_to_are_refused(state: Path) -> None:
    create_secrets(8010)
    (state / "8010").chmod(0o770)
    with pytest.raises(AuthenticationError, match=f"chmod 700 {state}/8010"):
        create_secrets(8010)


# --- finding secrets --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ROLES)
def test_a_secret_is_found_where_it_counts_most(tmp_path: Path, role: Role) -> None:
    made = create_secrets(8010)[role]
    environ = {"ASYNCPARL_STATE": str(tmp_path / "state")}
    assert find_secret(role, 8010, environ=environ) == made
    assert find_secret(role, 8010) == made

    environ["ASYNCPARL_SECRET_FILE"] = write_secret(tmp_path / "file", "11" * 32)
    assert find_secret(role, 8010, environ=environ) == b"\x11" * 32

    environ[f"ASYNCPARL_{role.upper()}_SECRET"] = "22" * 32
    assert find_secret(role, 8010, environ=environ) == b"\x22" * 32

    explicit = write_secret(tmp_path / "explicit", "33" * 32)
    assert find_secret(role, 8010, secret_file=explicit, environ=environ) == b"\x33" * 32


def test_the_variable_of_the_other_role_does_not_count(state: Path) -> None:
    made = create_secrets(8010)
    environ = {"ASYNCPARL_STATE": str(state), "ASYNCPARL_NODE_SECRET": HEX, "ASYNCPARL_DRIVER_SECRET": ""}
    assert find_secret("driver", 8010, environ=environ) == made["driver"]


def test_without_a_secret_the_error_says_where_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASYNCPARL_STATE")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(AuthenticationError) as caught:
        find_secret("driver", 8010)
    assert str(caught.value) == (
        "no secret for port 8010: `asyncparl start` makes one here, or the RemoteManager that is to listen there; "
        "for one elsewhere copy ~/.local/state/asyncparl/8010/driver-secret from its machine to the same place, or "
        "pass it with --secret-file (in a program secret_file=)"
    )
    assert os.listdir(tmp_path) == []


def test_a_file_that_was_named_but_is_not_there_is_an_error(tmp_path: Path) -> None:
    create_secrets(8010)
    missing = str(tmp_path / "missing")
    for arguments in ({"secret_file": missing}, {"environ": {"ASYNCPARL_SECRET_FILE": missing}}):
        with pytest.raises(AuthenticationError, match=f"secret file {missing} cannot be read: No such file"):
            find_secret("node", 8010, **arguments)


def test_a_tilde_is_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write_secret(tmp_path / "mine")
    assert find_secret("node", 8010, secret_file="~/mine") == SECRET


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
def test_a_file_that_others_can_use_is_refused_with_the_command_to_type(tmp_path: Path, mode: int) -> None:
    path = write_secret(tmp_path / "file", mode=mode)
    with pytest.raises(AuthenticationError, match=f"others can use the secret file {path}: chmod 600 {path}$"):
        find_secret("node", 8010, secret_file=path)
    Path(path).chmod(0o400)
    assert find_secret("node", 8010, secret_file=path) == SECRET


def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(AuthenticationError, match=f"^{path} is no secret file: it is no plain file$"):
            find_secret("node", 8010, secret_file=str(path))


@pytest.mark.parametrize("text", [HEX, HEX + "\n", HEX.upper() + "\r\n", f"  {HEX}  "])
def test_white_space_and_case_do_not_matter(tmp_path: Path, text: str) -> None:
    assert find_secret("node", 8010, secret_file=write_secret(tmp_path / "file", text)) == SECRET
    assert find_secret("node", 8010, environ={"ASYNCPARL_NODE_SECRET": text}) == SECRET


BAD_SECRETS = [
    HEX[:-1],
    HEX + "0",
    HEX[:-1] + "g",
    f"{HEX[:32]} {HEX[32:]}",
    "s" * 64,
    HEX[:-1] + "é",
    HEX + "\n" + HEX,
]


@pytest.mark.parametrize("text", BAD_SECRETS)
def test_a_malformed_secret_is_named_and_never_shown(tmp_path: Path, text: str) -> None:
    path = write_secret(tmp_path / "file", text)
    for name, place, environ in (
        (path, path, {}),
        ("the variable ASYNCPARL_NODE_SECRET", None, {"ASYNCPARL_NODE_SECRET": text}),
    ):
        with pytest.raises(AuthenticationError, match=f"^{name} holds no secret: a secret is 64 hex digits$") as caught:
            find_secret("node", 8010, secret_file=place, environ=environ)
        assert text[:20] not in "".join(traceback.format_exception(caught.value))
        assert caught.value.__cause__ is None and caught.value.__context__ is None

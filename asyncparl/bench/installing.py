"""Peers live in virtual environments of their own, under a cache folder: what they need meets nothing of ours."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from asyncparl.bench.parts import Peer
from asyncparl.bench.processes import run_alone
from asyncparl.errors import AsyncparlError

INSTALL_S = 900
PEERS_FOLDER = Path(__file__).parent / "peers"


class NoPeer(AsyncparlError):
    """A peer could not be installed; says why."""


def cache_folder() -> Path:
    """Where the environments are: $XDG_CACHE_HOME/asyncparl/peers, by default under ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "asyncparl" / "peers"


def install(name: str, peer: Peer, folder: Path) -> Path:
    """The interpreter of the peer's environment, which is made unless it is there and as its requirements say.

    An environment that was not finished has no stamp, and is made again.

    Raises:
        NoPeer: the packages are not to be had, or not for this machine.
    """
    environment = folder / name
    python = environment / "bin" / "python"
    stamp = environment / "requirements.txt"
    requirements = PEERS_FOLDER / peer.requirements
    wanted = f"# Python {platform.python_version()}, {sys.base_prefix}\n{requirements.read_text()}"
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    try:
        shutil.rmtree(environment, ignore_errors=True)
        environment.parent.mkdir(parents=True, exist_ok=True)
        run_alone([sys.executable, "-m", "venv", str(environment)], limit_s=INSTALL_S)
        pip = [str(python), "-m", "pip", "install", "--no-input", "--requirement", str(requirements)]
        run_alone(pip, limit_s=INSTALL_S)
        stamp.write_text(wanted)
    except subprocess.TimeoutExpired as error:
        raise NoPeer(f"installing it took longer than {error.timeout:.0f} s") from error
    except subprocess.CalledProcessError as error:
        raise NoPeer(f"it cannot be installed here: {_reason(error.output or '')}") from error
    except OSError as error:
        raise NoPeer(f"it cannot be installed here: {error}") from error
    return python


def version(peer: Peer) -> str:
    """As the requirements pin it."""
    for line in (PEERS_FOLDER / peer.requirements).read_text().splitlines():
        package, _, number = line.partition("==")
        if package == peer.package:
            return f"{package} {number}"
    raise ValueError(f"{peer.requirements} does not pin {peer.package}")


def _reason(output: str) -> str:
    """The last thing that pip calls an error, else the last that it says."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or ["pip said nothing"])[-1].removeprefix("ERROR: ")

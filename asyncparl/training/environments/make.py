"""From an environment's name to the environment."""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import re
from collections.abc import Collection
from typing import Any

import gymnasium

from asyncparl.training.environments.base import VectorEnvironment
from asyncparl.training.environments.options import EnvironmentOptions, check_option_names
from asyncparl.training.errors import first_line, told


def make_environment(
    env_id: str,
    *,
    num_envs: int,
    seed: int = 0,
    options: EnvironmentOptions | None = None,
    filmed: bool = False,
) -> VectorEnvironment:
    """N copies of an environment, not yet reset.

    Args:
        env_id: an Atari game ("pong", "PongNoFrameskip-v4", "ALE/Pong-v5": all the same), or any id that
            `gymnasium.make` takes, "module:EnvId" included. An id that gymnasium knows as something else than an
            Atari game is that ("Blackjack-v1"). With a module the id is always gymnasium's.
        num_envs: how many copies.
        seed: sub-environment i is seeded with `seed + i`; see `environment_seed` for many actors.
        options: None: the defaults.
        filmed: `frame()` of the first copy will be wanted.

    Raises:
        ValueError: one line: the name is unknown (close ones are listed), a package that it needs is not installed,
            an option does not concern it, its observations or actions are of a kind that is not supported, or it is
            to be filmed and cannot be.
    """
    options = EnvironmentOptions() if options is None else options
    if num_envs < 1:
        raise ValueError(f"num_envs must be at least 1, got {num_envs}")
    rom_id = find_atari_game(env_id)
    if rom_id is not None:
        options.check_unused(env_id, is_atari=True)
        from asyncparl.training.environments.atari import AtariEnvironment

        return AtariEnvironment(rom_id, num_envs=num_envs, seed=seed, options=options, filmed=filmed)
    from asyncparl.training.environments.gymnasium import GymnasiumEnvironment

    envs: list[gymnasium.Env[Any, Any]] = []
    try:
        _make_copies(envs, env_id, num_envs, options)
        options.check_unused(env_id, is_atari=False)  # not earlier: a wrong name is the greater mistake
        return GymnasiumEnvironment(env_id, envs, seed=seed, options=options, filmed=filmed)
    except BaseException:
        for env in envs:
            with contextlib.suppress(Exception):  # there is an error already
                env.close()
        raise


def find_atari_game(env_id: str) -> str | None:
    """The ROM that `make_environment` would play, or None if the name is not that of an Atari game."""
    if not _has_atari():
        return None
    from asyncparl.training.environments.atari import find_rom

    spec = gymnasium.registry.get(env_id)
    if spec is not None and not str(spec.entry_point).startswith("ale_py"):
        return None
    return find_rom(env_id)


def check_given_options(env_id: str, names: Collection[str]) -> None:
    """Raise ValueError if one of these options means nothing to this environment, also where its value is the default.

    Of a name that no environment has, `make_environment` will tell.
    """
    is_atari = find_atari_game(env_id) is not None
    if is_atari or ":" in env_id or env_id in gymnasium.registry:
        check_option_names(names, env_id, is_atari=is_atari)


def _make_copies(envs: list[gymnasium.Env[Any, Any]], env_id: str, num_envs: int, options: EnvironmentOptions) -> None:
    """Add them one by one: if one of them cannot be made, the caller still has the others."""
    from asyncparl.training.environments.gymnasium import make_one

    if env_id.count(":") > 1:
        raise ValueError(f"an environment id is EnvId or module:EnvId, got {env_id!r}")
    try:
        envs.extend(make_one(env_id, options) for _ in range(num_envs))
    except (gymnasium.error.UnregisteredEnv, gymnasium.error.DeprecatedEnv) as error:
        raise ValueError(f"no environment is called {env_id!r}{_hint(env_id)}") from error
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        raise ValueError(f"{env_id!r} cannot be made: {first_line(error)}{_where_hint(env_id, error)}") from error
    except TypeError as error:
        # Gymnasium raises one of its own from that of the class.
        cause = error.__cause__ if isinstance(error.__cause__, TypeError) else error
        arguments = f" with {dict(options.arguments)}" if options.arguments else ""
        raise ValueError(f"{env_id!r} cannot be made{arguments}: {told(cause)}{_argument_hint(cause)}") from error
    except Exception as error:
        raise ValueError(f"{env_id!r} cannot be made: {told(error)}") from error


def _where_hint(env_id: str, error: Exception) -> str:
    missing = error if error.__cause__ is None else error.__cause__  # gymnasium raises one of its own
    is_its_own = isinstance(missing, ModuleNotFoundError) and missing.name == re.split("[:.]", env_id)[0]
    return " Modules in the current folder are found: does it lie in another one?" if is_its_own else ""


def _argument_hint(error: TypeError) -> str:
    is_missing = "required positional argument" in str(error) or "required keyword-only argument" in str(error)
    return "; --env-option 'arguments={\"NAME\": VALUE}' gives arguments" if is_missing else ""


def _hint(env_id: str) -> str:
    """What may have been meant, to be put behind the error."""
    shortest_last = sorted(_known_names(), key=len, reverse=True)
    names = {_plain(name): name for name in shortest_last}
    close = [names[plain] for plain in difflib.get_close_matches(_plain(env_id), names, n=3, cutoff=0.6)]
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    if not _has_atari():
        hint += "; Atari games need `pip install asyncparl[atari]`"
    return hint


def _known_names() -> list[str]:
    names = [env_id for env_id, spec in gymnasium.registry.items() if not str(spec.entry_point).startswith("ale_py")]
    if _has_atari():
        from asyncparl.training.environments.atari import rom_ids

        names += rom_ids()
    return names


def _plain(name: str) -> str:
    """A name without what people leave out or add: case, namespace, version."""
    return re.sub(r"(NoFrameskip|Deterministic)?(-v\d+)?$", "", name.rpartition("/")[2]).replace("_", "").lower()


def _has_atari() -> bool:
    return importlib.util.find_spec("ale_py") is not None

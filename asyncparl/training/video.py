"""A video of one episode. Needs the extra `video`: imageio, and imageio-ffmpeg, which brings its own ffmpeg."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncparl.training.environments import Episode, VectorEnvironment
from asyncparl.training.errors import ConfigError
from asyncparl.training.evaluation import EvaluationSetup, Weights, play_episodes

SUFFIXES = (".mp4", ".gif")
_MIN_HEIGHT = 200


def check_video(path: Path) -> None:
    """Find out before the work begins whether a video can be written there.

    Raises:
        ConfigError: the name ends with no known suffix, or the extra is not installed.
    """
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"a video is a file whose name ends with {' or '.join(SUFFIXES)}, not {path.name!r}")
    try:
        import imageio.v2  # noqa: F401
        import imageio_ffmpeg  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"a video needs {error.name}, which is not installed: pip install 'asyncparl[video]'"
        ) from error


def check_filmed(setup: EvaluationSetup, paths: Iterable[Path]) -> None:
    """Find out before the work begins whether the environment can be filmed, by drawing its first moment.

    Args:
        paths: where the videos go; their folders are made.

    Raises:
        ConfigError: it cannot be drawn, such as for want of a package, or there can be no file.
    """
    environment = _make_filmed(setup)
    try:
        environment.reset()
        _frame(environment)
    finally:
        environment.close()
    for path in paths:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _unfinished(path).touch()
            _unfinished(path).unlink()
        except OSError as error:
            raise ConfigError(f"video {path} cannot be written: {error.strerror or error}") from error


def film_episode(setup: EvaluationSetup, weights: Weights, path: Path) -> Episode:
    """Play the first episode of an evaluation, alone, and write what it looks like. Blocks: call it from a thread.

    Because it is alone, its actions are drawn otherwise than in an evaluation of several episodes.

    Args:
        path: ends with .mp4 or .gif; what is there is replaced when the episode has ended.

    Raises:
        ConfigError: the environment cannot be filmed, or see `check_video`.
        ValueError: the weights are of another model.
        OSError: the file cannot be written.
    """
    check_video(path)
    environment = _make_filmed(setup)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = _unfinished(path)
    writer: Any = None

    def film() -> None:
        nonlocal writer
        frame = _readable(_frame(environment))
        if writer is None:
            writer = _open(unfinished, environment.frames_per_s)
        writer.append_data(frame)

    try:
        (episode,) = play_episodes(environment, setup.make_policy(environment, weights, 0), on_step=film)
        writer.close()
        unfinished.replace(path)
        return episode
    finally:
        environment.close()
        if writer is not None:
            writer.close()
        unfinished.unlink(missing_ok=True)


def _unfinished(path: Path) -> Path:
    return path.with_name(f".unfinished-{path.name}")


def _make_filmed(setup: EvaluationSetup) -> VectorEnvironment:
    try:
        return setup.make_environment(0, 1, filmed=True)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _frame(environment: VectorEnvironment) -> NDArray[np.uint8]:
    try:
        return environment.frame()
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _open(path: Path, frames_per_s: float) -> Any:
    import imageio.v2

    if path.suffix == ".gif":
        return imageio.v2.get_writer(path, duration=1000 / frames_per_s, loop=0)
    return imageio.v2.get_writer(path, fps=frames_per_s, codec="libx264", macro_block_size=1)


def _readable(frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Small pictures made larger, whole pixels for whole pixels; sides cut to even lengths, which the codec wants."""
    factor = -(-_MIN_HEIGHT // frame.shape[0])
    frame = frame.repeat(factor, axis=0).repeat(factor, axis=1)
    return frame[: frame.shape[0] // 2 * 2, : frame.shape[1] // 2 * 2]

"""`asyncparl train` as its users meet it: in a process of its own, with signals, and with mistakes."""

from __future__ import annotations

import csv
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

import asyncparl
from asyncparl.cli import commands, main
from asyncparl.training.checkpoint import list_checkpoints, load_checkpoint
from asyncparl.training.environments import environment_seed
from asyncparl.training.presets import ALGORITHM_NAMES
from tests.training.subjects import FAILING_SEEDS_ID

ROOT = Path(__file__).parents[2]
LIMIT_S = 300
SMALL = ("--actors", "2", "--envs-per-actor", "4", "--batch-size", "8")
CATCH = ("--env", "asyncparl/Catch-v0", "--learning-rate", "0.005", *SMALL)


@contextmanager
def _started(*arguments: str, folder: Path, algorithm: str = "impala") -> Iterator[subprocess.Popen[str]]:
    """The command in a process group of its own, as a shell would start it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "asyncparl.cli", "train", algorithm, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def _train(*arguments: str, folder: Path, algorithm: str = "impala", status: int = 0) -> str:
    """Run it to its end; what it wrote."""
    with _started(*arguments, folder=folder, algorithm=algorithm) as process:
        output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == status, output
    return output


def _wait_for(path: Path, pattern: str, process: subprocess.Popen[str]) -> None:
    """Until a file in the folder matches."""
    deadline = time.monotonic() + LIMIT_S
    while not list(path.glob(pattern)):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, f"no {pattern} in {path}"
        time.sleep(0.02)


def _steps(run_dir: Path) -> list[int]:
    with (run_dir / "progress.csv").open(newline="") as file:
        return [int(row["agent_steps"]) for row in csv.DictReader(file)]


@pytest.mark.slow
def test_pong_is_trained_on_remote_actors(tmp_path: Path) -> None:
    output = _train("--env", "pong", "--steps", "2000", "--seed", "7", "--unroll-length", "20", *SMALL, folder=tmp_path)
    assert "finished after 2,080 steps" in output
    assert re.search(r"^num_actors +2$", output, re.MULTILINE)
    assert re.search(r"2,080/2,000 steps .* steps/s .* lag \d", output)
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert re.fullmatch(r"impala-pong-\d{8}-\d{6}-7", run_dir.name)
    assert f"results: runs/{run_dir.name}" in output
    assert {path.name.split(".")[0] for path in run_dir.iterdir()} == {"checkpoints", "config", "events", "progress"}
    assert _steps(run_dir)[-1] == 2080


@pytest.mark.slow
@pytest.mark.parametrize(("number", "learners"), [(signal.SIGINT, "1"), (signal.SIGTERM, "1"), (signal.SIGINT, "2")])
def test_a_signal_stops_cleanly_and_the_run_can_go_on(number: signal.Signals, learners: str, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    arguments = ("--steps", "100000000", "--checkpoint-interval", "0.2", "--run-dir", "run", "--learners", learners)
    with _started(*CATCH, *arguments, folder=tmp_path) as process:
        _wait_for(run_dir / "checkpoints", "checkpoint-*.pt", process)
        # Ctrl-C reaches the whole group of processes.
        os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
        output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 128 + number, output
    assert f"stopped by {number.name}" in output
    assert "go on with: asyncparl train impala --resume run" in output
    assert "Traceback" not in output
    stopped_at = load_checkpoint(list_checkpoints(run_dir / "checkpoints")[-1]).counters
    assert f"after {stopped_at.agent_steps:,} steps" in output

    if number == signal.SIGINT:
        steps = stopped_at.agent_steps + 1600
        output = _train("--resume", "run", "--steps", str(steps), folder=tmp_path)
        assert f"finished after {steps:,} steps" in output
        assert _steps(run_dir) == sorted(_steps(run_dir))
        assert _steps(run_dir)[-1] == steps


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "lag"), [("a2c", r"0\.0 \(max 0\)"), ("ga3c", r"\d+\.\d \(max \d+\)")])
def test_the_other_algorithms_are_trained_and_resumed_alike(algorithm: str, lag: str, tmp_path: Path) -> None:
    small = ("--env", "pong", "--envs-per-actor", "2", "--actors", "2", "--unroll-length", "5")
    if algorithm == "ga3c":
        small = (*small, "--batch-size", "4")
    output = _train(*small, "--steps", "200", "--run-dir", "run", folder=tmp_path, algorithm=algorithm)
    assert re.search(rf"^algorithm +{algorithm}$", output, re.MULTILINE)
    assert re.search(rf"200/200 steps .* lag {lag}", output)
    assert "finished after 200 steps" in output
    output = _train("--resume", "run", "--steps", "300", folder=tmp_path, algorithm=algorithm)
    assert "finished after 300 steps" in output
    assert _steps(tmp_path / "run")[-1] == 300

    with _started("--resume", "run", "--steps", "400", folder=tmp_path) as process:
        output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    assert output == f"error: the run in run is of {algorithm}, not of impala\n"


@pytest.mark.slow
def test_a_killed_run_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    arguments = ("--steps", "100000000", "--checkpoint-interval", "0.2", "--run-dir", "run", "--unroll-length", "20")
    with _started(*CATCH, *arguments, folder=tmp_path) as process:
        _wait_for(run_dir / "checkpoints", "checkpoint-*.pt", process)
        process.kill()
    saved = load_checkpoint(list_checkpoints(run_dir / "checkpoints")[-1]).counters
    output = _train("--resume", "run", "--steps", str(saved.agent_steps + 1600), folder=tmp_path)
    assert f"finished after {saved.agent_steps + 1600:,} steps" in output
    resumed = load_checkpoint(list_checkpoints(run_dir / "checkpoints")[-1]).counters
    assert resumed.updates == saved.updates + 10
    assert resumed.elapsed_s > saved.elapsed_s


@pytest.mark.slow
@pytest.mark.parametrize(("number", "learners"), [(signal.SIGINT, "1"), (signal.SIGINT, "2"), (signal.SIGKILL, "1")])
def test_a_run_that_is_stopped_before_its_first_update_begins_again(
    number: signal.Signals, learners: str, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    one_update = ("--unroll-length", "2000", "--envs-per-actor", "1", "--steps", "16000")  # it takes a while
    arguments = (*CATCH, *one_update, "--report-interval", "0.1", "--run-dir", "run", "--learners", learners)
    with _started(*arguments, folder=tmp_path) as process:
        while not (run_dir / "progress.csv").exists() or not _steps(run_dir):
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.02)
        os.killpg(process.pid, number) if number == signal.SIGINT else process.kill()
        output, _ = process.communicate(timeout=LIMIT_S)
    assert not list_checkpoints(run_dir / "checkpoints")
    if number == signal.SIGINT:
        assert process.returncode == 128 + number, output
        assert "stopping: there is nothing new for a checkpoint; Ctrl-C again stops at once" in output
        assert "stopped by SIGINT after 0 steps" in output
        assert "go on with: asyncparl train impala --resume run" in output
        assert "Traceback" not in output

    output = _train("--resume", "run", folder=tmp_path)
    said = "warning: the run in run has no checkpoint yet: it begins from the start, with its settings"
    assert output.splitlines()[0] == said
    assert "finished after 16,000 steps" in output
    assert _steps(run_dir)[-1] == 16_000


@pytest.mark.slow
def test_a_run_has_its_folder_to_itself_until_it_ends(tmp_path: Path) -> None:
    arguments = ("--steps", "100000000", "--checkpoint-interval", "0.2", "--run-dir", "run")
    with _started(*CATCH, *arguments, folder=tmp_path) as process:
        _wait_for(tmp_path / "run" / "checkpoints", "checkpoint-*.pt", process)
        for second in (("--resume", "run"), (*CATCH, "--run-dir", "run")):
            with _started(*second, folder=tmp_path) as other:
                output, _ = other.communicate(timeout=LIMIT_S)
            assert other.returncode == 1
            owner = f"process {process.pid} on {socket.gethostname()}"
            assert output == f"error: the run in run is in use by {owner}: stop it first, or copy the folder\n"
        assert process.poll() is None
        process.kill()
        process.wait()
        output = _train("--resume", "run", "--steps", "1", folder=tmp_path, status=1)
    assert "there is nothing to resume" in output  # so it may have the folder


@pytest.mark.slow
def test_a_run_whose_folder_is_removed_ends_with_one_clear_line(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    arguments = ("--report-interval", "0.2", "--checkpoint-interval", "0.1", "--run-dir", "run")
    with _started(*CATCH, "--steps", "100000000", *arguments, folder=tmp_path) as process:
        _wait_for(run_dir / "checkpoints", "checkpoint-*.pt", process)
        run_dir.rename(tmp_path / "away")
        shutil.rmtree(tmp_path / "away")
        output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    assert output.splitlines()[-1] == "error: run folder run has gone: it was removed, moved or replaced during the run"
    assert "Traceback" not in output
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_run_that_cannot_write_says_so_and_writes_when_it_can(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    arguments = ("--report-interval", "0.1", "--checkpoint-interval", "0.1", "--run-dir", "run")
    with _started(*CATCH, "--steps", "100000000", *arguments, folder=tmp_path) as process:
        assert process.stdout is not None
        _wait_for(run_dir / "checkpoints", "checkpoint-*.pt", process)
        refused = {
            "run could not be written: [Errno 27] File too large\n",
            "the checkpoint could not be written: [Errno 27] File too large",
        }
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
        while refused:
            line = process.stdout.readline()
            assert line, "it has ended"
            refused = {each for each in refused if not line.startswith(each)}
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        num_rows = len(_steps(run_dir))
        while len(_steps(run_dir)) < num_rows + 3:
            time.sleep(0.02)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    assert "Traceback" not in output
    newest = list_checkpoints(run_dir / "checkpoints")[-1].relative_to(tmp_path)
    last = output.splitlines()[-1]
    assert last.startswith("error: the last checkpoint could not be written: [Errno 27] File too large")
    assert last.endswith(f"; {newest} is the newest one")


@pytest.mark.slow
def test_a_reader_that_leaves_ends_the_run_quietly(tmp_path: Path) -> None:
    with _started(*CATCH, "--steps", "100000000", folder=tmp_path) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(LIMIT_S) == 1


@pytest.mark.slow
def test_what_an_environment_raises_in_an_actor_is_told_with_its_traceback_there_and_no_other(tmp_path: Path) -> None:
    arguments = f'arguments={{"first_seed": {environment_seed(1)}}}'  # fails wherever it is played
    with _started(
        "--env", FAILING_SEEDS_ID, "--env-option", arguments, *SMALL, "--actors", "1", folder=tmp_path
    ) as process:  # fmt: skip
        output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    _, _, told = output.partition("Traceback (most recent call last):")
    assert "Traceback" not in told and "cli/train.py" not in told
    *_, place, code, error, last = told.splitlines()
    assert "subjects.py" in place and code.strip().startswith("raise LookupError")
    assert error == "LookupError: the game is lost"
    assert re.fullmatch(r"error: LookupError: the game is lost; raised in RolloutActor#1 \(pid \d+\)", last)


def _fails(
    arguments: Sequence[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    algorithm: str = "impala",
) -> str:
    """The one line that the command writes, in this process."""
    monkeypatch.setattr(sys, "argv", ["asyncparl", "train", algorithm, *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    captured = capsys.readouterr()
    assert stop.value.code in (1, 2)
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


CONFIG_FILES = {
    "file": "",
    "broken.py": "x = (",
    "broken.toml": "steps = ",
    "broken.json": "{",
    "list.json": "[]",
    "slip.toml": "learning-rate = 1.0",
    "actors.toml": "actors = 3",
    "type.toml": "env = 'pong'\nsteps = 'many'",
    "other.toml": "algorithm = 'a2c'",
    "option.toml": "env = 'pong'\nenv_options = {frame_skp = 5}",
    "flat.toml": "env = 'pong'\nenv_options = 5",
}


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("--env pon", "error: no environment is called 'pon'; did you mean pong"),
        ("--env CartPol-v1", "error: no environment is called 'CartPol-v1'; did you mean CartPole"),
        ("", "error: --env says what to play, --resume which run to go on with: one of them is needed"),
        ("--env pong --steps 0", "error: Invalid value for '--steps': 0 is not in the range x>=1"),
        ("--env pong --steps many", "error: Invalid value for '--steps': 'many' is not a valid integer"),
        ("--env pong --step 5", "error: No such option '--step'"),
        ("--env pong --actors 0", "error: Invalid value for '--actors'"),
        ("--env pong --actors 100000", "error: 100000 actors are too many for"),
        (
            "--env pong --envs-per-actor 64 --batch-size 32",
            "error: envs_per_actor (64) must not be more than batch_size (32)",
        ),
        ("--env pong --learning-rate 0", "error: Invalid value for '--learning-rate'"),
        ("--env pong --precision fp8", "error: Invalid value for '--precision': 'fp8' is not one of"),
        ("--env pong --device tpu7", "error: device 'tpu7' cannot be used"),
        ("--env pong --run-dir file/run", "error: run folder file/run cannot be written: Not a directory"),
        (
            "--env pong --env-option frame_skp=3",
            "error: --env-option frame_skp=3: no option is called 'frame_skp'; did",
        ),
        ("--env pong --env-option frame_skip=a", "error: --env-option frame_skip=a: frame_skip must be a whole number"),
        ("--env pong --env-option frame_skip=0", "error: frame_skip must be at least 1, got 0"),
        ("--env pong --env-option screen_size=[84]", "error: --env-option screen_size=[84]: screen_size must be [a "),
        ("--env pong --env-option noop_max", "error: --env-option noop_max: write it as NAME=VALUE"),
        ("--env CartPole-v1 --env-option frame_skip=2", "error: option frame_skip is only for Atari games"),
        ("--env pong --protocol mine", "error: Invalid value for '--protocol': 'mine' is not one of 'mnih2015', 'mach"),
        ("--env CartPole-v1 --protocol mnih2015", "error: --protocol is only for Atari games, which 'CartPole-v1' is"),
        ("--config none.toml", "error: config none.toml cannot be read: No such file or directory"),
        ("--config broken.toml", "error: config broken.toml is no TOML: "),
        ("--config broken.json", "error: config broken.json is no JSON: "),
        ("--config list.json", "error: config list.json holds no settings: it must be an object"),
        ("--config slip.toml", "error: slip.toml: no setting is called 'learning-rate'; did you mean learning_rate?"),
        ("--config actors.toml", "error: actors.toml: no setting is called 'actors'; did you mean num_actors?"),
        ("--config type.toml", "error: steps must be a whole number, not 'many'"),
        ("--config other.toml", "error: other.toml is for another algorithm than impala: remove it there, or train th"),
        ("--config option.toml", "error: env_options in the file: no option is called 'frame_skp'; did you mean frame"),
        ("--config flat.toml", "error: flat.toml: env_options must be a table of names and values"),
        (
            "--config list.json --resume run",
            "error: --config is for new runs: a resumed run keeps the settings that it",
        ),
        ("--env pong --model Mine", "error: a model is given as module:Class, not 'Mine'"),
        ("--env pong --model nowhere:Mine", "error: model 'nowhere:Mine': No module named 'nowhere'"),
        (
            "--env pong --model broken:Mine",
            "error: model 'broken:Mine': broken cannot be imported: SyntaxError: '(' was nev",
        ),
        (
            "--env broken:Mine-v0",
            "error: 'broken:Mine-v0' cannot be made: SyntaxError: '(' was never closed (broken.py, li",
        ),
        ("--env pong --cluster a:b:c", "error: Invalid value for '--cluster': 'a:b:c' is not host:port"),
        ("--resume missing", "error: missing is no run folder"),
        ("--resume missing --run-dir new", "error: --run-dir is for new runs"),
        ("--resume missing --preset parl", "error: --preset is for new runs"),
        ("--env pong --preset mine", "error: Invalid value for '--preset': 'mine' is not one of 'ours', 'paper', "),
        ("--env pong --optimizer sgd", "error: Invalid value for '--optimizer': 'sgd' is not one of 'adam', "),
        ("--env pong --optimizer adam --rms-epsilon 0.1", "error: rms_epsilon is only for RMSProp, and the optimizer"),
        ("--env pong --log-epsilon 0.1", "error: No such option '--log-epsilon'"),
    ],
)
def test_a_mistake_is_one_clear_line(
    arguments: str,
    line: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in CONFIG_FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert _fails(arguments.split(), capsys, monkeypatch).startswith(line)
    assert {path.name for path in tmp_path.iterdir()} == CONFIG_FILES.keys()


@pytest.mark.parametrize(
    ("algorithm", "arguments", "line"),
    [
        ("a2c", "--env pong --batch-size 8", "error: No such option '--batch-size'"),
        ("a2c", "--env pong --predictors 2", "error: No such option '--predictors'"),
        ("ga3c", "--env pong --log-epsilon 1", "error: log_epsilon must be 0 or more and less than 1, not 1.0"),
        ("ga3c", "--env pong --prediction-batch-size 8", "error: prediction_batch_size (8) must not be less than envs"),
    ],
)
def test_a_mistake_with_another_algorithm_is_one_clear_line_too(
    algorithm: str,
    arguments: str,
    line: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert _fails(arguments.split(), capsys, monkeypatch, algorithm).startswith(line)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("algorithm", ALGORITHM_NAMES)
def test_every_option_is_explained_with_its_default(algorithm: str) -> None:
    train = commands.commands["train"]
    command = train.commands[algorithm]  # type: ignore[attr-defined]
    for option in command.params:
        assert option.help, option.name
        if option.name not in ("env", "resume", "model", "env_options"):
            assert "[default: " in option.help, option.name


def test_each_command_shows_the_settings_of_its_algorithm() -> None:
    shown = {}
    for algorithm in ALGORITHM_NAMES:
        result = CliRunner().invoke(commands, ["train", algorithm, "--help"], terminal_width=1000)
        shown[algorithm] = result.output
    assert all(title in shown[title.lower()] for title in ("IMPALA", "A2C", "PPO", "GA3C"))
    assert "--unroll-length INTEGER RANGE" in shown["a2c"]
    assert re.search(r"Steps of an environment in one rollout\.\s+\[default: 5\]", shown["ga3c"])
    assert re.search(r"Steps of an environment in one rollout\.\s+\[default: 20\]", shown["a2c"])
    only = {"--batch-size": "impala ga3c", "--predictors": "ga3c", "--normalise-advantages": "a2c ppo ga3c"}
    only |= {"--epochs": "ppo", "--minibatches": "ppo", "--clip-range": "ppo"}
    for option, algorithms in only.items():
        assert [name for name in ALGORITHM_NAMES if option in shown[name]] == algorithms.split()


def _python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], check=False, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S
    )


def test_help_needs_neither_torch_nor_gymnasium() -> None:
    program = """
import sys
from asyncparl.cli import commands
for arguments in (["--help"], *(["train", name, "--help"] for name in ("impala", "a2c", "ppo", "ga3c"))):
    commands.main(arguments, standalone_mode=False)
print("loaded:", sorted({"torch", "numpy", "gymnasium", "tensorboard"} & set(sys.modules)))
"""
    done = _python(program)
    assert "--checkpoint-interval" in done.stdout
    assert done.stdout.endswith("loaded: []\n"), done.stderr


@pytest.mark.parametrize("package", ["torch", "gymnasium", "rich", "tensorboard"])
def test_a_missing_package_is_named_with_what_to_install(package: str) -> None:
    program = f"""
import sys
sys.modules[{package!r}] = None
sys.argv = ["asyncparl", "train", "impala", "--env", "CartPole-v1", "--run-dir", "/dev/null/run"]
from asyncparl.cli import main
main()
"""
    done = _python(program)
    assert done.stderr == (f"error: training needs {package}, which is not installed: pip install 'asyncparl[train]'\n")
    assert done.returncode == 1


def test_the_version_is_printed() -> None:
    done = _python("from asyncparl.cli import commands; commands.main(['--version'])")
    assert done.stdout == f"{asyncparl.__version__}\n"


@pytest.mark.parametrize(("command", "shown"), [("", "asyncparl evaluate RUN"), ("train", "ALGORITHM [OPTIONS]")])
def test_a_command_alone_shows_its_help(
    command: str, shown: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["asyncparl", *command.split()])
    with pytest.raises(SystemExit) as stop:
        main()
    said = capsys.readouterr().err
    assert stop.value.code == 2
    assert said.startswith("Usage: asyncparl") and shown in said
    assert "..." not in said.partition("Commands:")[2]  # every command is explained in a whole sentence


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("resume run", "error: No such command 'resume'. There are actors, bench, evaluate, logs, "),
        ("train dqn", "error: No such command 'dqn'. There are a2c, ga3c, impala, ppo."),
        ("--verison", "error: No such option"),
    ],
)
def test_where_there_is_no_such_command_those_that_there_are_are_named(
    command: str, line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["asyncparl", *command.split()])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith(line)

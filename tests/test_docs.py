"""The code in the documentation runs.

Every block of README.md and docs/*.md is run as a script of its own, in an empty folder: `python` always, `bash` if an
HTML comment on the line before it says so. A comment can also say why a block is not run.

    <!-- test: run -->
    <!-- test: skip it trains for an hour -->
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parent.parent
TIME_LIMIT_S = 120
COMMANDS = {"python": [sys.executable], "bash": ["bash", "-euo", "pipefail"]}
NOT_CODE = frozenset({"console", "json", "mermaid", "text", "toml"})
MARK = re.compile(r"<!-- test: (?P<word>run|skip)(?: (?P<reason>.+))? -->")


class Block(NamedTuple):
    """A fenced block of code, and what the line before it says."""

    place: str
    language: str
    code: str
    mark: str


def blocks(text: str, name: str) -> Iterator[Block]:
    lines = text.splitlines()
    for token in MarkdownIt().parse(text):
        if token.type in ("fence", "code_block"):
            assert token.map is not None
            line_number = token.map[0] + 1
            mark = lines[token.map[0] - 1].strip() if token.map[0] else ""
            yield Block(f"{name}:{line_number}", token.info.strip(), token.content, mark)


def is_run(block: Block) -> bool:
    """Whether a test runs the block.

    Raises:
        ValueError: the block does not say so, or says it in another way than this file explains.
    """
    match = MARK.fullmatch(block.mark)
    if match is None and block.mark.startswith("<!--"):
        raise ValueError(f"{block.place}: what does {block.mark} mean?")
    if block.language in NOT_CODE:
        return False
    if block.language not in COMMANDS:
        raise ValueError(f"{block.place}: the language is {block.language!r}, not python, bash or {sorted(NOT_CODE)}")
    if match is None and block.language == "bash":
        raise ValueError(
            f"{block.place}: a bash block needs a line '<!-- test: run -->' or '<!-- test: skip REASON -->'"
        )
    if match is not None and match["word"] == "skip" and not match["reason"]:
        raise ValueError(f"{block.place}: why is it not run?")
    return match is None or match["word"] == "run"


def documented() -> list[Block]:
    paths = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
    return [block for path in paths if path.exists() for block in blocks(path.read_text(), str(path.relative_to(ROOT)))]


@pytest.mark.parametrize("block", [pytest.param(block, id=block.place) for block in documented()])
def test_code_in_the_documentation_runs(block: Block, tmp_path: Path) -> None:
    if not is_run(block):
        pytest.skip(block.mark or "not code")
    script = tmp_path / "block"
    script.write_text(block.code)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    result = subprocess.run(
        [*COMMANDS[block.language], str(script)],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIME_LIMIT_S,
        check=False,
    )
    assert result.returncode == 0, f"{block.place}\n{result.stdout}"


def test_ci_runs_the_test_command_of_the_readme() -> None:
    commands = [block.code.strip() for block in documented() if block.language == "bash" and "./check" in block.code]
    assert len(commands) == 1, commands
    assert re.findall(r"^.*&& \./check$", (ROOT / "README.md").read_text(), re.MULTILINE) == commands


TEXT = """
```python
first
```

<!-- test: run -->
```bash
second
```

1. In a list.

   <!-- test: skip it takes long -->
   ```bash
   third
   ```
"""


def test_blocks_are_found_with_their_marks() -> None:
    assert [(block.place, block.code, is_run(block)) for block in blocks(TEXT, "a.md")] == [
        ("a.md:2", "first\n", True),
        ("a.md:7", "second\n", True),
        ("a.md:14", "third\n", False),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "```bash\nls\n```",
        "```\nls\n```",
        "```sh\nls\n```",
        "Text\n\n    indented\n",
        "<!-- test: skip -->\n```bash\nls\n```",
        "<!-- tset: skip it is long -->\n```python\n1\n```",
        "<!-- test: run -->\n\n```bash\nls\n```",
    ],
)
def test_a_block_that_does_not_say_whether_it_is_run_is_an_error(text: str) -> None:
    (block,) = blocks(text, "a.md")
    with pytest.raises(ValueError, match=r"^a\.md:"):
        is_run(block)

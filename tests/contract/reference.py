"""Writes docs/cli.md and docs/settings.md from the code (`make docs`); a test sees that they are current."""

from __future__ import annotations

import ast
import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path

import click

import loopopt.config
from loopopt.cli.main import cli
from loopopt.config import LoopConfig
from loopopt.errors import EXIT_LOW_COVERAGE, EXIT_PARTIAL, LoopoptError

RESULTS_BUT = (
    (
        EXIT_PARTIAL,
        "`analyze`, `diff`: results, but some trace files could not be used (they are named); `refresh`: not all jobs.",
    ),
    (EXIT_LOW_COVERAGE, "`analyze --coverage strict`: results, but too little of the time has a measured duration."),
    (130, "Interrupted with Ctrl-C."),
)
"""Exit codes that no exception stands for."""
ROOT = Path(__file__).resolve().parents[2]
CLI = ROOT / "docs" / "cli.md"
SETTINGS = ROOT / "docs" / "settings.md"


def commands(command: click.Command = cli, parent: click.Context | None = None) -> Iterator[click.Context]:
    """Every command in a context of its own, depth first in the order of `--help`."""
    name = command.name or "loopopt"
    widths = {"terminal_width": 96, "max_content_width": 96}
    settings = {**command.context_settings, **widths}
    context = click.Context(command, parent, "loopopt" if parent is None else name, **settings)
    yield context
    if isinstance(command, click.Group):
        for found in command.list_commands(context):
            sub = command.get_command(context, found)
            assert sub is not None
            yield from commands(sub, context)


def cli_page() -> str:
    """docs/cli.md."""
    parts = ["# The command line\n\nWritten by `make docs`; do not edit. Settings for `--set` are in settings.md.\n"]
    for context in commands():
        parts.append(f"## {context.command_path}\n\n```text\n{context.get_help()}\n```\n")
    codes = sorted({c.exit_code: c for c in (LoopoptError, *LoopoptError.__subclasses__())}.items())
    rows = "\n".join(f"| {code} | {(c.__doc__ or '').splitlines()[0]} |" for code, c in codes)
    more = "\n".join(f"| {code} | {meaning} |" for code, meaning in RESULTS_BUT)
    head = "## Exit codes\n\n`run` gives the job's own.\n\n| code | meaning |\n|---|---|\n| 0 | done |"
    parts.append(f"{head}\n{rows}\n{more}\n")
    return "\n".join(parts)


def settings_page() -> str:
    """docs/settings.md."""
    meanings = _field_docstrings()
    rows = [
        f"| `{f.name}` | `{f.default!r}` | {' '.join(meanings[f.name].split())} |"
        for f in dataclasses.fields(LoopConfig)
    ]
    head = (
        "# Settings of the loop\n\nWritten by `make docs`; do not edit. Change one with `--set KEY=VALUE`\n"
        "on `loopopt run`, `attach`, `daemon` or `demo`.\n\n| setting | default | meaning |\n|---|---|---|\n"
    )
    return head + "\n".join(rows) + "\n"


def _field_docstrings() -> dict[str, str]:
    """Field -> the string below it in the source."""
    source = Path(loopopt.config.__file__).read_text(encoding="utf-8")
    body = next(
        node.body
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef) and node.name == "LoopConfig"
    )
    found = {}
    for field, below in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            found[field.target.id] = ast.literal_eval(below.value)
    return found


if __name__ == "__main__":
    CLI.write_text(cli_page(), encoding="utf-8")
    SETTINGS.write_text(settings_page(), encoding="utf-8")

"""The command line is a contract: scripts and unit files use it."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
import reference

from loopopt.cli.main import COMMANDS, main

GOLDEN = Path(__file__).with_name("cli.golden")


def surface() -> str:
    """Every command with its options and arguments, one a line."""
    lines = []
    for context in reference.commands():
        name, command = context.command_path, context.command
        for parameter in command.params:
            names = ",".join(parameter.opts) if isinstance(parameter, click.Option) else f"<{parameter.name}>"
            traits = [
                word
                for word, holds in (
                    ("multiple", parameter.nargs == -1 or parameter.multiple),
                    ("required", parameter.required),
                )
                if holds
            ]
            lines.append(" ".join([name, names, *traits]))
        if not command.params:
            lines.append(name)
    return "\n".join(lines) + "\n"


def test_no_option_has_come_or_gone_unnoticed() -> None:
    """A change belongs in the changelog, and its removal in a new major version; then renew cli.golden."""
    assert surface() == GOLDEN.read_text(encoding="utf-8")


def test_the_reference_of_the_command_line_is_current() -> None:
    """docs/cli.md is written by `make docs`."""
    assert reference.CLI.read_text(encoding="utf-8") == reference.cli_page()


def test_the_reference_of_the_settings_is_current_and_complete() -> None:
    """docs/settings.md is written by `make docs`; each field explains itself."""
    assert reference.SETTINGS.read_text(encoding="utf-8") == reference.settings_page()


def test_every_command_that_does_something_has_an_example_or_needs_none() -> None:
    """Examples are read before options are."""
    without = {
        context.command_path
        for context in reference.commands()
        if not isinstance(context.command, click.Group) and "Example" not in (context.command.help or "")
    }
    assert without == {"loopopt doctor"}


@pytest.mark.parametrize("arguments", [["--help"], *[[name, "--help"] for name in COMMANDS]])
def test_every_command_has_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """And it goes to stdout with exit code 0."""
    assert main(arguments) == 0
    assert "Usage: loopopt" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--nonsense"], ["nonsense"], ["run"], ["daemon"], ["demo", "--steps", "0"]])
def test_wrong_usage_is_said_on_stderr_with_exit_code_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """As everywhere on Unix."""
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Error:" in err

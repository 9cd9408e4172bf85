"""The ``loopopt`` command. One command a file; this is the one place that catches `LoopoptError`."""

from __future__ import annotations

import importlib
import os
import sys

import click

from loopopt import __version__
from loopopt.errors import LoopoptError

COMMANDS = {
    "run": "loopopt.cli.run:run",
    "attach": "loopopt.cli.attach:attach",
    "detach": "loopopt.cli.detach:detach",
    "status": "loopopt.cli.status:status",
    "refresh": "loopopt.cli.refresh:refresh",
    "analyze": "loopopt.cli.analyze:analyze",
    "diff": "loopopt.cli.diff:diff",
    "merge": "loopopt.cli.merge:merge",
    "hta": "loopopt.cli.hta:hta",
    "tensorboard": "loopopt.cli.tensorboard:tensorboard",
    "table": "loopopt.cli.table:table",
    "plan": "loopopt.cli.plan:plan",
    "daemon": "loopopt.cli.daemon:daemon",
    "doctor": "loopopt.cli.doctor:doctor",
    "demo": "loopopt.cli.demo:demo",
}
"""Command -> where it lives; a module is imported when its command is asked for."""


class _LazyGroup(click.Group):
    """Imports a command's module only when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        where = COMMANDS.get(cmd_name)
        if where is None:
            return None
        module, name = where.split(":")
        found = getattr(importlib.import_module(module), name)
        assert isinstance(found, click.Command)
        return found


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="loopopt")
def cli() -> None:
    """Make a running PyTorch job hide its communication better, measured and reversible.

    \b
    loopopt run -- torchrun --nproc-per-node 2 train.py
    loopopt attach                  list jobs that are running with the agent
    loopopt status --watch          what the loop is doing
    loopopt analyze traces/         where the time in recorded traces went
    """


def main(argv: list[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: arguments without the program name; the process's own if None.

    Returns:
        Exit code: 0, the job's own for `run`, or the `exit_code` of the error (see `loopopt.errors`).
    """
    try:
        code = cli.main(args=argv, prog_name="loopopt", standalone_mode=False)
    except LoopoptError as err:
        click.echo(f"loopopt: {err}", err=True)
        return err.exit_code
    except click.ClickException as err:
        err.show()
        return err.exit_code
    except (KeyboardInterrupt, click.Abort):
        return 130
    except BrokenPipeError:
        # The reader (`| head`) has gone: keep the interpreter from complaining about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return code if isinstance(code, int) else 0

"""``loopopt tensorboard``: the traces for TensorBoard's PyTorch profiler."""

from __future__ import annotations

import click

from loopopt.cli.onerun import read_run, run_options, say


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--out", metavar="LOGDIR", help="Log directory; the run gets a folder in it.  [default: a new one in /tmp]"
)
@click.option("--port", type=click.IntRange(0, 65535), default=6006, show_default=True, help="Port on this machine.")
@click.option("--no-start", is_flag=True, help="Only make the folder and print the command.")
@run_options
def tensorboard(
    paths: tuple[str, ...], out: str | None, port: int, no_start: bool, number: int | None, workers: int | None
) -> int:
    """Show the traces of a run in TensorBoard's PyTorch profiler.

    The folder made for it has links to the traces, and copies of those that it would not read. TensorBoard runs
    until Ctrl-C and listens on this machine only.

    \b
    Examples:
      loopopt tensorboard traces/
      loopopt tensorboard traces/ --out logs --no-start
    """
    import importlib.util
    import shlex
    import subprocess
    import sys
    import tempfile

    from loopopt.errors import UnsupportedError

    if not no_start:
        missing = [m for m in ("tensorboard", "torch_tb_profiler") if importlib.util.find_spec(m) is None]
        if missing:
            raise UnsupportedError(
                f"{' and '.join(missing)} cannot be imported: `pip install 'loopopt[tensorboard]'`, or --no-start"
            )
    run, code = read_run(paths, number, workers)
    from loopopt.offline import external

    logdir = out or tempfile.mkdtemp(prefix="loopopt-tensorboard-")
    handed = external.for_tensorboard(run, logdir)
    say(f"made: {logdir}, {len(handed)} ranks, {sum(bool(h.why) for h in handed)} of them copied")
    arguments = ["--logdir", logdir, "--port", str(port)]
    if no_start:
        click.echo(shlex.join(["tensorboard", *arguments]))
        return code
    done = subprocess.run([sys.executable, "-m", "tensorboard.main", *arguments], check=False)
    return done.returncode or code

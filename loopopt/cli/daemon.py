"""``loopopt daemon``: the daemon in the foreground (what a service manager starts)."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option("--dir", "directory", required=True, help="Job directory, the ranks' LOOPOPT_DIR.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of the loop; repeatable.")
def daemon(directory: str, settings: tuple[str, ...]) -> int:
    """Serve one job in the foreground until SIGTERM.

    `loopopt run` and `loopopt attach` start one by themselves; this is for service managers. The settings are
    listed in docs/settings.md.

    \b
    Example:
      loopopt daemon --dir /run/loopopt/night --set metrics_port=9400
    """
    from loopopt.cli import jobs
    from loopopt.cli.settings import loop_config
    from loopopt.daemon.main import run_daemon

    job_dir = Path(directory).absolute()
    jobs.check_socket_path(job_dir)
    config = loop_config(settings)
    jobs.make_directory(job_dir)
    return run_daemon(job_dir, config)

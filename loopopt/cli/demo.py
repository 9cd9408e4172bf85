"""``loopopt demo``: the whole loop on a small real job."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import click

DEMO_SETTINGS = ("baseline_steps=8", "trial_steps=8")
"""Settings that fit a job of three minutes."""
_LIMIT_S = 165.0
"""Without --steps the job is ended after this time even if the loop is still at work."""
_STEPS_ENOUGH = 100_000


@click.command()
@click.option("--steps", type=click.IntRange(min=1), help="Training steps.  [default: until the loop has decided]")
@click.option("--rate", default="1500mbit", show_default=True, help="Speed of the shaped loopback, as tc writes it.")
@click.option("--out", default="demo-out", show_default=True, help="Folder for the picture, the numbers and the log.")
@click.option("--no-shape", is_flag=True, help="Use the plain loopback.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of the loop; repeatable.")
def demo(steps: int | None, rate: str, out: str, no_shape: bool, settings: tuple[str, ...]) -> int:
    """Run the loop on a small real job.

    A small transformer, its parameters sharded over two ranks: real processes, real collectives over gloo, real
    traces and recompiles. The loopback is slowed down to RATE in a network namespace of its own where that is
    possible; the demo says whether it was. Takes up to three minutes; ends with a table, and with a picture of
    one step before and after in OUT.

    \b
    Examples:
      loopopt demo
      loopopt demo --steps 60 --rate 1gbit --out /tmp/demo
    """
    from loopopt.cli import background, jobs, netns, screen, session
    from loopopt.cli.progress import Progress
    from loopopt.errors import LoopoptError
    from loopopt.report import html
    from loopopt.report.summary import AS_IT_WAS, summarize
    from loopopt.report.terminal import summary_view
    from loopopt.report.timelines import timelines

    console = screen.console(stderr=True)
    netns.checked_rate(rate)
    folder = Path(out).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise LoopoptError(f"--out {folder}: cannot be made: {err.strerror}") from err
    command = _command(steps or _STEPS_ENOUGH)
    unshaped = "asked for with --no-shape" if no_shape else netns.why_not()
    if unshaped:
        console.print(f"Plain loopback ({unshaped}): communication is fast here, so there is less to gain.")
    else:
        console.print(f"Loopback shaped to {rate} in a network namespace of its own.")
        command = netns.wrapped(command, rate)

    log = folder / "train.log"
    with tempfile.TemporaryDirectory(prefix="loopopt-") as parent, log.open("wb") as output:
        job_dir = Path(parent) / "demo"
        jobs.check_socket_path(job_dir)
        request = session.Request(
            command, job_dir, "demo", (*DEMO_SETTINGS, *settings), output=output.fileno(), want_windows=True
        )
        progress = Progress(console, steps, _LIMIT_S)
        try:
            outcome = session.run_job(request, lambda line: console.print(f"loopopt: {line}"), progress.follow)
        finally:
            progress.stop()
            _keep_daemon_log(job_dir / background.LOG_NAME, folder / background.LOG_NAME)

    # A job that was ended on purpose looks broken off afterwards: what counts is the status before.
    summary = summarize(progress.status_at_end or outcome.status)
    before = timelines(outcome.windows, AS_IT_WAS)
    after = timelines(outcome.windows, summary.after.plan_id)
    picture = folder / "step.html"
    picture.write_text(html.page(summary, before, after), encoding="utf-8")
    network = rate if not unshaped else "plain loopback"
    background.write_json(str(folder / "summary.json"), {**summary.to_json(), "network": network})
    console.print(summary_view(summary))
    console.print(f"One step before and after: {picture}", soft_wrap=True, highlight=False)
    if outcome.exit_code and progress.status_at_end is None:
        raise LoopoptError(f"the demo job failed with exit code {outcome.exit_code}: see {log}")
    if not summary.tried:
        raise LoopoptError(f"no plan could be tried: {summary.sentence()} See {log} and `loopopt doctor`")
    return 0


def _command(steps: int) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    # One thread a rank: the two ranks and their communication threads already fill two cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return [*launcher, "-m", "loopopt_agent.demo.train", "--steps", str(steps)]


def _keep_daemon_log(source: Path, target: Path) -> None:
    try:
        target.write_bytes(source.read_bytes())
    except OSError:
        return  # there was no daemon; that has been said

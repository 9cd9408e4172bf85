"""Documentation, dashboard and recording rules are current, and only speak of metrics that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from loopopt.export.catalogue import BY_NAME, CATALOGUE
from loopopt.export.dashboard import dashboard, panels
from loopopt.export.docs import metrics_page
from loopopt.export.generate import generated_files, stale_files, write_files
from loopopt.export.rules import recording_rules, rules_file

ROOT = Path(__file__).parents[3]
QUERIES = [rule.expr for rule in recording_rules()] + [query for panel in panels() for query, _ in panel.queries]


def test_generated_files_are_current() -> None:
    """What is in the repository is what would be generated now (`python -m loopopt.export.generate`)."""
    assert stale_files(ROOT) == []


def test_generating_and_checking(tmp_path: Path) -> None:
    """The command writes the files, and its check tells when one is missing or was edited."""
    command = [sys.executable, "-m", "loopopt.export.generate", str(tmp_path)]
    missing = subprocess.run([*command, "--check"], capture_output=True, text=True, check=False)
    assert missing.returncode == 1
    assert "docs/metrics.md is not current" in missing.stderr
    subprocess.run(command, check=True)
    assert subprocess.run([*command, "--check"], check=False).returncode == 0
    (tmp_path / "grafana" / "rules.yaml").write_text("edited")
    assert stale_files(tmp_path) == ["grafana/rules.yaml"]
    write_files(tmp_path)
    assert stale_files(tmp_path) == []


def test_the_page_tells_of_every_metric() -> None:
    """No metric and no rule is undocumented."""
    page = metrics_page()
    for metric in CATALOGUE:
        assert f"| `{metric.name}` | {metric.kind} |" in page
        assert metric.help in page
    for rule in recording_rules():
        assert rule.record in page


@pytest.mark.parametrize("query", QUERIES)
def test_queries_use_what_is_exported(query: str) -> None:
    """Each query names catalogued metrics with labels they have, rates counters only, and closes its brackets."""
    names = re.findall(r"loopopt_\w+", query)
    assert names
    for name in names:
        metric = BY_NAME[name.removesuffix("_bucket") if name not in BY_NAME else name]
        rated = re.search(rf"rate\({name}(\{{[^}}]*\}})?\[", query) is not None
        if rated:
            assert metric.kind in ("counter", "histogram")
    known = {label for metric in CATALOGUE for label in metric.labels} | {"job", "instance"}
    for inside in re.findall(r"\{([^}]*)\}", query):
        assert set(re.findall(r"(\w+)=~?", inside)) <= known
    for grouped in re.findall(r"(?:without|ignoring) \(([^)]*)\)", query):
        assert set(grouped.split(", ")) <= known
    for opening, closing in ("()", "[]", "{}"):
        assert query.count(opening) == query.count(closing)


def test_the_dashboard_is_laid_out_without_overlap() -> None:
    """Panels have their own ids and places, stay within the grid, and every query has its selector."""
    board = dashboard()
    assert json.loads(json.dumps(board)) == board
    placed = board["panels"]
    assert len(placed) == len(panels())
    assert len({panel["id"] for panel in placed}) == len(placed)
    cells: set[tuple[int, int]] = set()
    for panel in placed:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & own
        cells |= own
        assert panel["description"]
        for target in panel["targets"]:
            names = re.findall(r"loopopt_\w+", target["expr"])
            assert target["expr"].count('{job=~"$job",instance=~"$instance"') == len(names)


def test_every_metric_is_on_the_dashboard_or_left_out_knowingly() -> None:
    """A new metric is shown, or listed here."""
    left_out = {
        "loopopt_build_info",  # feeds the dashboard's variables
        "loopopt_sampled_steps_total",
        "loopopt_trace_bytes_total",
        "loopopt_trace_last_success_timestamp_seconds",
        "loopopt_loop_phase",
        "loopopt_messages_refused_total",
        "loopopt_rank_exposed_communication_seconds_total",
        "loopopt_rank_sampled_seconds_total",
        "loopopt_rank_skew_seconds_total",
        "loopopt_recompile_seconds_total",  # by the rule for the payback
    }
    shown = " ".join(query for panel in panels() for query, _ in panel.queries)
    missing = {metric.name for metric in CATALOGUE if metric.name not in shown}
    assert missing == left_out


COMMUNICATION = "loopopt_communication_seconds_total"
EXPOSED = "loopopt_exposed_communication_seconds_total"
RULES_INPUT = {
    'loopopt_sampled_seconds_total{instance="a"}': "0+10x60",
    'loopopt_compute_seconds_total{instance="a"}': "0+6x60",
    COMMUNICATION + '{instance="a",collective="all_gather",group="0"}': "0+4x60",
    COMMUNICATION + '{instance="a",collective="all_reduce",group="1"}': "0+1x60",
    EXPOSED + '{instance="a",collective="all_gather",group="0"}': "0+2x60",
    EXPOSED + '{instance="a",collective="all_gather",group="1"}': "0+0.25x60",
    EXPOSED + '{instance="a",collective="all_reduce",group="1"}': "0+0.25x60",
    'loopopt_sampled_seconds_total{instance="idle"}': "7x60",
    'loopopt_baseline_step_seconds{instance="a"}': "0.4x60",
    'loopopt_current_step_seconds{instance="a"}': "0.3x60",
    'loopopt_predicted_step_seconds{instance="a"}': "0.33x60",
    'loopopt_baseline_step_seconds{instance="slower"}': "0.4x60",
    'loopopt_current_step_seconds{instance="slower"}': "0.5x60",
    'loopopt_recompile_seconds_total{instance="a"}': "20x60",
    'loopopt_recompile_seconds_total{instance="slower"}': "20x60",
    'loopopt_agent_seconds_total{instance="a"}': "0+0.12x60",
    'loopopt_registered_ranks{instance="a",state="live"}': "2x60",
    'loopopt_registered_ranks{instance="a",state="lost"}': "1x60",
}
RULES_EXPECTED = {
    "instance:loopopt_exposed_communication:ratio_rate30m": {'instance="a"': 0.25},
    "instance_collective:loopopt_exposed_communication:ratio_rate30m": {
        'instance="a",collective="all_gather"': 0.225,
        'instance="a",collective="all_reduce"': 0.025,
    },
    "instance:loopopt_communication:ratio_rate30m": {'instance="a"': 0.5},
    "instance:loopopt_compute:ratio_rate30m": {'instance="a"': 0.6},
    "instance:loopopt_overlap:ratio_rate30m": {'instance="a"': 0.5},
    "instance:loopopt_realised_gain:ratio": {'instance="a"': 0.25, 'instance="slower"': -0.25},
    "instance:loopopt_prediction_error:ratio": {'instance="a"': 0.1},
    "instance:loopopt_recompile_payback:steps": {'instance="a"': 200.0},
    "instance:loopopt_agent:ratio_rate5m": {'instance="a"': 0.001},
}


def test_rules_give_the_right_ratios(tmp_path: Path) -> None:
    """Known series in, known ratios out; an instance that takes no traces has no ratio rather than a wrong one."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not on PATH (it comes with Prometheus)")
    assert set(RULES_EXPECTED) == {rule.record for rule in recording_rules()}
    text = "rule_files: [rules.yaml]\nevaluation_interval: 1m\ntests:\n  - interval: 1m\n    input_series:\n"
    text += "".join(f"      - {{series: '{name}', values: '{values}'}}\n" for name, values in RULES_INPUT.items())
    text += "    promql_expr_test:\n"
    for record, expected in RULES_EXPECTED.items():
        # Rounded inside the query: the comparison is exact and the rates are not.
        text += f"      - expr: 'round({record}, 0.0001)'\n        eval_time: 45m\n        exp_samples:\n"
        text += "".join(
            f"          - {{labels: '{{{labels}}}', value: {value}}}\n" for labels, value in expected.items()
        )
    (tmp_path / "rules.yaml").write_text(rules_file())
    (tmp_path / "test.yaml").write_text(text)
    done = subprocess.run(
        [promtool, "test", "rules", "test.yaml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_files_are_where_people_look() -> None:
    """The generated files' paths are part of what is shipped."""
    assert set(generated_files()) == {"docs/metrics.md", "grafana/exposed-communication.json", "grafana/rules.yaml"}

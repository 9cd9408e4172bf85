"""Documentation, dashboard and recording rules are current, and only speak of metrics that exist."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from loopopt.export.alerts import RUNBOOKS, alerts
from loopopt.export.boards import boards
from loopopt.export.catalogue import BY_NAME, CATALOGUE
from loopopt.export.docs import metrics_page
from loopopt.export.generate import generated_files, stale_files, write_files
from loopopt.export.panels import Board, board_json
from loopopt.export.rules import recording_rules, rules_file

ROOT = Path(__file__).parents[3]
PANELS = [panel for board in boards() for panel in board.panels]
MARKS = [mark.query for board in boards() for mark in board.marks]
QUERIES = [rule.expr for rule in recording_rules()] + [query for panel in PANELS for query, _ in panel.queries] + MARKS


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
        metric = BY_NAME[name if name in BY_NAME else name.removesuffix("_bucket").removesuffix("_count")]
        rated = re.search(rf"rate\({name}(\{{[^}}]*\}})?\[", query) is not None
        if rated:
            assert metric.kind in ("counter", "histogram")
    known = {label for metric in CATALOGUE for label in metric.labels} | {"job", "instance"}
    query = query.replace("group_left ()", "").replace("group_right ()", "")
    for inside in re.findall(r"\{([^}]*)\}", query):
        assert set(re.findall(r"(\w+)=~?", inside)) <= known
    for grouped in re.findall(r"(?:without|ignoring) \(([^)]*)\)", query):
        assert set(grouped.split(", ")) <= known
    for opening, closing in ("()", "[]", "{}"):
        assert query.count(opening) == query.count(closing)


@pytest.mark.parametrize("board", boards(), ids=lambda board: board.name)
def test_a_board_is_laid_out_without_overlap(board: Board) -> None:
    """Panels have their own ids and places, stay within the grid, and say what they show in which unit."""
    written = board_json(board)
    assert json.loads(json.dumps(written)) == written
    placed = written["panels"]
    assert len(placed) == len(board.panels)
    assert len({panel["id"] for panel in placed}) == len({panel["title"] for panel in placed}) == len(placed)
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
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["targets"]


@pytest.mark.parametrize("board", boards(), ids=lambda board: board.name)
def test_what_is_chosen_is_what_is_shown(board: Board) -> None:
    """Every query is narrowed by the chosen job or its nodes, and uses only variables the board or Grafana has."""
    names = {"datasource", "__rate_interval", *(variable.name for variable in board.variables)}
    assert {"job", "window"} <= names
    for query in [query for panel in board.panels for query, _ in panel.queries] + [mark.query for mark in board.marks]:
        assert set(re.findall(r"\$(\w+)", query)) <= names
        if board.name == "fleet":
            assert 'training_job=~"$job"' in query
        else:
            metrics = re.findall(r"loopopt_\w+", query)
            assert query.count('{instance=~"$instance"') == len(metrics)


def test_addresses_of_the_boards_never_change() -> None:
    """People's links and bookmarks carry these."""
    assert {board.name: board.uid for board in boards()} == {
        "fleet": "loopopt-fleet",
        "job": "loopopt-job",
        "loop": "loopopt-loop",
    }


def test_every_metric_is_on_a_dashboard() -> None:
    """A new metric is shown somewhere."""
    shown = " ".join(query for panel in PANELS for query, _ in panel.queries)
    assert {metric.name for metric in CATALOGUE if metric.name not in shown} == set()


def test_every_alert_has_its_page_and_uses_series_that_exist() -> None:
    """One page per alert and no other; names in the queries are metrics or recording rules."""
    pages = {path.stem for path in (ROOT / RUNBOOKS).glob("*.md")}
    assert pages == {alert.name for alert in alerts()}
    recorded = {rule.record for rule in recording_rules()}
    for alert in alerts():
        page = (ROOT / RUNBOOKS / f"{alert.name}.md").read_text()
        assert page.startswith(f"# {alert.name}\n")
        assert "**Do.**" in page or "what to do" in page
        rules = set(re.findall(r"instance[\w]*:[\w:]+", alert.expr))
        assert rules <= recorded
        assert set(re.findall(r"(?<![:\w])loopopt_\w+", alert.expr)) <= set(BY_NAME)


def test_alerts_fire_and_stay_silent() -> None:
    """Each alert is seen firing with all it says, and silent where all is well or the trouble is short."""
    yaml = pytest.importorskip("yaml")
    path = ROOT / "grafana" / "tests" / "alerts.test.yaml"
    silent, firing = (part["alert_rule_test"] for part in yaml.safe_load(path.read_text())["tests"])
    names = {alert.name for alert in alerts()}
    assert {case["alertname"] for case in silent if not case["exp_alerts"]} == names
    assert {case["alertname"] for case in firing if case["exp_alerts"]} == names
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not on PATH (it comes with Prometheus)")
    done = subprocess.run([promtool, "test", "rules", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_provisioning_files_are_as_grafana_reads_them() -> None:
    """A provider of dashboards and a data source."""
    yaml = pytest.importorskip("yaml")
    folder = ROOT / "grafana" / "provisioning"
    (provider,) = yaml.safe_load((folder / "dashboards" / "loopopt.yaml").read_text())["providers"]
    assert (provider["type"], provider["options"]["path"]) == ("file", "/etc/grafana/dashboards/loopopt")
    (source,) = yaml.safe_load((folder / "datasources" / "prometheus.yaml").read_text())["datasources"]
    assert source["type"] == "prometheus"


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
    'loopopt_skew_seconds_total{instance="a"}': "0+0.5x60",
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
    "instance:loopopt_skew:ratio_rate30m": {'instance="a"': 0.05},
    "instance:loopopt_overlap:ratio_rate30m": {'instance="a"': 0.5},
    "instance:loopopt_realised_gain:ratio": {'instance="a"': 0.25, 'instance="slower"': -0.25},
    "instance:loopopt_prediction_error:ratio": {'instance="a"': 0.1},
    "instance:loopopt_recompile_payback:steps": {'instance="a"': 200.0, 'instance="slower"': math.inf},
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
            f"          - {{labels: '{{{labels}}}', value: {'.inf' if value == math.inf else value}}}\n"
            for labels, value in expected.items()
        )
    (tmp_path / "rules.yaml").write_text(rules_file())
    (tmp_path / "test.yaml").write_text(text)
    done = subprocess.run(
        [promtool, "test", "rules", "test.yaml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_files_are_where_people_look() -> None:
    """The generated files' paths are part of what is shipped."""
    assert set(generated_files()) == {
        "docs/metrics.md",
        "grafana/alerts.yaml",
        "grafana/rules.yaml",
        "grafana/dashboards/fleet.json",
        "grafana/dashboards/job.json",
        "grafana/dashboards/loop.json",
    }

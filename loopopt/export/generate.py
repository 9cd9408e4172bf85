"""Writes the files made from the catalogue: ``python -m loopopt.export.generate [--check] [ROOT]``."""

from __future__ import annotations

import sys
from pathlib import Path

from loopopt.export.alerts import alerts_file
from loopopt.export.boards import boards
from loopopt.export.docs import metrics_page
from loopopt.export.panels import board_file
from loopopt.export.rules import rules_file


def generated_files() -> dict[str, str]:
    """Text of each generated file by its path from the repository's root."""
    return {
        "docs/metrics.md": metrics_page(),
        "grafana/alerts.yaml": alerts_file(),
        "grafana/rules.yaml": rules_file(),
        **{f"grafana/dashboards/{board.name}.json": board_file(board) for board in boards()},
    }


def stale_files(root: Path) -> list[str]:
    """Generated files that are missing or not as they would be generated now."""
    stale = []
    for name, text in generated_files().items():
        path = root / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
    return stale


def write_files(root: Path) -> None:
    """Bring the generated files up to date."""
    for name, text in generated_files().items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _main(arguments: list[str]) -> int:
    roots = [Path(argument) for argument in arguments if argument != "--check"] or [Path.cwd()]
    if "--check" in arguments:
        stale = stale_files(roots[0])
        for name in stale:
            print(f"{name} is not current: run `python -m loopopt.export.generate`", file=sys.stderr)
        return 1 if stale else 0
    write_files(roots[0])
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))

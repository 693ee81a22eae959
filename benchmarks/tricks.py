"""What each trick brings: `tenfold tricks` in a clone; its tables go to README.md, its plots to docs/."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys

import lab

KNOWN = ".tenfold/tricks.jsonl"


def main() -> None:
    """Measure, and publish. What was measured here before with the same code is not measured again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="trainings of each row")
    parser.add_argument("names", nargs="*", help="of rows or tables in tricks.yaml; none: all")
    chosen = parser.parse_args()
    with lab.checkout() as project:
        if (known := lab.PROJECT / KNOWN).exists():
            (project.root / KNOWN).parent.mkdir(exist_ok=True)
            shutil.copy(known, project.root / KNOWN)
        command = [sys.executable, "-m", "tenfold", "tricks", *chosen.names, "--seeds", str(chosen.seeds)]
        try:
            status = subprocess.run(command, cwd=project.root, env=lab.clean_environment(), check=False).returncode
        finally:
            if (project.root / KNOWN).exists():
                (lab.PROJECT / KNOWN).parent.mkdir(exist_ok=True)
                shutil.copy(project.root / KNOWN, lab.PROJECT / KNOWN)
        report = project.root / "reports/tricks"
        tables = (report / "tricks.md").read_text(encoding="utf-8")
        text = f"Machine: {lab.machine()}. Trainings of each row: {chosen.seeds}."
        lab.put("tricks", f"{text}\n\n{tables}", lab.PROJECT / "README.md")
        for plot in report.glob("*.png"):
            shutil.copy(plot, lab.PROJECT / "docs" / f"measured_{plot.name}")
    sys.exit(status)


if __name__ == "__main__":
    main()

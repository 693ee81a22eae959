"""`tenfold tricks`: real trainings in processes of their own, a real store, and the arithmetic of its tables."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tenfold import processes
from tenfold.errors import TenfoldError
from tenfold.measure import cells, table
from tenfold.measure.cells import Cell
from tenfold.params import Params
from tenfold.tracking import provenance
from tests.checkout import PROJECT, Checkout, Pipeline

SHIPPED = Params.load(PROJECT / "params.yaml")

SMALL = """
base: {train.max_epochs: 1, model.width: 4, train.learning_rate: 0.01, train.batch_size: 64, train.precision: 32-true}
tricks:
  cyclic rate: {train.schedule.name: cyclic}
  too much: {train.batch_size: 5000}
ladder:
  start: {train.max_epochs: 1}
  rungs: {plain: {}}
"""


def test_what_is_shipped_fits_the_settings() -> None:
    found = cells.load(SHIPPED, PROJECT / "tricks.yaml")
    names = [cell.name for cell in found if cell.table == cells.TRICKS]
    assert names[0] == "base"
    assert len(names) == len(set(names)) > 20
    ladder = [(cell.name, cell.compared_with) for cell in found if cell.table == cells.LADDER]
    assert ladder == [
        ("plain", None),
        ("+ SWA", "plain"),
        ("+ cyclic rate, moved once per epoch", "+ SWA"),
        ("+ cyclic rate", "+ SWA"),
        ("+ learning-rate finder", "+ cyclic rate"),
    ]
    by_name = {cell.name: cell.params.train for cell in found}
    assert by_name["+ learning-rate finder"].swa.start == by_name["+ SWA"].swa.start is not None
    assert by_name["+ learning-rate finder"].schedule.interval == "step"
    assert by_name["+ cyclic rate, moved once per epoch"].schedule.interval == "epoch"
    base = by_name["base"].model_dump()
    for name in names[1:]:
        assert by_name[name].model_dump() != base or name.startswith(("evaluation", "the article's")), name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("base: {train.max_epoch: 1}\ntricks: {}\nladder: {start: {}, rungs: {}}", "did you mean train.max_epochs?"),
        ("base: {train.max_epochs: 0}\ntricks: {}\nladder: {start: {}, rungs: {}}", "greater than or equal to 1"),
        ("base: {}\ntricks: {a: {against: b}}\nladder: {start: {}, rungs: {}}", "a: against: there is no row 'b'"),
        ("base: {}", "should have `base`, `tricks` and `ladder`"),
        ("base: [", "should have `base`, `tricks` and `ladder`"),
    ],
)
def test_a_file_that_asks_for_what_cannot_be(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "tricks.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(TenfoldError) as raised:
        cells.load(SHIPPED, file)
    assert str(raised.value).startswith(str(file))
    assert message in str(raised.value)


def test_rows_bring_along_what_they_are_compared_with() -> None:
    found = cells.load(SHIPPED, PROJECT / "tricks.yaml")
    assert [cell.name for cell in cells.choose(found, ["SWA"])] == ["base", "SWA"]
    assert [cell.name for cell in cells.choose(found, ["early stopping of 12"])] == [
        "base",
        "12 epochs",
        "early stopping of 12",
    ]
    assert {cell.table for cell in cells.choose(found, ["ladder"])} == {cells.LADDER}
    with pytest.raises(TenfoldError, match=r"'EMMA' is none of them; did you mean 'EMA'\?"):
        cells.choose(found, ["EMMA"])


def test_an_effect_is_a_mean_of_pairs_with_students_interval() -> None:
    clear = table.Effect.of([1.0, 2.0, 3.0])
    assert clear.mean == 2.0
    reach = 4.302653 / math.sqrt(3)  # t of 2 degrees of freedom, 97.5 %
    assert (clear.low, clear.high) == pytest.approx((2 - reach, 2 + reach), rel=1e-6)
    assert clear.is_none
    assert str(clear) == "+2.00 (-0.48 to +4.48): no effect here"
    assert not table.Effect.of([1.9, 2.0, 2.1]).is_none
    assert str(table.Effect.of([0.5])) == "+0.50 (n=1)"


def test_the_table_compares_the_same_seeds() -> None:
    base, trick = Cell("tricks", "base", SHIPPED, None), Cell("tricks", "trick", SHIPPED, "base")

    def result(seconds: float, accuracy: float) -> dict[str, float]:
        return {
            "fit_s": seconds,
            "samples_per_s": 1000.0,
            "memory_mb": 100.0,
            "evaluate_s": 0.5,
            "val_acc": accuracy,
            "test_acc": accuracy,
        }

    found = {
        (base, 0): result(1.0, 0.90),
        (base, 1): result(2.0, 0.95),
        (trick, 0): result(2.0, 0.91),
        (trick, 1): result(4.0, 0.96),
        (trick, 2): result(9.0, 0.10),  # no pair: base has no such seed
    }
    rows = list(table.rows("tricks", [base, trick], found))
    assert rows[0] == [
        *["base", "2", "1.50 ± 0.71", "", "1,000 ± 0", "100 ± 0", "0.50 ± 0.00", "92.50 ± 3.54", "92.50 ± 3.54", ""]
    ]
    assert rows[1][:4] == ["trick", "3", "5.00 ± 3.61", "×2.00 (2.00 to 2.00)"]
    assert rows[1][-1] == "+1.00 (+1.00 to +1.00)"


def test_a_time_that_may_as_well_be_the_same_is_no_effect() -> None:
    assert table._times([0.9, 1.3]).endswith(": no effect here")
    assert table._times([0.50, 0.51]) == "×0.50 (0.45 to 0.57)"
    assert table._times([2.0]) == "×2.00 (n=1)"


def test_the_table_in_markdown() -> None:
    base = Cell("tricks", "base", SHIPPED, None)
    numbers = dict.fromkeys(("fit_s", "samples_per_s", "memory_mb", "evaluate_s", "val_acc", "test_acc"), 0.5)
    text = table.markdown([base], {(base, 0): numbers})
    assert [line.count("|") for line in text.splitlines() if line.startswith("|")] == [len(table.COLUMNS) + 1] * 3


@pytest.fixture
def checkout(pipeline: Pipeline) -> Checkout:
    """The project, with few things to measure."""
    (pipeline.checkout.root / "tricks.yaml").write_text(SMALL, encoding="utf-8")
    return pipeline.checkout


def test_trainings_are_measured_once_recorded_and_one_that_fails_is_told(checkout: Checkout) -> None:
    before = checkout.runs("tenfold"), checkout.read("params.yaml")
    output = checkout.tenfold("tricks", "--seeds", "1", status=1, OMP_NUM_THREADS="1")
    assert "tricks: 4 trainings, of which 0 are measured already" in output
    assert "tricks: too much, seed 0: error: train.batch_size: 5000 is over the" in output
    assert "tricks: 1 of 4 trainings failed" in output
    again = checkout.tenfold("tricks", "cyclic rate", "--seeds", "1", OMP_NUM_THREADS="1")
    assert "tricks: 2 trainings, of which 2 are measured already" in again
    assert (checkout.runs("tenfold"), checkout.read("params.yaml")) == before

    report = checkout.root / "reports/tricks"
    assert sorted(file.name for file in report.iterdir()) == ["results.csv", "tricks.md", "tricks.png"]
    assert "| cyclic rate | 1 |" in (report / "tricks.md").read_text()
    client = checkout.client()
    runs = [client.get_run(run) for run in checkout.runs("tenfold-tricks")]
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    assert [run.info.status for run in parents] == ["FINISHED", "FINISHED"]
    assert all(processes.is_gone(run.data.tags[provenance.PROCESS]) for run in runs)  # `runs.tidy` ends such a run
    children = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == parents[-1].info.run_id]
    assert sorted(run.info.status for run in children) == ["FAILED", "FINISHED", "FINISHED", "FINISHED"]
    (cyclic,) = [run for run in children if run.data.tags["tenfold.trick"] == "cyclic rate"]
    assert cyclic.data.params["train.schedule.name"] == "cyclic"
    assert 0.1 < cyclic.data.metrics["test_acc"] <= 1
    assert cyclic.data.metrics["fit_s"] > 0
    checkout.run("git", "checkout", "-q", "tricks.yaml")
    shutil.rmtree(report)


def test_shipped_tricks_are_yaml_in_order() -> None:
    document = YAML(typ="safe").load((PROJECT / "tricks.yaml").read_text())
    assert list(document) == ["base", "tricks", "ladder"]

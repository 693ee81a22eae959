from pathlib import Path

import pytest

from tenfold.data.summary import Summary
from tenfold.errors import TenfoldError
from tenfold.training.history import History, read
from tests.training.test_training import fit, settings

ROWS = [
    {"epoch": 0, "step": 10, "lr": 0.01, "train/loss": 0.123457, "train/acc": 0.8, "val/loss": 0.2, "val/acc": 0.9},
    {"epoch": 1, "step": 20, "lr": 5e-7, "train/loss": 0.1, "train/acc": 0.9, "val/loss": 0.2, "val/acc": 0.91},
]


def test_rows_are_written_and_read(tmp_path: Path) -> None:
    history = History()
    history.load_state_dict({"rows": ROWS})
    history.write(tmp_path / "history.csv")
    assert (tmp_path / "history.csv").read_text() == (
        "epoch,step,lr,train/loss,train/acc,val/loss,val/acc\n"
        "0,10,0.01,0.123457,0.8,0.2,0.9\n"
        "1,20,5e-07,0.1,0.9,0.2,0.91\n"
    )
    assert read(tmp_path / "history.csv") == ROWS
    assert history.state_dict() == {"rows": ROWS}


def test_each_epoch_is_announced_with_all_its_values(stripes: Summary, tmp_path: Path) -> None:
    announced: list[dict[str, float]] = []
    _, history = fit(settings(max_epochs=2), stripes, tmp_path / "kept", History(announced.append))
    assert announced == history.rows
    assert [list(row) for row in history.rows] == [list(ROWS[0])] * 2
    assert all(round(value, 6) == value for row in history.rows for value in list(row.values())[3:])


def test_a_file_that_is_no_history_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "history.csv"
    for content in (None, "junk", "epoch,step\n0,x\n"):
        if content is not None:
            file.write_text(content)
        with pytest.raises(TenfoldError, match=r"history\.csv: is no history of a training .*dvc repro train"):
            read(file)

from pathlib import Path

from tenfold.training.history import History, read


def test_one_row_per_epoch_from_what_lightning_sends(tmp_path: Path) -> None:
    announced: list[dict[str, float]] = []
    history = History(announced.append)
    history.log_metrics({"lr": 0.5}, step=3)  # in mid-epoch: no part of the history
    for epoch in (0, 1):
        last = 10 * (epoch + 1) - 1
        history.log_metrics({"val/loss": 0.2, "val/acc": 0.9 + epoch / 100, "epoch": epoch}, step=last)
        speed = {"throughput/samples_per_s": 123.4, "lr": 0.01}
        history.log_metrics(speed | {"train/loss": 0.12345678, "train/acc": 0.8, "epoch": epoch}, step=last)
    history.write(tmp_path / "history.csv")
    assert (tmp_path / "history.csv").read_text() == (
        "epoch,step,lr,train/loss,train/acc,val/loss,val/acc\n"
        "0,10,0.01,0.123457,0.8,0.2,0.9\n"
        "1,20,0.01,0.123457,0.8,0.2,0.91\n"
    )
    assert announced == history.rows
    assert read(tmp_path / "history.csv") == history.rows

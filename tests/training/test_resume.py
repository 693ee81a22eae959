"""Interrupted trainings go on where they stopped, and end as if nothing had happened."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import psutil
import pytest
import torch
from benchmarks.fault_injection import REPRO, Started, sha256, untrained
from pytorch_lightning import Callback, LightningModule, Trainer

from tenfold import paths
from tenfold.data.summary import Summary
from tenfold.errors import TenfoldError
from tenfold.params import EarlyStopping, Params
from tenfold.training import resume
from tests.checkout import PROJECT, Pipeline
from tests.training.test_training import fit, settings, weights


class PowerCut(Callback):
    """Ends the training in mid-epoch, or after the last epoch's checkpoint."""

    def __init__(self, epoch: int, batch: int | None = None) -> None:
        self.place = epoch, batch

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: object) -> None:
        if self.place == (trainer.current_epoch, args[-1]):
            raise ZeroDivisionError

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.place == (trainer.current_epoch - 1, None):
            raise ZeroDivisionError


@pytest.mark.parametrize(
    ("changes", "cuts"),
    [
        ({"max_epochs": 4}, [PowerCut(0, 3), PowerCut(1, 9), PowerCut(3, 0), PowerCut(3)]),
        ({"num_workers": 2}, [PowerCut(1, 3)]),  # workers ask for the first batches before Lightning names the epoch
        ({"accumulate_grad_batches": 3, "save_top_k": 2, "monitor": "val/loss"}, [PowerCut(1, 3)]),
        ({"max_epochs": 6, "early_stopping": EarlyStopping(patience=1, min_delta=0.9)}, [PowerCut(1, 3), PowerCut(1)]),
    ],
)
def test_resumed_is_the_same_as_never_stopped(
    stripes: Summary, tmp_path: Path, changes: dict[str, object], cuts: list[PowerCut]
) -> None:
    params = settings(**changes)
    module, history = fit(params, stripes, tmp_path / "whole")
    for cut in cuts:
        with pytest.raises(ZeroDivisionError):
            fit(params, stripes, tmp_path / "cut", None, cut)
    resumed, resumed_history = fit(params, stripes, tmp_path / "cut")
    assert torch.equal(weights(resumed), weights(module))
    assert resumed_history.rows == history.rows
    best = {path.name: path for path in (tmp_path / "cut").glob("*-best.ckpt")}
    assert sorted(best) == sorted(path.name for path in (tmp_path / "whole").glob("*-best.ckpt"))
    for name, path in best.items():
        kept, expected = (torch.load(one, weights_only=True) for one in (path, tmp_path / "whole" / name))
        assert all(torch.equal(kept["state_dict"][key], value) for key, value in expected["state_dict"].items())


def test_a_damaged_checkpoint_is_passed_over(
    stripes: Summary, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    params, folder = settings(), tmp_path / "cut"
    _, history = fit(params, stripes, tmp_path / "whole")
    with pytest.raises(ZeroDivisionError):
        fit(params, stripes, folder, None, PowerCut(2, 3))
    files = sorted(folder.glob("*-last.ckpt"))
    assert [file.name for file in files] == ["00000-last.ckpt", "00001-last.ckpt"]

    os.truncate(files[1], files[1].stat().st_size // 2)
    shutil.copytree(folder, tmp_path / "worse")
    _, resumed = fit(params, stripes, folder)
    said = capsys.readouterr().out
    assert "train: 00001-last.ckpt of an interrupted training cannot be used (" in said
    assert "train: resuming after epoch 1" in said
    assert resumed.rows == history.rows

    for file in (tmp_path / "worse").iterdir():
        file.write_bytes(b"")
    assert resume.newest_checkpoint(tmp_path / "worse") == (None, 0)
    _, anew = fit(params, stripes, tmp_path / "worse")
    assert anew.rows == history.rows


def test_a_signal_in_the_middle_of_a_write_stays_that_signal(tmp_path: Path) -> None:
    def handle(*args: object) -> None:
        raise KeyboardInterrupt

    class Slow:
        def __reduce__(self) -> tuple[type, tuple[()]]:
            os.kill(os.getpid(), signal.SIGUSR1)
            return Slow, ()

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with pytest.raises(KeyboardInterrupt):
            resume.CheckpointFiles().save_checkpoint({"slow": Slow()}, tmp_path / "x.ckpt")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: all that the key reads."""
    for name in ("src", "dvc.yaml", "params.yaml"):
        (tmp_path / name).symlink_to(PROJECT / name)
    for file in (paths.SUMMARY, paths.TUNE_RESULT):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    return tmp_path


def test_the_key_is_made_of_all_that_shapes_the_weights(home: Path) -> None:
    params = Params.load()
    keys = [resume.key(params)]
    assert resume.key(params) == keys[0]
    keys.append(resume.key(params.model_copy(update={"seed": 43})))
    keys.append(resume.key(settings(max_epochs=7)))
    keys.append(resume.key(settings(precision="64-true")))
    paths.SUMMARY.write_text('{"mean": [0.5]}')
    keys.append(resume.key(params))
    paths.TUNE_RESULT.write_text('{"learning_rate": {"value": 0.5}}')
    keys.append(resume.key(params))
    (home / "src").unlink()
    shutil.copytree(PROJECT / "src", home / "src")
    assert resume.key(params) == keys[-1]
    with (home / "src/tenfold/data/augment.py").open("a") as file:
        file.write("\n")
    keys.append(resume.key(params))
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        keys.append(resume.key(params))
    finally:
        torch.set_num_threads(threads)
    assert len(set(keys)) == len(keys)
    evaluate = params.evaluate.model_copy(update={"mistakes": 1})
    assert resume.key(params.model_copy(update={"evaluate": evaluate})) == keys[-2]


def test_the_folder_stays_after_a_failure_and_goes_after_success(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    params = Params.load()
    folder = home / ".tenfold/resume" / resume.key(params)

    def fail() -> None:
        with resume.resume_folder(params) as own:
            assert own == folder
            (own / "x").write_bytes(bytes(1_500_000))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with resume.resume_folder(params.model_copy(update={"seed": 43})) as other:
        assert other != folder
    kept = f"train: 1 interrupted training(s) of other settings kept in {folder.parent} (1.5 MB)"
    assert kept in capsys.readouterr().out
    with resume.resume_folder(params) as again:
        assert (again / "x").exists()
    assert not again.exists()
    assert not [path for path in folder.parent.iterdir() if path.is_dir()]


def test_one_process_at_a_time(home: Path) -> None:
    with (
        resume.resume_folder(Params.load()),
        pytest.raises(TenfoldError, match="another process is at this very training"),
        resume.resume_folder(Params.load()),
    ):
        pass


def test_ctrl_c_then_dvc_repro_goes_on(pipeline: Pipeline) -> None:
    """Real processes: Ctrl+C at `dvc repro` in mid-training; before that a second process at the same training."""
    checkout = pipeline.checkout
    lock, expected, runs = checkout.read("dvc.lock"), sha256(checkout), set(checkout.runs("tenfold"))
    with untrained(checkout):
        started = Started(checkout, "dvc", "repro", "--downstream", "train")
        stage = started.wait_for_stage()
        resumable = checkout.root / resume.FOLDERS
        while not list(resumable.glob("*/*-last.ckpt")):
            assert stage.is_running(), started.output()
            time.sleep(0.005)
        stage.suspend()
        assert "epoch 4/" not in started.output(), "the training was over before it could be suspended"
        assert "another process is at this very training" in checkout.tenfold("train", status=1)
        os.killpg(started.process.pid, signal.SIGINT)  # comes to the stage when that goes on: no epoch can end before
        stage.resume()
        assert psutil.wait_procs([stage], timeout=5)[0], "the stage takes more than 5 s to end"
        assert started.process.wait(30) != 0
        assert "Running stage 'evaluate'" not in started.output()

        output = checkout.run(*REPRO)
    assert "train: resuming after epoch " in output
    assert "epoch 1/" not in output
    assert sha256(checkout) == expected
    assert checkout.read("dvc.lock") == lock
    assert len(set(checkout.runs("tenfold")) - runs) == 1
    assert not [path for path in resumable.iterdir() if path.is_dir()]

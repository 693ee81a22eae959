import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tenfold.errors import TenfoldError
from tenfold.modeling.checkpoint import load_network, save
from tenfold.modeling.networks import NetworkSpec, build

SPEC = NetworkSpec("compact", 8, 0.0, 1, (28, 28), tuple("0123456789"), mean=(0.1307,), std=(0.3081,))


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_round_trip(tmp_path: Path) -> None:
    network = build(SPEC).eval()
    save(tmp_path / "a.ckpt", network, SPEC, {"seed": 1})
    loaded, spec = load_network(tmp_path / "a.ckpt")
    assert spec == SPEC
    assert not loaded.training
    images = torch.randint(0, 256, (2, 1, 28, 28), dtype=torch.uint8)
    assert torch.equal(loaded(images), network(images))


def test_same_content_same_bytes_whatever_the_name_or_memory_layout(tmp_path: Path) -> None:
    network = build(SPEC)
    save(tmp_path / "a.ckpt", network, SPEC, {"seed": 1})
    network.to(memory_format=torch.channels_last)
    save(tmp_path / "other name.ckpt", network, SPEC, {"seed": 1})
    assert sha256(tmp_path / "a.ckpt") == sha256(tmp_path / "other name.ckpt")
    assert str(tmp_path).encode() not in (tmp_path / "a.ckpt").read_bytes()


def test_other_weights_other_bytes(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 2)):
        torch.manual_seed(seed)
        save(tmp_path / name, build(SPEC), SPEC, {})
    assert sha256(tmp_path / "a") != sha256(tmp_path / "b")


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(TenfoldError, match=r"none\.ckpt: missing. Make it: dvc repro train"):
        load_network(tmp_path / "none.ckpt")


@pytest.mark.parametrize("content", [b"", b"no checkpoint at all", b"PK\x03\x04broken"])
def test_foreign_file(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "best.ckpt"
    file.write_bytes(content)
    with pytest.raises(TenfoldError, match=r"best\.ckpt: is no Tenfold checkpoint"):
        load_network(file)


def test_truncated_file(tmp_path: Path) -> None:
    file = tmp_path / "best.ckpt"
    save(file, build(SPEC), SPEC, {})
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(TenfoldError, match=r"best\.ckpt: is no Tenfold checkpoint"):
        load_network(file)


def test_somebody_elses_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "best.ckpt"
    torch.save({"state_dict": {}}, file)
    with pytest.raises(TenfoldError, match="is no Tenfold checkpoint"):
        load_network(file)


@pytest.mark.parametrize("other", [{"network": "unheard-of"}, {"network": "article"}, {"width": 16}])
def test_weights_of_another_network(tmp_path: Path, other: dict[str, int | str]) -> None:
    file = tmp_path / "best.ckpt"
    save(file, build(SPEC), replace(SPEC, **other), {})  # type: ignore[arg-type]
    with pytest.raises(TenfoldError, match="holds a network that this version cannot build"):
        load_network(file)


def test_a_file_from_before_test_time_shifts(tmp_path: Path) -> None:
    file = tmp_path / "best.ckpt"
    save(file, build(SPEC), SPEC, {})
    content = torch.load(file, weights_only=True)
    del content["hyper_parameters"]["spec"]["test_time_shift"]
    torch.save(content, file)
    assert load_network(file)[1] == SPEC

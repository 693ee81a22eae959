"""The ONNX file: its promises to readers, its bytes, and the comparison that guards it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx as onnx_format
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from tenfold.errors import TenfoldError
from tenfold.modeling import onnx
from tenfold.modeling.networks import NetworkSpec, PixelNetwork, build

SPEC = NetworkSpec("compact", 4, 0.1, 1, (28, 28), ("zéro", *"123456789"), (0.13,), (0.31,))
COLOUR = NetworkSpec("article", 4, 0.1, 3, (20, 24), ("cat", "dog"), (0.1, 0.2, 0.3), (0.3, 0.3, 0.3))


def trained(spec: NetworkSpec) -> PixelNetwork:
    """A network whose BatchNorm has seen data, so that folding it into the convolutions matters."""
    torch.manual_seed(0)
    network = build(spec)
    network(torch.randint(256, (64, spec.channels, *spec.image_size)).to(torch.uint8))
    return network.eval()


def images(count: int, spec: NetworkSpec = SPEC) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (count, spec.channels, *spec.image_size), dtype=np.uint8)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    onnx.export(trained(SPEC), SPEC, path, 20)
    return path


def test_names_types_shapes_and_operator_set(file: Path) -> None:
    model = onnx_format.load(file)
    onnx_format.checker.check_model(model, full_check=True)
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 20)]
    session = onnxruntime.InferenceSession(file)
    (source,), (target,) = session.get_inputs(), session.get_outputs()
    assert (source.name, source.type, source.shape) == ("images", "tensor(uint8)", ["N", 1, 28, 28])
    assert (target.name, target.type, target.shape) == ("logits", "tensor(float)", ["N", 10])
    for count in (1, 7, 256):
        (logits,) = session.run(None, {"images": images(count)})
        assert logits.shape == (count, 10)


def test_metadata_tells_a_reader_the_rest(file: Path) -> None:
    notes = onnxruntime.InferenceSession(file).get_modelmeta().custom_metadata_map
    assert {key: json.loads(value) for key, value in notes.items()} == {
        "tenfold.format": 2,
        "tenfold.classes": list(SPEC.classes),
        "tenfold.image_shape": [1, 28, 28],
        "tenfold.handwriting": None,
    }


def test_batch_norm_is_folded_into_convolutions_and_dropout_is_gone(file: Path) -> None:
    nodes = onnx_format.load(file).graph.node
    made_by = {name: node.op_type for node in nodes for name in node.output}
    assert "Conv" in made_by.values()
    assert "Dropout" not in made_by.values()
    assert not [node for node in nodes if node.op_type == "BatchNormalization" and made_by[node.input[0]] == "Conv"]


def test_no_paths_or_sources_in_the_file(file: Path) -> None:
    content = file.read_bytes()
    for trace in (
        str(Path.cwd()),
        str(Path(sys.prefix).parent),
        "site-packages",
        ".py",
        "pkg.torch",
        "aten.",
        "+cpu",
        "+cu",
    ):
        assert trace.encode() not in content, trace
    graph = onnx_format.load(file).graph
    parts = [graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer]
    assert not [part for part in parts if part.metadata_props or part.doc_string]


def test_same_bytes_from_another_process_and_folder(file: Path, tmp_path: Path) -> None:
    script = tmp_path / "elsewhere.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from pathlib import Path\n"
        "from test_onnx import SPEC, onnx, trained\n"
        "onnx.export(trained(SPEC), SPEC, Path('other-name'), 20)\n"
    )
    environment = os.environ | {"PYTHONHASHSEED": "7"}
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert (tmp_path / "other-name").read_bytes() == file.read_bytes()
    assert done.stdout == ""
    assert done.stderr == ""


def test_colour_other_network_and_operator_set(tmp_path: Path) -> None:
    network, path = trained(COLOUR).train(), tmp_path / "model.onnx"
    onnx.export(network, COLOUR, path, 18)
    assert network.training, "the caller's network is left as it was"
    assert onnx_format.load(path).opset_import[0].version == 18
    compared = onnx.compare(network, path, images(50, COLOUR), batch_size=16)
    assert (compared.images, compared.different) == (50, 0)
    compared.check()


@pytest.mark.filterwarnings("error")
def test_the_same_network_passes(file: Path) -> None:
    mapped = images(300)
    mapped.setflags(write=False)  # as a memory-mapped file is
    compared = onnx.compare(trained(SPEC), file, mapped, batch_size=128)
    assert compared.images == 300
    assert compared.different == 0
    assert 0 < compared.max_difference < 1e-5
    compared.check()


class Changed(nn.Module):
    """The network of `SPEC` with other logits."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.network, self.change = trained(SPEC), change

    def forward(self, pixels: Tensor) -> Tensor:
        return self.change(self.network(pixels))


def test_logits_a_little_off_are_refused(file: Path) -> None:
    compared = onnx.compare(Changed(lambda logits: logits + 2e-4), file, images(20))
    assert compared.different == 0
    assert compared.max_difference == pytest.approx(2e-4, rel=0.1)
    with pytest.raises(TenfoldError, match=r"0 of 20 predictions differ, logits by up to 0\.0002"):
        compared.check()


def test_other_predictions_are_refused(file: Path) -> None:
    compared = onnx.compare(Changed(lambda logits: logits.flip(1)), file, images(20))
    assert compared.different == 20
    with pytest.raises(TenfoldError, match="20 of 20 predictions differ"):
        replace(compared, max_difference=0.0).check()


def test_nan_is_refused(file: Path) -> None:
    compared = onnx.compare(Changed(lambda logits: logits.log()), file, images(20))
    assert np.isnan(compared.max_difference)
    with pytest.raises(TenfoldError, match="nan"):
        replace(compared, different=0).check()


class Unwritable(nn.Module):
    """Uses an operation that ONNX does not have."""

    def forward(self, pixels: Tensor) -> Tensor:
        values: Tensor = torch.linalg.eigvals(pixels[:, 0].float())
        return values.real


def test_what_onnx_cannot_express_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TenfoldError, match=r"the network 'compact' cannot be written as ONNX: .*eig"):
        onnx.export(Unwritable(), SPEC, tmp_path / "model.onnx", 20)
    assert not list(tmp_path.iterdir())


def test_averaging_over_shifts_is_part_of_the_file(tmp_path: Path) -> None:
    spec = replace(SPEC, test_time_shift=1)
    network = trained(spec)
    onnx.export(network, spec, tmp_path / "shifts.onnx", 20)
    (logits,) = onnxruntime.InferenceSession(tmp_path / "shifts.onnx").run(None, {"images": images(9)})
    with torch.inference_mode():
        expected = network(torch.from_numpy(images(9)))
        network.test_time_shift = 0
        assert not np.allclose(logits, network(torch.from_numpy(images(9))), atol=1e-4)
    np.testing.assert_allclose(logits, expected, atol=1e-4)

"""`models/best.ckpt`: the weights, what the network is built from, the settings of its training, and versions.

Nothing else goes in, so the same training gives the same bytes, and the file's SHA-256 is the model's identity.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tenfold.errors import TenfoldError
from tenfold.modeling.networks import NETWORKS, NetworkSpec, PixelNetwork, build


def save(path: Path, network: nn.Module, spec: NetworkSpec, training: dict[str, Any]) -> None:
    """Write a model to `path`.

    Args:
        path: the file; the same content gives the same bytes under any name.
        network: weights are taken to the CPU, in torch's default memory layout.
        spec: what `network` was built from.
        training: plain values that tell how it was trained (learning rate, optimizer, …).
    """
    weights = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in network.state_dict().items()
    }
    with path.open("wb") as file:  # a file object: given a path, torch writes the file's name into the archive
        torch.save(
            {
                "state_dict": weights,
                "hyper_parameters": {"spec": asdict(spec), "training": training},
                "versions": {"torch": torch.__version__.split("+")[0]},
            },
            file,
        )


def load_network(path: Path) -> tuple[PixelNetwork, NetworkSpec]:
    """Read a model.

    Returns:
        The network, in evaluation mode, and what it was built from.

    Raises:
        TenfoldError: the file is missing, damaged, not one of Tenfold's, or its weights do not fit its network.
    """
    advice = "Make it again: dvc repro -f train"
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        described: dict[str, Any] = dict(content["hyper_parameters"]["spec"])
        weights = content["state_dict"]
    except FileNotFoundError:
        raise TenfoldError(f"{path}: missing. Make it: dvc repro train") from None
    except Exception as error:  # torch raises many kinds for a file that is none of its own
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise TenfoldError(f"{path}: is no Tenfold checkpoint ({type(error).__name__}: {reason}). {advice}") from None
    try:
        spec = NetworkSpec(**described)
        network = build(spec)
        network.load_state_dict(weights)
    except (TypeError, KeyError, RuntimeError) as error:
        raise TenfoldError(
            f"{path}: holds a network that this version cannot build: {described.get('network')!r}; known are "
            f"{', '.join(NETWORKS)}. {str(error).splitlines()[0]} {advice}"
        ) from None
    return network.eval(), spec

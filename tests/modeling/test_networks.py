from dataclasses import replace

import pytest
import torch

from tenfold.modeling.networks import NETWORKS, NetworkSpec, build

MNIST = NetworkSpec("article", 32, 0.1, 1, (28, 28), tuple("0123456789"), mean=(0.1307,), std=(0.3081,))


def parameters(spec: NetworkSpec) -> int:
    return sum(weights.numel() for weights in build(spec).parameters())


def test_article_network_has_the_articles_size() -> None:
    assert parameters(MNIST) == 53_994  # the article says 54.0 K


def test_compact_network_has_the_documented_size() -> None:
    assert parameters(replace(MNIST, network="compact", width=16)) == 61_162


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(("channels", "size", "classes"), [(1, (8, 8), 2), (3, (64, 64), 37), (3, (40, 96), 5)])
def test_any_channels_size_and_number_of_classes(
    network: str, channels: int, size: tuple[int, int], classes: int
) -> None:
    names = tuple(map(str, range(classes)))
    spec = NetworkSpec(network, 8, 0.0, channels, size, names, mean=(0.5,) * channels, std=(0.2,) * channels)
    images = torch.randint(0, 256, (3, channels, *size), dtype=torch.uint8)
    logits = build(spec).eval()(images)
    assert logits.shape == (3, classes)
    assert logits.dtype == torch.float32
    assert torch.isfinite(logits).all()


@pytest.mark.parametrize("network", NETWORKS)
def test_normalisation_is_part_of_the_network(network: str) -> None:
    spec = replace(MNIST, network=network, dropout=0.0)
    torch.manual_seed(0)
    built = build(spec).eval()
    images = torch.randint(0, 256, (4, 1, 28, 28), dtype=torch.uint8)
    by_hand = built.layers((images / 255 - 0.1307) / 0.3081)
    torch.testing.assert_close(built(images), by_hand)
    torch.testing.assert_close(built(images.float()), built(images))


def test_logits_are_float32_under_autocast_and_float64_in_double() -> None:
    built = build(replace(MNIST, network="compact")).eval()
    images = torch.zeros(2, 1, 28, 28, dtype=torch.uint8)
    with torch.autocast("cpu", torch.bfloat16):
        assert built(images).dtype == torch.float32
    assert built.double()(images).dtype == torch.float64


def test_shifts_are_averaged_when_it_is_not_trained() -> None:
    torch.manual_seed(0)
    built = build(replace(MNIST, dropout=0.0, test_time_shift=2))
    images = torch.zeros(3, 1, 28, 28, dtype=torch.uint8)
    images[:, :, 6:22, 6:22] = torch.randint(0, 256, (3, 1, 16, 16), dtype=torch.uint8)
    once = build(replace(MNIST, dropout=0.0))
    once.load_state_dict(built.state_dict())
    shifts = [(0, 0), (2, 0), (-2, 0), (0, 2), (0, -2)]
    by_hand = torch.stack([once.eval()(images.roll(shift, (2, 3))) for shift in shifts]).mean(0)
    torch.testing.assert_close(built.eval()(images), by_hand)
    assert not torch.allclose(by_hand, once(images), atol=1e-4)
    torch.testing.assert_close(built.train()(images), once.train()(images))


def test_what_a_shift_brings_in_repeats_the_border() -> None:
    built = build(replace(MNIST, dropout=0.0, test_time_shift=3)).eval()
    once = build(replace(MNIST, dropout=0.0)).eval()
    once.load_state_dict(built.state_dict())
    even = torch.full((1, 1, 28, 28), 200, dtype=torch.uint8)
    torch.testing.assert_close(built(even), once(even))

import pytest
import torch
import torch.nn.functional as F

from tenfold.data import augment
from tenfold.data.augment import distort


def dot(row: int, column: int, size: int = 9) -> torch.Tensor:
    """One image with one bright pixel."""
    images = torch.zeros(1, 1, size, size, dtype=torch.uint8)
    images[0, 0, row, column] = 255
    return images


def test_nothing_asked_for_is_nothing_done() -> None:
    images = dot(1, 2)
    assert distort(images, shift=0, rotate=0, scale=0, shear=0, elastic=0) is images


def test_each_image_is_changed_by_an_amount_of_its_own_within_the_bounds() -> None:
    torch.manual_seed(0)
    images = dot(8, 8, size=17).expand(500, -1, -1, -1)
    moved = distort(images, shift=3, rotate=0, scale=0, shear=0, elastic=0)
    assert moved.shape == images.shape
    assert moved.dtype == torch.float32
    weights = moved / moved.sum(dim=(2, 3), keepdim=True)
    rows = (weights.sum(dim=3) * torch.arange(17.0)).sum(dim=2).flatten() - 8
    assert rows.abs().max() <= 3.01
    assert rows.min() < -2.5  # the whole range is used, in both directions
    assert rows.max() > 2.5
    assert len(rows.round(decimals=3).unique()) > 400


def test_rotation_turns_about_the_middle() -> None:
    torch.manual_seed(0)
    turned = distort(dot(4, 8).expand(200, -1, -1, -1), shift=0, rotate=90, scale=0, shear=0, elastic=0)
    assert turned[:, 0, 4, 4].max() == 0  # four pixels from the middle, it stays four pixels away
    assert turned[:, 0, 8, 4].max() > 100  # and some have come to the bottom


def test_what_comes_in_from_outside_is_black() -> None:
    torch.manual_seed(0)
    bright = torch.full((50, 1, 8, 8), 200, dtype=torch.uint8)
    shifted = distort(bright, shift=4, rotate=0, scale=0, shear=0, elastic=0)
    assert shifted.min() == 0
    assert shifted.max() <= 200.01


def test_oblong_images_are_not_sheared_by_rotation() -> None:
    torch.manual_seed(1)
    images = torch.zeros(100, 1, 15, 31)
    images[:, :, 7, 19] = 255  # four pixels right of the middle
    turned = distort(images, shift=0, rotate=90, scale=0, shear=0, elastic=0)
    weights = turned / turned.sum(dim=(2, 3), keepdim=True)
    row = (weights.sum(dim=3) * torch.arange(15.0)).sum(dim=2) - 7
    column = (weights.sum(dim=2) * torch.arange(31.0)).sum(dim=2) - 15
    torch.testing.assert_close((row**2 + column**2).sqrt(), torch.full_like(row, 4.0), atol=0.15, rtol=0)


def test_the_same_seed_gives_the_same_images() -> None:
    images = torch.randint(0, 256, (8, 3, 12, 12), dtype=torch.uint8)
    results = []
    for _ in range(2):
        torch.manual_seed(7)
        results.append(distort(images, shift=2, rotate=10, scale=0.1, shear=0, elastic=0))
    assert torch.equal(results[0], results[1])


def test_shear_slants_sideways() -> None:
    torch.manual_seed(0)
    upright = torch.zeros(100, 1, 15, 15)
    upright[:, :, :, 7] = 255
    slanted = distort(upright, shift=0, rotate=0, scale=0, shear=0.5, elastic=0)
    top = (slanted[:, 0, 1] / slanted[:, 0, 1].sum(dim=1, keepdim=True) * torch.arange(15.0)).sum(dim=1) - 7
    assert top.abs().max() <= 3.01  # six rows from the middle, at most half as many columns away
    assert top.max() > 2.5
    assert top.min() < -2.5
    torch.testing.assert_close(slanted[:, 0, 7], upright[:, 0, 7], atol=0.01, rtol=0)


def test_nothing_depends_on_how_many_are_changed_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.randint(0, 256, (7, 3, 9, 8), dtype=torch.uint8)

    def change() -> torch.Tensor:
        torch.manual_seed(3)
        return distort(images, 2, 20, 0.2, 0.1, 1)

    together = change()
    monkeypatch.setattr(augment, "VALUES_AT_A_TIME", 2 * images[0].numel())
    torch.testing.assert_close(change(), together, atol=0.05, rtol=0)


def test_elastic_moves_pixels_as_far_as_it_says_and_neighbours_together() -> None:
    def places(row: int) -> torch.Tensor:
        torch.manual_seed(5)
        spot = F.max_pool2d(dot(row, 32, size=65).float(), 5, stride=1, padding=2)  # large enough not to vanish
        bent = distort(spot.expand(1000, -1, -1, -1), shift=0, rotate=0, scale=0, shear=0, elastic=1.0)
        weights = bent / bent.sum(dim=(2, 3), keepdim=True)
        return (weights.sum(dim=3) * torch.arange(65.0)).sum(dim=2).flatten() - row

    middle, neighbour, far = places(32), places(34), places(16)  # 16 and 32 are knots of the grid: drawn independently
    assert 0.85 < middle.std() < 1.1
    assert abs(middle.mean()) < 0.1
    assert torch.corrcoef(torch.stack([middle, neighbour]))[0, 1] > 0.9
    assert abs(torch.corrcoef(torch.stack([middle, far]))[0, 1]) < 0.2

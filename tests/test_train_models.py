"""The networks against counts by hand: parameters, shapes, widths, and what is refused."""

import pytest
import torch

from reproductions.training.models import lenet, mlp, resnet18

MODELS = [resnet18, lenet, mlp]


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def resnet18_parameters(classes, width, channels):
    """Convolutions of k·k·in·out, two numbers a channel for each BatchNorm, one linear layer."""
    total, before = 9 * channels * width + 2 * width, width
    for stage in range(4):
        after = width * 2**stage
        total += 9 * before * after + 3 * 9 * after * after + 4 * 2 * after
        total += before * after + 2 * after if stage > 0 else 0  # the way around
        before = after
    return total + before * classes + classes


def test_resnet18_has_the_published_number_of_parameters():
    assert resnet18_parameters(10, 64, 3) == 11_173_962
    assert parameters(resnet18()) == 11_173_962


@pytest.mark.parametrize(("classes", "width", "channels"), [(10, 8, 3), (3, 1, 1), (100, 16, 2)])
def test_resnet18_scales_with_its_width(classes, width, channels):
    assert parameters(resnet18((channels, 32, 32), classes, width)) == resnet18_parameters(classes, width, channels)


def test_resnet18_halves_the_image_and_doubles_the_channels_from_stage_to_stage():
    model, x = resnet18(classes=7, width=4), torch.zeros(2, 3, 32, 32)
    assert model[:3](x).shape == (2, 4, 32, 32), "no pooling behind the stem"
    for stage, (channels, size) in enumerate([(4, 32), (8, 16), (16, 8), (32, 4)]):
        assert model[: 3 + 2 * (stage + 1)](x).shape == (2, channels, size, size)
    assert model(x).shape == (2, 7)


def test_convolutions_begin_with_he_s_deviation():
    """√(2 / (9·outputs)); the deviation of N normals has a relative standard error of 1/√(2N), of which five."""
    weight = resnet18(width=32)[10].conv2.weight
    assert weight.shape == (256, 256, 3, 3)
    assert weight.std().item() == pytest.approx((2 / (9 * 256)) ** 0.5, rel=5 / (2 * weight.numel()) ** 0.5)


def test_all_of_a_network_learns():
    for make in MODELS:
        model = make((1, 16, 16), 3)
        model(torch.randn(4, 1, 16, 16)).square().sum().backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            assert torch.isfinite(parameter.grad).all()


def test_parameters_of_lenet_and_mlp():
    # (1·25 + 1)·6 + (6·25 + 1)·16 + (400 + 1)·120 + (120 + 1)·84 + (84 + 1)·10: LeNet-5 on 28 × 28.
    assert parameters(lenet((1, 28, 28), 10)) == 156 + 2416 + 48120 + 10164 + 850
    # On 32 × 32 the maps before the linear layers are 6 × 6 instead of 5 × 5.
    assert parameters(lenet((3, 32, 32), 10)) == 456 + 2416 + (576 + 1) * 120 + 10164 + 850
    assert parameters(mlp((1, 28, 28), 10)) == (784 + 1) * 128 + (128 + 1) * 10
    assert parameters(mlp((5,), 2, hidden=3)) == (5 + 1) * 3 + (3 + 1) * 2


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 12, 12)])
def test_a_model_fits_its_images(make, shape):
    arguments = {resnet18: {"width": 2}, lenet: {}, mlp: {"hidden": 4}}[make]
    model = make(shape, 6, **arguments)
    assert model(torch.zeros(2, *shape)).shape == (2, 6)


def test_what_is_wrong_is_said():
    for make, shape, arguments, words in (
        (mlp, (1, 28, 28), {"hidden": 0}, "hidden=0"),
        (resnet18, (3, 32, 32), {"width": 1.5}, "width=1.5"),
        (lenet, (1, 11, 11), {}, "images of 11 × 11: give square ones of at least 12 × 12"),
        (lenet, (1, 28, 20), {}, "images of 28 × 20: give square ones"),
        (resnet18, (28, 28), {}, r"samples of shape \(28, 28\): give images"),
    ):
        with pytest.raises(ValueError, match=words):
            make(shape, 10, **arguments)

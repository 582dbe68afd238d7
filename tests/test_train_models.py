"""The networks against counts by hand: parameters, shapes, widths, and what is refused."""

import pytest
import torch

from reproductions.training.models import MODELS, make_model, mlp, resnet18


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
    assert parameters(resnet18(classes, width, channels)) == resnet18_parameters(classes, width, channels)


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
    for name in MODELS:
        model = make_model(name, (1, 16, 16), 3)
        model(torch.randn(4, 1, 16, 16)).square().sum().backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            assert torch.isfinite(parameter.grad).all()


def test_parameters_of_lenet_and_mlp():
    # (1·25 + 1)·6 + (6·25 + 1)·16 + (400 + 1)·120 + (120 + 1)·84 + (84 + 1)·10: LeNet-5 on 28 × 28.
    assert parameters(make_model("lenet", (1, 28, 28), 10)) == 156 + 2416 + 48120 + 10164 + 850
    # On 32 × 32 the maps before the linear layers are 6 × 6 instead of 5 × 5.
    assert parameters(make_model("lenet", (3, 32, 32), 10)) == 456 + 2416 + (576 + 1) * 120 + 10164 + 850
    assert parameters(make_model("mlp", (1, 28, 28), 10)) == (784 + 1) * 128 + (128 + 1) * 10
    assert parameters(mlp(2, inputs=5, hidden=3)) == (5 + 1) * 3 + (3 + 1) * 2


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 12, 12)])
def test_a_model_fits_its_images(name, shape):
    arguments = {"resnet18": {"width": 2}, "lenet": {}, "mlp": {"hidden": 4}}[name]
    model = make_model(name, (50, *shape), 6, **arguments)  # the shape of an array of images is as good as one image's
    assert model(torch.zeros(2, *shape)).shape == (2, 6)


def test_what_is_wrong_is_said():
    for name, shape, arguments, words in (
        ("vgg", (3, 32, 32), {}, "model='vgg': choose from 'resnet18', 'lenet', 'mlp'"),
        ("resnet18", (3, 32, 32), {"depth": 2}, "model='resnet18' has no argument 'depth': it takes width"),
        ("resnet18", (3, 32, 32), {"channels": 2}, "has no argument 'channels'"),
        ("lenet", (1, 28, 28), {"width": 2}, "model='lenet' has no argument 'width': it takes none"),
        ("mlp", (1, 28, 28), {"hidden": 0}, "hidden=0"),
        ("resnet18", (3, 32, 32), {"width": 1.5}, "width=1.5"),
        ("lenet", (1, 11, 11), {}, "size=11: give a whole number of at least 12"),
        ("lenet", (1, 28, 20), {}, "28 × 20 are not square"),
        ("mlp", (28, 28), {}, r"images_shape=\(28, 28\)"),
    ):
        with pytest.raises(ValueError, match=words):
            make_model(name, shape, 10, **arguments)
    with pytest.raises(ValueError, match="classes=0"):
        make_model("mlp", (1, 28, 28), 0)

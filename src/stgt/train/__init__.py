"""Image classification under torchrun."""

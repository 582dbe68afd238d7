"""Training from a spec file: `stgt train`, and `torchrun -m stgt.torch.train` on several machines."""

"""Batches that are already on the accelerator when the training loop asks for them."""

__all__: list[str] = []

"""Forebay in other training frameworks. Each module imports its own framework, and nothing here imports any of them.

- `forebay.integrations.accelerate`: a loader prepared for `Accelerator`.
- `forebay.integrations.lightning`: a data module for Lightning (`pytorch_lightning` for the older package).
- `forebay.integrations.transformers`: a `Trainer`, and a mixin for subclasses of it.
- `forebay.integrations.keras`: data for `fit`, and a callback that backs up and restores.
- `forebay.integrations.jax`: ranks of JAX's processes, and batches as global arrays.
"""

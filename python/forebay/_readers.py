"""Recognises frameworks that would read a loader wrongly, and names what to use instead.

A framework does nothing but call `iter`, often through a `DataLoader`, so only the calling functions tell who reads.
"""

from __future__ import annotations

import sys
from types import FrameType

from ._errors import InvalidError

# Packages whose loaders pass `iter` on to the framework's data.
_PASS_ON = ("torch.utils.data.", "torchdata.", "accelerate.")


def refuse_readers() -> None:
    """Raises if the loop that begins is read by a framework that has epochs and checkpoints of its own and would
    restore them without the loader's place, or by a `DataLoader` that collects batches as if they were samples."""
    frame: FrameType | None = sys._getframe(2)
    collects = False
    while frame is not None and _module(frame).startswith(_PASS_ON):
        collects = collects or frame.f_code.co_name == "__init__" and _collects(frame.f_locals.get("self"))
        frame = frame.f_back
    module = _module(frame)
    for package in ("lightning.pytorch", "pytorch_lightning"):
        if module.startswith(f"{package}."):
            name = package.partition(".")[0]
            raise InvalidError(
                "Lightning would not save the place of this loader in its checkpoints, nor number its epochs",
                f"from forebay.integrations.{name} import ForebayDataModule; "
                "trainer.fit(model, datamodule=ForebayDataModule(train=loader)); val=…, test=… and predict=… "
                "take loaders for evaluation",
            )
    if module.startswith("transformers.trainer"):
        raise InvalidError(
            "Hugging Face's Trainer would take this loader's batches for samples, or resume in another epoch",
            "from forebay.integrations.transformers import Trainer; a subclass of another Trainer takes "
            "ForebayTrainerMixin from there",
        )
    if collects:
        raise InvalidError(
            "this DataLoader has a batch size, so it would make batches of this loader's batches",
            "DataLoader(loader, batch_size=None), or loop over the loader itself",
        )


def _module(frame: object) -> str:
    return getattr(frame, "f_globals", {}).get("__name__") or ""


def _collects(fetcher: object) -> bool:
    """Whether torch's fetcher takes several items for one batch."""
    return bool(getattr(fetcher, "auto_collation", False))

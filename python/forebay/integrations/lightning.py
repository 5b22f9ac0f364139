"""Forebay in Lightning (`import lightning`).

    from forebay.integrations.lightning import ForebayDataModule

    trainer.fit(model, datamodule=ForebayDataModule(train=loader, val=val_loader), ckpt_path="last")
"""

from ._lightning import DataModule
from ._versions import require

require("lightning.pytorch", "lightning")
from lightning.pytorch import LightningDataModule  # noqa: E402

__all__ = ["ForebayDataModule"]


class ForebayDataModule(DataModule, LightningDataModule):
    __doc__ = (DataModule.__doc__ or "").replace("DataModule(train", "ForebayDataModule(train")

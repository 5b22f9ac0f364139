"""Forebay in Lightning (`import lightning`).

    from forebay.integrations.lightning import ForebayDataModule

    trainer.fit(model, datamodule=ForebayDataModule(train=loader, val=val_loader), ckpt_path="last")
"""

from ._lightning import DataModule
from ._versions import require

_lightning = require("lightning.pytorch", "lightning")

__all__ = ["ForebayDataModule"]


class ForebayDataModule(DataModule, _lightning.LightningDataModule):
    __doc__ = DataModule.__doc__.replace("DataModule(train", "ForebayDataModule(train")

"""Forebay in Lightning's older package (`import pytorch_lightning`): the same as `forebay.integrations.lightning`."""

from ._lightning import DataModule
from ._versions import require

_lightning = require("pytorch_lightning", "pytorch-lightning")

__all__ = ["ForebayDataModule"]


class ForebayDataModule(DataModule, _lightning.LightningDataModule):
    __doc__ = DataModule.__doc__.replace("DataModule(train", "ForebayDataModule(train")

"""Forebay in Lightning's older package (`import pytorch_lightning`): the same as `forebay.integrations.lightning`."""

from ._lightning import DataModule
from ._versions import require

require("pytorch_lightning", "pytorch-lightning")
from pytorch_lightning import LightningDataModule  # noqa: E402

__all__ = ["ForebayDataModule"]


class ForebayDataModule(DataModule, LightningDataModule):
    __doc__ = (DataModule.__doc__ or "").replace("DataModule(train", "ForebayDataModule(train")

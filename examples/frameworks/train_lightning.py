"""Trains with Lightning. Start it again after it was killed, and it resumes with the next batch.

    python examples/frameworks/train_lightning.py --folder runs/lightning --epochs 4
    python examples/frameworks/train_lightning.py --folder runs/lightning --epochs 4 --devices 2
"""

import argparse
import json
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import forebay
from forebay.integrations.lightning import ForebayDataModule
from samples import FEATURES, load, samples


class Model(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(FEATURES, 1)

    def training_step(self, batch: forebay.Batch[torch.Tensor], index: int) -> torch.Tensor:
        loss = torch.nn.functional.mse_loss(self.layer(batch["features"]).squeeze(1), batch["target"])
        numbers = batch["number"].tolist()
        print(json.dumps({"step": self.global_step, "samples": numbers, "loss": loss.item()}), flush=True)
        return loss

    def validation_step(self, batch: forebay.Batch[torch.Tensor], index: int) -> None:
        loss = torch.nn.functional.mse_loss(self.layer(batch["features"]).squeeze(1), batch["target"])
        self.log("validation", loss, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="the folder of the checkpoints")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--devices", type=int, default=1)
    options = parser.parse_args()

    pl.seed_everything(0, verbose=False)
    table = samples()
    data = ForebayDataModule(train=load(table), val=table.filter("number < 64").load(batch_size=32))
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=options.devices,
        max_epochs=options.epochs,
        callbacks=[ModelCheckpoint(options.folder, save_last=True, every_n_train_steps=5)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    last = options.folder / "last.ckpt"
    trainer.fit(Model(), datamodule=data, ckpt_path=last if last.exists() else None)


if __name__ == "__main__":
    main()

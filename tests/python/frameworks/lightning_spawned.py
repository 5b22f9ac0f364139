"""Lightning with `ddp_spawn`: it starts its ranks itself, and sends them the data module, which makes its loader there.

A spawned rank imports this file, and its report is lost with the process. So each rank writes its steps to a file, from
which the process that was started reports them.
"""

import json
import logging
import os
import warnings
from pathlib import Path

import lightning.pytorch as pl
import torch

import common
from forebay.integrations.lightning import ForebayDataModule

RANK, PORT, FOLDER = common.arguments()
RANKS = 2


def load():
    return common.loader(drop_last=True)


class Model(pl.LightningModule):
    def __init__(self, steps: Path):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(common.FEATURES, 1)
        self.steps = steps

    def training_step(self, batch, index):
        loss = torch.nn.functional.mse_loss(self.layer(batch["x"]).squeeze(1), batch["y"])
        with self.steps.with_suffix(f".{self.global_rank}").open("a") as steps:
            steps.write(json.dumps({"ids": batch["id"].tolist(), "loss": loss.item(), "pid": os.getpid()}) + "\n")
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(case: str, epochs: int, resume: Path | None = None) -> Path:
    """Fits on spawned ranks, reports the steps of all of them, and returns the last checkpoint."""
    checkpoints = pl.callbacks.ModelCheckpoint(FOLDER / case, filename="{step}", every_n_train_steps=4, save_top_k=-1)
    trainer = pl.Trainer(
        accelerator="cpu", devices=RANKS, strategy="ddp_spawn", max_epochs=epochs, logger=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[checkpoints],
    )
    trainer.fit(Model(FOLDER / case), datamodule=ForebayDataModule(train=load), ckpt_path=resume)
    for rank in range(RANKS):
        lines = (FOLDER / f"{case}.{rank}").read_text().splitlines()
        steps = [json.loads(line) for line in lines]
        assert os.getpid() not in {step["pid"] for step in steps}, "the steps are those of other processes"
        print(json.dumps({"case": case, "rank": rank, "steps": steps}), flush=True)
    return FOLDER / case / "step=8.ckpt"


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    os.environ["MASTER_PORT"] = f"{PORT}"
    within = fit("spawned", 3)
    fit("spawned-resumed", 3, within)

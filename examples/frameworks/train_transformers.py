"""Trains with Hugging Face's Trainer. Start it again after it was killed, and it resumes with the next batch.

    python examples/frameworks/train_transformers.py --folder runs/transformers --epochs 4
    torchrun --nproc-per-node 2 examples/frameworks/train_transformers.py --folder runs/transformers --epochs 4
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments, set_seed

from forebay.integrations.transformers import Trainer, last_checkpoint
from samples import FEATURES, load, samples


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(FEATURES, 1)

    def forward(
        self, features: torch.Tensor, labels: torch.Tensor, number: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        prediction = self.layer(features).squeeze(1)
        return {"loss": torch.nn.functional.mse_loss(prediction, labels), "prediction": prediction}


class PrintingTrainer(Trainer):
    def compute_loss(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        if model.training:
            numbers = inputs["number"].tolist()
            shown = loss[0] if isinstance(loss, tuple) else loss
            print(json.dumps({"step": self.state.global_step, "samples": numbers, "loss": shown.item()}), flush=True)
        return loss


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="the folder of the checkpoints")
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()

    set_seed(0)
    # Trainer gives the model those columns that its forward has arguments for.
    table = samples().select("number", "features", labels="target")
    trainer = PrintingTrainer(
        model=Model(),
        args=TrainingArguments(
            output_dir=str(options.folder),
            num_train_epochs=options.epochs,
            learning_rate=0.01,
            lr_scheduler_type="constant",
            save_steps=5,
            save_total_limit=2,
            per_device_eval_batch_size=32,
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            dataloader_pin_memory=False,
        ),
        train_dataset=load(table),
        eval_dataset=table.filter("number < 64").load(batch_size=32),
    )
    trainer.train(resume_from_checkpoint=last_checkpoint(options.folder))
    print(trainer.evaluate())


if __name__ == "__main__":
    main()

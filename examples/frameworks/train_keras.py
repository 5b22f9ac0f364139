"""Trains with Keras. Start it again after it was killed, and it resumes with the next batch.

    KERAS_BACKEND=torch python examples/frameworks/train_keras.py --folder runs/keras --epochs 4
"""

import argparse
import json
import os
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras  # noqa: E402

from forebay.integrations.keras import BackupAndRestore, Dataset  # noqa: E402
from samples import FEATURES, load, samples  # noqa: E402


class Print(keras.callbacks.Callback):
    """Prints the loss of each step. Keras gives the mean of the epoch's steps so far."""

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        self.epoch, self.total = epoch, 0.0

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        total = (logs or {})["loss"] * (batch + 1)
        print(json.dumps({"epoch": self.epoch, "loss": float(total - self.total)}), flush=True)
        self.total = total


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="the folder of the backup")
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()

    keras.utils.set_random_seed(0)
    table = samples()
    data = Dataset(load(table), x="features", y="target")
    validation = Dataset(table.filter("number < 64").load(batch_size=32), x="features", y="target", epoch=0)
    model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.AdamW(0.01), loss="mse")
    backup = BackupAndRestore(data, options.folder, save_freq=5)
    model.fit(
        data,
        epochs=options.epochs,
        validation_data=validation,
        callbacks=[backup, Print()],
        verbose=0,  # pyright: ignore[reportArgumentType]  (Keras takes numbers, but its types say text)
    )


if __name__ == "__main__":
    main()

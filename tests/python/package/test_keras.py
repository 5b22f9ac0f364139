"""Keras: one `fit` after another over the same data. Keras chooses its backend when it is imported, so each test is a
process of its own."""

import os
import subprocess
import sys

PREPARATION = """
import numpy as np
import keras
import forebay
from forebay.integrations.keras import BackupAndRestore, Dataset

rows = forebay.table({"x": np.arange(40, dtype="float32").reshape(40, 1), "y": np.zeros((40, 1), "float32")})
def data(**options):
    return Dataset(rows.load(batch_size=4, format="numpy", **options), x="x", y="y", repeat=REPEAT)

model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")])
model.compile("sgd", "mse")
"""


def printed(code: str, repeat: bool, backend: str = "torch") -> list[str]:
    code = f"REPEAT = {repeat}\n{PREPARATION}\n{code}"
    environment = os.environ | {"KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("> ")]


def test_a_fit_after_a_resumed_one_runs_all_its_epochs(tmp_path):
    code = f"""
train = data()
class Stop(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            raise KeyboardInterrupt
try:
    model.fit(train, epochs=4, verbose=0, callbacks=[BackupAndRestore(train, {str(tmp_path)!r}), Stop()])
except KeyboardInterrupt:
    pass
train = data()
resumed = model.fit(train, epochs=4, verbose=0, callbacks=[BackupAndRestore(train, {str(tmp_path)!r})])
print(">", resumed.epoch)
print(">", model.fit(data(), epochs=2, verbose=0).epoch)
"""
    assert printed(code, repeat=False) == ["> [2, 3]", "> [0, 1]"]


def test_repeated_data_goes_on_in_the_next_fit(tmp_path):
    code = f"""
train = data()
seen = []
batches = Dataset._batches
def recorded(self):
    for batch in batches(self):
        seen.append(float(batch[0][0, 0]))
        yield batch
Dataset._batches = recorded
for backup in (None, "one", "two"):
    del seen[:]
    callbacks = [BackupAndRestore(train, {str(tmp_path)!r} + "/" + backup)] if backup else []
    model.fit(train, epochs=1, steps_per_epoch=5, verbose=0, callbacks=callbacks)
    print(">", seen[-5:] if len(seen) >= 5 else seen)
"""
    # An epoch has ten batches of four.
    assert printed(code, repeat=True) == [
        "> [0.0, 4.0, 8.0, 12.0, 16.0]",
        "> [20.0, 24.0, 28.0, 32.0, 36.0]",
        "> [0.0, 4.0, 8.0, 12.0, 16.0]",
    ]

"""Keras: fit on torch and on JAX in one process, and on JAX on two ranks with `keras.distribution`.

The backends and the ranks are processes of their own. A backup of one backend can be restored with the other.
"""

import os
import sys

BACKEND = os.environ["KERAS_BACKEND"]

import common  # noqa: E402

RANK, PORT, FOLDER = common.arguments()
if BACKEND == "jax":
    import jax

    jax.config.update("jax_platforms", "cpu")

import keras  # noqa: E402
import numpy as np  # noqa: E402

from forebay.integrations.keras import BackupAndRestore, Dataset  # noqa: E402

report = common.Report(RANK)


class Killed(Exception):
    pass


class Watch(keras.callbacks.Callback):
    """Reports each step's loss, and ends training like a crash."""

    def __init__(self, ids, kill):
        super().__init__()
        self.ids, self.kill, self.total, self.epoch, self.before = ids, kill, 0, 0, 0.0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch, self.before = epoch, 0.0

    def on_train_batch_end(self, batch, logs=None):
        # Keras reports the mean of the epoch's losses so far.
        mean = float(logs["loss"])
        loss = mean * (batch + 1) - self.before * batch
        self.before = mean
        report.step(self.epoch, self.ids[self.total], loss)
        self.total += 1
        if self.total == self.kill:
            raise Killed


class Recorded(Dataset):
    """Keeps the numbers of the samples that training got."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.ids = []

    def get_torch_dataloader(self):
        return self._recorded(super().get_torch_dataloader())

    def get_jax_iterator(self):
        return self._recorded(super().get_jax_iterator())

    def _recorded(self, batches):
        """Drops the number from each batch. Only the last pass that Keras reads is of interest."""
        for number, (x, y) in enumerate(batches):
            if number == 0 and not self.trains:
                # Keras looks at a batch before it trains.
                self.ids.clear()
            self.ids.append(np.asarray(x["id"]).tolist())
            yield x["x"], y

    trains = False


class Training(keras.callbacks.Callback):
    def __init__(self, data):
        super().__init__()
        self.data = data

    def on_train_begin(self, logs=None):
        self.data.ids.clear()
        self.data.trains = True


def model(**options):
    keras.utils.set_random_seed(0)
    made = keras.Sequential([keras.Input((common.FEATURES,)), keras.layers.Dense(1)])
    made.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse", **options)
    return made


def data(repeat=False, **options):
    loader = common.loader(format="numpy", drop_last=True, **options)
    return Recorded(loader, x=["id", "x"], y="y", repeat=repeat)


def fit(case, dataset, backup=None, save_freq="epoch", kill=None, at_once=1, **options):
    callbacks = [Training(dataset)]
    if backup is not None:
        callbacks.append(BackupAndRestore(dataset, FOLDER / backup, save_freq))
    callbacks.append(Watch(dataset.ids, kill))
    try:
        model(steps_per_execution=at_once).fit(dataset, verbose=0, callbacks=callbacks, **{"epochs": 3, **options})
    except Killed:
        pass
    report.end(f"{BACKEND}-{case}")


def one_process():
    of_others = FOLDER / "plain" / "mine.weights.h5"
    of_others.parent.mkdir(exist_ok=True)
    of_others.touch()
    fit("plain", data(), backup="plain")
    assert [file.name for file in of_others.parent.iterdir()] == [of_others.name]
    fit("without-callback", data())
    for name, freq, kill in (("within", 4, 9), ("last-batch", 6, 7), ("epoch", "epoch", 8)):
        fit(f"{name}-killed", data(), backup=name, save_freq=freq, kill=kill)
        fit(f"{name}-resumed", data(), backup=name, save_freq=freq)
    # Keras's epochs of four steps over the loader's epochs of six.
    repeated = {"steps_per_epoch": 4, "epochs": 4}
    fit("repeated", data(repeat=True), backup="repeated", **repeated)
    fit("repeated-killed", data(repeat=True), backup="repeated-within", save_freq=5, kill=11, **repeated)
    fit("repeated-resumed", data(repeat=True), backup="repeated-within", save_freq=5, **repeated)
    unknown = {"repeat": True, "where": "id >= 0"}
    fit("unknown-length", data(**unknown), backup="unknown", **repeated)
    fit("unknown-length-killed", data(**unknown), backup="unknown-within", save_freq=5, kill=11, **repeated)
    fit("unknown-length-resumed", data(**unknown), backup="unknown-within", save_freq=5, **repeated)

    validated = Dataset(common.loader(10, batch_size=4, format="numpy"), x="x", y="y", epoch=0)
    trained = model()
    trained.fit(Dataset(common.loader(format="numpy"), x="x", y="y"), verbose=0, epochs=1, validation_data=validated)
    rows = common.table(10)
    x, y = np.array(rows["x"].to_pylist(), "float32"), rows["y"].to_numpy()
    of_keras = trained.evaluate(x, y, verbose=0, batch_size=4)
    report.end(f"{BACKEND}-evaluated", losses=[trained.evaluate(validated, verbose=0) for _ in range(2)], wanted=of_keras)

    report.refused(f"{BACKEND}-steps", lambda: fit("", data(), backup="none", steps_per_epoch=4))
    report.refused(f"{BACKEND}-endless", lambda: fit("", data(repeat=True), backup="none"))
    report.refused(f"{BACKEND}-unknown", lambda: data(where="id >= 0"))
    report.refused(f"{BACKEND}-epochs", lambda: data(epochs=3))
    report.refused(f"{BACKEND}-column", lambda: Dataset(common.loader(), x="image"))
    keras.backend.backend, backend = lambda: "tensorflow", keras.backend.backend
    report.refused(f"{BACKEND}-tensorflow", data)
    keras.backend.backend = backend
    report.refused(f"{BACKEND}-no-samples", lambda: data(global_batch_size=48))
    found = {"repeat": True, "where": "id < 0"}
    report.refused(f"{BACKEND}-no-samples-found", lambda: fit("", data(**found), backup="none", steps_per_epoch=4))
    repeated = data(repeat=True)
    one = Dataset(repeated.loader, x="x", y="y", epoch=0)
    report.refused(f"{BACKEND}-one-loader-twice", lambda: fit("", repeated, steps_per_epoch=4, validation_data=one))
    fit("", data(), backup="other", save_freq=4, kill=5)
    report.refused(f"{BACKEND}-other-seed", lambda: fit("", data(seed=4), backup="other"))
    report.refused(f"{BACKEND}-other-global-batch", lambda: fit("", data(global_batch_size=8), backup="other"))


def two_ranks():
    devices = keras.distribution.list_devices()
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False))
    fit("ranks-plain", data(), backup="ranks-plain")
    fit("ranks-killed", data(), backup="ranks", save_freq=4, kill=9)
    fit("ranks-resumed", data(), backup="ranks", save_freq=4)
    fit("ranks-resumed-of-one", data(), backup="left-by-torch", save_freq=4)
    fit("ranks-at-once", data(), backup="ranks-at-once", save_freq=4, at_once=4)
    fit("ranks-left", data(), backup="left-by-ranks", save_freq=4, kill=9)


if BACKEND == "jax" and os.environ.get("FOREBAY_TWO_RANKS"):
    jax.distributed.initialize(f"127.0.0.1:{PORT}", num_processes=2, process_id=RANK)
    two_ranks()
else:
    one_process()
    if BACKEND == "torch":
        fit("left", data(), backup="left-by-torch", save_freq=4, kill=9)
    else:
        fit("resumed-of-ranks", data(), backup="left-by-ranks", save_freq=4)
sys.stdout.flush()

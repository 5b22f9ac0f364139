"""Forebay in Keras 3.

    from forebay.integrations.keras import BackupAndRestore, Dataset

    data = Dataset(loader, x="image", y="label")
    model.fit(data, epochs=10, callbacks=[BackupAndRestore(data, "backup", save_freq=100)])

Keras asks for a new iterator in each epoch, and once more before the first one to look at a batch. It may also take
batches ahead. So a dataset begins a pass only when its first batch is taken, and the callback tells it the epoch, and
how many batches were trained.
"""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any, Iterator, Sequence

from .._errors import InvalidError
from .._loader import Loader
from . import _passes as passes
from ._versions import require

require("keras", "keras")
import keras  # noqa: E402
from keras.callbacks import Callback as _Callback  # noqa: E402

# Keras takes an adapter of its own class in place of data.
from keras.src.trainers.data_adapters import data_adapter_utils as _iterators  # noqa: E402
from keras.src.trainers.data_adapters.data_adapter import DataAdapter as _DataAdapter  # noqa: E402

__all__ = ["BackupAndRestore", "Dataset"]

FRAMEWORK = "Keras"
# Without an end, Keras would take the first epoch's number of steps for that of all.
ENDLESS = 1 << 62
_METADATA = "forebay.json"
# The most batches that Keras takes to look at them, or ahead, before it trains on any.
_LOOKED_AT = 2

Columns = str | Sequence[str]


class Dataset(_DataAdapter):
    """A loader as data for `fit`, `evaluate` and `predict`.

    `x`, `y` and `sample_weight` are columns: a name, or a list of names for a model that takes a dict.

    Each epoch of Keras reads one epoch of the loader. With `repeat=True` the data has no end, for `fit` with
    `steps_per_epoch`: then the loader's epochs follow each other, wherever those of Keras end, and the next `fit` goes
    on after the last batch that the previous one took. With `epoch=0` every loop reads that epoch, for validation data.
    """

    def __init__(
        self,
        loader: Loader,
        x: Columns,
        y: Columns | None = None,
        sample_weight: Columns | None = None,
        *,
        repeat: bool = False,
        epoch: int | None = None,
    ):
        if not isinstance(loader, Loader):
            raise InvalidError(f'"loader" must be a Forebay loader, got {type(loader).__name__}')
        if keras.backend.backend() == "tensorflow":
            raise InvalidError(
                "Keras on TensorFlow is not supported",
                'set KERAS_BACKEND to torch or jax before the first import of keras, or read format="tf" in a loop of '
                "your own",
            )
        passes.check_epochs(loader, FRAMEWORK)
        self._columns = [columns for columns in (x, y, sample_weight) if columns is not None]
        if y is None and sample_weight is not None:
            raise InvalidError('"sample_weight" was given without "y"', "weights belong to targets")
        for columns in self._columns:
            for name in [columns] if isinstance(columns, str) else columns:
                if name not in loader.columns:
                    raise InvalidError(f'the loader has no column "{name}"', f"columns: {', '.join(loader.columns)}")
        self.loader = loader
        self.repeat = repeat
        self._fixed = epoch
        self._next = passes.epoch_start(loader, epoch or 0)
        # The number of batches after which the next pass ends, if that is before the data does.
        self._limit: int | None = None
        self._pass: passes.Pass | None = None
        if keras.backend.backend() == "jax":
            # Of batches of different sizes, JAX makes a different array on each process, without an error.
            passes.check_equal_batches(loader, FRAMEWORK)
        if epoch is None:
            passes.check_equal_steps(loader, FRAMEWORK)
            passes.check_samples(loader)
        if self._steps() is None and not repeat and epoch is None:
            raise InvalidError(
                f"Keras must know the number of batches of an epoch, and {passes.unknown(loader)}",
                f"{passes.count_hint(loader)}Dataset(…, repeat=True) and fit with steps_per_epoch",
            )

    def _steps(self) -> int | None:
        try:
            return passes.length(self.loader, self._fixed)
        except TypeError:
            return None

    # What Keras calls

    @property
    def num_batches(self) -> int | None:
        return ENDLESS if self.repeat else self._steps()

    @property
    def batch_size(self) -> int:
        return self.loader.batch_size

    @property
    def has_partial_batch(self) -> bool | None:
        return None

    @property
    def partial_batch_size(self) -> int | None:
        return None

    def get_numpy_iterator(self) -> Any:
        return _iterators.get_numpy_iterator(self._batches())

    def get_jax_iterator(self) -> Any:
        return _iterators.get_jax_iterator(self._batches())

    def get_torch_dataloader(self) -> Any:
        return _iterators.get_torch_dataloader(self._batches())

    def get_tf_dataset(self) -> Any:
        raise InvalidError(
            "Forebay's dataset does not support Keras on TensorFlow", 'set KERAS_BACKEND to "torch" or "jax"'
        )

    def on_epoch_begin(self) -> None:
        pass

    def on_epoch_end(self) -> None:
        pass

    # Reading

    def _batches(self) -> Iterator[Any]:
        """A pass over an epoch, or without end. It begins with the first batch: Keras drops some iterators."""
        self._next, self._pass = self.following(), None
        self._pass = passes.Pass(self.loader, self._next, self.repeat)
        for count, batch in enumerate(self._pass, 1):
            yield tuple(_picked(batch, columns) for columns in self._columns)
            if count == self._limit:
                return

    def following(self) -> passes.State:
        """Returns the place where the next pass begins."""
        previous = self._pass
        if previous is None or self._fixed is not None:
            return self._next
        after = previous.place(previous.handed_out)
        # Keras takes the first batches of some passes only to look at them.
        goes_on = previous.handed_out > _LOOKED_AT if self.repeat else after["epoch"] > previous.start["epoch"]
        return after if goes_on else previous.start

    # What the callback calls

    def begin(self, place: passes.State, limit: int | None) -> None:
        """Begins the next pass at a place. It ends after `limit` batches."""
        self._next, self._limit, self._pass = place, limit, None

    def place(self, trained: int) -> passes.State:
        """Returns the place after this number of batches."""
        return self._next if self._pass is None else self._pass.place(trained)


class BackupAndRestore(_Callback):
    """Like Keras's own callback of that name, with the data's place: a run that was killed goes on with the next batch
    when `fit` is called again, also within an epoch.

    - `save_freq`: "epoch", or a number of batches.
    - `delete_checkpoint`: whether a finished run deletes its backup.

    Rank 0 writes the backup, and all ranks read it: `backup_dir` is a folder that all of them see. The model must be
    built before `fit`.
    """

    def __init__(
        self,
        dataset: Dataset,
        backup_dir: str | os.PathLike[str],
        save_freq: int | str = "epoch",
        delete_checkpoint: bool = True,
    ):
        super().__init__()
        if not isinstance(dataset, Dataset):
            raise InvalidError(
                f'"dataset" must be the Dataset that fit gets, got {type(dataset).__name__}',
                "data = Dataset(loader, …); fit(data, callbacks=[BackupAndRestore(data, …)])",
            )
        if save_freq != "epoch" and (not isinstance(save_freq, int) or save_freq < 1):
            raise InvalidError(f'"save_freq" must be "epoch" or a number of batches, got {save_freq!r}')
        self._dataset, self._folder = dataset, Path(backup_dir)
        self._save_freq, self._delete = save_freq, delete_checkpoint
        # Keras's epoch, and the batches that were trained in it before and since this run began.
        self._epoch = self._before = self._in_epoch = 0
        # The batches of the current pass, and those since the last backup.
        self._of_pass = self._unsaved = 0
        self._silence: warnings.catch_warnings | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        self._check_steps()
        loader = self._dataset.loader
        found = self._read()
        # Keras keeps the epoch at which an earlier `fit` resumed.
        self.model._initial_epoch = None
        if found is None:
            repeats = self._dataset.repeat
            self._dataset.begin(self._dataset.following() if repeats else passes.epoch_start(loader, 0), None)
            self._of_pass = 0
            return
        place = passes.restored(loader, found.get("data"), FRAMEWORK)
        self._restore_model(self._folder / found["weights"])
        self._epoch, self._before = found["epoch"], found["step"]
        self.model._initial_epoch = self._epoch
        limit = self.params["steps"] - self._before if self._dataset.repeat and self._before else None
        self._dataset.begin(place, limit)
        if self._before:
            # Keras warns that the rest of the epoch is shorter than an epoch.
            self._silence = warnings.catch_warnings()
            self._silence.__enter__()
            warnings.filterwarnings("ignore", message="Your input ran out of data")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        is_resumed = self._before > 0 and epoch == self._epoch
        if not is_resumed:
            self._before = 0
        if not self._dataset.repeat and not is_resumed:
            self._dataset.begin(passes.epoch_start(self._dataset.loader, epoch), None)
        if not self._dataset.repeat:
            self._of_pass = 0
        self._epoch, self._in_epoch = epoch, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # With steps_per_execution, `batch` is the last of several steps, some of which the epoch may not have.
        trained = min(batch + 1, self.params["steps"] - self._before) - self._in_epoch
        self._in_epoch += trained
        self._of_pass += trained
        self._unsaved += trained
        if isinstance(self._save_freq, int) and self._unsaved >= self._save_freq:
            self._save()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._silence is not None:
            self._silence.__exit__(None, None, None)
            self._silence = None
            if self._dataset.repeat:
                # Keras now takes a new iterator, which has no limit.
                self._dataset.begin(self._dataset.place(self._of_pass), None)
                self._of_pass = 0
        self._epoch, self._before, self._in_epoch = epoch + 1, 0, 0
        if self._save_freq == "epoch":
            self._save()

    def on_train_end(self, logs: Any = None) -> None:
        self.model._initial_epoch = None
        if self._dataset.repeat:
            # Batches that Keras took ahead were not trained.
            self._dataset.begin(self._dataset.place(self._of_pass), None)
            self._of_pass = 0
        if self._delete and self._dataset.loader.rank == 0:
            # The folder may hold weights that others saved.
            weights = [file for file in self._folder.glob("*.weights.h5") if file.name.split(".")[0].isdecimal()]
            for file in [*weights, self._folder / _METADATA]:
                file.unlink(missing_ok=True)

    def _check_steps(self) -> None:
        steps, epoch = self.params["steps"], self._dataset._steps()
        if self._dataset.repeat:
            if steps is None or steps >= ENDLESS:
                raise InvalidError("the data repeats without end", "fit(…, steps_per_epoch=…)")
        elif steps != epoch:
            raise InvalidError(
                f"steps_per_epoch is {steps}, and an epoch of the loader has {epoch} batches",
                "leave out steps_per_epoch, or give the data with Dataset(…, repeat=True)",
            )

    def _save(self) -> None:
        self._unsaved = 0
        dataset = self._dataset
        place = dataset.place(self._of_pass)
        epoch, step = self._epoch, self._before + self._in_epoch
        if step and (step == self.params["steps"] or not dataset.repeat and place["epoch"] > epoch):
            epoch, step = epoch + 1, 0
        self._folder.mkdir(parents=True, exist_ok=True)
        previous = self._read()
        number = (previous or {}).get("number", 0) + 1
        weights = f"{number}.weights.h5"
        if dataset.loader.rank != 0:
            # On JAX, all ranks take part in gathering the weights.
            with tempfile.TemporaryDirectory() as folder:
                self.model.save_weights(Path(folder) / weights)
            return
        self.model.save_weights(self._folder / weights, overwrite=True)
        metadata = {
            "number": number,
            "weights": weights,
            "epoch": epoch,
            "step": step,
            "data": passes.saved(dataset.loader, place),
        }
        # The metadata name the weights, and replace the previous ones at once, so a backup is never half written.
        unfinished = self._folder / f"{_METADATA}.unfinished"
        unfinished.write_text(json.dumps(metadata))
        os.replace(unfinished, self._folder / _METADATA)
        if previous is not None:
            (self._folder / previous["weights"]).unlink(missing_ok=True)

    def _read(self) -> dict[str, Any] | None:
        try:
            state: dict[str, Any] = json.loads((self._folder / _METADATA).read_text())
        except FileNotFoundError:
            return None
        return state

    def _restore_model(self, weights: Path) -> None:
        model = self.model
        if not model.built:
            raise InvalidError(
                "the model must be built before its weights can be restored",
                "begin it with keras.Input(…), or call it on a batch before fit",
            )
        if model.optimizer is not None and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        model.load_weights(weights)


def _picked(batch: Any, columns: Columns) -> Any:
    return batch[columns] if isinstance(columns, str) else {name: batch[name] for name in columns}

"""The data module for both packages of Lightning, without importing either.

Lightning's fit loop takes an iterator when it sets up its data, before it knows whether it resumes within an epoch, and
again in each epoch. If the number of batches is unknown, it also takes one batch ahead. So `TrainBatches` opens the
loader only when the first batch is taken, and asks Lightning's progress how many batches were trained.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Callable, Iterator, Mapping

from .._errors import InvalidError
from .._loader import Loader
from . import _passes as passes

FRAMEWORK = "Lightning"
Source = Loader | Callable[[], Loader]


class DataModule:
    """A `LightningDataModule` of Forebay loaders.

        data = DataModule(train=train_loader, val=val_loader)
        trainer.fit(model, datamodule=data)

    Each argument is a loader, or a function without arguments that returns one; `val`, `test` and `predict` may also be
    lists or dicts of these. Give functions if processes are started by spawning or forking (`ddp_spawn`,
    `ddp_notebook`), because a loader cannot be sent to another process.

    Each of Lightning's epochs reads one epoch of `train`, or its first batches with `limit_train_batches`. Checkpoints
    keep the place after the last batch that was trained on, and `fit(…, ckpt_path=…)` goes on there, on any number of
    devices that gives the same global batch. The other loaders read epoch 0 each time.
    """

    trainer: Any

    def __init__(
        self,
        train: Source | None = None,
        *,
        val: Any = None,
        test: Any = None,
        predict: Any = None,
    ):
        super().__init__()
        sources = {"train": train, "val": val, "test": test, "predict": predict}
        loaders: dict[int, str] = {}
        for name, given in sources.items():
            for source in _flat(given) if name != "train" else [given] if given is not None else []:
                if not isinstance(source, Loader) and not callable(source):
                    raise InvalidError(
                        f'"{name}" must be a Forebay loader or a function that returns one, got '
                        f"{type(source).__name__}",
                        "call forebay.load(…) or table.load(…), and give its result" if name != "train" else
                        "give one loader; to train on several tables, join or union them in its query",
                    )
                if loaders.setdefault(id(source), name) != name and isinstance(source, Loader):
                    raise InvalidError(
                        f'"{loaders[id(source)]}" and "{name}" are the same loader, and a loader reads one loop at a '
                        "time",
                        "call load once for each",
                    )
        for name in ("val", "test", "predict"):
            if sources[name] is None:
                # Lightning warns of a loader without a step in the model, or a step without a loader, for each that a
                # module defines.
                setattr(self, f"{name}_dataloader", getattr(super(), f"{name}_dataloader"))
        self._sources = sources
        # By role too: a function that is given for two roles makes a loader for each.
        self._opened: dict[tuple[str, int], Loader] = {}
        self._train: TrainBatches | None = None
        self._resume: Any = None

    def _loader(self, name: str, source: Source) -> Loader:
        """Returns the loader of a source, checked against the trainer's ranks. A function is called once."""
        if getattr(self, "trainer", None) is None:
            raise InvalidError("the data module has no trainer", "trainer.fit(model, datamodule=…) asks for its data")
        loader = self._opened.get((name, id(source)))
        if loader is None:
            made = source if isinstance(source, Loader) else source()
            if not isinstance(made, Loader):
                raise InvalidError(f"{source!r} must return a Forebay loader, and returned a {type(made).__name__}")
            passes.check_epochs(made, FRAMEWORK)
            loader = self._opened[name, id(source)] = made
        _check_ranks(loader, self.trainer)
        return loader

    def train_dataloader(self) -> "TrainBatches":
        source = self._sources["train"]
        if source is None:
            raise InvalidError(
                f"{type(self).__name__} has no loader to train with", f"{type(self).__name__}(train=loader)"
            )
        loader = self._loader("train", source)
        passes.check_equal_steps(loader, FRAMEWORK)
        passes.check_samples(loader)
        # Lightning asks again with reload_dataloaders_every_n_epochs, and in a second fit.
        # After `lr_find`, the progress is set back.
        if self._train is None or self._train.trainer is not self.trainer or self._train._trained() < 0:
            self._train = TrainBatches(loader, self.trainer)
        if self._resume is not None:
            self._train.resume(self._resume)
            self._resume = None
        return self._train

    def val_dataloader(self) -> Any:
        return self._evaluated("val")

    def test_dataloader(self) -> Any:
        return self._evaluated("test")

    def predict_dataloader(self) -> Any:
        return self._evaluated("predict")

    def _evaluated(self, name: str) -> Any:
        given = self._sources[name]
        if given is None:
            return []
        return _mapped(given, lambda source: EvaluationBatches(self._evaluating(name, source)))

    def _evaluating(self, name: str, source: Source) -> Loader:
        loader = self._loader(name, source)
        # These strategies divide the model, so a rank's step waits for all others.
        if self.trainer.strategy.restore_checkpoint_after_setup:
            passes.check_equal_steps(loader, FRAMEWORK)
        return loader

    def state_dict(self) -> dict[str, Any]:
        if self._train is not None:
            return self._train.state()
        # Lightning saves a checkpoint although it has not trained with this module.
        return self._resume or {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self.trainer.state.fn != "fit":
            # Only the model's weights are wanted, and a later fit begins anew.
            return
        self._resume = state_dict
        train = self._train
        # `estimated_stepping_batches` asks for the training data first, and some strategies restore afterwards.
        if train is not None and train.trainer is self.trainer:
            train.resume_set_up(state_dict)

    def __getstate__(self) -> dict[str, Any]:
        for name, given in self._sources.items():
            if any(isinstance(source, Loader) for source in _flat(given)):
                raise InvalidError(
                    f'the loader "{name}" cannot be sent to another process',
                    f'give a function that makes it: {name}=make_loader; or use strategy="ddp"',
                )
        return self.__dict__


class TrainBatches:
    """The training loader as Lightning iterates over it."""

    def __init__(self, loader: Loader, trainer: Any):
        self._loader, self.trainer = loader, trainer
        self._next = passes.epoch_start(loader, trainer.fit_loop.epoch_progress.current.processed)
        self._is_resumed = False
        self._pass: passes.Pass | None = None
        # Lightning's counts of trained batches and of epochs when the pass began.
        self._count = self._epochs_before = 0

    def __len__(self) -> int:
        return passes.length(self._loader)

    def resume(self, state: Any) -> None:
        self._next = passes.restored(self._loader, state, FRAMEWORK)
        self._pass, self._is_resumed = None, True

    def resume_set_up(self, state: Any) -> None:
        """Resumes where Lightning has set up its data, but taken no batch. In a new fit it sets up its data later."""
        if self._pass is None:
            self.resume(state)
        elif self._pass.handed_out == 1 and self.trainer.fit_loop._data_fetcher is not None:
            raise InvalidError(
                "Lightning took a batch before it restored the checkpoint",
                f"with {type(self.trainer.strategy).__name__} and a loader of unknown length, do not use "
                "trainer.estimated_stepping_batches",
            )

    def __iter__(self) -> Iterator[Any]:
        self._forget_a_finished_epoch()
        return self._batches()

    def _batches(self) -> Iterator[Any]:
        """Opens the loader at its first batch. Lightning drops some iterators without taking any."""
        if self._pass is not None and self._trained() > 0:
            # Lightning iterates again because a new epoch begins, whether or not the last one was read to its end.
            self._next = passes.epoch_start(self._loader, self._pass.start["epoch"] + 1)
        elif self._pass is None and not self._is_resumed and self._is_within_epoch():
            raise InvalidError(
                "the checkpoint has no place of a Forebay loader",
                "resume from a checkpoint that was saved with this data module, or load only the model's weights",
            )
        if self.trainer.overfit_batches > 0:
            self._next = passes.epoch_start(self._loader, 0)
        elif self._pass is None and self._is_resumed:
            self._compare_steps()
        self._count = self._progress.total.processed
        self._pass = passes.Pass(self._loader, self._next)
        for batch in self._pass:
            self._note_epoch()
            yield batch
        self._note_epoch()

    def _note_epoch(self) -> None:
        # Where Lightning takes its first batch ahead, it has not settled its epoch.
        if not self._trained():
            self._epochs_before = self.trainer.fit_loop.epoch_progress.current.processed

    # Lightning tells its epoch to the sampler, before each epoch and after it restored its progress.

    @property
    def batch_sampler(self) -> Any:
        return SimpleNamespace(sampler=self)

    def set_epoch(self, epoch: int) -> None:
        self._forget_a_finished_epoch()

    @property
    def _progress(self) -> Any:
        return self.trainer.fit_loop.epoch_loop.batch_progress

    def _is_within_epoch(self) -> bool:
        return bool(self.trainer.fit_loop.restarting) and self._progress.current.processed > 0

    def _trained(self) -> int:
        return int(self._progress.total.processed) - self._count

    def state(self) -> dict[str, Any]:
        if self._pass is None:
            return passes.saved(self._loader, self._next)
        trained = self._trained()
        place = self._pass.place(trained)
        start = self._pass.start
        is_in_epoch = place["epoch"] == start["epoch"]
        limit = self.trainer.num_training_batches
        is_left = trained and self.trainer.fit_loop.epoch_progress.current.processed > self._epochs_before
        if is_in_epoch and (is_left or passes.steps_before(self._loader, start) + trained >= limit):
            # The rest of the epoch is left out by limit_train_batches, or because Lightning ended it early.
            place = passes.epoch_start(self._loader, start["epoch"] + 1)
        return passes.saved(self._loader, place)

    # With these Lightning knows that an epoch can be resumed. The data module keeps the state.

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass

    def _forget_a_finished_epoch(self) -> None:
        """Resets the progress of an epoch that was finished in the checkpoint. With `max_steps`, Lightning keeps it,
        and would end the next epoch after one batch."""
        fit_loop = self.trainer.fit_loop
        epochs = fit_loop.epoch_progress.current
        if not fit_loop.restarting or not epochs.ready or epochs.processed != epochs.ready:
            return
        self._reset_progress()

    def _compare_steps(self) -> None:
        """Compares the place with the batches that Lightning counted in the epoch. With a checkpoint of the epoch's
        last batch, and more batches per epoch than it had, Lightning would go on within the epoch."""
        if self._loader.samples_per_epoch is None:
            # Lightning does not count to an end.
            return
        counted, steps = self._progress.current.ready, passes.steps_before(self._loader, self._next)
        if counted == steps:
            return
        if steps:
            raise InvalidError(
                f"the checkpoint is {steps} batches into an epoch, and Lightning counts {counted}",
                "resume from a checkpoint that was saved between two batches",
            )
        self._reset_progress()
        self.trainer.fit_loop._data_fetcher.fetched -= counted

    def _reset_progress(self) -> None:
        epoch_loop = self.trainer.fit_loop.epoch_loop
        epoch_loop.batch_progress.reset_on_run()
        epoch_loop.scheduler_progress.reset_on_run()
        epoch_loop.automatic_optimization.optim_progress.reset_on_run()
        epoch_loop.val_loop.batch_progress.total.reset()


class EvaluationBatches:
    """A loader for validation, tests and predictions: each loop reads epoch 0."""

    def __init__(self, loader: Loader):
        self._loader = loader

    def __len__(self) -> int:
        return passes.length(self._loader, 0)

    def __iter__(self) -> Iterator[Any]:
        self._loader.load_state_dict(passes.epoch_start(self._loader, 0))
        yield from self._loader


def _check_ranks(loader: Loader, trainer: Any) -> None:
    """Compares the loader's ranks with those that the trainer's strategy shares samples between."""
    shared = trainer.distributed_sampler_kwargs or {"rank": 0, "num_replicas": 1}
    rank, world_size = shared["rank"], shared["num_replicas"]
    if (loader.rank, loader.world_size) != (rank, world_size):
        raise InvalidError(
            f"the loader reads as rank {loader.rank} of {loader.world_size}, and Lightning's "
            f"{type(trainer.strategy).__name__} shares samples between {world_size} ranks, of which this process is rank "
            f"{rank}",
            "leave out rank, world_size, dp_rank and dp_size, or give a function that makes the loader with "
            "dp_rank=… and dp_size=… of the device mesh",
        )


def _flat(given: Any) -> list[Any]:
    if given is None:
        return []
    if isinstance(given, Mapping):
        return [item for value in given.values() for item in _flat(value)]
    if isinstance(given, (list, tuple)):
        return [item for value in given for item in _flat(value)]
    return [given]


def _mapped(given: Any, function: Callable[[Any], Any]) -> Any:
    if isinstance(given, Mapping):
        return {name: _mapped(value, function) for name, value in given.items()}
    if isinstance(given, (list, tuple)):
        return [_mapped(value, function) for value in given]
    return function(given)

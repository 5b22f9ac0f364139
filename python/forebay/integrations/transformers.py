"""Forebay in Hugging Face's Trainer.

    from forebay.integrations.transformers import Trainer

    trainer = Trainer(model=model, args=args, train_dataset=loader, eval_dataset=eval_loader)
    trainer.train(resume_from_checkpoint=True)

For a subclass of Trainer put the mixin first: `class MyTrainer(ForebayTrainerMixin, Seq2SeqTrainer)`.

Trainer would make a `DataLoader` of its dataset and let accelerate share that between the ranks; but a Forebay loader
already has finished batches of this rank. So the mixin hands Trainer the loader itself. Trainer resumes by counting: it
skips as many batches as its step number says. The mixin writes the loader's place beside Trainer's own files instead,
and nothing is computed to be skipped.
"""

from __future__ import annotations

import functools
import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Iterator

from .._errors import InvalidError
from .._loader import Loader
from . import _passes as passes
from ._versions import require

_trainer = require("transformers.trainer", "transformers")
import torch  # noqa: E402  (Trainer needs it)
import transformers  # noqa: E402
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR  # noqa: E402

if TYPE_CHECKING:
    from typing import Any as _OfTrainer
else:
    _OfTrainer = object

__all__ = ["ForebayTrainerMixin", "Trainer", "last_checkpoint"]

FRAMEWORK = "Trainer"
PLACE_FILE = "forebay.json"


class ForebayTrainerMixin(_OfTrainer):
    """Lets Trainer read Forebay loaders, given as `train_dataset` and `eval_dataset`. Other datasets work as before.

    - Each epoch of Trainer is one epoch of the loader. `max_steps` and gradient accumulation work as usual.
    - The loader's batch size counts, and not `per_device_train_batch_size`. Trainer's `data_collator` is not used.
    - Checkpoints keep the loader's place in `forebay.json`. A run resumes there on any number of ranks that gives the
      same global batch. `ignore_data_skip` has no effect, because nothing has to be skipped.
    - Evaluation counts each sample once, on any number of ranks, and reads epoch 0 each time.
    """

    args: Any
    _resume_from: str | None = None
    _batches: "TrainBatches | None" = None

    def __init__(self, *args: Any, **options: Any) -> None:
        try:
            super().__init__(*args, **options)
        except ValueError as error:
            # Trainer asks for `max_steps` where a dataset has no length.
            loader = options.get("train_dataset")
            if not isinstance(loader, Loader) or loader.samples_per_epoch is not None or "max_steps" not in str(error):
                raise
            raise InvalidError(
                f"Trainer must know the number of batches of an epoch, and {passes.unknown(loader)}",
                f"{passes.count_hint(loader)}give TrainingArguments max_steps=…",
            ) from None

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self.train_dataset, Loader):
            return super().train(resume_from_checkpoint, *args, **kwargs)
        if resume_from_checkpoint is True:
            # Trainer's own error says that there is none.
            resume_from_checkpoint = last_checkpoint(self.args.output_dir) or True
        self._resume_from = resume_from_checkpoint if isinstance(resume_from_checkpoint, (str, os.PathLike)) else None
        ignore_data_skip, self.args.ignore_data_skip = self.args.ignore_data_skip, False
        try:
            return super().train(resume_from_checkpoint, *args, **kwargs)
        finally:
            self.args.ignore_data_skip = ignore_data_skip

    def get_train_dataloader(self) -> Any:
        loader = self.train_dataset
        if not isinstance(loader, Loader):
            return super().get_train_dataloader()
        if self.args.auto_find_batch_size:
            raise InvalidError(
                "auto_find_batch_size cannot change the batch size of a Forebay loader",
                "leave it out, and load with a smaller batch_size",
            )
        evaluated = self.eval_dataset.values() if isinstance(self.eval_dataset, dict) else [self.eval_dataset]
        if any(given is loader for given in evaluated):
            raise InvalidError(
                '"train_dataset" and "eval_dataset" are the same loader, and a loader reads one loop at a time',
                "call load once for each",
            )
        if loader.samples_per_epoch is None and self.args.gradient_accumulation_steps > 1:
            raise InvalidError(
                "Trainer counts a step that an epoch's end cuts off as whole, unless it knows the number of batches of "
                f"an epoch, and {passes.unknown(loader)}",
                f"{passes.count_hint(loader)}leave out gradient_accumulation_steps and load with a larger batch size",
            )
        self._check(loader)
        passes.check_equal_steps(loader, FRAMEWORK)
        passes.check_samples(loader)
        start = passes.epoch_start(loader, 0)
        if self._resume_from is not None:
            start = passes.restored(loader, _place_in(self._resume_from), FRAMEWORK, counts_all_steps=True)
        # Trainer's logs multiply this with the number of steps.
        self._train_batch_size = loader.batch_size
        self._batches = TrainBatches(loader, start, self._columns(loader))
        return self._batches

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        given = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(eval_dataset, str) and isinstance(self.eval_dataset, dict):
            given = self.eval_dataset[eval_dataset]
        if not isinstance(given, Loader):
            return super().get_eval_dataloader(eval_dataset)
        return self._evaluated(given)

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        if not isinstance(test_dataset, Loader):
            return super().get_test_dataloader(test_dataset)
        return self._evaluated(test_dataset)

    def num_examples(self, dataloader: Any) -> int:
        if not isinstance(dataloader, (TrainBatches, EvaluationBatches)):
            return int(super().num_examples(dataloader))
        return dataloader.loader.samples_per_epoch or len(dataloader) * passes.global_batch_size(dataloader.loader)

    def evaluation_loop(self, dataloader: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(dataloader, EvaluationBatches):
            self.gather_function = dataloader.gather
        return super().evaluation_loop(dataloader, *args, **kwargs)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        # First, because Trainer takes the folder for complete when its own files are there.
        if self._batches is not None and self.args.should_save:
            name = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            folder = Path(self._get_output_dir(trial=trial), name)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / PLACE_FILE).write_text(json.dumps(self._batches.state()))
        super()._save_checkpoint(model, trial)

    def _evaluated(self, loader: Loader) -> "EvaluationBatches":
        if self._shared() > 1:
            raise InvalidError(
                "Trainer would gather an evaluation's results once from each rank of the tensor or context parallel "
                "group",
                "evaluate a checkpoint on ranks that each have the whole model, or give eval_dataset another dataset",
            )
        if self.args.batch_eval_metrics:
            raise InvalidError(
                "batch_eval_metrics needs to know the last batch, which only accelerate's own loaders tell",
                "leave out batch_eval_metrics",
            )
        self._check(loader)
        if self.args.eval_batch_size < loader.batch_size:
            raise InvalidError(
                f"Trainer counts the loss of a batch {self.args.eval_batch_size} times, and the loader's batches have "
                f"{loader.batch_size} samples",
                f"give TrainingArguments per_device_eval_batch_size={loader.batch_size}",
            )
        return EvaluationBatches(loader, self._columns(loader), self.accelerator)

    def _check(self, loader: Loader) -> None:
        passes.check_epochs(loader, FRAMEWORK)
        # Ranks that share a model's layers read the same samples.
        shared = self._shared()
        ranks, rank = self.args.world_size // shared, self.args.process_index // shared
        if loader.world_size != ranks or shared == 1 and loader.rank != rank:
            raise InvalidError(
                f"the loader reads as rank {loader.rank} of {loader.world_size}, and Trainer shares samples between "
                f"{ranks} ranks",
                f"load with dp_rank={rank}, dp_size={ranks}" if shared > 1 else
                "leave out rank and world_size, and start the processes with torchrun or accelerate launch",
            )

    def _shared(self) -> int:
        """Returns the number of ranks that read the same samples."""
        sizes = {kind: getattr(self, f"get_{kind}_size", lambda: 1)() for kind in ("tp", "cp", "sp")}
        if sizes["sp"] > 1:
            raise InvalidError(
                "Trainer divides the samples of its own loaders for sequence parallelism, and not those of Forebay",
                "use tensor parallelism, or a dataset of another kind",
            )
        return math.prod(sizes.values())

    def _columns(self, loader: Loader) -> list[str] | None:
        """Returns the columns that the model takes, with `remove_unused_columns`."""
        if not self.args.remove_unused_columns:
            return None
        self._set_signature_columns_if_needed()
        used = [name for name in loader.columns if name in self._signature_columns]
        if not used:
            raise InvalidError(
                f"the model's forward takes none of the loader's columns: {', '.join(loader.columns)}",
                f"name them like its arguments: {', '.join(self._signature_columns)}; or set "
                "TrainingArguments(remove_unused_columns=False)",
            )
        return used


class Trainer(ForebayTrainerMixin, transformers.Trainer):
    """Hugging Face's `Trainer`, which also takes Forebay loaders as datasets: see `ForebayTrainerMixin`."""

    if TYPE_CHECKING:
        # The types of Trainer's own arguments do not name loaders.
        def __init__(self, *args: Any, **options: Any) -> None: ...


class TrainBatches:
    """The training loader as Trainer iterates over it: once in each epoch."""

    def __init__(self, loader: Loader, start: passes.State, columns: list[str] | None):
        self.loader = loader
        self._start, self._columns = start, columns
        self._pass: passes.Pass | None = None
        self._skipped = 0

    def __len__(self) -> int:
        return passes.length(self.loader)

    def skip(self, steps: int) -> "TrainBatches":
        """Trainer would skip these steps of the first epoch. The checkpoint's place already lies behind them."""
        self._skipped = steps
        return self

    def set_epoch(self, epoch: int) -> None:
        """Trainer tells its epoch, which it computes of its steps."""
        # Without a known length, all steps are one epoch for Trainer.
        if self._pass is None and self.loader.samples_per_epoch is not None and epoch != self._start["epoch"]:
            raise InvalidError(
                f"the checkpoint is in epoch {self._start['epoch']}, and Trainer counts epoch {epoch}",
                "resume with the gradient_accumulation_steps that the checkpoint was made with",
            )

    def __iter__(self) -> Iterator[Any]:
        if self._pass is None:
            start = self._start
            self._check_steps(start)
        else:
            start = passes.epoch_start(self.loader, self._pass.start["epoch"] + 1)
        self._pass = passes.Pass(self.loader, start)
        for batch in self._pass:
            yield batch if self._columns is None else {name: batch[name] for name in self._columns}

    def _check_steps(self, start: passes.State) -> None:
        """Compares the checkpoint's place with the steps that Trainer counted."""
        if self.loader.samples_per_epoch is None:
            # Trainer does not know where epochs end, and counts the steps of all of them.
            return
        steps = passes.steps_before(self.loader, start)
        if steps != self._skipped:
            raise InvalidError(
                f"the checkpoint is {steps} batches into an epoch, and Trainer counts {self._skipped}",
                "resume with the gradient_accumulation_steps that the checkpoint was made with",
            )

    def state(self) -> dict[str, Any]:
        """The place after the last batch. Trainer saves only when it has trained on all that it took."""
        place = self._start if self._pass is None else self._pass.place(self._pass.handed_out)
        return passes.saved(self.loader, place)


class EvaluationBatches:
    """A loader for evaluation. All ranks take the same number of steps, and results of real samples are gathered."""

    def __init__(self, loader: Loader, columns: list[str] | None, accelerator: Any):
        self.loader = loader
        self._columns, self._accelerator = columns, accelerator
        # The number of samples of each rank in the current step.
        self._counts: list[int] = []

    def __len__(self) -> int:
        return passes.length(self.loader, 0)

    def __iter__(self) -> Iterator[Any]:
        self.loader.load_state_dict(passes.epoch_start(self.loader, 0))
        batches = iter(self.loader)
        batch: Any = None
        while True:
            following = next(batches, None)
            counts = self._all_counts(-1 if following is None else _rows(following))
            if max(counts) < 0:
                return
            self._counts = [max(count, 0) for count in counts]
            # A rank without samples computes its previous batch again, and the result is dropped.
            batch = batch if following is None else following
            if batch is None:
                raise InvalidError(
                    f"rank {self.loader.rank} has no sample to evaluate, and other ranks have",
                    "load with a smaller batch_size, so that the first step has samples for all ranks",
                )
            yield batch if self._columns is None else {name: batch[name] for name in self._columns}

    def _all_counts(self, count: int) -> list[int]:
        if self.loader.world_size == 1:
            return [count]
        counts: list[int] = self._accelerator.gather(torch.tensor([count], device=self._accelerator.device)).tolist()
        return counts

    def gather(self, data: Any) -> Any:
        """Gathers results, as Trainer's `gather_function`: those of real samples, in the order of ranks."""
        if isinstance(data, (list, tuple)):
            return type(data)(self.gather(item) for item in data)
        if isinstance(data, dict):
            return type(data)({name: self.gather(item) for name, item in data.items()})
        if not isinstance(data, torch.Tensor):
            return data
        if data.ndim == 0:
            # One value for each rank, as Trainer gathers it.
            return data[None] if self.loader.world_size == 1 else self._accelerator.gather(data[None])
        data = data[: self._counts[self.loader.rank]]
        if self.loader.world_size == 1:
            return data
        most = max(self._counts)
        padded = data.new_zeros((most, *data.shape[1:]))
        padded[: len(data)] = data
        parts = self._accelerator.gather(padded).split(most)
        return torch.cat([part[:count] for part, count in zip(parts, self._counts)])


def _rows(batch: Any) -> int:
    return len(next(iter(batch.values())))


def last_checkpoint(folder: str | os.PathLike[str]) -> str | None:
    """Returns the newest complete checkpoint in Trainer's output folder. A run that was killed while it saved leaves an
    incomplete one, which `get_last_checkpoint` of transformers would return."""
    prefix = f"{PREFIX_CHECKPOINT_DIR}-"
    found = [path for path in Path(folder).glob(f"{prefix}*") if path.name.removeprefix(prefix).isdecimal()]
    for path in sorted(found, key=lambda path: int(path.name.removeprefix(prefix)), reverse=True):
        # Trainer writes its state last.
        if _json_in(path / _trainer.TRAINER_STATE_NAME) is not None:
            return str(path)
    return None


def _place_in(checkpoint: str | os.PathLike[str]) -> Any:
    return _json_in(Path(checkpoint, PLACE_FILE))


def _json_in(file: Path) -> Any:
    try:
        return json.loads(file.read_text())
    except (FileNotFoundError, ValueError):
        return None


def _let_places_skip() -> None:
    """Trainer calls accelerate's `skip_first_batches`, which knows only torch's classes."""
    skip = _trainer.skip_first_batches
    if getattr(skip, "_knows_forebay", False):
        return

    @functools.wraps(skip)
    def skip_first_batches(dataloader: Any, num_batches: int = 0) -> Any:
        return dataloader.skip(num_batches) if isinstance(dataloader, TrainBatches) else skip(dataloader, num_batches)

    setattr(skip_first_batches, "_knows_forebay", True)
    _trainer.skip_first_batches = skip_first_batches


_let_places_skip()

"""Lightning: fit with the data module, on one process and with ddp on two ranks. LIGHTNING names its package."""

import functools
import importlib
import logging
import os
import pickle
import warnings

import torch

import common

PACKAGE = os.environ.get("LIGHTNING", "lightning")
pl = importlib.import_module("lightning.pytorch" if PACKAGE == "lightning" else PACKAGE)
ForebayDataModule = importlib.import_module(f"forebay.integrations.{PACKAGE}").ForebayDataModule
Callback, ModelCheckpoint = pl.callbacks.Callback, pl.callbacks.ModelCheckpoint

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
logging.getLogger("lightning.fabric").setLevel(logging.ERROR)
torch.set_num_threads(1)
RANK, PORT, FOLDER = common.arguments()
report = common.Report(RANK)


class Model(pl.LightningModule):
    def __init__(self, estimates=False, stops=None, set_epoch_of=None):
        super().__init__()
        self.estimates, self.stops, self.set_epoch_of = estimates, stops, set_epoch_of
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(common.FEATURES, 1)
        self.validated = []

    def training_step(self, batch, index):
        loss = torch.nn.functional.mse_loss(self.layer(batch["x"]).squeeze(1), batch["y"])
        report.step(self.current_epoch, batch["id"], loss)
        return loss

    def on_train_epoch_start(self):
        if self.set_epoch_of is not None:
            self.set_epoch_of.set_epoch(self.current_epoch)

    def on_train_batch_end(self, *_):
        if self.stops == self.trainer.global_step:
            self.trainer.should_stop = True

    def on_train_batch_start(self, *_):
        if self.stops == -1 and self.trainer.global_step == 2:
            return -1

    def validation_step(self, batch, index):
        self.validated.append(sorted(batch["id"].tolist()))

    def test_step(self, batch, index):
        self.validated.append(batch["id"].tolist())

    def predict_step(self, batch, index):
        return batch["id"]

    def configure_optimizers(self):
        if self.estimates:
            assert self.trainer.estimated_stepping_batches > 0
        return torch.optim.SGD(self.parameters(), lr=0.1)


class TrainsOnly(Model):
    validation_step = pl.LightningModule.validation_step


class RestoresLate(pl.strategies.SingleDeviceStrategy):
    """Restores the checkpoint after the optimizers were made, like FSDP and DeepSpeed."""

    restore_checkpoint_after_setup = True


class RestoresLateDdp(pl.strategies.DDPStrategy):
    restore_checkpoint_after_setup = True


class Killed(Exception):
    pass


class KillAfter(Callback):
    """Ends training like a crash, after some steps."""

    def __init__(self, steps):
        self.steps = steps

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step >= self.steps:
            raise Killed


def fit(case, data, checkpoint=None, resume=None, kill=None, ranks=1, model=Model, **options):
    """Fits a new model, and reports its steps. `checkpoint` is when to save, for `ModelCheckpoint`."""
    callbacks = [ModelCheckpoint(FOLDER / case, filename="{step}", save_top_k=-1, **checkpoint)] if checkpoint else []
    if kill:
        callbacks.append(KillAfter(kill))
    strategy = {"strategy": "ddp"} if ranks > 1 else {}
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=ranks,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=bool(checkpoint),
        callbacks=callbacks,
        **{"max_epochs": 3, "num_sanity_val_steps": 0, **strategy, **options},
    )
    model = model()
    try:
        trainer.fit(model, datamodule=data, ckpt_path=resume)
    except Killed:
        pass
    report.end(case, validated=model.validated)


def saved(case, step):
    return FOLDER / case / f"step={step}.ckpt"


def load(**options):
    return common.loader(drop_last=True, **options)


def data(**options):
    return ForebayDataModule(train=load(**options))


def one_process():
    fit("plain", data())
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        fit("trains-only", data(), model=TrainsOnly, num_sanity_val_steps=2)
    report.end("warnings", shown=[str(warning.message) for warning in shown if "dataloader" in str(warning.message)])
    numbered = load()
    fit("set-epoch", ForebayDataModule(train=numbered), model=functools.partial(Model, set_epoch_of=numbered))
    fit("killed", data(), checkpoint={"every_n_train_steps": 4}, kill=9)
    fit("resumed", data(), resume=saved("killed", 8))
    both = ForebayDataModule(train=load(), val=load())
    quiet(max_epochs=3).validate(Model(), datamodule=both, ckpt_path=saved("killed", 8), verbose=False)
    fit("after-a-validation", both)
    searched, model = data(), Model()
    trainer = quiet(max_epochs=3, num_sanity_val_steps=0, default_root_dir=FOLDER)
    # More steps than an epoch has.
    pl.tuner.Tuner(trainer).lr_find(model, datamodule=searched, num_training=8, update_attr=False)
    report.steps.clear()
    trainer.fit(model, datamodule=searched)
    report.end("after-lr-find")
    fit("at-the-end", data(), checkpoint={"every_n_epochs": 1}, max_epochs=1)
    fit("after-the-end", data(), resume=saved("at-the-end", 6))
    fit("steps-at-the-end", data(), checkpoint={"every_n_epochs": 1, "save_on_train_epoch_end": True}, max_steps=6)
    fit("steps-after-the-end", data(), resume=saved("steps-at-the-end", 6), max_steps=18, max_epochs=-1)
    fit("last-batch", data(), checkpoint={"every_n_train_steps": 6}, max_epochs=1)
    fit("after-last-batch", data(), resume=saved("last-batch", 6))
    fit("half-after-last-batch", data(global_batch_size=2), resume=saved("last-batch", 6))
    estimates = functools.partial(Model, estimates=True)
    limits = {"max_steps": 18, "max_epochs": 3}
    fit("estimated-after-the-end", data(), resume=saved("at-the-end", 6), model=estimates, **limits)
    fit("estimated-resumed", data(), resume=saved("killed", 8), model=estimates)
    late = {"model": estimates, "strategy": RestoresLate("cpu")}
    fit("restored-late", data(), resume=saved("killed", 8), **late)
    late = {"model": estimates, "strategy": RestoresLate("cpu")}
    fit("restored-late-after-the-end", data(), resume=saved("at-the-end", 6), **late)
    at_epochs_end = {"every_n_epochs": 1, "save_on_train_epoch_end": True}
    for name, stops in (("stopped", 2), ("left", -1)):
        fit(name, data(), checkpoint=at_epochs_end, max_epochs=1, model=functools.partial(Model, stops=stops))
        fit(f"after-{name}", data(), resume=saved(name, 2))
    limited = {"limit_train_batches": 4, "max_epochs": -1}
    fit("limited-steps", data(), checkpoint=at_epochs_end, max_steps=6, **limited)
    fit("after-limited-steps", data(), resume=saved("limited-steps", 6), max_steps=12, **limited)
    fit("accumulated", data(), accumulate_grad_batches=2)
    fit("accumulated-killed", data(), checkpoint={"every_n_train_steps": 2}, kill=5, accumulate_grad_batches=2)
    fit("accumulated-resumed", data(), resume=saved("accumulated-killed", 4), accumulate_grad_batches=2)
    fit("limited", data(), checkpoint={"every_n_train_steps": 4}, limit_train_batches=4)
    fit("limited-resumed", data(), resume=saved("limited", 4), limit_train_batches=4)
    fit("limited-within", data(), checkpoint={"every_n_train_steps": 3}, kill=7, limit_train_batches=4)
    fit("limited-resumed-within", data(), resume=saved("limited-within", 6), limit_train_batches=4)
    # Without a known length, Lightning takes a batch ahead.
    unknown = {"where": "id >= 0"}
    fit("unknown-length", data(**unknown))
    fit("unknown-length-killed", data(**unknown), checkpoint={"every_n_train_steps": 4}, kill=9)
    fit("unknown-length-resumed", data(**unknown), resume=saved("unknown-length-killed", 8))
    fit("unknown-length-at-the-end", data(**unknown), checkpoint={"every_n_epochs": 1}, max_epochs=1)
    fit("unknown-length-after-the-end", data(**unknown), resume=saved("unknown-length-at-the-end", 6))
    # With a known one, it stops after the last batch, and resumes from a checkpoint there.
    fit("counted", data(count=True, **unknown), checkpoint={"every_n_train_steps": 4}, kill=9)
    fit("counted-resumed", data(count=True, **unknown), resume=saved("counted", 8))
    validated = {"val": common.loader(10, batch_size=4, shuffle=False)}
    fit(
        "validated",
        ForebayDataModule(train=load(), **validated),
        checkpoint={"every_n_train_steps": 4},
        num_sanity_val_steps=1,
        val_check_interval=3,
    )
    again = {"val": [common.loader(10, batch_size=4, shuffle=False)]}
    fit("validated-resumed", ForebayDataModule(train=load, **again), resume=saved("validated", 8), val_check_interval=3)
    both = ForebayDataModule(train=load, val=load)
    fit("validated-by-one-function", both, val_check_interval=3)
    fit("reloaded", ForebayDataModule(train=load), reload_dataloaders_every_n_epochs=1)
    fit("pairs", ForebayDataModule(train=load), max_epochs=1, checkpoint={"every_n_train_steps": 3})

    evaluate("evaluated", 1)

    report.refused("direct", lambda: fit_directly(load()))
    report.refused("direct-dataloader", lambda: fit_directly(torch.utils.data.DataLoader(load(), batch_size=None)))
    report.refused("direct-validation", lambda: quiet().validate(Model(), load(), verbose=False))
    report.refused("without-trainer", lambda: data().train_dataloader())
    report.refused("epochs", lambda: fit("", data(epochs=3)))
    report.refused("other-seed", lambda: fit("", data(seed=4), resume=saved("at-the-end", 6)))
    report.refused("other-global-batch", lambda: fit("", data(global_batch_size=8), resume=saved("killed", 8)))
    late = {"model": estimates, "strategy": RestoresLate("cpu"), "max_steps": 18}
    unknown = {"where": "id >= 0"}
    report.refused("restored-too-late", lambda: fit("", data(**unknown), resume=saved("killed", 8), **late))
    report.refused("no-samples", lambda: fit("", data(global_batch_size=48)))
    report.refused("no-samples-found", lambda: fit("", data(where="id < 0")))
    plain = pl.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[ModelCheckpoint(FOLDER / "foreign", filename="{step}", every_n_train_steps=2)],
    )
    rows = [{"id": torch.tensor([0]), "x": torch.zeros(1, 4), "y": torch.zeros(1)}] * 3
    plain.fit(Model(), torch.utils.data.DataLoader(rows, batch_size=None))
    report.steps.clear()
    report.refused("foreign-checkpoint", lambda: fit("", data(), resume=saved("foreign", 2)))
    one = load()
    report.refused("one-loader-twice", lambda: ForebayDataModule(train=one, val=one))
    both = ForebayDataModule(train=lambda: one, val=lambda: one)
    report.refused("one-loader-returned-twice", lambda: fit("", both, val_check_interval=3))
    report.refused("spawned", lambda: pickle.dumps(ForebayDataModule(train=one)))
    assert pickle.loads(pickle.dumps(ForebayDataModule(train=load)))


def quiet(**options):
    return pl.Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, **options,
    )


def fit_directly(loader, **options):
    quiet(max_epochs=2, **options).fit(Model(), loader)


def evaluate(case, ranks):
    """Tests a model and predicts with it twice, and reports the samples of each loop."""
    trainer = quiet(devices=ranks, strategy="ddp" if ranks > 1 else "auto")
    loaders = [common.loader(10, global_batch_size=4, shuffle=shuffle) for shuffle in (False, True)]
    given = {"test": {"some": loaders[0]}, "predict": [loaders[1]]}
    model, datamodule = Model(), ForebayDataModule(**given)
    tested, predicted = [], []
    for _ in range(2):
        model.validated = []
        trainer.test(model, datamodule=datamodule, verbose=False)
        tested.append(model.validated)
        predicted.append([batch.tolist() for batch in trainer.predict(model, datamodule=datamodule)])
    report.end(case, tested=tested, predicted=predicted)


def two_ranks():
    fit("ranks-plain", data(), ranks=2)
    fit("ranks-made-before", ForebayDataModule(train=MADE_BEFORE), ranks=2)
    fit("ranks-killed", data(), ranks=2, checkpoint={"every_n_train_steps": 4}, kill=9)
    fit("ranks-resumed", data(), ranks=2, resume=saved("ranks-killed", 8))
    fit("ranks-resumed-of-one", data(), ranks=2, resume=saved("killed", 8))
    few = {"limit_train_batches": 4, "ranks": 2}
    fit("ranks-limited", data(), checkpoint={"every_n_train_steps": 3}, **few)
    fit("ranks-limited-resumed", data(), resume=saved("ranks-limited", 6), **few)
    accumulated = {"accumulate_grad_batches": 2, "ranks": 2}
    fit("ranks-accumulated", data(), checkpoint={"every_n_train_steps": 2}, **accumulated)
    fit("ranks-accumulated-resumed", data(), resume=saved("ranks-accumulated", 4), **accumulated)
    steps = {"max_steps": 9, "max_epochs": -1, "ranks": 2}
    fit("ranks-steps", data(), checkpoint={"every_n_train_steps": 8}, **steps)
    fit("ranks-steps-resumed", data(), resume=saved("ranks-steps", 8), **steps | {"max_steps": 18})
    fit("ranks-validated", ForebayDataModule(train=load(), val=common.loader(10, batch_size=2)), ranks=2, max_epochs=1)
    evaluate("ranks-evaluated", 2)
    ranks = {"devices": 2, "strategy": "ddp"}
    report.refused("ranks-direct", lambda: fit_directly(load(), **ranks))
    report.refused(
        "ranks-direct-dataloader", lambda: fit_directly(torch.utils.data.DataLoader(load(), batch_size=None), **ranks)
    )
    report.refused("ranks-uneven", lambda: fit("", ForebayDataModule(train=common.loader(25, batch_size=2)), ranks=2))
    uneven = ForebayDataModule(train=load(), val=common.loader(10, batch_size=2))
    report.refused("ranks-uneven-validation", lambda: fit("", uneven, ranks=2, strategy=RestoresLateDdp()))
    report.refused("ranks-given", lambda: fit("", data(rank=0, world_size=1), ranks=2))


MADE_BEFORE = load()
if RANK == 0:
    one_process()
    (FOLDER / "one-process-ended").touch()
common.wait_for(FOLDER / "one-process-ended")
variables = common.torch_ranks(RANK, PORT)
os.environ.update(variables)
two_ranks()
torch.distributed.destroy_process_group()
common.clear(variables)
if RANK == 0:
    fit("resumed-of-ranks", data(), resume=saved("ranks-killed", 8))

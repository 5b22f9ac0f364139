"""Hugging Face's Trainer, on one process and on two ranks."""

import os
import warnings

import torch
import transformers
from transformers import TrainerCallback, TrainingArguments

import common
from forebay.integrations.transformers import ForebayTrainerMixin, Trainer

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
torch.set_num_threads(1)
RANK, PORT, FOLDER = common.arguments()
report = common.Report(RANK)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(common.FEATURES, 1)

    def forward(self, x, labels, id=None):
        logits = self.layer(x).squeeze(1)
        loss = torch.nn.functional.mse_loss(logits, labels)
        if self.training:
            report.step(None, id, loss)
        return {"loss": loss, "logits": id}


class Killed(Exception):
    pass


class KillAfter(TrainerCallback):
    def __init__(self, kill):
        self.kill = kill

    def on_step_end(self, args, state, control, **_):
        if self.kill and state.global_step > self.kill:
            raise Killed


class SequenceParallel(Trainer):
    def get_sp_size(self):
        return 2


class TensorParallel(Trainer):
    def get_tp_size(self):
        return 2

    def train(self, **_):
        self.evaluate()


class Seq2Seq(ForebayTrainerMixin, transformers.Seq2SeqTrainer):
    pass


class WithDataLoader(transformers.Trainer):
    """Gives the loader to the plain Trainer as PyTorch's own scripts would."""

    def get_train_dataloader(self):
        return torch.utils.data.DataLoader(self.train_dataset, batch_size=None)


def train(case, loader, resume=None, kill=None, evaluated=None, trainer=Trainer, folder=None, collator=None, **options):
    options = {
        "num_train_epochs": 3,
        "learning_rate": 0.1,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "max_grad_norm": 0.0,
        "ddp_backend": "gloo" if "RANK" in os.environ else None,
        "dataloader_pin_memory": False,
        "per_device_eval_batch_size": 4,
        "logging_strategy": "no",
        **options,
    }
    model = Model()
    is_seq2seq = issubclass(trainer, transformers.Seq2SeqTrainer)
    arguments = transformers.Seq2SeqTrainingArguments if is_seq2seq else TrainingArguments
    args = arguments(output_dir=str(FOLDER / (folder or case or "none")), **options)
    made = trainer(
        model=model, args=args, train_dataset=loader, eval_dataset=evaluated, callbacks=[KillAfter(kill)],
        data_collator=collator,
        compute_metrics=lambda results, compute_result=True: {"ids": sorted(results.predictions.tolist())},
    )
    try:
        made.train(resume_from_checkpoint=resume)
    except Killed:
        pass
    more = {}
    if evaluated is not None:
        metrics = made.evaluate()
        more = {"evaluated": metrics["eval_ids"], "loss": metrics["eval_loss"], "labels": evaluated.samples_per_epoch}
    report.end(case, **more)


def evaluate(case):
    """Evaluates datasets by their names, and predicts, each twice, and reports samples and losses."""
    loaders = {name: load(samples=samples, batch_size=2, drop_last=False) for name, samples in (("a", 10), ("b", 7))}
    args = TrainingArguments(
        str(FOLDER / "none"), report_to=[], disable_tqdm=True, use_cpu=True, per_device_eval_batch_size=2,
        ddp_backend="gloo" if "RANK" in os.environ else None,
    )
    made = Trainer(
        model=Model(), args=args, eval_dataset=loaders,
        compute_metrics=lambda results: {"ids": sorted(results.predictions.tolist())},
    )
    metrics = [made.evaluate() for _ in range(2)]
    predicted = [made.predict(loaders["a"]) for _ in range(2)]
    report.end(
        case, metrics=[{name: of[name] for name in sorted(of) if name.endswith(("_ids", "_loss"))} for of in metrics],
        predicted=[sorted(of.predictions.tolist()) for of in predicted],
    )


def saved(case, step):
    return str(FOLDER / case / f"checkpoint-{step}")


def every(steps):
    return {"save_strategy": "steps", "save_steps": steps}


def load(**options):
    rows = common.loader_table(options.pop("samples", common.SAMPLES)).select("id", "x", labels="y")
    if "batch_size" not in options:
        options.setdefault("global_batch_size", 4)
    if (where := options.pop("where", None)) is not None:
        rows = rows.filter(where)
    return rows.load(**{"shuffle": True, "seed": 3, "drop_last": True, **options})


def one_process():
    train("plain", load())
    train("killed", load(), kill=8, **every(4))
    train("resumed", load(), resume=saved("killed", 8))
    train("resumed-without-skip", load(), resume=saved("killed", 8), ignore_data_skip=True)
    train("resumed-from-last", load(), resume=True, folder="killed")
    train("at-the-end", load(), save_strategy="epoch", num_train_epochs=1)
    train("after-the-end", load(), resume=saved("at-the-end", 6))
    train("seq2seq", load(), trainer=Seq2Seq)
    train("seq2seq-resumed", load(), trainer=Seq2Seq, resume=saved("killed", 8))
    train("max-steps", load(), max_steps=9, **every(4))
    train("max-steps-resumed", load(), resume=saved("max-steps", 8), max_steps=18)
    # Six batches are two steps of four, the second with two of them.
    train("accumulated", load(), gradient_accumulation_steps=4)
    train("accumulated-killed", load(), kill=3, gradient_accumulation_steps=4, **every(3))
    train("accumulated-resumed", load(), resume=saved("accumulated-killed", 3), gradient_accumulation_steps=4)
    where = {"where": "id >= 0"}
    train("unknown-length", load(**where), max_steps=18)
    train("unknown-length-killed", load(**where), kill=8, max_steps=18, **every(4))
    train("unknown-length-resumed", load(**where), resume=saved("unknown-length-killed", 8), max_steps=18)
    train("counted", load(count=True, **where), gradient_accumulation_steps=4)
    evaluated = load(samples=10, batch_size=4, drop_last=False)
    train("evaluated", load(), evaluated=evaluated, eval_strategy="steps", eval_steps=2, num_train_epochs=1)

    evaluate("evaluated-by-name")

    report.refused("direct", lambda: train("", load(), trainer=transformers.Trainer))
    first = {"trainer": transformers.Trainer, "collator": lambda batches: batches[0]}
    report.refused("direct-first-of-batch", lambda: train("", load(), **first))
    report.refused("direct-dataloader", lambda: train("", load(), trainer=WithDataLoader))
    report.refused("epochs", lambda: train("", load(epochs=2)))
    report.refused("other-seed", lambda: train("", load(seed=4), resume=saved("at-the-end", 6)))
    report.refused("other-global-batch", lambda: train("", load(global_batch_size=8), resume=saved("killed", 8)))
    at_the_end = saved("at-the-end", 6)
    report.refused("other-global-batch-at-the-end", lambda: train("", load(global_batch_size=8), resume=at_the_end))
    report.refused(
        "other-accumulation-at-the-end", lambda: train("", load(), resume=at_the_end, gradient_accumulation_steps=2)
    )
    report.refused(
        "other-accumulation", lambda: train("", load(), resume=saved("killed", 8), gradient_accumulation_steps=2)
    )
    report.refused("no-samples", lambda: train("", load(global_batch_size=48)))
    report.refused("no-samples-found", lambda: train("", load(where="id < 0"), max_steps=4))
    report.refused("small-evaluation-batch", lambda: train(
        "", load(), evaluated=load(samples=10, batch_size=8), eval_strategy="steps", eval_steps=2
    ))
    one = load()
    report.refused("one-loader-twice", lambda: train("", one, evaluated=one, eval_strategy="steps", eval_steps=2))
    accumulated = {"max_steps": 4, "gradient_accumulation_steps": 2}
    report.refused("uncounted", lambda: train("", load(**where)))
    report.refused("unknown-accumulation", lambda: train("", load(**where), **accumulated))
    report.refused("batch-metrics", lambda: train(
        "", load(), evaluated=evaluated, eval_strategy="steps", eval_steps=2, batch_eval_metrics=True
    ))
    report.refused("sequence-parallel", lambda: train("", load(), trainer=SequenceParallel))
    report.refused("tensor-parallel-evaluation", lambda: train("", [], evaluated=evaluated, trainer=TensorParallel))
    os.remove(saved("max-steps", 8) + "/forebay.json")
    report.refused("foreign-checkpoint", lambda: train("", load(), resume=saved("max-steps", 8)))


def two_ranks():
    train("ranks-plain", load())
    train("ranks-killed", load(), kill=8, **every(4))
    torch.distributed.barrier()
    train("ranks-resumed", load(), resume=saved("ranks-killed", 8))
    train("ranks-resumed-of-one", load(), resume=saved("killed", 8))
    train("ranks-max-steps", load(), max_steps=9, **every(4))
    torch.distributed.barrier()
    train("ranks-max-steps-resumed", load(), resume=saved("ranks-max-steps", 8), max_steps=18)
    accumulated = {"gradient_accumulation_steps": 4}
    train("ranks-accumulated", load(), **accumulated, **every(3))
    torch.distributed.barrier()
    train("ranks-accumulated-resumed", load(), resume=saved("ranks-accumulated", 3), **accumulated)
    evaluate("ranks-evaluated-by-name")
    # Ten samples in steps of eight: the second step has two samples for rank 0, and none for rank 1.
    evaluated = load(samples=10, batch_size=4, drop_last=False)
    train("ranks-evaluated", load(), evaluated=evaluated, num_train_epochs=1)
    evaluated = load(where="id < 13", batch_size=4, drop_last=False)
    train("ranks-evaluated-unknown", load(), evaluated=evaluated, num_train_epochs=1)
    report.refused("ranks-uneven", lambda: train("", load(samples=25, batch_size=2, drop_last=False)))
    report.refused("ranks-given", lambda: train("", load(rank=0, world_size=1)))
    report.refused("ranks-direct", lambda: train("", load(), trainer=transformers.Trainer))
    first = {"trainer": transformers.Trainer, "collator": lambda batches: batches[0]}
    report.refused("ranks-direct-first-of-batch", lambda: train("", load(), **first))
    report.refused("ranks-direct-dataloader", lambda: train("", load(), trainer=WithDataLoader))


def reset():
    """Forgets accelerate's view of the processes."""
    from accelerate.state import AcceleratorState, GradientState, PartialState

    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


MADE_BEFORE = load()
if RANK == 0:
    one_process()
    (FOLDER / "one-process-ended").touch()
common.wait_for(FOLDER / "one-process-ended")
variables = common.torch_ranks(RANK, PORT)
os.environ.update(variables)
reset()
two_ranks()
train("ranks-made-before", MADE_BEFORE)
torch.distributed.destroy_process_group()
common.clear(variables)
reset()
if RANK == 0:
    train("resumed-of-ranks", load(), resume=saved("ranks-killed", 8))

"""JAX with Orbax, on one process and on two that share a mesh. Orbax keeps the loader's state as a JSON item.

The phases are processes of their own, because JAX's processes must meet before they compute.
"""

import sys

import jax

jax.config.update("jax_platforms", "cpu")

import common  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import orbax.checkpoint as ocp  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

RANK, PORT, FOLDER = common.arguments()
PHASE = sys.argv[4]
report = common.Report(RANK)
if PHASE == "ranks":
    jax.distributed.initialize(f"127.0.0.1:{PORT}", num_processes=2, process_id=RANK)

from forebay.integrations.jax import global_batch, ranks  # noqa: E402

MESH = Mesh(jax.devices(), ("data",))
SHARDED = NamedSharding(MESH, PartitionSpec("data"))
REPLICATED = NamedSharding(MESH, PartitionSpec())


@jax.jit
def step(weights, batch):
    def loss(weights):
        return jnp.mean((batch["x"] @ weights - batch["y"]) ** 2)

    value, gradient = jax.value_and_grad(loss)(weights)
    return weights - 0.1 * gradient, value


def checkpoints(case):
    return ocp.CheckpointManager(FOLDER / case, options=ocp.CheckpointManagerOptions(max_to_keep=1))


def train(case, loader, epochs=3, save_at=None, resume=None, takes_exactly=None):
    """Trains a new model. With `takes_exactly`, a loop takes that many batches, and never asks for one too many."""
    weights = jax.device_put(jnp.zeros(common.FEATURES), REPLICATED)
    if resume is not None:
        with checkpoints(resume) as manager:
            restored = manager.restore(
                manager.latest_step(),
                args=ocp.args.Composite(
                    model=ocp.args.StandardRestore({"weights": weights}), data=ocp.args.JsonRestore()
                ),
            )
        weights = restored["model"]["weights"]
        loader.load_state_dict(restored["data"])
    steps = 0
    while loader.epoch < epochs:
        loop = loader if takes_exactly is None else (batch for _, batch in zip(range(takes_exactly), loader))
        for batch in loop:
            weights, loss = step(weights, global_batch({"x": batch["x"], "y": batch["y"]}, SHARDED))
            report.step(batch.epoch, batch["id"], loss)
            steps += 1
            if steps == save_at:
                with checkpoints(case) as manager:
                    items = {
                        "model": ocp.args.StandardSave({"weights": weights}),
                        "data": ocp.args.JsonSave(loader.state_dict()),
                    }
                    manager.save(steps, args=ocp.args.Composite(**items))
                report.end(case)
                return
    report.end(case)


def load(**options):
    return common.loader(drop_last=True, format="numpy", **options)


if PHASE == "one":
    common.run_one_process(train, load, report)
    text = common.loader_table().select("id", word="'a'").load(batch_size=4, format="numpy")
    report.refused("text", lambda: global_batch(next(iter(text)), SHARDED))
elif PHASE == "ranks":
    common.run_two_ranks(train, load, load())
    # Both processes share a model's layers, so they read the same samples.
    shared = NamedSharding(Mesh([[device] for device in jax.devices()], ("model", "data")), PartitionSpec("data"))
    report.end("ranks-of-meshes", data=ranks(SHARDED), model=ranks(shared))
    report.refused("ranks-given", lambda: iter(load(rank=0, world_size=1)))
else:
    train("resumed-of-ranks", load(), resume="ranks-saved")

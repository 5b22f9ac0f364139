"""Trains with JAX on several processes, with Orbax's checkpoints. Start it again after it was killed, and it goes on
with the next batch, also with another number of processes.

    python examples/frameworks/train_jax.py --folder runs/jax --epochs 4
    for process in 0 1; do
        python examples/frameworks/train_jax.py --folder runs/jax --epochs 4 --processes 2 --process $process &
    done; wait
"""

import argparse
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from samples import FEATURES, load, samples


@jax.jit
def train_step(weights: jax.Array, batch: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    def loss_of(weights: jax.Array) -> jax.Array:
        return jnp.mean((batch["features"] @ weights - batch["target"]) ** 2)

    loss, gradient = jax.value_and_grad(loss_of)(weights)
    return weights - 0.01 * gradient, loss


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="the folder of the checkpoints")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--coordinator", default="127.0.0.1:7080", help="host and port of process 0")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--process", type=int, default=0)
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    if options.processes > 1:
        jax.distributed.initialize(options.coordinator, options.processes, options.process)

    from forebay.integrations.jax import global_batch, ranks

    mesh = Mesh(jax.devices(), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    loader = load(samples(), format="numpy", **ranks(sharding))
    weights = jax.device_put(jnp.zeros(FEATURES), NamedSharding(mesh, PartitionSpec()))
    checkpoints = ocp.CheckpointManager(options.folder.absolute(), options=ocp.CheckpointManagerOptions(max_to_keep=2))
    step = 0
    if (last := checkpoints.latest_step()) is not None:
        restored = checkpoints.restore(
            last,
            args=ocp.args.Composite(
                model=ocp.args.StandardRestore({"weights": weights}), data=ocp.args.JsonRestore()
            ),
        )
        weights, step = restored["model"]["weights"], last
        loader.load_state_dict(restored["data"])

    while loader.epoch < options.epochs:
        for batch in loader:
            numbers = batch.pop("number").tolist()
            weights, loss = train_step(weights, global_batch(batch, sharding))
            print(json.dumps({"step": step, "samples": numbers, "loss": float(loss)}), flush=True)
            step += 1
            if step % 5 == 0:
                items = {
                    "model": ocp.args.StandardSave({"weights": weights}),
                    "data": ocp.args.JsonSave(loader.state_dict()),
                }
                checkpoints.save(step, args=ocp.args.Composite(**items))
    checkpoints.wait_until_finished()


if __name__ == "__main__":
    main()

"""Forebay in Hugging Face's accelerate.

    from forebay.integrations.accelerate import prepare

    model, optimizer = accelerator.prepare(model, optimizer)
    batches = prepare(accelerator, loader)
    for batch in batches:
        ...

`accelerator.prepare` divides the batches of a `DataLoader` among the processes, and a Forebay loader has only those of
its own process. So the loader does not go through it.
"""

from __future__ import annotations

import math
from typing import Any, Iterator

from .._errors import InvalidError
from .._loader import Loader
from ._versions import require

require("accelerate", "accelerate")
import torch  # noqa: E402  (accelerate needs it)
from accelerate import Accelerator  # noqa: E402
from accelerate.state import DistributedType, GradientState  # noqa: E402
from accelerate.utils import send_to_device  # noqa: E402  # pyright: ignore[reportUnknownVariableType]

__all__ = ["PreparedLoader", "prepare"]


def prepare(accelerator: Accelerator, loader: Loader, device_placement: bool | None = None) -> PreparedLoader:
    """Returns the batches of `loader` on the accelerator's device, and registers the loader for `save_state` and
    `load_state`.

    Gradient accumulation with `accelerator.accumulate` knows the last batch of an epoch. `device_placement` is by
    default that of the accelerator; without it the batches stay where the loader has them. The loader may also be
    wrapped in `DataLoader(loader, batch_size=None)`.
    """
    if isinstance(loader, torch.utils.data.DataLoader) and isinstance(loader.dataset, Loader):
        if loader.batch_size is not None:
            raise InvalidError(
                "this DataLoader has a batch size, so it would make batches of this loader's batches",
                "prepare(accelerator, loader), or DataLoader(loader, batch_size=None)",
            )
        loader = loader.dataset
    if not isinstance(loader, Loader):
        raise InvalidError(
            f"only Forebay loaders are prepared here, got a {type(loader).__name__}",
            "give accelerator.prepare everything else",
        )
    _check_ranks(accelerator, loader)
    if device_placement is None:
        device_placement = accelerator.device_placement
    is_xla = accelerator.distributed_type == DistributedType.XLA
    device = accelerator.device if device_placement and not is_xla else None
    prepared = PreparedLoader(loader, device, accelerator.non_blocking)
    # One state is that of all ranks. With dynamic delivery it is not, and then load_state raises.
    accelerator.register_for_checkpointing(loader)
    return prepared


def _check_ranks(accelerator: Accelerator, loader: Loader) -> None:
    """Refuses ranks that share a model's layers and read different samples."""
    mesh: Any = accelerator.torch_device_mesh
    sizes = {name: mesh[name].size() for name in getattr(mesh, "mesh_dim_names", None) or ()}
    if sizes.get("sp", 1) > 1:
        raise InvalidError(
            "accelerate divides the samples of its own loaders for sequence parallelism, and not those of Forebay",
            "use tensor parallelism, or a dataset of another kind",
        )
    shared = math.prod(sizes.get(name, 1) for name in ("tp", "cp"))
    ranks, rank = accelerator.num_processes // shared, accelerator.process_index // shared
    # Without such ranks a process may evaluate alone.
    if shared > 1 and (loader.rank, loader.world_size) != (rank, ranks):
        raise InvalidError(
            f"the loader reads as rank {loader.rank} of {loader.world_size}, and {shared} processes share the layers of "
            f"a model, so that {ranks} ranks have samples of their own",
            f"load with dp_rank={rank}, dp_size={ranks}",
        )


class PreparedLoader:
    """The batches of a loader, as accelerate knows them: on its device, and with the end of each epoch."""

    # accelerate's skip_first_batches reads these of a DataLoader.
    batch_size = None
    drop_last = False
    prefetch_factor = None
    # Tells accelerator.prepare to leave it as it is.
    _is_accelerate_prepared = True

    def __init__(self, loader: Loader, device: Any, non_blocking: bool):
        self.loader = loader
        self.device, self._non_blocking = device, non_blocking
        # accelerate reads these two through its GradientState: whether this is the last batch of the loop, and how many
        # samples the last batch repeats. Forebay repeats none.
        self.end_of_dataloader = False
        self.remainder = 0

    def __iter__(self) -> Iterator[Any]:
        gradients = GradientState()
        batches = iter(self.loader)
        self.end_of_dataloader = False
        gradients._add_dataloader(self)
        try:
            for batch in batches:
                # The loader looks ahead by itself, so its state stays that of the batch that the loop has.
                self.end_of_dataloader = self.loader.is_last_batch
                if self.device is not None:
                    batch = send_to_device(batch, self.device, non_blocking=self._non_blocking)
                yield batch
        finally:
            gradients._remove_dataloader(self)

    @property
    def dataset(self) -> torch.utils.data.IterableDataset[Any]:
        """The batches as a dataset, of which accelerate's skip_first_batches makes a `DataLoader`."""
        return _View(self)

    def __len__(self) -> int:
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """See `Loader.set_epoch`."""
        self.loader.set_epoch(epoch)

    def skip(self, steps: int) -> None:
        """See `Loader.skip`. Unlike `accelerator.skip_first_batches`, it computes no batch that is skipped."""
        self.loader.skip(steps)

    def state_dict(self) -> dict[str, Any]:
        """See `Loader.state_dict`."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """See `Loader.load_state_dict`."""
        self.loader.load_state_dict(state)


class _View(torch.utils.data.IterableDataset[Any]):

    def __init__(self, prepared: PreparedLoader):
        self._prepared = prepared

    def __iter__(self) -> Iterator[Any]:
        return iter(self._prepared)

    def __len__(self) -> int:
        return len(self._prepared)

"""Types of arguments and of batches, for type checkers and editors."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    from typing import TypeAlias

    import jax
    import numpy
    import numpy.typing
    import pyarrow
    import torch
    from torch.utils.data import IterableDataset

    from ._batch import Batch
    from ._loader import Loader

    # Annotations name them; they do not exist at run time, because the frameworks need not be installed.
    TorchBatch: TypeAlias = Batch[torch.Tensor]
    NumpyBatch: TypeAlias = Batch[numpy.typing.NDArray[Any]]
    JaxBatch: TypeAlias = Batch[jax.Array]
    TensorFlowBatch: TypeAlias = Batch[Any]
    ArrowBatch: TypeAlias = pyarrow.RecordBatch

    OnError: TypeAlias = Literal["raise", "skip", "quarantine"]

    class TorchLoader(Loader[TorchBatch], IterableDataset[TorchBatch]):
        """A loader of torch tensors, which torch's own loaders accept as a data set."""

if sys.version_info >= (3, 11):
    from typing import Unpack as Unpack
elif TYPE_CHECKING:
    from typing_extensions import Unpack as Unpack

if TYPE_CHECKING:
    from typing_extensions import TypeVar
else:
    from typing import TypeVar as _TypeVar

    def TypeVar(name: str, default: Any = None) -> Any:
        """Only type checkers need the defaults of type variables, and Python has them only since 3.13."""
        return _TypeVar(name)


__all__ = ["B", "FeedOptions", "LoadOptions", "MaterializeOptions", "ReadOptions", "T", "U", "Unpack"]

# The tensors of a format, such as `torch.Tensor`.
T = TypeVar("T", default=Any)
U = TypeVar("U")
# A loader's batches: `Batch[torch.Tensor]`, or `pyarrow.RecordBatch`.
B = TypeVar("B", default=Any)


# protocol/src/options/table.rs declares the options: see _options.py.
class FeedOptions(TypedDict, total=False):
    """Options that define a feed."""

    # begin: options of a feed
    seed: int | None
    shuffle: bool | None
    window_bytes: int | str | None
    window_rows: int | None
    on_error: Literal["raise", "skip", "quarantine"] | None
    bucket_by_length: str | None
    bucket_boundaries: list[int] | None
    global_batch_size: int | None
    cache: Literal["none", "source", "prefix", "full", "auto"] | None
    order: Literal["exact", "relaxed"] | None
    # end: options of a feed


class ReadOptions(TypedDict, total=False):
    """Options that say how a feed is read."""

    # begin: options of reading
    batch_size: int | None
    drop_last: bool | None
    delivery: Literal["ordered", "dynamic"] | None
    job: str | None
    # end: options of reading


class MaterializeOptions(FeedOptions, total=False):
    """Arguments of `materialize`, without the folder."""

    # begin: options of a job
    format: str | None
    file_size: int | str | None
    compression: str | None
    partition_by: str | list[str] | None
    global_shuffle: bool | None
    sort_by: str | list[str] | None
    # end: options of a job


class LoadOptions(FeedOptions, ReadOptions, total=False):
    """Arguments of `load`, without `format`."""

    epochs: int | float | None
    rank: int | None
    world_size: int | None
    dp_rank: int | None
    dp_size: int | None
    columns: list[str] | None
    padding: dict[str, float] | None
    device: Any
    pin_memory: bool
    prefetch_factor: int
    count: bool

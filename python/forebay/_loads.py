"""The method `load`, whose batches depend on `format`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

from ._keywords import explained
from ._loader import Loader

if TYPE_CHECKING:
    from ._types import ArrowBatch, JaxBatch, LoadOptions, NumpyBatch, TensorFlowBatch, TorchLoader, Unpack


class Loads:
    """A query that has batches: a pipeline or a table."""

    @overload
    def load(self, *, format: Literal["torch"] | None = None, **options: Unpack[LoadOptions]) -> TorchLoader: ...
    @overload
    def load(self, *, format: Literal["numpy"], **options: Unpack[LoadOptions]) -> Loader[NumpyBatch]: ...
    @overload
    def load(self, *, format: Literal["jax"], **options: Unpack[LoadOptions]) -> Loader[JaxBatch]: ...
    @overload
    def load(self, *, format: Literal["tf"], **options: Unpack[LoadOptions]) -> Loader[TensorFlowBatch]: ...
    @overload
    def load(self, *, format: Literal["arrow"], **options: Unpack[LoadOptions]) -> Loader[ArrowBatch]: ...
    @overload
    def load(self, *, format: str | None = None, **options: Unpack[LoadOptions]) -> Loader[Any]: ...
    @explained
    def load(
        self,
        *,
        # begin: options of load
        batch_size: int | None = None,
        drop_last: bool | None = None,
        delivery: Literal["ordered", "dynamic"] | None = None,
        job: str | None = None,
        seed: int | None = None,
        shuffle: bool | None = None,
        window_bytes: int | str | None = None,
        window_rows: int | None = None,
        on_error: Literal["raise", "skip", "quarantine"] | None = None,
        bucket_by_length: str | None = None,
        bucket_boundaries: list[int] | None = None,
        global_batch_size: int | None = None,
        cache: Literal["none", "source", "prefix", "full", "auto"] | None = None,
        order: Literal["exact", "relaxed"] | None = None,
        # end: options of load
        epochs: int | float | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        dp_rank: int | None = None,
        dp_size: int | None = None,
        columns: list[str] | None = None,
        padding: dict[str, float] | None = None,
        format: str | None = None,
        device: Any = None,
        pin_memory: bool = False,
        prefetch_factor: int = 2,
        count: bool = False,
    ) -> Loader[Any]:
        """See `forebay.load`."""
        options = dict(locals())
        del options["self"]
        return self._load(options)

    def _load(self, options: dict[str, Any]) -> Loader[Any]:
        raise NotImplementedError


class LoadsNamed:
    """A place that has pipelines: a session or a cluster."""

    @overload
    def load(self, pipeline: Any, *, format: Literal["torch"] | None = None, **options: Unpack[LoadOptions]) -> TorchLoader: ...
    @overload
    def load(self, pipeline: Any, *, format: Literal["numpy"], **options: Unpack[LoadOptions]) -> Loader[NumpyBatch]: ...
    @overload
    def load(self, pipeline: Any, *, format: Literal["jax"], **options: Unpack[LoadOptions]) -> Loader[JaxBatch]: ...
    @overload
    def load(self, pipeline: Any, *, format: Literal["tf"], **options: Unpack[LoadOptions]) -> Loader[TensorFlowBatch]: ...
    @overload
    def load(self, pipeline: Any, *, format: Literal["arrow"], **options: Unpack[LoadOptions]) -> Loader[ArrowBatch]: ...
    @overload
    def load(self, pipeline: Any, *, format: str | None = None, **options: Unpack[LoadOptions]) -> Loader[Any]: ...
    @explained
    def load(
        self,
        pipeline: Any,
        *,
        # begin: options of load of a pipeline
        batch_size: int | None = None,
        drop_last: bool | None = None,
        delivery: Literal["ordered", "dynamic"] | None = None,
        job: str | None = None,
        seed: int | None = None,
        shuffle: bool | None = None,
        window_bytes: int | str | None = None,
        window_rows: int | None = None,
        on_error: Literal["raise", "skip", "quarantine"] | None = None,
        bucket_by_length: str | None = None,
        bucket_boundaries: list[int] | None = None,
        global_batch_size: int | None = None,
        cache: Literal["none", "source", "prefix", "full", "auto"] | None = None,
        order: Literal["exact", "relaxed"] | None = None,
        # end: options of load of a pipeline
        epochs: int | float | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        dp_rank: int | None = None,
        dp_size: int | None = None,
        columns: list[str] | None = None,
        padding: dict[str, float] | None = None,
        format: str | None = None,
        device: Any = None,
        pin_memory: bool = False,
        prefetch_factor: int = 2,
        count: bool = False,
    ) -> Loader[Any]:
        """See `forebay.load`."""
        options = dict(locals())
        del options["self"], options["pipeline"]
        return self._load(pipeline, options)

    def _load(self, pipeline: Any, options: dict[str, Any]) -> Loader[Any]:
        raise NotImplementedError

"""Batches on a real GPU. Skipped on machines without CUDA; `test_devices.py` has what can be tested without."""

import numpy as np
import pyarrow as pa
import pytest
import torch

import forebay
from feeds import pipeline

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

ROWS = 3_000


@pytest.fixture(scope="module")
def rows():
    values = np.arange(ROWS * 64 * 64, dtype="float32").reshape(ROWS, 64 * 64)
    return pipeline({
        "n": np.arange(ROWS),
        "image": pa.FixedShapeTensorArray.from_numpy_ndarray(values),
        "parts": [[n] * (n % 5) for n in range(ROWS)],
        "name": [str(n) for n in range(ROWS)],
    })


def test_batches_on_the_gpu_are_those_of_the_cpu(rows):
    options = {"batch_size": 64, "shuffle": True, "seed": 3}
    for here, there in zip(rows.load(**options), rows.load(device="cuda", **options), strict=True):
        assert there["image"].is_cuda and there["n"].is_cuda and there["parts"].values.is_cuda
        assert torch.equal(there["image"].cpu(), here["image"]) and torch.equal(there["n"].cpu(), here["n"])
        assert torch.equal(there["parts"].values.cpu(), here["parts"].values)
        assert list(there["name"]) == list(here["name"])


def test_a_loop_that_keeps_the_gpu_busy_gets_whole_batches(rows):
    """Copies run on a stream of their own: a kernel must not see a batch before its copy has ended, nor memory that
    was given to a later batch."""
    sums, weight = [], torch.randn(64 * 64, 2048, device="cuda")
    for batch in rows.load(batch_size=64, device="cuda", epochs=4):
        for _ in range(20):
            (batch["image"] @ weight).sum()
        sums.append((batch["n"].clone(), batch["image"].double().sum(1)))
        del batch
    torch.cuda.synchronize()
    numbers = torch.cat([n for n, _ in sums]).cpu()
    assert torch.equal(numbers.sort().values, torch.arange(ROWS).repeat_interleave(4))
    width = 64 * 64
    first = (numbers.double() * width).float().double()
    expected = torch.from_numpy(np.arange(ROWS * width, dtype="float32").reshape(ROWS, width).astype("float64").sum(1))
    assert torch.equal(torch.cat([total for _, total in sums]).cpu(), expected[numbers]), first[:1]


def test_pinned_batches_move_without_waiting(rows):
    batch = next(iter(rows.load(batch_size=64, pin_memory=True)))
    assert batch["image"].is_pinned()
    moved = batch.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(moved["image"].cpu(), batch["image"])


def test_a_gpu_that_is_not_there_is_an_error(rows):
    with pytest.raises((forebay.InvalidError, RuntimeError)):
        next(iter(rows.load(batch_size=64, device=f"cuda:{torch.cuda.device_count()}")))


def test_a_state_resumes_on_the_gpu(rows):
    options = {"batch_size": 64, "shuffle": True, "device": "cuda"}
    loader = rows.load(**options)
    batches = iter(loader)
    for _ in range(10):
        next(batches)
    state = loader.state_dict()
    expected = [batch["n"].cpu() for batch in batches]
    resumed = rows.load(**options)
    resumed.load_state_dict(state)
    assert all(torch.equal(batch["n"].cpu(), n) for batch, n in zip(resumed, expected, strict=True))


def test_accelerate_puts_batches_on_its_device(rows):
    accelerate = pytest.importorskip("accelerate")
    from forebay.integrations.accelerate import prepare

    accelerator = accelerate.Accelerator()
    model = torch.nn.Linear(64 * 64, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 1e-12))
    steps = 0
    for batch in prepare(accelerator, rows.load(batch_size=64)):
        assert batch["image"].is_cuda
        loss = model(batch["image"]).mean()
        accelerator.backward(loss)
        optimizer.step()
        steps += 1
    assert steps == -(-ROWS // 64)


def test_lightning_trains_on_the_gpu(rows, tmp_path):
    lightning = pytest.importorskip("lightning")
    from forebay.integrations.lightning import ForebayDataModule

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer, self.seen = torch.nn.Linear(64 * 64, 1), []

        def training_step(self, batch, _):
            assert batch["image"].is_cuda
            self.seen.extend(batch["n"].tolist())
            return self.layer(batch["image"]).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 1e-12)

    model = Model()
    data = ForebayDataModule(rows.load(batch_size=64, shuffle=True, drop_last=True))
    trainer = lightning.Trainer(
        accelerator="gpu", devices=1, max_epochs=2, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(model, datamodule=data)
    epoch = ROWS // 64 * 64
    assert len(model.seen) == 2 * epoch and len({*model.seen[:epoch]}) == epoch
    assert model.seen[:epoch] != model.seen[epoch:]

"""Loads pictures in the trainer's process with Forebay, torch DataLoader and tf.data in one run, and measures a loop's
costs.

    python3.11 -m venv /tmp/peers && /tmp/peers/bin/pip install maturin numpy torch torchvision tensorflow-cpu
    VIRTUAL_ENV=/tmp/peers /tmp/peers/bin/maturin develop --release --manifest-path python/Cargo.toml
    /tmp/peers/bin/python benches/loading_peers.py

Linux only (`/proc`). `images`: the sample photographs, or those in the folder $PHOTOGRAPHS
(`jpeg/benches/photographs.py` writes some of 500 x 375), repeatedly. They are decoded, cropped at random to 224 x 224
(scale 0.08 to 1, aspect 3/4 to 4/3, antialiased except in tf.data, which has no antialiasing there) and flipped at
random, in batches of 64 uint8 pictures on two cores:

- `forebay`: `forebay.load`, torch tensors, two compute threads.
- `torch`: DataLoader with two workers, `torchvision.io.decode_jpeg` and `torchvision.transforms.v2` on tensors.
- `tf`: tf.data with `decode_and_crop_jpeg` over `sample_distorted_bounding_box`, parallel calls on two threads, NumPy
  arrays.

With `--dtype float32` each peer also normalises to float32 with ImageNet's means and deviations.

Each peer is a fresh process: a warm-up, then at least `--seconds`. Peers alternate for `--rounds`. The script reports
medians, and ratios within one round. CPU is user and system time of the process and its children.

`hand_over`: microseconds that a loop takes to receive a ready batch, 128 x 224 x 224 x 3 uint8, as torch and as NumPy.
`gil`: speed of a pure Python loop beside a busy engine in its process, divided by its speed with that engine in another
process, and with another Python loop there.
`import`: milliseconds of `import forebay`. `first_batch`: milliseconds from `load` to the first batch, warm.
`memory`: peak memory over a generated dataset of `--gigabytes`, and its growth over 20 epochs of the sample
photographs.

Prints one JSON line for each.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
PHOTOS = pathlib.Path(os.environ.get("PHOTOGRAPHS", REPOSITORY / "examples" / "photos"))
BATCH = 64
WARM_UP_SECONDS = 2.0
IS_FLOAT = os.environ.get("DTYPE") == "float32"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
IMAGE = "random_hflip(random_resized_crop(decode_image(bytes), height => 224, width => 224))"
QUERY = f"SELECT {f'normalize({IMAGE})' if IS_FLOAT else IMAGE} AS image FROM photos"


def tree_cpu_seconds() -> float:
    """Returns the CPU time of this process and of its living children, whose times getrusage counts only after they
    end."""
    ticks = os.sysconf("SC_CLK_TCK")
    total = 0.0
    for process in [os.getpid(), *children(os.getpid())]:
        try:
            fields = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except FileNotFoundError:
            continue
        total += (int(fields[11]) + int(fields[12])) / ticks
    return total


def children(process: int) -> list[int]:
    found = []
    for task in pathlib.Path(f"/proc/{process}/task").glob("*/children"):
        found += [int(child) for child in task.read_text().split()]
    return found


def measured(batches, seconds: float) -> dict:
    """Returns images per second and CPU microseconds per image, after a warm-up."""
    began = time.perf_counter()
    while time.perf_counter() - began < WARM_UP_SECONDS:
        next(batches)
    images, cpu, start = 0, tree_cpu_seconds(), time.perf_counter()
    while time.perf_counter() - start < seconds:
        images += len(next(batches))
    elapsed = time.perf_counter() - start
    return {"images_per_s": images / elapsed, "cpu_us_per_image": (tree_cpu_seconds() - cpu) / images * 1e6}


def forebay_images(seconds: float) -> dict:
    import forebay

    session = forebay.Session(threads=2)
    loader = session.sql(QUERY, photos=PHOTOS).load(batch_size=BATCH, shuffle=True, epochs=1_000_000, format="torch")
    with loader:
        return measured((batch["image"] for batch in loader), seconds)


def torch_images(seconds: float) -> dict:
    import torch
    from torchvision import io
    from torchvision.transforms import v2

    torch.set_num_threads(1)
    paths = sorted(str(path) for path in PHOTOS.rglob("*.jpg"))
    normalize = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)] if IS_FLOAT else []
    transform = v2.Compose([v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip(), *normalize])

    class Photos(torch.utils.data.Dataset):
        def __len__(self):
            return 1 << 30

        def __getitem__(self, index):
            return transform(io.decode_jpeg(io.read_file(paths[index % len(paths)]), mode=io.ImageReadMode.RGB))

    loader = torch.utils.data.DataLoader(Photos(), batch_size=BATCH, num_workers=2)
    batches = iter(loader)
    result = measured(batches, seconds)
    batches._shutdown_workers()
    return result


def tf_images(seconds: float) -> dict:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    paths = sorted(str(path) for path in PHOTOS.rglob("*.jpg"))

    def load(path):
        data = tf.io.read_file(path)
        shape = tf.image.extract_jpeg_shape(data)
        box = tf.zeros([1, 0, 4])
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            shape, box, area_range=[0.08, 1.0], aspect_ratio_range=[3 / 4, 4 / 3], use_image_if_no_bounding_boxes=True
        )
        crop = tf.stack([begin[0], begin[1], size[0], size[1]])
        image = tf.image.decode_and_crop_jpeg(data, crop, channels=3)
        image = tf.image.resize(image, [224, 224])
        image = tf.image.random_flip_left_right(image)
        if IS_FLOAT:
            return (image - tf.constant(MEAN) * 255) / (tf.constant(STD) * 255)
        return tf.cast(image + 0.5, tf.uint8)

    options = tf.data.Options()
    options.threading.private_threadpool_size = 2
    data = tf.data.Dataset.from_tensor_slices(paths).repeat().shuffle(1000)
    data = data.map(load, num_parallel_calls=2).batch(BATCH).prefetch(2).with_options(options)
    return measured(data.as_numpy_iterator(), seconds)


def hand_over(_: float) -> dict:
    import forebay

    result = {}
    for format in ("torch", "numpy"):
        loader = forebay.sql(QUERY, photos=PHOTOS).load(batch_size=128, epochs=20, format=format, prefetch_factor=2)
        with loader:
            batches, times = iter(loader), []
            for _ in range(12):
                while loader.stats()["queue"] == 0:
                    time.sleep(0.01)
                began = time.perf_counter()
                batch = next(batches)
                times.append(time.perf_counter() - began)
                del batch
        result[f"{format}_us"] = statistics.median(times) * 1e6
    return result


SPIN = """
import sys, time
end = time.perf_counter() + float(sys.argv[1])
while time.perf_counter() < end: pass
"""


def consume(stop) -> None:
    """Reads batches of an engine with one thread until `stop()`."""
    import forebay

    session = forebay.Session(threads=1)
    loader = session.sql(QUERY, photos=PHOTOS).load(batch_size=BATCH, epochs=1_000_000, format="numpy")
    for _ in loader:
        if stop():
            break


def engine(seconds: float) -> dict:
    end = time.perf_counter() + seconds
    consume(lambda: time.perf_counter() > end)
    return {}


def gil(seconds: float) -> dict:
    """Uses one core for the engine and one for the loop. Two virtual cores may be one real core, so the engine also
    runs in another process. The loop's slowdown compared with that is due to the interpreter's lock."""
    import threading

    def speed() -> float:
        count, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            for _ in range(10_000):
                count += 1
        return count / (time.perf_counter() - began)

    def beside(*command: str) -> float:
        process = subprocess.Popen([sys.executable, *command, str(seconds + 2.5)], stdout=subprocess.DEVNULL)
        time.sleep(2)
        found = speed()
        process.wait()
        return found

    def beside_thread() -> float:
        stop = threading.Event()
        thread = threading.Thread(target=consume, args=[stop.is_set])
        thread.start()
        time.sleep(2)
        found = speed()
        stop.set()
        thread.join()
        return found

    speed()
    rounds = [
        (beside_thread(), beside(__file__, "--one", "engine", "--argument"), beside("-c", SPIN)) for _ in range(5)
    ]
    return {
        "speed_to_engine_in_another_process": statistics.median(here / other for here, other, _ in rounds),
        "speed_to_a_loop_in_another_process": statistics.median(here / spin for here, _, spin in rounds),
    }


def import_time(_: float) -> dict:
    code = "import time; t = time.perf_counter(); import forebay; print((time.perf_counter() - t) * 1e3)"
    runs = [float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout) for _ in range(9)]
    return {"milliseconds": statistics.median(runs)}


def first_batch(_: float) -> dict:
    import forebay

    times = []
    for _ in range(5):
        began = time.perf_counter()
        with forebay.sql(QUERY, photos=PHOTOS).load(batch_size=32, format="numpy") as loader:
            next(iter(loader))
        times.append((time.perf_counter() - began) * 1e3)
    return {"milliseconds": statistics.median(times[1:]), "first_milliseconds": times[0]}


def peak_bytes(name: str = "VmHWM") -> int:
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise KeyError(name)


def memory(gigabytes: float) -> dict:
    import forebay

    with tempfile.TemporaryDirectory() as folder:
        copies = int(gigabytes * 1e9 / sum(path.stat().st_size for path in PHOTOS.rglob("*.jpg")))
        photos = [path.read_bytes() for path in sorted(PHOTOS.rglob("*.jpg"))]
        for copy in range(copies):
            inside = pathlib.Path(folder, f"{copy:04}")
            inside.mkdir()
            for index, photo in enumerate(photos):
                (inside / f"{index:04}.jpg").write_bytes(photo)
        loader = forebay.sql(QUERY, photos=folder).load(batch_size=64, shuffle=True, format="numpy")
        samples = sum(len(batch["image"]) for batch in loader)
        peak = peak_bytes()
    grown = []
    loader = forebay.sql(QUERY, photos=PHOTOS).load(batch_size=64, shuffle=True, format="numpy")
    for _ in range(20):
        for _ in loader:
            pass
        grown.append(peak_bytes("VmRSS"))
    return {"samples": samples, "peak_mb": peak / 1e6, "epoch_2_mb": grown[1] / 1e6, "epoch_20_mb": grown[-1] / 1e6}


PEERS = {"forebay": forebay_images, "torch": torch_images, "tf": tf_images}
OTHERS = {"hand_over": hand_over, "gil": gil, "import": import_time, "first_batch": first_batch, "memory": memory}


def run(name: str, argument: float) -> dict | None:
    done = subprocess.run([sys.executable, __file__, "--one", name, "--argument", str(argument)], capture_output=True, text=True)
    if done.returncode:
        print(f"{name} failed: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gigabytes", type=float, default=2)
    parser.add_argument("--only", choices=["images", *OTHERS])
    parser.add_argument("--dtype", choices=["uint8", "float32"], default="uint8", help="type of images")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--argument", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps((PEERS | OTHERS | {"engine": engine})[given.one](given.argument)))
        return
    os.environ["DTYPE"] = given.dtype
    if given.only in (None, "images"):
        rounds = [{peer: run(peer, given.seconds) for peer in PEERS} for _ in range(given.rounds)]
        for peer in PEERS:
            figures = [found[peer] for found in rounds if found[peer]]
            if not figures:
                continue
            line = {"bench": "images", "peer": peer}
            for figure in ("images_per_s", "cpu_us_per_image"):
                line[figure] = statistics.median(found[figure] for found in figures)
                ratios = [found["forebay"][figure] / found[peer][figure] for found in rounds if found[peer] and found["forebay"]]
                line[f"forebay_to_it_{figure}"] = [round(ratio, 3) for ratio in ratios]
            print(json.dumps(line), flush=True)
    for name in OTHERS:
        if given.only in (None, name) and (found := run(name, given.gigabytes if name == "memory" else 3)):
            print(json.dumps({"bench": name} | found), flush=True)


if __name__ == "__main__":
    main()

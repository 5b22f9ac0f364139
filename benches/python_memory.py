"""Memory of a loader in the trainer's process: its peak over 2 GB with default settings, its growth over 20 epochs, and
the memory that remains after a loader was deleted, or ended by an exception or a Ctrl-C.

    pip install ./python pyarrow numpy && python benches/python_memory.py [--gigabytes 2] [--format numpy]

Generates Parquet files in a temporary folder: tensors of 224 x 224 x 3 bytes, and photographs (the samples, repeated).
Each measurement runs in its own process. Its peak is that of the whole process, including interpreter and NumPy. Prints
one JSON line for each, and exits non-zero if one is above its limit.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PEAK_MB = 600
# Maximum growth from epochs 6 to 10 to the last five. Keeping one batch of each epoch would be 48 MB.
GROWTH_MB = 20

COMMON = """
import gc, json, os, re, sys, time
import forebay
folder, format = sys.argv[1:3]

def status(name):
    return int(re.search(name + r":\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1000

def sockets():
    links = (os.path.join("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd"))
    return sum(os.path.islink(link) and os.readlink(link).startswith("socket:") for link in links)

def held():
    shared = os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []
    return {"threads": len(os.listdir("/proc/self/task")), "sockets": sockets(), "shared": len(shared)}
"""

PEAK = COMMON + """
query = sys.argv[3]
loader = forebay.sql(query, rows=folder).load(format=format, shuffle=True)
began, before, samples, size = time.monotonic(), status("VmHWM"), 0, 0
for batch in loader:
    samples += len(batch["image"])
stats = loader.stats()
print(json.dumps({
    "peak_mb": round(status("VmHWM")), "before_mb": round(before), "samples": samples,
    "batches_gb": round(stats["bytes"] / 1e9, 2), "samples_per_second": round(samples / (time.monotonic() - began)),
}))
"""

EPOCHS = COMMON + """
loader = forebay.sql(sys.argv[3], rows=folder).load(format=format, shuffle=True)
resident = []
for _ in range(20):
    for batch in loader:
        pass
    resident.append(round(status("VmRSS")))
# The memory that the allocator keeps fluctuates, so compare medians.
growth = sorted(resident[-5:])[2] - sorted(resident[5:10])[2]
print(json.dumps({"resident_mb": resident, "growth_mb": growth}))
"""

# Threads for blocking work are kept for 10 s for reuse, so wait longer for them to end.
LEFT = COMMON + """
import signal, threading
# A program in the background may have been started with SIGINT ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
@forebay.udf(input="int64", output="int64", processes=2)
def same(n):
    return n

def soon(before):
    deadline = time.monotonic() + 20
    while True:
        left = {name: max(value - before[name], 0) for name, value in held().items()}
        if not any(left.values()) or time.monotonic() > deadline:
            return left
        gc.collect()
        # Objects that threads release without the GIL are freed when native code runs next.
        forebay._native.operators()
        time.sleep(0.1)

def deleted(load):
    loader = load()
    next(iter(loader))

def exception(load):
    try:
        for _ in load():
            raise RuntimeError
    except RuntimeError:
        pass

def interrupted(load):
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        while True:
            for _ in load():
                pass
    except KeyboardInterrupt:
        pass

def main():
    session = forebay.Session()
    session.sql("CREATE PIPELINE p AS SELECT image FROM rows", rows=folder)
    left = {}
    for end in (deleted, exception, interrupted):
        gc.collect()
        before = held()
        def local():
            # Use a separate session, because its compute threads end with it.
            return forebay.Session(threads=2).table(folder).load(format=format, shuffle=True)
        end(local)
        left[end.__name__ + ", in process"] = soon(before)
        server = session.serve()
        # The server answers, so all of its sockets are open.
        forebay.connect(server.uri).pipelines()
        gc.collect()
        before = held()
        end(lambda: forebay.connect(server.uri).load("p", format=format))
        left[end.__name__ + ", from a cluster"] = soon(before)
        server.stop()
    before = held()
    deleted(lambda: forebay.Session().sql("SELECT same(n) AS n FROM rows", rows=numbers()).load(format=format))
    # The processes of a function are kept for its next call. They end with the function and the sessions that know it.
    forebay._udf._functions.clear()
    globals().pop("same")
    del session, server
    left["deleted, with a function in processes"] = soon(before)
    print(json.dumps({"left": left}))

def numbers():
    import pyarrow
    return pyarrow.table({"n": range(1000)})

if __name__ == "__main__":
    main()
"""


def write(folder: pathlib.Path, image: str, megabytes: int, copies: int = 20) -> None:
    """Writes Parquet files with a column `image` of `megabytes` in total. Each file of photographs holds copies of
    all samples."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    photos = [path.read_bytes() for path in sorted((ROOT / "examples/photos").glob("*/*.jpg"))]
    random = np.random.default_rng(17)
    left, file = megabytes * 1_000_000, 0
    while left > 0:
        if image == "tensors":
            pixels = random.integers(0, 256, (256, 224, 224, 3), dtype="uint8")
            column = pa.FixedShapeTensorArray.from_numpy_ndarray(pixels)
            size = pixels.nbytes
        else:
            column = pa.array(photos * copies, pa.binary())
            size = sum(map(len, photos)) * copies
        pq.write_table(pa.table({"image": column}), folder / f"{file:05}.parquet", row_group_size=256, compression=None)
        left, file = left - size, file + 1


def run(code: str, *arguments: str) -> dict:
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(code)
        script.flush()
        done = subprocess.run([sys.executable, script.name, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gigabytes", type=float, default=2)
    parser.add_argument("--format", default="numpy")
    given = parser.parse_args()
    crop = "random_resized_crop(decode_image(image), height => 224, width => 224)"
    queries = {"tensors": "SELECT image FROM rows", "photographs": f"SELECT {crop} AS image FROM rows"}
    good = True
    with tempfile.TemporaryDirectory() as name:
        for image, query in queries.items():
            folder = pathlib.Path(name) / image
            write(folder, image, int(given.gigabytes * 1000))
            said = run(PEAK, str(folder), given.format, query)
            good &= said["peak_mb"] <= PEAK_MB
            print(json.dumps({"dataset": image, **said, "allowed_mb": PEAK_MB}), flush=True)
        small = pathlib.Path(name) / "small"
        write(small, "photographs", 10, copies=1)
        said = run(EPOCHS, str(small), given.format, queries["photographs"])
        good &= said["growth_mb"] <= GROWTH_MB
        print(json.dumps({**said, "allowed_mb": GROWTH_MB}), flush=True)
        said = run(LEFT, str(small), given.format)
        good &= not any(any(kinds.values()) for kinds in said["left"].values())
        print(json.dumps(said), flush=True)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()

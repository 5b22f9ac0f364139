"""Tokenises with a byte-level BPE of 32,000 tokens: Forebay, `tokenizers` and tiktoken in one run, on one core.

    python3.11 -m venv /tmp/peers && /tmp/peers/bin/pip install maturin numpy tokenizers==0.23.* tiktoken
    VIRTUAL_ENV=/tmp/peers /tmp/peers/bin/maturin develop --release --manifest-path python/Cargo.toml
    /tmp/peers/bin/python benches/text_peers.py FOLDER

FOLDER holds text files (`*.txt`, `*.md`, `*.rs`, `*.py`, …). The tokenizer is trained on them, and tokenises them as
documents of up to 4,000 characters. The split pattern is GPT-2's. The script compares the ids of all peers. `packed`
adds packing to sequences of 2,048, shuffling and batching. Each measurement is a fresh process. CPU is its user and
system time in microseconds per token, as medians of `--rounds`.
"""

import argparse
import gc
import hashlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def prepare(source: pathlib.Path, folder: pathlib.Path, megabytes: float) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    texts, size = [], 0
    for path in sorted(path for path in source.rglob("*") if path.is_file()):
        try:
            text = path.read_text()
        except (UnicodeDecodeError, OSError):
            continue
        texts += [text[start : start + 4000] for start in range(0, len(text), 4000)]
        size += len(text)
        if size > megabytes * 1e6:
            break
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=32_000, initial_alphabet=alphabet))
    tokenizer.save(str(folder / "tokenizer.json"))


def documents(folder: pathlib.Path) -> list[str]:
    return [json.loads(line)["text"] for line in (folder / "texts.jsonl").open()]


def with_forebay(folder: pathlib.Path, query: str):
    import forebay

    session = forebay.Session(threads=1)
    pipeline = session.sql(query.replace("FILE", str(folder / "tokenizer.json")), texts=folder / "texts.jsonl")

    def run(**options):
        return list(pipeline.load(format="arrow", **options))

    return run


def forebay_ids(folder: pathlib.Path):
    run = with_forebay(folder, "SELECT tokenize(text, 'FILE') AS ids FROM texts")
    return lambda: [ids for batch in run(batch_size=256) for ids in batch["ids"].to_pylist()], lambda: run(batch_size=256)


def forebay_packed(folder: pathlib.Path):
    query = "SELECT input_ids FROM pack((SELECT tokenize(text, 'FILE') AS ids FROM texts), length => 2048)"
    run = with_forebay(folder, query)
    # Use another feed each time, because a session does not recompute windows that it still holds.
    seeds = iter(range(100))
    return None, lambda: run(batch_size=8, shuffle=True, seed=next(seeds))


def forebay_read(folder: pathlib.Path):
    run = with_forebay(folder, "SELECT text FROM texts")
    return None, lambda: run(batch_size=256)


def tokenizers_ids(folder: pathlib.Path):
    from tokenizers import Tokenizer

    tokenizer, texts = Tokenizer.from_file(str(folder / "tokenizer.json")), documents(folder)
    return lambda: [one.ids for one in tokenizer.encode_batch(texts)], lambda: tokenizer.encode_batch_fast(texts)


def tiktoken_ids(folder: pathlib.Path):
    import tiktoken

    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    printable = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    others = [byte for byte in range(256) if byte not in printable]
    byte_of = {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}
    ranks = {bytes(byte_of[char] for char in token): rank for token, rank in model["vocab"].items()}
    encoding = tiktoken.Encoding("trained", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})
    texts = documents(folder)
    ids = lambda: [encoding.encode_ordinary(text) for text in texts]  # noqa: E731
    return ids, ids


PEERS = {
    "forebay": forebay_ids,
    "packed": forebay_packed,
    "read": forebay_read,
    "tokenizers": tokenizers_ids,
    "tiktoken": tiktoken_ids,
}


def one(peer: str, folder: pathlib.Path) -> None:
    ids, run = PEERS[peer](folder)
    tokens = ids() if ids else []
    count, digest = sum(map(len, tokens)), hashlib.sha256(json.dumps(tokens).encode()).hexdigest()[:16]
    # These are millions of Python integers, which the garbage collector would traverse while the peer is measured.
    del tokens
    gc.collect()
    run()
    began = time.process_time()
    run()
    print(json.dumps({"cpu": time.process_time() - began, "tokens": count, "digest": digest}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path, nargs="?")
    parser.add_argument("--megabytes", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        return one(given.one[0], pathlib.Path(given.one[1]))
    if given.folder is None:
        parser.error("name a folder with text files")
    environment = os.environ | {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    with tempfile.TemporaryDirectory() as name:
        prepare(given.folder, pathlib.Path(name), given.megabytes)
        found = {peer: [] for peer in PEERS}
        for _ in range(given.rounds):
            for peer in PEERS:
                command = [sys.executable, __file__, "--one", peer, name]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True)
                found[peer].append(json.loads(done.stdout))
        tokens = found["forebay"][0]["tokens"]
        for peer, figures in found.items():
            cpu = statistics.median(figure["cpu"] for figure in figures) / tokens * 1e6
            line = {"bench": "tokenize", "peer": peer, "us_per_token": round(cpu, 4)}
            if peer == "packed":
                on_top = [packed["cpu"] - plain["cpu"] for packed, plain in zip(figures, found["forebay"])]
                line["us_on_top_of_tokenising"] = round(statistics.median(on_top) / tokens * 1e6, 4)
            if figures[0]["tokens"]:
                line["same_ids"] = figures[0]["digest"] == found["forebay"][0]["digest"]
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

"""Golden values of the operators on text, and the small tokenizers of the tests.

    pip install tokenizers==0.23.3 datatrove==0.10.1 datasketch==2.0.0 xxhash==4.1.0 numpy
    python text.py

The program writes text.json and tokens.json. With --train, it first writes ../testdata/tokenizers/*.json. These are
trained on the repository's own pages, which change, so a new training gives different ids.
"""

import json
import pathlib
import random
import re
import sys
import unicodedata

import numpy as np
import xxhash
from datasketch import MinHash
from datatrove.pipeline.filters.gopher_repetition_filter import (
    find_all_duplicate, find_duplicates, find_top_duplicate, get_n_grams)
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers, Regex

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
TOKENIZERS = HERE.parent / "testdata" / "tokenizers"

CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")


def pages():
    files = sorted(ROOT.glob("docs/**/*.md")) + [ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"]
    return [file.read_text() for file in files if file.name != "operators.md"]


def train():
    """Trains one small tokenizer of each kind."""
    TOKENIZERS.mkdir(exist_ok=True)
    made = {}
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer, bpe.decoder = byte_level, decoders.ByteLevel()
    bpe.post_processor = processors.ByteLevel(trim_offsets=True)
    trainer = dict(vocab_size=1000, show_progress=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(pages(), trainers.BpeTrainer(
        special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, **trainer))
    made["gpt2"] = bpe

    cl = Tokenizer(models.BPE(ignore_merges=True))
    cl.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(CL100K), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    cl.decoder = decoders.ByteLevel()
    cl.train_from_iterator(pages(), trainers.BpeTrainer(
        special_tokens=["<|begin|>", "<|end|>"], initial_alphabet=alphabet, **trainer))
    cl.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", pair="<|begin|> $A <|begin|> $B", special_tokens=[("<|begin|>", 0)])
    made["cl100k"] = cl

    bert = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    bert.normalizer = normalizers.BertNormalizer(lowercase=True)
    bert.pre_tokenizer, bert.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    bert.train_from_iterator(pages(), trainers.WordPieceTrainer(
        special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"], **trainer))
    bert.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    # Settings that a careless owner leaves in the file. `tokenize` ignores them.
    bert.enable_truncation(7)
    bert.enable_padding(length=9)
    made["bert"] = bert

    unigram = Tokenizer(models.Unigram())
    unigram.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    unigram.pre_tokenizer, unigram.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    unigram.train_from_iterator(pages(), trainers.UnigramTrainer(
        special_tokens=["<unk>", "</s>"], unk_token="<unk>", **trainer))
    made["unigram"] = unigram
    for name, tokenizer in made.items():
        tokenizer.save(str(TOKENIZERS / f"{name}.json"), pretty=False)


def random_text(rng):
    """Generates unusual text: all planes, runs of spaces and line ends, contractions, digits."""
    parts = []
    for _ in range(rng.randrange(1, 14)):
        kind = rng.randrange(12)
        if kind < 4:
            parts.append(rng.choice(["window", "the", "Feed", "IT'S", "we'll", "don't", "NaN", "x", "naïve", "東京", "'ve"]))
        elif kind < 6:
            parts.append(rng.choice([" ", "  ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u3000", "   \n "]))
        elif kind == 6:
            parts.append(str(rng.randrange(10 ** rng.randrange(1, 9))))
        elif kind == 7:
            parts.append(rng.choice(["<|endoftext|>", "<|begin|>", "[SEP]", "</s>", "...", "!?", "'", "’s", "(", "_"]))
        elif kind == 8:
            parts.append("".join(chr(rng.randrange(0x20, 0x250)) for _ in range(rng.randrange(1, 6))))
        elif kind == 9:
            parts.append("".join(chr(rng.randrange(0x300, 0xD7FF)) for _ in range(rng.randrange(1, 5))))
        elif kind == 10:
            parts.append(chr(rng.randrange(0xE000, 0x110000)))
        else:
            parts.append(rng.choice("aé字🙂½²Ⅷ٣") * rng.randrange(1, 5))
    return "".join(parts)


def tokens():
    rng = random.Random(5)
    texts = ["", " ", "a", "to be or not to be", "Hello, world! It's 2026.", "zero\x00byte", "👩‍👩‍👧 family", "e\u0301"]
    texts += [line for line in pages()[0].splitlines() if line][:20]
    texts += [random_text(rng) for _ in range(140)]
    golden = {"texts": texts, "tokenizers": {}}
    for name in ["gpt2", "cl100k", "bert", "unigram"]:
        tokenizer = Tokenizer.from_file(str(TOKENIZERS / f"{name}.json"))
        tokenizer.no_padding()
        tokenizer.no_truncation()
        ids = [tokenizer.encode(text).ids for text in texts]
        bare = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
        cut = {}
        for side in ["right", "left"]:
            tokenizer.enable_truncation(5, direction=side)
            cut[side] = [tokenizer.encode(text).ids for text in texts[:40]]
        tokenizer.no_truncation()
        decoded = [[tokenizer.decode(row, skip_special_tokens=skip) for row in ids] for skip in (True, False)]
        golden["tokenizers"][name] = {
            "ids": ids, "bare": bare, "cut": cut, "decoded": decoded[0], "decoded_all": decoded[1]}
    (HERE / "tokens.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")


class Draws:
    """Like in ../testdata/keyed.py."""

    def __init__(self, key, site):
        self.state = xxhash.xxh3_64_intdigest(key.to_bytes(8, "little") + site.to_bytes(8, "little"))

    def next(self):
        mask = (1 << 64) - 1
        self.state = (self.state + 0x9E3779B97F4A7C15) & mask
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)


def minhash(text, length, ngram, seed):
    draws = Draws(seed, 0)
    pairs = [((draws.next() >> 32) | 1, draws.next() >> 32) for _ in range(length)]
    permutations = (np.array([a for a, _ in pairs], dtype=np.uint32), np.array([b for _, b in pairs], dtype=np.uint32))
    hashed = MinHash(num_perm=length, permutations=permutations, scheme="affine32",
                     hashfunc=lambda shingle: xxhash.xxh3_64_intdigest(shingle) & 0xFFFFFFFF)
    words = text.split()
    for shingle in get_n_grams(words, ngram) or ([" ".join(words)] if words else []):
        hashed.update(shingle.encode())
    return [int(value) for value in hashed.hashvalues]


def measures(text):
    words, lines = text.split(), text.splitlines()
    safe = lambda part, whole: part / whole if whole else 0.0
    count = lambda test: safe(sum(1 for c in text if test(c)), len(text))
    split = re.split("\n+", text)
    yield "word_count(text)", len(words)
    yield "mean_word_length(text)", safe(sum(map(len, words)), len(words))
    yield "alpha_word_ratio(text)", safe(sum(any(c.isalpha() for c in w) for w in words), len(words))
    yield "alpha_ratio(text)", count(str.isalpha)
    yield "digit_ratio(text)", count(lambda c: unicodedata.category(c)[0] == "N")
    yield "uppercase_ratio(text)", count(str.isupper)
    yield "whitespace_ratio(text)", count(str.isspace)
    yield "bullet_line_ratio(text)", safe(sum(s.lstrip().startswith(("•", "-")) for s in lines), len(lines))
    yield "ellipsis_line_ratio(text)", safe(sum(s.rstrip().endswith(("...", "…")) for s in lines), len(lines))
    yield "duplicate_line_ratio(text)", safe(find_duplicates(split)[0], len(split))
    yield "duplicate_line_char_ratio(text)", safe(find_duplicates(split)[1], len(text))
    for n in (1, 2, 4):
        grams = get_n_grams(words, n)
        yield f"top_ngram_char_ratio(text, {n})", safe(find_top_duplicate(grams), len(text)) if grams else 0.0
        yield f"duplicate_ngram_char_ratio(text, {n})", safe(find_all_duplicate(words, n), len(text))


def text():
    rng = random.Random(3)
    texts = ["", " \n", "to be or not to be", "NASA flew in 1969!", "- one\n- two\n- one\n\n\n• three ...\nfour…\n",
             "the cat sat on the mat the cat sat on the mat", "½ ٣ é ß 東京 タワー", "\n\na\n", "ALL CAPS ALL CAPS"]
    texts += [" ".join(rng.choice(["feed", "window", "a", "row", "of", "the"]) for _ in range(rng.randrange(3, 60)))
              for _ in range(20)]
    texts += ["\n".join(rng.choice(["one line", "two", "", "- three..."]) for _ in range(12)) for _ in range(10)]
    golden = {"texts": texts, "measures": {}, "minhash": {}, "normalized": {}}
    for item in texts:
        for call, value in measures(item):
            golden["measures"].setdefault(call, []).append(value)
    for length, ngram, seed in [(16, 5, 1), (8, 2, 7)]:
        golden["minhash"][f"{length}, {ngram}, {seed}"] = [minhash(item, length, ngram, seed) for item in texts]
    strange = ["e\u0301", "é", "ﬁne", "Ａ１", "한글", "\u1112\u1161\u11ab", "①½", "ẛ̣", "plain"] + [
        random_text(rng) for _ in range(60)]
    golden["strange"] = strange
    for form in ["NFC", "NFD", "NFKC", "NFKD"]:
        golden["normalized"][form.lower()] = [unicodedata.normalize(form, item) for item in strange]
    (HERE / "text.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    print(minhash("the cat sat on the mat", 4, 2, 1))


if "--train" in sys.argv:
    train()
tokens()
text()

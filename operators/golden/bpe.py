"""Golden ids and texts of BPE vocabularies in which some characters have no token.

    pip install tokenizers==0.23.3
    python bpe.py

The program writes bpe.json, with the tokenizers in it.
"""

import json
import pathlib
import random

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

HERE = pathlib.Path(__file__).parent
PIECES = ["a", "b", "c", "ab", "abc"]
MERGES = [("a", "b"), ("ab", "c")]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SOME_BYTES = ["<0xC3>", "<0xA9>", "<0x41>"]
LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())


def tokenizer(vocabulary, merges, pre_tokenizer=None, decoder=None, normalizer=None, **options):
    ids = {token: number for number, token in enumerate(vocabulary)}
    made = Tokenizer(models.BPE(vocab=ids, merges=merges, **options))
    if pre_tokenizer:
        made.pre_tokenizer = pre_tokenizer
    if decoder:
        made.decoder = decoder
    if normalizer:
        made.normalizer = normalizer
    return made


def tokenizers():
    byte_level = dict(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False), decoder=decoders.ByteLevel())
    metaspace = dict(pre_tokenizer=pre_tokenizers.Metaspace(), decoder=decoders.Metaspace())
    words = dict(pre_tokenizer=pre_tokenizers.Whitespace())
    llama = dict(
        normalizer=normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
        decoder=decoders.Sequence([
            decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]))
    unk = ["<unk>", *PIECES]
    spaces = [("▁", "a")]
    yield "no unk_token", tokenizer(PIECES, MERGES)
    yield "unk_token", tokenizer(unk, MERGES, unk_token="<unk>")
    yield "fuse_unk", tokenizer(unk, MERGES, unk_token="<unk>", fuse_unk=True)
    yield "all bytes", tokenizer(unk + BYTES, MERGES, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    yield "some bytes", tokenizer(unk + SOME_BYTES, MERGES, unk_token="<unk>", byte_fallback=True)
    yield "some bytes, fuse_unk", tokenizer(
        unk + SOME_BYTES, MERGES, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    yield "some bytes, no unk_token", tokenizer(PIECES + SOME_BYTES, MERGES, byte_fallback=True)
    yield "Llama's without some bytes", tokenizer(
        unk + ["▁", "▁a"] + SOME_BYTES, MERGES + spaces, unk_token="<unk>", byte_fallback=True, fuse_unk=True, **llama)
    yield "some letters, no unk_token", tokenizer(PIECES, MERGES, **byte_level)
    yield "some letters", tokenizer(unk, MERGES, unk_token="<unk>", **byte_level)
    yield "some letters, fuse_unk", tokenizer(unk + ["Ġ", "Ã"], MERGES, unk_token="<unk>", fuse_unk=True, **byte_level)
    yield "some letters, all bytes", tokenizer(
        unk + BYTES, MERGES, unk_token="<unk>", byte_fallback=True, **byte_level)
    yield "some letters, ignore_merges", tokenizer(
        unk + ["zz", "é", "Ġabc"], MERGES, unk_token="<unk>", ignore_merges=True, **byte_level)
    almost = tokenizer([letter for letter in LETTERS if letter != "x"] + ["ab", "abc"], MERGES, **byte_level)
    almost.add_special_tokens(["<|end|>", AddedToken("zz", normalized=True)])
    almost.post_processor = processors.TemplateProcessing(
        single="<|end|> $A <|end|>", special_tokens=[("<|end|>", almost.token_to_id("<|end|>"))])
    yield "all letters but one, with a template", almost
    yield "end_of_word_suffix", tokenizer(
        ["<unk>", "a", "b", "c", "c</w>", "b</w>", "ab", "abc</w>"], [("a", "b"), ("ab", "c</w>")],
        unk_token="<unk>", end_of_word_suffix="</w>", **words)
    yield "end_of_word_suffix, fuse_unk", tokenizer(
        ["<unk>", "a", "b", "c</w>", "é", "ab"], [("a", "b")],
        unk_token="<unk>", fuse_unk=True, end_of_word_suffix="</w>", **words)
    yield "end_of_word_suffix, no unk_token", tokenizer(
        ["a", "b", "c", "c</w>", "b</w>", "ab", "abc</w>"], [("a", "b"), ("ab", "c</w>")],
        end_of_word_suffix="</w>", **words)
    yield "both affixes", tokenizer(
        ["<unk>", "a", "##b", "##c", "##c</w>", "a##b", "ab", "abc</w>"], [("a", "##b"), ("ab", "##c</w>")],
        unk_token="<unk>", continuing_subword_prefix="##", end_of_word_suffix="</w>", **words)
    yield "metaspace, no unk_token", tokenizer(PIECES + ["▁", "▁a"], MERGES + spaces, **metaspace)
    # Ranks that compete: the leftmost of equal pairs first, and pairs that are gone when their turn comes.
    pieces = ["a", "b", "aa", "aaaa", "ba", "aab", "bb", "abb"]
    competing = [("a", "a"), ("b", "b"), ("b", "a"), ("aa", "aa"), ("aa", "b"), ("a", "bb")]
    yield "competing merges", tokenizer(pieces, competing, **byte_level)
    yield "unk_token missing", tokenizer(PIECES, MERGES, unk_token="<unk>")


def texts():
    rng = random.Random(1)
    made = ["", "a", "abc", "ab c", "xabcx", "xx", "axxb", "é", "aéb", "AéA", "🙂", "a🙂b", "日本", "zz", "azz", "ÿ", " ",
            "abc abc x abc", "abcabc", "xyzabcxyz", "é é", "Aé🙂A", "<unk>", "<0x41>", "<|end|>abc<|end|>", "aaaaaaabbbaab"]
    for letters in ["abcxé🙂A Zz", "abcé ", "ab"]:
        made += ["".join(rng.choice(letters) for _ in range(rng.randrange(1, 24))) for _ in range(60)]
    return made


def attempt(run):
    try:
        return run()
    except Exception as error:
        return {"error": str(error)}


golden = {"texts": texts(), "tokenizers": {}}
for name, made in tokenizers():
    ids = [attempt(lambda: made.encode(text).ids) for text in golden["texts"]]
    made.enable_truncation(3, direction="left")
    cut = [attempt(lambda: made.encode(text).ids) for text in golden["texts"]]
    made.no_truncation()
    decoded = [None if isinstance(row, dict) else made.decode(row, skip_special_tokens=False) for row in ids]
    golden["tokenizers"][name] = {"file": json.loads(made.to_str()), "ids": ids, "cut": cut, "decoded": decoded}
text = json.dumps(golden, separators=(",", ":"), ensure_ascii=False)
(HERE / "bpe.json").write_text(text + "\n")

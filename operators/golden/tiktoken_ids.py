"""Writes a small vocabulary in tiktoken's format, and tiktoken's ids with it.

    pip install tiktoken==0.14.0 regex
    python tiktoken_ids.py

The program writes tiktoken.json. With --train, it first writes ../testdata/tokenizers/small.tiktoken from this
repository's pages, which change.
"""

import base64
import json
import pathlib
import random
import sys

import tiktoken
from tiktoken._educational import SimpleBytePairEncoding

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
FILE = HERE.parent / "testdata" / "tokenizers" / "small.tiktoken"
CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
R50K = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
UPPER, LOWER, ENDING = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{ENDING}|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{ENDING}|\p{{N}}{{1,3}}|"
         r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")

if "--train" in sys.argv:
    text = "".join(file.read_text() for file in [ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"])
    ranks = SimpleBytePairEncoding.train(text, 700, CL100K).mergeable_ranks
    FILE.write_text("".join(f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items()))
ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in FILE.read_text().splitlines())}
texts = json.loads((HERE / "tokens.json").read_text())["texts"]
draws = random.Random(5)
parts = [token.decode() for token in ranks if token.isascii() and len(token) > 1] + list("abcdefghij  '\n019") + ["é", "漢", "🙂"]
texts += ["".join(draws.choices(parts, k=draws.randrange(1, 40))) for _ in range(300)]
# Long words with few distinct letters, so that many merges compete.
texts += ["".join(draws.choices("etaoinsr", k=draws.randrange(1, 60))) for _ in range(300)]
golden = {"texts": texts, "patterns": {}}
for name, pattern in [("cl100k_base", CL100K), ("o200k_base", O200K), ("r50k_base", R50K)]:
    encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    golden["patterns"][name] = [encoding.encode_ordinary(text) for text in texts]
(HERE / "tiktoken.json").write_text(json.dumps(golden, separators=(",", ":"), ensure_ascii=False) + "\n")

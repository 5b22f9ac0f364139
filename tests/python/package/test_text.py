"""Text for language models: chats and documents against Hugging Face's libraries and PyTorch's losses."""

import json
from typing import Any

import pytest

import forebay
from support import REPOSITORY

GPT2 = REPOSITORY / "operators" / "testdata" / "tokenizers" / "gpt2.json"
TEMPLATE = (
    "{%- for message in messages %}\n"
    "    {{- '<|' + message.role + '|>\\n' }}\n"
    "    {%- if message.role == 'assistant' %}\n"
    "        {% generation %}{{- message.content | trim + eos_token }}{% endgeneration %}\n"
    "    {%- else %}\n"
    "        {{- message.content }}\n"
    "    {%- endif %}\n"
    "{%- endfor %}\n"
)
CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "to be?"}, {"role": "assistant", "content": "or not to be"}],
    [{"role": "user", "content": "Ñandú"}, {"role": "assistant", "content": "🙂\n"}, {"role": "user", "content": "so"}],
]


@pytest.fixture
def saved(tmp_path):
    """A tokenizer of transformers, and the folder in which it is saved."""
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    gpt2 = tokenizers.Tokenizer.from_file(str(GPT2))
    # With trimmed offsets, transformers finds no answer that begins with a space.
    gpt2.post_processor = tokenizers.processors.ByteLevel(trim_offsets=False)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=gpt2, eos_token="<|endoftext|>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(tmp_path)
    return tokenizer, tmp_path


def test_a_saved_tokenizer_gives_the_texts_and_labels_of_transformers(saved):
    tokenizer, folder = saved
    template = folder / "chat_template.jinja"
    tail = f"'{template}', eos_token => '<|endoftext|>')"
    chats = forebay.table({"messages": CHATS, "json": [json.dumps(chat) for chat in CHATS]}, name="chats")
    rows = chats.select(
        text=f"chat_template(messages, template => {tail}",
        same=f"chat_template(json, template => {tail}",
        sample=f"tokenize_segments(chat_segments(messages, template => {tail}, tokenizer => '{folder}/tokenizer.json')",
    )
    for chat, row in zip(CHATS, rows.to_arrow().to_pylist(), strict=True):
        assert row["text"] == row["same"] == tokenizer.apply_chat_template(chat, tokenize=False)
        expected = tokenizer.apply_chat_template(chat, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
        assert row["sample"]["input_ids"] == expected["input_ids"]
        assert [int(label != -100) for label in row["sample"]["labels"]] == expected["assistant_masks"]


def words_of_bert():
    """A tokenizer of transformers with BERT's special tokens, and 200 sentences of 102 ids."""
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {word: id for id, word in enumerate(special + [f"w{number}" for number in range(495)])}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    names = {f"{name.strip('[]').lower()}_token": name for name in special}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=model, **names)
    sentences = [[2, *(5 + (7919 * row + 31 * at) % 495 for at in range(100)), 3] for row in range(200)]
    return tokenizer, sentences


def test_tokens_are_masked_as_often_as_by_transformers():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizer, sentences = words_of_bert()
    ids = torch.tensor(sentences)
    is_special = (ids == 2) | (ids == 3)
    call = f"mask_tokens(ids, mask_id => {tokenizer.mask_token_id}, vocab_size => {len(tokenizer)}, "
    call += f"special_ids => {sorted(tokenizer.all_special_ids)})"
    rows = forebay.table({"ids": sentences}, name="sentences").select(masked=call)
    rows = rows.select(input_ids="masked['input_ids']", labels="masked['labels']")
    [ours] = rows.load(batch_size=200, seed=5, padding={"input_ids": 0, "labels": 0})
    collator = transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15, seed=5)
    theirs = collator([{"input_ids": sentence} for sentence in sentences])

    def shares(masked):
        """The share of tokens that are chosen, and of these the shares that are hidden, replaced and kept."""
        inputs, labels = masked["input_ids"], masked["labels"]
        chosen = labels != -100
        assert not chosen[is_special].any() and (inputs[~chosen] == ids[~chosen]).all()
        assert (labels[chosen] == ids[chosen]).all() and labels.dtype == torch.int64
        is_hidden, is_kept = inputs == tokenizer.mask_token_id, inputs == ids
        of_chosen = [part[chosen].double().mean().item() for part in (is_hidden, ~is_hidden & ~is_kept, is_kept)]
        return [chosen[~is_special].double().mean().item(), *of_chosen]

    # Four standard deviations of the difference of two samples: 20,000 tokens, of which 3,000 are chosen.
    for name, our, their, share, count in zip(
        ("chosen", "hidden", "replaced", "kept"), shares(ours), shares(theirs), (0.15, 0.8, 0.1, 0.1),
        (20_000, 3_000, 3_000, 3_000), strict=True,
    ):
        assert our == pytest.approx(their, abs=4 * (2 * share * (1 - share) / count) ** 0.5), f"{name}, seed 5"


def test_packed_documents_go_into_a_loss_as_they_are():
    torch = pytest.importorskip("torch")
    documents = forebay.table(
        {
            "ids": [[1, 2, 3, 4], [5, 6, 7], [8, 9]],
            "labels": [[-100, -100, 3, 4], [-100, 6, 7], [-100, -100]],
        },
        name="documents",
    )
    documents = documents.select(document="named_struct('input_ids', ids, 'labels', labels)")
    packed = documents.pack(5, dtype="int64", strategy="best_fit")
    batches = list(forebay.load(packed, batch_size=2, shuffle=False, rank=0, world_size=1))
    assert len(batches) == 1
    batch = batches[0]
    assert batch["input_ids"].tolist() == [[1, 2, 3, 4, 0], [5, 6, 7, 8, 9]]
    assert batch["labels"].tolist() == [[-100, -100, 3, 4, -100], [-100, 6, 7, -100, -100]]
    assert batch["segment_ids"].tolist() == [[1, 1, 1, 1, 0], [1, 1, 1, 2, 2]]
    assert batch["segment_ids"].dtype == torch.int32 and batch["position_ids"].dtype == torch.int64
    logits = torch.zeros(2, 5, 10, requires_grad=True)
    loss = torch.nn.CrossEntropyLoss()(logits[:, :-1].reshape(-1, 10), batch["labels"][:, 1:].reshape(-1))
    loss.backward()
    assert abs(loss.item() - torch.log(torch.tensor(10.0)).item()) < 1e-6
    assert batch["cu_seq_lens"][1].tolist() == [0, 3, 5] and batch["max_seq_len"].tolist() == [4, 3]


def test_documents_with_too_few_labels_are_bad_rows():
    documents = forebay.table({"ids": [[1, 2], [3, 4]], "labels": [[1, 2], [3]]}, name="documents")
    packed = documents.select(d="named_struct('input_ids', ids, 'labels', labels)").pack(2)
    with pytest.raises(forebay.Error, match="a document has 2 tokens and 1 labels, which must be as many"):
        list(forebay.load(packed, batch_size=1, shuffle=False, rank=0, world_size=1))
    kept = list(forebay.load(packed, batch_size=1, shuffle=False, rank=0, world_size=1, on_error="skip"))
    assert [row for batch in kept for row in batch["input_ids"].tolist()] == [[1, 2]]


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{% include 'secrets' %}", "must not read other templates, and has `include`, in line 1"),
        ("{% for %}", "is not a template: .*in line 1 of the template"),
        ("missing.jinja", "names a file that cannot be read: \"missing.jinja\""),
        ("{{ raise_exception('only ' ~ messages | length) }}", "the template refuses the messages: only 2"),
        ("{{ strftime_now('%Y') }}", "a sample must not depend on the clock"),
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "the template takes more than 2000000 steps",
        ),
    ],
)
def test_templates_that_cannot_be_are_refused(template, problem):
    chats = forebay.table({"messages": CHATS}, name="chats")
    quoted = template.replace("'", "''")
    with pytest.raises(forebay.Error, match=problem):
        chats.select(text=f"chat_template(messages, template => '{quoted}')").to_arrow()


def test_tensors_of_tokens_are_cast():
    torch = pytest.importorskip("torch")
    tokens = forebay.table({"ids": [[1, 2, 3], [4, 5, 6]]}, name="tokens").pack(3, column="ids")
    batch = next(
        iter(
            forebay.load(
                tokens.select(a="cast_tensor(input_ids, type => 'int64')", b="cast_tensor(input_ids, type => 'uint8')"),
                batch_size=2,
                shuffle=False,
                rank=0,
                world_size=1,
            )
        )
    )
    assert batch["a"].dtype == torch.int64 and batch["b"].dtype == torch.uint8
    assert batch["a"].tolist() == [[1, 2, 3], [4, 5, 6]]

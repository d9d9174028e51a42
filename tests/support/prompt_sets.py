"""Small tokenizers of the two common sorts, a text, and prompts that are made with them."""

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from llmprobe.probes.prompts import Prompts, make_prompts

SENTENCE = "the whale and the sea were old when the ship came to them over the grey water"
TEXT = "\n".join(
    " ".join(np.random.default_rng(n).permutation(SENTENCE.split())) for n in range(120)
)
LENGTHS = (40, 64, 150)


def wrap(backend):
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", unk_token="<unk>", model_max_length=32
    )


def byte_level():
    """As in GPT-2 and Llama 3: every text has tokens, and pieces are joined as they are."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "<unk>", "<reserved>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([TEXT], trainer)
    return wrap(backend)


def sentence_piece():
    """As in Llama 2: a text begins with a blank of its own."""
    backend = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    alphabet = list("abcdefghijklmnopqrstuvwxyz->\n▁")
    trainer = trainers.BpeTrainer(
        vocab_size=120,
        special_tokens=["<s>", "<unk>", "<reserved>"],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    backend.train_from_iterator([TEXT], trainer)
    return wrap(backend)


TOKENIZERS = {"byte level": byte_level(), "sentence piece": sentence_piece()}
TOKENIZER = TOKENIZERS["byte level"]
SPECIAL = {0, 1, 2}
TOKENS = TOKENIZER(TEXT, add_special_tokens=False, verbose=False).input_ids


def make(kind, **options):
    given = {
        "n_prompts": 6,
        "lengths": LENGTHS,
        "tokenizer": TOKENIZER,
        "vocab_size": len(TOKENIZER),
        "text": TEXT if kind in Prompts.kinds and Prompts.kinds[kind].needs_text else None,
    }
    if kind == "own":
        given["rows"] = [TOKENS[37 * i : 37 * i + 200] for i in range(9)]
    return make_prompts(kind, **{**given, **options})


def ragged(n, *, longest=40, shortest=2, vocab_size=50):
    """Lists of tokens: some are too short for most lengths, the first one too."""
    generator = np.random.default_rng(0)
    sizes = generator.integers(shortest, longest + 1, size=n)
    sizes[[0, -1]] = 1 + shortest, longest
    sizes[1:4] = longest
    return [generator.integers(3, vocab_size, size=size).tolist() for size in sizes]

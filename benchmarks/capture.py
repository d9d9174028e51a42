"""What the capture costs, against the plain ways to the same numbers.

    python benchmarks/capture.py speed     lengths 16..16384 of layer 0 at Llama-3.2-1B's shape
    python benchmarks/capture.py memory    attention rows of 11 positions in all layers of a toy

Speed: one pass for all lengths, single queries in the deepest layer, against one pass a length
that stops early; equal numbers first, then at least 5 times as fast. Memory: rows at 16,384 tokens
below 1.5 times the plain forward's peak; eager's at 4,096 stands beside it.
"""

import subprocess
import sys
from collections.abc import Callable

import torch
from measure import alternate, peak_memory
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from llmprobe import capture_attention, capture_rows, parse_lengths

SPEEDUP = 5.0
MEMORY = 1.5
POSITIONS = [length - 1 for length in parse_lengths("16..16384")]


def build(
    hidden: int, layers: int, heads: int, kv_heads: int, vocabulary: int, mlp: int
) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=131072,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval().requires_grad_(False)


def tokens(model: LlamaForCausalLM, length: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(model.config.vocab_size, (1, length), generator=generator)


def speed() -> bool:
    # Two of the sixteen layers are enough to stop early in.
    model = build(2048, 2, 32, 8, 128_256, 8192)
    prompt = tokens(model, 16384)

    class Done(Exception):
        pass

    def pass_a_length() -> Tensor:
        """Plain transformers: a hook that keeps the last output and raises."""
        kept: list[Tensor] = []

        def hook(module: object, args: object, output: tuple[Tensor, ...]) -> None:
            kept.append(output[0][:, -1].clone())
            raise Done

        handle = model.model.layers[0].self_attn.register_forward_hook(hook)
        for position in POSITIONS:
            try:
                model.model(prompt[:, : position + 1], use_cache=False)
            except Done:
                continue
        handle.remove()
        return torch.stack(kept, dim=1)

    def one_pass() -> Tensor:
        with capture_attention(model, 0, POSITIONS, stop=True) as captured:
            model(prompt, use_cache=False)
        return captured[0]

    def one_pass_heads() -> Tensor:
        with capture_attention(model, 0, POSITIONS, at="heads", stop=True) as captured:
            model(prompt, use_cache=False)
        return captured[0]

    with torch.inference_mode():
        expected, got = pass_a_length(), one_pass()
        difference = float((got - expected).abs().max() / expected.square().mean().sqrt())
        work: dict[str, Callable[[], object]] = {
            "a pass a length, early stop": pass_a_length,
            "one pass, single queries": one_pass,
            "the same, heads": one_pass_heads,
        }
        timing = alternate(work, rounds=3, warm_up=0)
    for name, value in timing.items():
        print(f"{name:<30} {value}")
    slow, fast, _ = (value.median for value in timing.values())
    print(f"largest relative difference     {difference:9.1e}    (limit 1e-5)")
    print(f"times as fast                   {slow / fast:9.1f}    (at least {SPEEDUP})")
    return slow / fast >= SPEEDUP and difference <= 1e-5


def memory_case(case: str) -> int:
    """One case in a process of its own: what was freed before would hide what is needed now."""
    model = build(512, 4, 8, 2, 1000, 1536)
    length = 4096 if "eager" in case else 16384
    positions = [position for position in POSITIONS if position < length]
    if case == "eager":
        model.set_attn_implementation("eager")

    def run(n: int) -> None:
        prompt = tokens(model, n)
        if case == "rows":
            wanted = [position for position in positions if position < n]
            with capture_rows(model, wanted) as rows:
                model(prompt, use_cache=False, logits_to_keep=1)
            assert len(rows) == 4
        else:
            model(prompt, use_cache=False, logits_to_keep=1, output_attentions=case == "eager")

    with torch.inference_mode():
        run(64)  # libraries allocate what they keep
        return peak_memory(lambda: run(length))


def memory() -> bool:
    names = {
        "plain": "plain forward, 16384 tokens",
        "rows": "with rows of 11 positions, 16384",
        "eager": "output_attentions, 4096 tokens",
    }
    peaks = {}
    for case, name in names.items():
        command = [sys.executable, __file__, "memory-case", case]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks[case] = int(done.stdout)
        print(f"{name:<34} {peaks[case] / 2**20:8.0f} MiB")
    ratio = peaks["rows"] / peaks["plain"]
    print(f"rows over plain                    {ratio:8.2f}    (limit {MEMORY})")
    return ratio <= MEMORY


def main() -> None:
    what = sys.argv[1] if len(sys.argv) > 1 else "all"
    if what == "memory-case":
        print(memory_case(sys.argv[2]))
        return
    parts = {"speed": speed, "memory": memory}
    chosen = parts.values() if what == "all" else [parts[what]]
    held = [part() for part in chosen]  # all of them run, whatever the first says
    raise SystemExit(not all(held))


if __name__ == "__main__":
    main()

"""Figure 1 of arXiv 2504.02827: attention outputs of a language model vary less in longer prompts.

Question: does the standard deviation over prompts of one feature of the first layer's attention
    output fall with the length of the prompt, and as N^-0.5?
Expected: it falls towards 0, a straight line on log axes (Figure 1, Llama-3.2-1B). Proposition 1
    has the slope -0.5 for attention that spreads over all tokens, with one query.
Measured: partly. SmolLM2-135M-Instruct (dequantized Q4_1), unigrams of WikiText-2's test split
    that end in one of 16 tokens, 256 prompts, 16 to 2,048 tokens. Over all prompts the standard
    deviation stays, slope +0.01 [-0.00, +0.02]: most of it is between the last tokens. Among
    prompts with the same last token it falls as N^-0.20 [-0.22, -0.18]. The nine heads of this
    layer have slopes from -0.47 to -0.12 there: those that spread follow the law, and the sum of
    all hides it (see head_decay_map).
"""

from pathlib import Path
from typing import Annotated, Literal

import typer

from llmprobe import LLMProbeError, probe_variance

NAME = "figure_1_llm_variance"
SCALES = {
    "quick": {"model": "builtin", "lengths": "16..256", "n_prompts": 32},
    "desk": {"model": "HuggingFaceTB/SmolLM2-135M", "lengths": "16..2048", "n_prompts": 256},
    "paper": {"model": "meta-llama/Llama-3.2-1B", "lengths": "16..16384", "n_prompts": 256},
}


def main(
    scale: Literal["quick", "desk", "paper"] = "desk",
    model: Annotated[str | None, typer.Option(help="Hub id, folder or .gguf file.")] = None,
    text: Annotated[Path | None, typer.Option(help="Unigrams of it; else random tokens.")] = None,
    query: Annotated[
        Literal["fixed", "free"], typer.Option(help="fixed: 16 last tokens for all.")
    ] = "fixed",
    component: Annotated[int, typer.Option(help="The one feature.")] = 0,
    output: Annotated[Path, typer.Option(help="Folder for figure and result.")] = Path("figures"),
) -> None:
    size = SCALES[scale]
    result = probe_variance(
        model or size["model"],
        size["lengths"],
        prompts="unigram" if text else "random",
        text=text,
        n_prompts=size["n_prompts"],
        query=query,
        component=component,
    )
    print(result.headline(), result.reading(), sep="\n")
    columns = ["length", "n_prompts", "component_std", "std_q25", "std_median", "std_q75"]
    print(result.to_frame()[columns].to_string(index=False))
    result.save(output / NAME, overwrite=True)
    for ending in ("png", "pdf"):
        result.save_figure(output / f"{NAME}.{ending}", "decay")


if __name__ == "__main__":
    try:
        typer.run(main)
    except (LLMProbeError, OSError) as error:
        raise SystemExit(f"{NAME}: {error}") from error

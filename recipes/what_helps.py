"""Do remedies against dispersion help a pretrained model beyond the context it was trained for?

Question: which of the published remedies lowers the loss of a language model on prompts that are
    longer than its trained context L, at which dose, and more than a sham of it; and does giving
    heads back the variance that they lose help?
Expected: colder softmaxes help beyond L once positions are repaired (Qwen-7B, dynamic NTK:
    perplexity 5.71 to 4.62 at 8 L with logn), and are the identity inside L; if lost variance
    hurts, `restore` helps and its shams do not.
Measured: confirmed for colder softmaxes, reversed for `restore`. Built-in model (L 256), 8 prompts,
    2,049 to 4,096 tokens, best of the doses 0.5 and 1: with positions repaired by YaRN all five
    help, by 0.07 to 0.14 nats, and their shams hurt; without, they hurt. restore and norm hurt.
    SmolLM2-135M-Instruct (dequantized Q4_1) inside its context, acting beyond 256 tokens, 8 windows
    of War and Peace, to 1,024 tokens: infoscale makes no clear difference, the others hurt by 0.006
    to 0.25 nats. At twice its context, 4 windows: logn helps by 0.013 nats with repaired positions
    and hurts by 0.033 without.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from llmprobe import LLMProbeError, load_model, probe_remedies, probe_variance

NAME = "what_helps"
GAINS = ("restore", "norm")
"""Remedies that need the moments of heads."""


@dataclass(frozen=True)
class Case:
    """A model, and how far beyond the context that it was trained for."""

    model: str
    lengths: str
    doses: str = "0.5,1"
    remedies: str = "logn,yarn,infoscale,adaptive,temperature,restore,norm"
    measures: str = "loss,dictionary,repeat,slopes"
    n_prompts: int = 8
    trained: int | None = None
    ropes: tuple[str | None, ...] = (None,)


SMOLLM2, QWEN = "HuggingFaceTB/SmolLM2-135M", "Qwen/Qwen2.5-Coder-1.5B"
FEW = {"measures": "loss", "n_prompts": 4}
"""Where a prompt takes minutes of two cores."""
CASES = {
    # 16 times its trained context of 256.
    "builtin": Case("builtin", "64..4096", measures="loss,slopes", ropes=(None, "yarn")),
    # Inside the trained context of 8,192: remedies act beyond 256 tokens, as if it were that.
    "inside": Case(SMOLLM2, "64..1024", measures="loss,slopes", trained=256),
    # Twice the trained context.
    "beyond": Case(SMOLLM2, "1024..16384", "1", "logn", ropes=(None, "yarn"), **FEW),
    # Inside the trained context of 32,768, acting beyond 64 tokens.
    "qwen": Case(QWEN, "32..256", "0.5", "logn,infoscale,temperature,restore", trained=64, **FEW),
}


def main(
    scale: Literal["quick", "desk", "paper"] = "desk",
    case: Annotated[str, typer.Option(help=f"{', '.join(CASES)}.")] = "builtin",
    model: Annotated[str | None, typer.Option(help="Hub id, folder or .gguf file.")] = None,
    text: Annotated[Path | None, typer.Option(help="Prompts of it; builtin has its own.")] = None,
    output: Annotated[Path, typer.Option(help="Folder for figure and results.")] = Path("figures"),
    runs: Annotated[Path, typer.Option(help="Where runs are kept, and resume.")] = Path("runs"),
) -> None:
    chosen = CASES[case]
    if scale == "quick":
        chosen = replace(chosen, model="builtin", lengths="64..512", n_prompts=8)
    if scale == "paper":
        chosen = replace(chosen, n_prompts=64, doses="0.5,1,2")
    name = model or chosen.model
    loaded = load_model(name)
    folder = runs / f"{NAME}_{case}_{scale}_{Path(name).stem}"
    prompts = {"prompts": "text", "text": text or "builtin"}
    for rope in chosen.ropes:
        names, more = chosen.remedies.split(","), {"rope": rope}
        if rope is not None:  # with repaired positions heads have other moments
            names = [name for name in names if name not in GAINS]
        if set(names) & set(GAINS):
            probe_variance(  # moments of heads, from prompts of another seed
                loaded,
                chosen.lengths,
                at="heads",
                layers="all",
                n_prompts=4 * chosen.n_prompts,
                seed=1,
                output=folder / "variance",
                **prompts,
            )
            more["variance"] = folder / "variance"
        label = "_".join(filter(None, (NAME, "" if case == "builtin" else case, rope)))
        result = probe_remedies(
            loaded,
            chosen.lengths,
            remedies=names,
            doses=chosen.doses,
            measures=chosen.measures,
            trained=chosen.trained,
            n_prompts=chosen.n_prompts,
            output=folder / label,
            **prompts,
            **more,
        )
        result.save(output / label, overwrite=True)
        for ending in ("png", "pdf"):
            result.save_figure(output / f"{label}.{ending}", "doses")
            result.save_figure(output / f"{label}_lengths.{ending}", "lengths")
        print(result.headline(), result.reading(), sep="\n")


if __name__ == "__main__":
    try:
        typer.run(main)
    except (LLMProbeError, OSError, ValueError) as error:
        raise SystemExit(f"{NAME}: {error}") from error

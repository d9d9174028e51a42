"""The command line: parse, call one library function, save, print.

Nothing heavy is imported before a command runs, so `--help` answers at once. Errors that the
library raises on purpose become one line on stderr and exit code 1; wrong usage is exit code 2.
"""

import json
import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

import llmprobe
from llmprobe.errors import LLMProbeError

if TYPE_CHECKING:
    from llmprobe.kinds import SeriesResult
    from llmprobe.sweeps import SweepPlan

app = typer.Typer(
    name="llmprobe",
    help="What happens to attention as prompts get longer, which heads do it, and what helps.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# typer brings its own copy of click and does not name the base of its usage errors.
_UsageError: Any = typer.BadParameter.__base__

Debug = Annotated[bool, typer.Option("--debug", help="Show an error's traceback.")]
Model = Annotated[
    str, typer.Argument(help="Hub id (id@revision too), folder, .gguf file, or builtin.")
]
Lengths = Annotated[
    str,
    typer.Option(help="16..16384 doubles; 16..16384:20 is 20 log-spaced; 16,64,256; 1k = 1024."),
]
Layers = Annotated[str, typer.Option(help="all, 0, -1, or 0,4,8..12.")]
At = Annotated[
    str, typer.Option(help="output: after the output projection; heads: each head before it.")
]
Prompts = Annotated[str, typer.Option(help="random, unigram, text or dictionary.")]
Text = Annotated[Path | None, typer.Option(help="Text file for unigram and text prompts.")]
Dataset = Annotated[
    str | None, typer.Option(help="NAME[:SPLIT] of a data set, or a file, that `datasets` loads.")
]
Samples = Annotated[int, typer.Option(help="Prompts at each length.")]
Query = Annotated[str, typer.Option(help="free, or fixed: every prompt ends in the same token.")]
Bos = Annotated[str, typer.Option(help="Begin prompts with BOS: auto (as the tokenizer), yes, no.")]
Component = Annotated[int, typer.Option(help="The single feature to follow (Figure 1).")]
Reference = Annotated[
    int | None,
    typer.Option(help="Length that drifts are measured from; the shortest if not given."),
]
Seed = Annotated[int, typer.Option(help="Of the prompts.")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub model.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")]
DeviceMap = Annotated[
    str | None, typer.Option(help="Spread the model over devices: auto, balanced, sequential.")
]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16, float16 or float64.")]
AllowPickle = Annotated[
    bool, typer.Option("--allow-pickle", help="Load .bin weights, which can run code.")
]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run code that the model brings along.")
]
BatchTokens = Annotated[int | None, typer.Option(help="Tokens in one forward, at most.")]
Chunk = Annotated[
    int | None, typer.Option(help="Cut long prompts into chunks of so many tokens (less memory).")
]
Output = Annotated[
    Path | None, typer.Option(help="Folder for the result; runs/COMMAND-MODEL if not given.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a result that is there.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No plan and no progress on stderr.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"llmprobe {llmprobe.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    debug: Debug = False,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Options for every command come before its name."""


@app.command(epilog="Example: llmprobe env --json")
def env(as_json: Json = False) -> None:
    """Versions, device, default dtype, threads, memory, hub and optional extras."""
    from llmprobe.runtime import environment

    facts = environment()
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        typer.echo(f"{name:<{width}}  {value}")


@app.command(epilog="Example: llmprobe check meta-llama/Llama-3.2-1B")
def check(
    model: Model = "builtin",
    length: Annotated[int, typer.Option(help="Tokens in the prompts of the check.")] = 64,
    revision: Revision = None,
    device: Device = "auto",
    device_map: DeviceMap = None,
    dtype: Dtype = "auto",
    allow_pickle: AllowPickle = False,
    trust_remote_code: TrustRemoteCode = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Check that captures tell the truth about a model: hooks, eager attention, padding."""
    from llmprobe.checks import check_capture
    from llmprobe.models import load_model

    loaded = load_model(
        model,
        revision=revision,
        device=device,
        device_map=device_map,
        dtype=dtype,
        allow_pickle=allow_pickle,
        trust_remote_code=trust_remote_code,
    )
    if loaded.learned_positions is not None and length > loaded.learned_positions:
        raise ValueError(f"length: got {length}, {loaded.name} has {loaded.learned_positions}")
    report = check_capture(loaded.model, tokenizer=loaded.tokenizer, length=length)
    if as_json:
        document = {
            "model": loaded.describe(),
            "passed": report.passed,
            "checks": [vars(line) for line in report.checks],
        }
        typer.echo(json.dumps(document, indent=2))
    else:
        facts = loaded.describe()
        typer.echo(f"{facts['name']}: {facts['dtype']} on {facts['device']}, {facts['attention']}")
        for line in report.checks:
            sign = "ok  " if line.passed else "FAIL"
            by = "" if line.difference is None else f"{line.difference:.1e}"
            typer.echo(f"{sign}  {line.name:<40} {by:>8}  {line.detail}")
    if not report.passed:
        raise typer.Exit(1)


@app.command(epilog="Example: llmprobe variance meta-llama/Llama-3.2-1B --lengths 16..16384")
def variance(
    model: Model = "builtin",
    lengths: Lengths = "16..1024",
    layers: Layers = "0",
    at: At = "output",
    prompts: Prompts = "random",
    text: Text = None,
    dataset: Dataset = None,
    samples: Samples = 64,
    query: Query = "free",
    bos: Bos = "auto",
    component: Component = 0,
    reference: Reference = None,
    seed: Seed = 0,
    device: Device = "auto",
    device_map: DeviceMap = None,
    dtype: Dtype = "auto",
    batch_tokens: BatchTokens = None,
    chunk: Chunk = None,
    revision: Revision = None,
    allow_pickle: AllowPickle = False,
    trust_remote_code: TrustRemoteCode = False,
    output: Output = None,
    overwrite: Overwrite = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """How the variance of attention outputs falls with the length of the prompt."""
    _probe("variance", **locals())


@app.command(epilog="Example: llmprobe attention builtin --layers all --lengths 16..512")
def attention(
    model: Model = "builtin",
    lengths: Lengths = "16..1024",
    layers: Layers = "0",
    prompts: Prompts = "random",
    text: Text = None,
    dataset: Dataset = None,
    samples: Samples = 64,
    query: Query = "free",
    bos: Bos = "auto",
    seed: Seed = 0,
    device: Device = "auto",
    device_map: DeviceMap = None,
    dtype: Dtype = "auto",
    batch_tokens: BatchTokens = None,
    revision: Revision = None,
    allow_pickle: AllowPickle = False,
    trust_remote_code: TrustRemoteCode = False,
    output: Output = None,
    overwrite: Overwrite = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Where attention looks as prompts get longer, and the variance that this predicts."""
    _probe("attention", **locals())


@app.command(epilog="Example: llmprobe plot runs/variance-builtin --kind heads --format pdf")
def plot(
    folder: Annotated[Path, typer.Argument(help="A saved result.")],
    kind: Annotated[
        str | None, typer.Option(help="Which figure; the main one if not given.")
    ] = None,
    file_format: Annotated[str, typer.Option("--format", help="png, pdf or svg.")] = "png",
    width: Annotated[float | None, typer.Option(help="In inches.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="File to write; KIND.FORMAT in the folder if not given.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Draw a figure of a saved result; needs neither the model nor torch."""
    from llmprobe.kinds import load_result

    if file_format not in ("png", "pdf", "svg"):
        raise ValueError(f"format: got {file_format!r}, accepted: png, pdf, svg")
    if width is not None and not 1 <= width <= 40:
        raise ValueError(f"width: got {width}, accepted: 1 to 40 inches")
    if output is not None and output.suffix != f".{file_format}":
        raise ValueError(
            f"output: {output} does not end in .{file_format}; give a fitting --format"
        )
    result = load_result(folder)
    target = output or folder / f"{kind or next(iter(result.plots))}.{file_format}"
    result.save_figure(target, kind, width=width)
    typer.echo(str(target))


@app.command(epilog="Example: llmprobe compare runs/variance-a runs/variance-b")
def compare(
    folders: Annotated[list[Path], typer.Argument(help="Saved variance results.")],
    output: Annotated[Path, typer.Option(help="Figure to write: .png, .pdf or .svg.")] = Path(
        "runs/compare.png"
    ),
    debug: Debug = False,
) -> None:
    """Overlay several variance results in one figure and table their slopes."""
    from matplotlib import pyplot as plt

    from llmprobe import plots, reports
    from llmprobe.kinds import VarianceResult, load_result

    if output.suffix not in (".png", ".pdf", ".svg"):
        raise ValueError(f"output: got {output}, accepted: a name that ends in .png, .pdf or .svg")
    results = [(folder, load_result(folder)) for folder in folders]
    for folder, result in results:
        if not isinstance(result, VarianceResult):
            raise ValueError(
                f"{folder} is a result of {result.kind}; compare takes variance results"
            )
    names = [result.provenance.model for _, result in results]
    if len(set(names)) < len(names):
        names = [folder.name for folder, _ in results]
    if len(set(names)) < len(names):
        names = [str(folder) for folder, _ in results]
    if len(set(names)) < len(names):
        raise ValueError("compare: the same folder was given twice")
    named = dict(zip(names, (result for _, result in results), strict=True))
    _print_table(reports.compare_table(named.items()))  # type: ignore[arg-type]
    axes = plots.draw_comparison({name: result.to_frame() for name, result in named.items()})
    output.parent.mkdir(parents=True, exist_ok=True)
    plt.figure(axes.get_figure(root=True))
    plt.savefig(output, dpi=200)
    plt.close()
    typer.echo(f"figure: {output}")


def _probe(command: str, **options: Any) -> None:
    """What `variance` and `attention` share: load, plan, run with a bar, save, print."""
    from llmprobe.discovery import parse_layers
    from llmprobe.models import load_model
    from llmprobe.runtime import progress

    model, output = options.pop("model"), options.pop("output")
    dry_run, as_json, quiet = (options.pop(name) for name in ("dry_run", "as_json", "quiet"))
    overwrite = options.pop("overwrite")
    options.pop("debug")
    target = output or Path("runs") / f"{command}-{_slug(model)}"
    if not dry_run:
        _check_target(target, overwrite)
    options["layers"] = parse_layers(options["layers"])
    where = ("revision", "device", "device_map", "dtype", "allow_pickle", "trust_remote_code")
    loaded = load_model(model, **{name: options.pop(name) for name in where})
    with progress(quiet=quiet) as bar:
        task = bar.add_task(command, total=None, note="tokens")

        def on_plan(plan: "SweepPlan") -> None:
            bar.update(task, total=plan.n_tokens)
            if dry_run:
                typer.echo(plan.describe())
                raise typer.Exit
            if not quiet:
                typer.echo(f"{loaded.name}: {plan.describe()}", err=True)

        result: SeriesResult = _probes()[command](
            loaded, **options, on_plan=on_plan, advance=lambda n: bar.advance(task, n)
        )
    result.save(target, overwrite=overwrite, figures=("png", "pdf"))
    _show(result, target, as_json)


def _probes() -> dict[str, Callable[..., Any]]:
    from llmprobe.dispersion import probe_attention
    from llmprobe.probing import probe_variance

    return {"variance": probe_variance, "attention": probe_attention}


def _show(result: "SeriesResult", target: Path, as_json: bool) -> None:
    from llmprobe import reports
    from llmprobe.kinds import VarianceResult

    if as_json:
        typer.echo(json.dumps(result.to_document() | {"output": target.name}))
        return
    typer.echo(result.headline())
    _print_table(reports.table_of(result, width=_terminal_width()))
    if isinstance(result, VarianceResult):
        if result.accuracy:
            shares = (f"{n}: {a:.0%}" for n, a in zip(result.lengths, result.accuracy, strict=True))
            typer.echo(f"first token of the answer right, by length: {', '.join(shares)}")
        typer.echo(result.reading())
    for warning in result.warnings:
        typer.echo(f"note: {warning}")
    typer.echo(f"saved: {target} (result.json, arrays.npz, {result.kind}.png, {result.kind}.pdf)")


def _terminal_width() -> int | None:
    """None where the output goes to no terminal: then nothing is left out or cut."""
    from rich.console import Console

    console = Console()
    return console.width if console.is_terminal else None


def _print_table(table: Any) -> None:
    from rich.console import Console

    Console(width=_terminal_width() or 400).print(table)


def _slug(model: str) -> str:
    return re.sub(r"[^\w.-]+", "-", Path(model).name if Path(model).exists() else model).strip("-")


def _check_target(target: Path, overwrite: bool) -> None:
    """Find out before the work, not after it, whether its result can be kept."""
    if target.exists() and not overwrite:
        raise ValueError(f"{target} is already there; use --overwrite or another --output")
    if target.is_symlink() or (target.exists() and not (target / "result.json").is_file()):
        raise ValueError(f"{target} is there and is no result; use another --output")
    above = next(parent for parent in target.absolute().parents if parent.exists())
    try:
        Path(tempfile.mkdtemp(prefix=".llmprobe-", dir=above)).rmdir()
    except OSError as error:
        raise ValueError(
            f"{target} cannot be written ({error.strerror}); use another --output"
        ) from None


def main() -> None:
    """The console script."""
    try:
        raise SystemExit(app(standalone_mode=False))
    except _UsageError as error:
        if not error.format_message():  # no command at all: the help has been shown
            raise SystemExit(2) from None
        _fail(f"{error.format_message()} (llmprobe --help shows what is accepted)", 2)
    except typer.Abort:
        _fail("stopped", 130)
    except BrokenPipeError:
        # Whoever read our output has seen enough; the interpreter's own flush must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except Exception as error:
        if "--debug" in sys.argv:  # before the command or behind it
            raise
        if isinstance(error, LLMProbeError | ValueError | OSError):
            _fail(str(error), 1)
        _fail(f"{type(error).__name__}: {error} (--debug shows where)", 1)


def _fail(message: str, code: int) -> NoReturn:
    typer.echo(f"llmprobe: {' '.join(message.split())}", err=True)
    raise SystemExit(code) from None


if __name__ == "__main__":
    main()

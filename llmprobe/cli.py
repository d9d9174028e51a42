"""The command line: parse, call one library function, save, print.

Nothing heavy is imported before a command runs, so `--help` answers at once. Errors that the
library raises on purpose become one line on stderr and exit code 1; wrong usage is exit code 2.
"""

import json
import sys
from typing import Annotated, Any, NoReturn

import typer

import llmprobe
from llmprobe.errors import LLMProbeError

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

Model = Annotated[str, typer.Argument(help="Hub id (id@revision too), folder or .gguf file.")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub model.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")]
DeviceMap = Annotated[
    str | None, typer.Option(help="Spread the model over devices: auto, balanced, sequential.")
]
AllowPickle = Annotated[
    bool, typer.Option("--allow-pickle", help="Load .bin weights, which can run code.")
]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run code that the model brings along.")
]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16, float16 or float64.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"llmprobe {llmprobe.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    debug: Annotated[bool, typer.Option("--debug", help="Show an error's traceback.")] = False,
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
    model: Model,
    length: Annotated[int, typer.Option(help="Tokens in the prompts of the check.")] = 64,
    revision: Revision = None,
    device: Device = "auto",
    device_map: DeviceMap = None,
    dtype: Dtype = "auto",
    allow_pickle: AllowPickle = False,
    trust_remote_code: TrustRemoteCode = False,
    as_json: Json = False,
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
    except (LLMProbeError, ValueError, OSError) as error:
        if "--debug" in sys.argv:  # before the command or behind it
            raise
        _fail(str(error), 1)


def _fail(message: str, code: int) -> NoReturn:
    typer.echo(f"llmprobe: {' '.join(message.split())}", err=True)
    raise SystemExit(code) from None


if __name__ == "__main__":
    main()

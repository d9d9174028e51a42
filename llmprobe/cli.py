"""The command line: parse, call one library function, save, print.

Nothing heavy is imported before a command runs, so `--help` answers at once. Errors that the
library raises on purpose become one line on stderr and exit code 1; wrong usage is exit code 2.
"""

import atexit
import gc
import inspect
import io
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

import llmprobe
from llmprobe.commands.ablation import ablate
from llmprobe.commands.importing import importing
from llmprobe.commands.listing import ls
from llmprobe.commands.options import FLAG, OUTPUT_PANEL, Json
from llmprobe.commands.probes import attention, check, loss, retrieval, variance
from llmprobe.commands.remedy import remedy
from llmprobe.commands.saved import compare, merge, plot, report, show
from llmprobe.commands.showing import OPTIONS, in_options, say, say_names
from llmprobe.commands.trainer import train_synthetic
from llmprobe.errors import LLMProbeError


def _shown_plainly(params: list[Any]) -> list[Any]:
    """Parameters whose help shows no type of Python: flags take no value, arguments have a name."""
    for param in params:
        if param.param_type_name == "argument":
            param.display_type_rich = lambda ctx: ""
        elif param.metavar is None and getattr(param, "is_flag", False):
            param.metavar = ""
        if param.name == "show_completion":
            param.help = "Print completion for the current shell."
    return params


class _Group(TyperGroup):
    """The commands together."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _shown_plainly(super().get_params(ctx))


app = typer.Typer(
    name="llmprobe",
    cls=_Group,
    help="What happens to attention as prompts get longer, which heads do it, does it hurt, and "
    "what helps?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_POSITIONAL = {"model", "folder", "folders", "what", "kind"}
"""Parameters of commands that are no options, or mean something else in the library."""
# typer brings its own copy of click and does not name the base of its usage errors.
_UsageError: Any = typer.BadParameter.__base__


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"llmprobe {llmprobe.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error.", **FLAG)
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version.", **FLAG
        ),
    ] = False,
) -> None:
    """Options for every command come before its name."""


@importing()
def env(as_json: Json = False) -> None:
    """Versions, device, memory, hub access and optional extras."""
    from llmprobe.base.machine import environment

    facts = environment()
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    say_names(facts)


_COMMANDS: dict[str, dict[Callable[..., None], str]] = {
    "Probe a model": {
        variance: "llmprobe variance meta-llama/Llama-3.2-1B --lengths 16..16384",
        attention: "llmprobe attention builtin --layers all --lengths 16..512",
        loss: "llmprobe loss builtin --lengths 16..1024 --same-targets 8",
        ablate: "llmprobe ablate builtin --heads each --lengths 16..256",
        remedy: "llmprobe remedy builtin --remedies logn,temperature --lengths 64..1024",
        retrieval: "llmprobe retrieval builtin --lengths 64..256 --prompts repeat",
        check: "llmprobe check meta-llama/Llama-3.2-1B",
    },
    "Train small models": {
        train_synthetic: "llmprobe train-synthetic --task othello --variants baseline,ema "
        "--seeds 8",
    },
    "Saved results": {
        show: "llmprobe show runs/variance-builtin-heads --rows all",
        plot: "llmprobe plot runs/variance-builtin --kind heads --format pdf",
        compare: "llmprobe compare runs/variance-a runs/variance-b",
        merge: "llmprobe merge runs/seed-0 runs/seed-1 --output runs/both",
        report: "llmprobe report runs/variance-a runs/attention-a --output a.html",
    },
    "About": {
        ls: "llmprobe ls variants",
        env: "llmprobe env --json",
    },
}
"""All commands in the panels of the help, each with an example."""


class _Command(TyperCommand):
    """A command whose `--help` is in the same panel as its other options of output."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _shown_plainly(super().get_params(ctx))

    def get_help_option(self, ctx: Any) -> Any:
        option: Any = super().get_help_option(ctx)
        option.rich_help_panel, option.metavar = OUTPUT_PANEL, ""
        return option


for _panel, _members in _COMMANDS.items():
    for _command, _example in _members.items():
        app.command(cls=_Command, rich_help_panel=_panel, epilog=f"Example: {_example}")(_command)
        OPTIONS.update(inspect.signature(_command).parameters.keys() - _POSITIONAL)


def main() -> None:
    """The console script."""
    # A scheduler that ends a job gets what Ctrl-C gets: finished pieces are kept, and it is said.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # A process that ends would look for garbage among all modules: about a second with torch.
    atexit.register(gc.freeze)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what a terminal cannot show is no error
            stream.reconfigure(errors="backslashreplace")
    try:
        raise SystemExit(app(standalone_mode=False))
    except _UsageError as error:
        if not error.format_message():  # no command at all: the help has been shown
            raise SystemExit(2) from None
        _fail(_usage(error), 2)
    except typer.Abort:
        _fail("stopped", 130)
    except BrokenPipeError:
        # Whoever read our output has seen enough; the interpreter's own flush must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except Exception as error:
        if "--debug" in sys.argv:  # before the command or behind it
            raise
        _fail(in_options(_explanation(error)), 1)


def _usage(error: Any) -> str:
    """What was wrong with the command itself, and where to read how it is called."""
    words = error.format_message().rstrip(".")
    # Some versions of typer say what they wanted, and leave what came to the cause.
    details: list[Any] = getattr(error.__cause__, "errors", list)()
    came = f", got {details[0]['input']!r}" if details else ""
    command = error.ctx.command_path if error.ctx is not None else "llmprobe"
    return f"{words}{came} ({command} --help shows what is accepted)"


def _explanation(error: Exception) -> str:
    """An error in words: as it is if it was raised on purpose, else with what may be known."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename} cannot be used ({error.strerror}); check it, or use another one"
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    module = str(frame.f_globals.get("__name__"))
    ours = isinstance(error, ValueError) and module.startswith("llmprobe")
    in_words = isinstance(error, OSError) and error.errno is None
    if str(error) and (ours or in_words or isinstance(error, LLMProbeError)):
        return str(error)
    machine: Any = sys.modules.get("llmprobe.base.machine")  # importing it might have failed
    if isinstance(error, MemoryError) or (machine and machine.is_out_of_memory(error)):
        told = " ".join(str(error).split())[:200]
        return f"this does not fit the memory ({told}); ask for less, such as shorter --lengths"
    return f"{type(error).__name__}: {error} (in {module}; --debug shows where)"


def _fail(message: str, code: int) -> NoReturn:
    say(f"llmprobe: {' '.join(message.split())}", err=True)
    raise SystemExit(code) from None


if __name__ == "__main__":
    main()

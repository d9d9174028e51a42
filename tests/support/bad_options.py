"""Bad values for every option and argument of every command, and what the line must say of each.

Cases are made from the commands' own signatures, with values that are bad by type, and with tables
of those that are bad by what they mean. `{}` stands for a folder with things to give wrongly.
"""

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import NamedTuple, get_args, get_origin

from llmprobe.cli import app


class Case(NamedTuple):
    """A command that must be refused."""

    arguments: tuple[str, ...]
    words: str
    """What the line must say."""
    spoil: Callable[[Path], object] = lambda folder: None
    """Done to the folder before."""
    came: str = ""
    """What came, as the line shows it."""


HUGE = str(10**30)
PROBE = ("--n-prompts", "4", "--lengths", "8,16", "--output", "{}/out", "--quiet")
TRAIN = ("--steps", "4", "--sets", "4", "--lengths", "8", "--batch", "4", "--quiet")
# Arguments, and options beside them, with which a command is right and soon done.
RIGHT: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "variance": (("builtin",), PROBE),
    "attention": (("builtin",), PROBE),
    "loss": (("builtin",), (*PROBE, "--text", "builtin")),
    "retrieval": (("builtin",), (*PROBE, "--lengths", "40")),
    "ablate": (("builtin",), (*PROBE, "--text", "builtin", "--heads", "0.0")),
    "remedy": (("builtin",), (*PROBE, "--text", "builtin", "--remedies", "logn", "--doses", "1")),
    "check": (("builtin",), ("--length", "8")),
    "train-synthetic": ((), (*TRAIN, "--output", "{}/out")),
    "show": (("{}/run",), ()),
    "plot": (("{}/run",), ()),
    "compare": (("{}/run", "{}/other"), ("--output", "{}/both.png")),
    "merge": (("{}/run", "{}/other"), ("--output", "{}/out")),
    "report": (("{}/run",), ("--output", "{}/page.html")),
    "ls": (("tasks",), ()),
    "env": ((), ()),
}
COMPLEMENT = ("--task", "set-complement")
# Options without which another one would be refused for being there at all.
BESIDE = {
    "text": ("--prompts", "text"),
    "dataset": ("--prompts", "text"),
    "search": COMPLEMENT,
    "vocab": COMPLEMENT,
    "target": COMPLEMENT,
    "train-synthetic layers": COMPLEMENT,
    "value-size": COMPLEMENT,
    "concatenate": ("--task", "copy"),
    "dropout": ("--variants", "dropout"),
    "ema-decay": ("--variants", "ema"),
}
# What is bad whatever it is for, and what the line says beside what came.
BAD_BY_TYPE: dict[type, dict[str, str]] = {
    int: {"many": "valid integer", "1.5": "valid integer", "": "valid integer", "-1": "", HUGE: ""},
    float: {"wide": "valid number", "": "valid number", "nan": "", "-1": "", "inf": ""},
    str: {"": "", "no such": "", "\0": "", "☃ é": ""},
    Path: {"": "a path", "\0": "a path", "x" * 300: "too long", "~no-such-user/x": "no such user"},
}
LENGTHS = {
    "64..16": "must rise",
    "16..": "is not understood",
    "..16": "is not understood",
    "0": "the least is 1",
    "0,16": "the least is 1",
    "-5": "is not understood",
    "8,8": "8 more than once",
    "8;16": "is not understood",
    "1e3": "is not understood",
    "8..16:1": "accepted: 2 to 9",
    "1..1000000:900000": "accepted: 2 to 65536",
    HUGE: "the longest is 134,217,728",
    f"16..{HUGE}": "the longest is 134,217,728",
    "9" * 5000: "a number of 5000 digits",
}
FOLDER = {
    "{}/nowhere": "does not exist; check the path",
    "{}/empty": "has no result.json",
    "{}/file": "is a file; give the folder",
    "{}/run/result.json": "is a file; give the folder",
}
# Of an option, or of one command's, the values that only its meaning makes bad.
BAD_BY_NAME: dict[str, dict[str, str]] = {
    "model": {
        "./no-such-folder": "does not exist",
        "some/model": "HF_HUB_OFFLINE is set",
        "a/b/c": "cannot be a hub id",
        "https://huggingface.co/a/b": "cannot be a hub id",
        "two words": "cannot be a hub id",
        "two\nlines": r"'two\nlines'",
        "builtin@main": "is local; leave it out",
        "~no-such-user/model": "no such user",
        "x" * 300: "File name too long",
        "{}/empty": "is an empty folder",
        "{}/file": "no .gguf; give the folder",
        "/dev/null": "no .gguf; give the folder",
        "{}/run": "is a result, not a model",
        "{}/nowhere.gguf": "does not exist",
    },
    "lengths": LENGTHS,
    "train-lengths": {
        "16..5": "5..16",
        "5..": "5..16",
        "5,16": "5..16",
        "0": "from 1",
        "-3": "from 1",
        HUGE: "to 134,217,728",
        "9" * 5000: "to 134,217,728",
    },
    "length": {"7": "8 or more", "100000": "to 65,536"},
    "layers": {
        "99": "accepted: 0 to 4",
        "-9": "accepted: 0 to 4",
        "first": "accepted: all, 0, -1",
        "4..2": "runs backwards",
        "0..": "accepted: all, 0, -1",
        "0..999999999": "5 digits at most",
        "9" * 5000: "5 digits at most",
    },
    "at": {"middle": "output, heads"},
    "prompts": {
        "poems": "random, unigram",
        "text": "give --text FILE",
        "unigram": "--dataset NAME",
        "own": "give the prompts",
        "nowhere.jsonl": "does not exist; check the path",
        "{}/empty": "is none of .txt, .jsonl",
    },
    "field": {"text": "prompts have none; leave it out"},
    "text": {
        "{}/nowhere.txt": "does not exist; check the path",
        "{}/empty": "is a folder; give a file",
        "/dev/zero": "is a device",
    },
    "dataset": {
        "{}/nowhere.jsonl": "does not exist; check the path",
        "{}/empty": "cannot be read",
        "{}/file": "as --text FILE",
        "a/b/c": "NAME:SPLIT",
        "json": "NAME:SPLIT",
        "some/data:test": "the hub is not reachable",
        "~no-such-user/x": "no such user",
        "x" * 300: "File name too long",
    },
    "n-prompts": {"0": "2 or more", "1": "2 or more", "1000001": "to 1,000,000"},
    "query": {"both ways": "free, fixed", "Free": "'free'"},
    "null": {"trained": "untrained, shuffled"},
    "n-queries": {"4": "query='free'"},
    "bos": {"maybe": "auto, yes, no"},
    "component": {"192": "0 to 191"},
    "reference": {"17": "(8, 16)"},
    "seed": {str(2**63): "less than 64 bits"},
    "device": {
        "gpu": "auto, cpu",
        "xpu": "torch sees",
        "meta": "auto, cpu",
        "CPU": "auto, cpu",
        "cpu:1": "use cpu",
        "cuda:99": "torch sees",
    },
    "device-map": {
        "disk": "balanced, ",
        "meta": "balanced, ",
        "Auto": "balanced, ",
        "cpu:7": "cpu",
    },
    "dtype": {"int8": "float32, bfloat16", "torch.float32": "float32, bfloat16"},
    "revision": {"main": "is local; leave it out"},
    "attn-implementation": {"slow": "accepted: eager"},
    "quantize": {"int3": "int8, int4, nf4"},
    "part": {"head": "encoder, decoder, cross", "cross": "is no encoder-decoder"},
    "position": {"middle": "auto, last, first, mean", "3": "is causal", "first": "is causal"},
    "batch-tokens": {"0": "1 or more"},
    "chunk": {"0": "1 or more"},
    "task": {"sorting": "argmax, dictionary", "../up": "argmax, dictionary"},
    "variants": {
        "baseline,groupnorm": "layernorm, standardize",
        "layernorm+rmsnorm": "choose one",
        "baseline,baseline": "different",
        "baseline+baseline,baseline": "different",
        ",": "accepted",
        "mlp": "layernorm, standardize",
    },
    "preset": {"huge": "quick, desk, paper"},
    "search": {"0": "search: got 0, accepted: 1 or more"},
    "seeds": {"0": "1 or more", "1000000000": "1 or more, to 1,000,000"},
    "first-seed": {"-1": "0 or more", str(2**63 - 1): "less than 64 bits"},
    "steps": {"0": "1 or more"},
    "score-at": {"x": "steps such as", "75": "multiples of"},
    "mlp-layers": {"1": "2 to 100"},
    "concatenate": {"0": "concatenate: got 0"},
    "context": {"0": "context: got 0"},
    "sets": {"0": "1 or more"},
    "vocab": {"1": "2 to 1024 tokens", "1000000": "2 to 1024 tokens"},
    "target": {"soft": "sampled, exact"},
    "width": {"0": "1 "},
    "heads": {"0": "1 or more", "3": "divisor"},
    "train-synthetic layers": {"0": "1 or more", "1001": "to 1,000"},
    "value-size": {"0": "1 or more", "1000000": "to 65,536"},
    "batch": {"0": "1 or more", "1000000": "to 65,536"},
    "learning-rate": {"nan": "0 or more", "1e400": "0 or more"},
    "weight-decay": {"nan": "0 or more", "1e400": "0 or more"},
    "clip": {"-1": "0 or more", "1e400": "0 or more"},
    "schedule": {"linear": "constant, cosine"},
    "warmup": {"100": "0 to the 4 steps"},
    "dropout": {"1": "less than 1", "0": "more than 0"},
    "ema-decay": {"1": "less than 1"},
    "output": {
        "{}/here": "use another folder",
        "{}/file": "is a file",
        "{}/file/run": "cannot be written",
        "/proc/run": "cannot be written",
    },
    "plot output": {
        "x.gif": "a name such as figure.png",
        ".png": "a name such as figure.png",
        "{}/file/x.png": "cannot be written",
        "/proc/x.png": "cannot be written",
        "{}/folder.png": "cannot be used",
    },
    "compare output": {
        "x.gif": ".png, .pdf or .svg",
        "{}/run": ".png, .pdf or .svg",
        "{}/file/x.png": "cannot be written",
        "/proc/x.png": "cannot be written",
        "{}/folder.png": "cannot be used",
    },
    "merge output": {
        "{}/run": "is already there",
        "{}/empty": "is already there",
        "{}/link": "is a link",
        "{}/file/x": "cannot be written",
        "/proc/x": "cannot be written",
    },
    "report output": {
        "x.pdf": "ends in .html",
        "{}/run": "ends in .html",
        "{}/file/x.html": "cannot be written",
        "/proc/x.html": "cannot be written",
    },
    "report folders": FOLDER,
    "remedy field": {"text": "text prompts have none"},
    "loss field": {"text": "text prompts have none"},
    "remedy prompts": {"pie": "random, unigram, text, dictionary"},
    "ablate prompts": {"pie": "random, unigram, text, dictionary"},
    "ablate heads": {"pie": "LAYER.HEAD", "0.x": "LAYER.HEAD"},
    "n-controls": {"-2": "0 or more"},
    "ablate variance": {"{}/run": "leave one of them out"},
    "remedy heads": {
        "first": "all, dispersing, or LAYER.HEAD",
        "9.0": "heads of layers 0",
        "0.6": "heads of layers 0 (0 to 5)",
        "dispersing": "give the folder of a variance result",
    },
    "measures": {"speed": "accepted: loss, dictionary", ",": "accepted: loss, dictionary"},
    "remedies": {"prayer": "accepted: logn, yarn", ",": "accepted: logn, yarn"},
    "doses": {"-1": "numbers from 0 to 100", "0": "at least one above 0", "1,nan": "numbers from"},
    "variance": {"{}/nowhere": "has no evidence", "{}/run": "make it with --at heads"},
    "trained": {"1": "2 or more"},
    "rope": {"ntk": "dynamic, yarn, linear", "linear:0": "from 1 to 1024"},
    "retrieval prompts": {"pie": "random, unigram, text, dictionary", "text": "ask nothing"},
    "loss prompts": {"pie": "random, unigram, text, dictionary"},
    "folder": FOLDER,
    "folders": FOLDER | {"{}/lab": "synthetic", "{}/attention": "attention"},
    "same-targets": {"0": "1 or more", "8": "fewer than the shortest length, 8"},
    "layer": {"2": "accepted: 0 to 0"},
    "head": {"0": "whole layers"},
    "plot heads": {"best": "steepest:6", "steepest:0": "steepest:6", "flattest": "flattest:6"},
    "sort": {"head": "slope, layer", "Slope": "slope, layer"},
    "rows": {"0": "1 or more", "many": "1 or more", "-3": "1 or more"},
    "kind": {"pie": "decay, heads", "../../x": "decay, heads", "accuracy": "decay, heads"},
    "format": {"gif": "png, pdf, svg", "PNG": "png, pdf, svg"},
    "plot width": {"0": "1 to 40 inches", "1e9": "1 to 40 inches"},
    "what": {"models": "tasks, variants, prompts, remedies, kinds", "TASKS": "tasks, variants"},
}
# What is bad only together, or is no option at all: commands with what the line says.
TOGETHER: dict[str, list[tuple[str, str]]] = {
    "variance": [
        ("--prompts text --text a --dataset b", "give only one of them"),
        ("--text {}/short.txt", "use --prompts unigram or --prompts text"),
        ("--prompts text --text {}/short.txt", "use a longer text"),
        ("--prompts text --text {}/same.txt", "are the same"),
        ("--prompts dictionary --query fixed", "use free"),
        ("--prompts dictionary --lengths 2", "accepted: 23 or more"),
        ("--device cpu --device-map auto", "give only one of them"),
        ("--at heads --component 32", "0 to 31"),
        ("--n-prompt 3", "--n-prompts"),
        ("another", "unexpected extra argument"),
        ("--lengths --n-prompts 4", "unexpected extra argument"),
        ("--output {}/run --seed 1", "seed 0 (asked: 1)"),
        ("--output {}/run --n-prompts 3", "more than the 3 that are asked for"),
        ("--output {}/lab", "is already there"),
        ("--output {}/here --overwrite", "is no result"),
        ("--output {}/link", "cannot be written"),
    ],
    "attention": [("--at heads", "No such option"), ("--chunk 8", "No such option")],
    "ablate": [
        ("--heads labels", "give --variance FOLDER"),
        ("--heads 0.9", "got 0.9"),
        ("--variance {}/run", "leave one of them out"),
    ],
    "remedy": [
        ("--remedies restore", "restore needs one"),
        ("--heads dispersing", "needs one"),
        ("--lengths 1,16", "2 or more tokens"),
        ("--query fixed", "No such option"),
    ],
    "loss": [
        ("--same-targets 9", "fewer than the shortest length"),
        ("--prompts text --text {}/short.txt", "use a longer text"),
    ],
    "retrieval": [
        ("--prompts random", "accepted: dictionary, repeat"),
        ("--prompts repeat --lengths 16", "too short for a passage"),
        ("--lengths 8", "too short for one pair"),
        ("--text a", "No such option"),
    ],
    "check": [("--length 8 another", "unexpected extra argument")],
    "train-synthetic": [
        ("argmax", "unexpected extra argument"),
        ("--search 8 --heads 2", "heads: got 2, but it is drawn by the search"),
        ("--search 8 --variants residual", "accepted: different parts"),
        ("--search 8 --score-at 50", "--score-at: got '50', but it is not for a search"),
        ("--task copy --concatenate 0", "--concatenate: got 0, accepted: a whole number"),
        ("--score-at 75 --steps 100", "multiples of 50"),
        ("--mlp-layers 1", "--mlp-layers: got 1"),
        ("--layers 2", "not for argmax"),
        ("--context 20", "--context: got 20, but it is not for argmax"),
        ("--task othello --context 80", "--context: got 80, but no variant has one of learned"),
        ("--task othello --search 8 --context 80", "not for a search"),
        ("--task othello --variants coupled", "but othello does not say which do"),
        ("--task addition --variants nope,coupled", "addition-padded, or leave it out"),
        ("--task addition --variants nope,predicted --context 9", "addition-padded, or leave it"),
        ("--task othello --variants calibrated+ssmax", "accepted: the softmax"),
        ("--vocab 8", "not for argmax"),
        ("--target exact", "not for argmax"),
        ("--value-size 8", "not for argmax"),
        ("--dropout 0.1", "no variant has dropout"),
        ("--ema-decay 0.9", "no variant has ema"),
        ("--task dictionary --lengths 16777216", "8,388,608 items"),
        ("--task dictionary --train-lengths 16777216", "--train-lengths: got 16777216"),
        ("--task set-complement --vocab 8 --lengths 8", "1 to 7 tokens"),
        ("--task set-complement --vocab 8 --train-lengths 1..8", "1 to 7 tokens"),
        ("--task set-complement --variants layernorm", "mlp, prenorm"),
        ("--task set-complement --variants rotary --width 7", "an even size"),
        ("--task set-complement --search 4 --width 8", "drawn by the search"),
        ("--task set-complement --search 4 --seeds 2", "drawn by the search"),
        ("--task set-complement --search 4 --variants baseline,mlp", "one network"),
        ("--task set-complement --search 4 --variants dropout", "one network"),
        ("--task othello --vocab 8", "tokens of othello"),
        ("--task othello --lengths 60", "1 to 59 tokens"),
        ("--concatenate 2", "not for argmax"),
        ("--task set-complement --search 4 --concatenate 2", "not for a search"),
        ("--task copy --search 4", "accepted for a search: argmax"),
        ("--task copy --lengths 300", "1 to 256 letters"),
        ("--task dyck --vocab 5", "even, 2 to 64 tokens"),
        ("--output {}/lab --learning-rate 0.01", "learning_rate 0.001 (asked: 0.01)"),
        ("--output {}/run", "holds no training"),
        ("--output {}/here --overwrite", "holds no training"),
    ],
    "show": [
        ("{}/other", "unexpected extra argument"),
        ("--csv --json", "give only one of them"),
    ],
    "plot": [
        ("{}/other", "unexpected extra argument"),
        ("--output x.pdf", "another --format"),
        ("--kind decay --format pdf --output x.png", "another --format"),
    ],
    "compare": [("{}/run", "same folder twice"), ("{}/./run", "same folder twice")],
    "merge": [
        ("{}/run", "two or more different"),
        ("{}/lab", "results of one kind"),
        ("{}/same", "seed 0 at length 8 is in two folders"),
        ("{}/bare", "has no evidence.safetensors"),
        ("--output {}/empty --overwrite", "is no result"),
    ],
    "report": [
        ("--output {}/page.txt", "ends in .html"),
        ("{}/empty", "is no result"),
    ],
    "ls": [("kinds", "unexpected extra argument")],
    "env": [("--json now", "unexpected extra argument"), ("--debug", "No such option")],
}
USAGE = {
    "varience": "Did you mean 'variance'?",
    "nope": "No such command",
    "-x": "No such option",
    "--nope": "No such option",
    "--json env": "No such option",
    "--debug=3 env": "does not take a value",
    "--version=3": "does not take a value",
    "plot": "Missing argument",
    "compare": "Missing argument",
    "merge": "Missing argument",
    "report": "Missing argument",
    "merge {}/run {}/other": "Missing option '--output'",
}

COMMANDS = {
    command.name or command.callback.__name__.replace("_", "-"): command.callback
    for command in app.registered_commands
}


def options_of(command: str) -> dict[str, tuple[type, bool, object]]:
    """A command's options and arguments by name: type, whether it is an option, its declaration."""
    found = {}
    for name, parameter in inspect.signature(COMMANDS[command]).parameters.items():
        kind, about = get_args(parameter.annotation)
        if isinstance(kind, UnionType):
            (kind,) = {*get_args(kind)} - {NoneType}
        if get_origin(kind) is list:
            (kind,) = get_args(kind)
        is_option = type(about).__name__ == "OptionInfo"
        # Beside Annotated, what typer takes for a default is the first name.
        declared = [about.default, *(about.param_decls or ())]
        names = [text for text in declared if isinstance(text, str)] or [name.replace("_", "-")]
        found[names[0].removeprefix("--")] = kind, is_option, about
    return found


def filled(command: str, option: str, value: str | None, is_option: bool) -> tuple[str, ...]:
    """A command that is right but for one value; None is an option that is left without."""
    arguments, options = RIGHT[command]
    if option == "dataset" and "--text" in options:  # never both
        at = options.index("--text")
        options = (*options[:at], *options[at + 2 :])
    options += BESIDE.get(f"{command} {option}", BESIDE.get(option, ()))
    if not is_option:
        assert value is not None
        return (command, *options, "--", value, *arguments[1:])
    return (command, *arguments, *options, f"--{option}", *([] if value is None else [value]))


def told(value: str) -> str:
    """How a line shows what came."""
    return "''" if not value else repr(value)[1:-1]


def bad_options() -> Iterator[tuple[str, Case]]:
    """All of them, by names that say what is wrong.

    An option that several commands share (one declaration, one meaning) is given
    all its bad values in the first of them. In the others one value shows that it is the same.
    """
    given, declared = set(), set()
    for command in COMMANDS:
        arguments, options = RIGHT[command]
        for option, (kind, is_option, about) in options_of(command).items():
            known = id(about) in declared
            declared.add(id(about))
            if kind is bool and known:
                continue
            if kind is bool:
                wrong = (command, *arguments, *options, f"--{option}=3")
                yield f"{command} --{option}=3", Case(wrong, "does not take a value")
                continue
            if is_option and not known:
                wrong = filled(command, option, None, is_option)
                yield f"{command} --{option} alone", Case(wrong, "requires an argument")
            meant = BAD_BY_NAME.get(f"{command} {option}", BAD_BY_NAME.get(option, {}))
            bad = BAD_BY_TYPE[kind] | meant
            shared = id(about), *meant
            if shared in given:
                bad = dict([*bad.items()][-1:])
            given.add(shared)
            for value, words in bad.items():
                wrong = filled(command, option, value, is_option)
                came = "" if value in meant else told(value)
                yield f"{command} {option} {ascii(value)[:40]}", Case(wrong, words, came=came)
        for more, words in TOGETHER[command]:
            wrong = (command, *arguments, *options, *more.split())
            yield f"{command} {more}", Case(wrong, words)
    for line, words in USAGE.items():
        yield f"usage {line}", Case(tuple(line.split()), words)

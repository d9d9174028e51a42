"""Where the time to a first result goes: the stages of `llmprobe variance`, one after another.

    python benchmarks/stages.py builtin --at heads --query fixed --lengths 16..4096

It prints the seconds of each stage as JSON. It is a script of its own because imports count only in
a fresh process. The stages are those of the command, called in its order.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

START = time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--lengths", default="16..1024")
    parser.add_argument("--query", default="free")
    parser.add_argument("--at", default="output")
    arguments = parser.parse_args()
    seconds: dict[str, float] = {}
    last = START

    def done(stage: str) -> None:
        nonlocal last
        now = time.perf_counter()
        seconds[stage], last = now - last, now

    import torch  # noqa: F401

    done("import torch")
    from llmprobe import load_model
    from llmprobe.probes.probe import start
    from llmprobe.probes.variance import VarianceProbe, VarianceRequest

    done("other imports")
    loaded = load_model(arguments.model)
    done("load")
    asked = VarianceRequest(lengths=arguments.lengths, query=arguments.query, at=arguments.at)
    run = start(VarianceProbe, loaded, asked)
    done("discovery and checks")
    result = run.execute()
    done("sweep")
    with tempfile.TemporaryDirectory() as folder:
        result.save(Path(folder) / "result")
        done("save")
        result.save_figures(Path(folder) / "result")
        done("figures")
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()

"""`python -m autoscaler.lab.study --traces DIR --out DIR`: run the study, or go on with it, and make its tables.

    --traces DIR       the public traces; left out, only the tables are made of what is in --out
    --out DIR          where the runs are kept, one file a case
    --sources A,B      only these
    --contenders A,B   only these; with --again their kept runs are dropped first
    --cpu SECONDS      end after so much processor time; what is done is kept
    --results FILE     the small file of everything (docs/data/policy-study.json)
    --document FILE    the page whose tables are made of it (docs/policy-study.md)

Does: read options, run, write. Does not: judge. Invariant: ended at any moment, it goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from autoscaler.domain.faults import ConfigError
from autoscaler.lab.study import contenders, traffic
from autoscaler.lab.study.page import fill
from autoscaler.lab.study.records import Kept, read_study, write_study
from autoscaler.lab.study.running import Runner, Spent, colds_of, without
from autoscaler.lab.study.strategies import measure

_INTERRUPTED, _MISTAKE = 130, 2


def main(arguments: list[str] | None = None) -> int:
    """Run it; the exit code."""
    options = _options().parse_args(arguments)
    try:
        return _study(options)
    except ConfigError as error:
        print("\n".join(error.mistakes), file=sys.stderr)
        return _MISTAKE


def _study(options: argparse.Namespace) -> int:
    kept = Kept(options.out)
    code = 0 if options.traces is None else _run(options, kept)
    if options.results is not None:
        write_study(options.results, kept.study(traffic.BY_NAME))
        if options.document is not None:
            fill(options.document, read_study(options.results))
    return code


def _run(options: argparse.Namespace, kept: Kept) -> int:
    sources = [traffic.BY_NAME[one] for one in _named("sources", options.sources, list(traffic.BY_NAME))]
    only = frozenset(_named("contenders", options.contenders, list(contenders.BY_NAME)))
    if options.again:
        for source in sources:
            for cold_s in (0, *colds_of(source)):
                kept.keep(without(kept.case(source.name, cold_s), only))
    runner = Runner(options.traces, kept, options.cpu, lambda line: print(line, flush=True))
    try:
        for source in sources:
            runner.source(source, only)
        if not kept.served():
            kept.strategies(measure(options.traces))
    except Spent:
        print("the processor time is spent: run it again to go on")
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    return 0


def _named(option: str, given: str, known: list[str]) -> list[str]:
    """The names of a list, all of them when it is empty. Raises ConfigError."""
    names = [one.strip() for one in given.split(",") if one.strip()]
    for name in names:
        if name not in known:
            raise ConfigError([f"--{option}: found {name[:60]!r}; allowed: {', '.join(known)}"])
    return names or known


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m autoscaler.lab.study", description="The policy study.")
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sources", default="")
    parser.add_argument("--contenders", default="")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--cpu", type=float, default=float("inf"))
    parser.add_argument("--results", type=Path)
    parser.add_argument("--document", type=Path)
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""The command line: thin. Bad input ends with a message and exit code 2, never with a traceback."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perflab.errors import PerflabError

if TYPE_CHECKING:
    from perflab.gpus import Gpu
    from perflab.planning import Plan
    from perflab.studies import Study
    from perflab.workbench import Workbench

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True,
                  help="Performance analysis of CUDA kernels: every question but 'how fast' needs no GPU.")

Gpus = Annotated[list[str] | None, typer.Option("--gpu", help="A GPU or architecture (H200, sm_120); may be repeated.")]
GpusOrAll = Annotated[list[str] | None, typer.Option("--gpu", help="A GPU or architecture; may be repeated; or 'all'.")]
Name = Annotated[str | None, typer.Option(help="The kernel, for a template its instance: 'saxpy<float>'.")]
Defines = Annotated[list[str] | None, typer.Option("--define", "-D", help="NAME=VALUE for the compiler.")]
Shapes = Annotated[list[str] | None, typer.Option("--shape", help="A bundle's name, or sizes as q_len=9,heads=64; repeat.")]
Versions = Annotated[list[str] | None, typer.Option("--version", help="Only this version; may be repeated.")]
Checks = Annotated[bool, typer.Option("--checks", help="Check, without times, at the study's further shapes.")]


def _defines(given: list[str] | None) -> dict[str, str]:
    pairs = [item.partition("=") for item in given or []]
    return {name: value or "1" for name, _, value in pairs}


def _study(name: str) -> tuple[Study, Path]:
    from perflab.studies import load_study
    from perflab.workspaces import workspace

    folder = workspace().study_folder(name)
    return load_study(folder), folder


@app.command()
def explain(
    file: Path,
    gpu: GpusOrAll = None,
    name: Name = None,
    block: Annotated[int | None, typer.Option(help="Threads a block; else the launch bounds, else 256.")] = None,
    dynamic_shared: Annotated[int, typer.Option(help="Dynamic shared memory a block, in bytes.")] = 0,
    define: Defines = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="For a pull request.")] = False,
) -> None:
    """One screen about any .cu file: registers, spills and where, occupancy and its limiter by GPU, the next cheaper step."""
    from perflab.explanation import explain as explained

    gpus = "all" if gpu == ["all"] else gpu
    found = explained(file, name, gpus, block, dynamic_shared, _defines(define))
    typer.echo(found.markdown() if markdown else str(found))


@app.command()
def resources(file: Path, gpu: Gpus = None, name: Name = None, define: Defines = None) -> None:
    """Registers, shared memory, spills, barriers, parameters and the static instruction mix of one kernel."""
    from perflab.kernel import load
    from perflab.machine import default_gpu

    kernel = load(file, name, _defines(define))
    for chosen in gpu or [default_gpu().name]:
        typer.echo(str(kernel.resources(chosen)))


@app.command()
def occupancy(
    gpu: Gpus = None,
    block: Annotated[int, typer.Option(help="Threads a block.")] = 256,
    registers: Annotated[int, typer.Option(help="Registers a thread.")] = 64,
    static_shared: Annotated[int, typer.Option(help="Bytes a block.")] = 0,
    dynamic_shared: Annotated[int, typer.Option(help="Bytes a block.")] = 0,
    barriers: Annotated[int, typer.Option(help="Named barriers a block.")] = 1,
    carveout: Annotated[int | None, typer.Option(help="Percent of the SM's memory asked for as shared memory.")] = None,
    grid: Annotated[int | None, typer.Option(help="Blocks, for waves and tail.")] = None,
) -> None:
    """Blocks and warps per SM from numbers alone, in words, with the next cheaper step."""
    from perflab.machine import default_gpu
    from perflab.occupancy_model import occupancy as calculated

    for chosen in gpu or [default_gpu().name]:
        found: Any = calculated(gpu=chosen, block=block, registers=registers, static_shared=static_shared,
                                dynamic_shared=dynamic_shared, barriers=barriers, carveout=carveout, grid=grid)
        typer.echo(str(found.explain()))


@app.command()
def gpus() -> None:
    """The GPUs and architectures that perflab knows."""
    from perflab.gpus import capabilities, gpu_names

    typer.echo("\n".join(gpu_names()))
    typer.echo("architectures: " + ", ".join("sm_" + capability.replace(".", "") for capability in capabilities()))


@app.command()
def studies() -> None:
    """The studies of this workspace and their versions."""
    from perflab.workbench import study
    from perflab.workspaces import workspace

    for name in workspace().study_names():
        typer.echo(str(study(name)))


def _shapes(bench: Workbench, given: list[str] | None) -> list[tuple[str, Any]]:
    """(label, shape) of each --shape; the study's bundles without any, else its first declared shape."""
    declared = bench.study.bundles or {"declared": bench.study.shapes[0]}
    if not given:
        return list(declared.items())
    return [(text, declared[text]) if text in declared else (text, bench.shape(**_sizes(text, declared))) for text in given]


def _sizes(text: str, bundles: Mapping[str, Any]) -> dict[str, Any]:
    """{"q_len": 9} for "q_len=9": whole numbers as such, all else as text."""
    from perflab.errors import unknown

    pairs = [item.partition("=") for item in text.split(",")]
    if not all(separator for _, separator, _ in pairs):
        raise unknown("bundle (and no sizes as in q_len=9,heads=64)", text, bundles)
    return {name.strip(): int(value) if value.strip().lstrip("-").isdigit() else value.strip() for name, _, value in pairs}


@app.command()
def check(
    study: str,
    gpu: Annotated[str | None, typer.Option(help="Whose records to read; with --emulate, whose code to run.")] = None,
    emulate: Annotated[bool, typer.Option("--emulate", help="Run on the CPU now, and look for faults.")] = False,
    version: Versions = None,
    shape: Shapes = None,
    schedule: Annotated[str, typer.Option(help="With --emulate: forward, reversed or random:SEED.")] = "forward",
) -> None:
    """Every version at every bundle against float64, as recorded or (--emulate) run on the CPU; exit code 1 if one fails."""
    from perflab.workbench import study as opened

    bench = opened(study)
    chosen = bench.only(*version) if version else bench
    if not emulate:
        if shape:
            raise PerflabError("--shape goes with --emulate; what is recorded is shown for the bundles")
        table = chosen.parity(gpu)
        typer.echo(str(table))
        failed = any(str(row[0]).startswith("FAIL") for row in table.rows)
    else:
        failed = not _emulated(chosen, _shapes(bench, shape), gpu, schedule)
    if failed:
        raise typer.Exit(1)


def _emulated(bench: Workbench, shapes: list[tuple[str, Any]], gpu: str | None, schedule: str) -> bool:
    """Print a line and the faults of each version at each shape; True when all that ran pass. None that ran is an error."""
    from perflab.emulator.operations import Unsupported
    from perflab.studies import NotApplicable

    passed, ran = True, 0
    for label, shape in shapes:
        for bound in bench.versions:
            try:
                found: Any = bound.check(shape, gpu, emulate=True, schedule=schedule)
            except (NotApplicable, Unsupported) as reason:
                word = "n/a " if isinstance(reason, NotApplicable) else "NOT RUN"
                typer.echo(f"{word}  [{bound.name}] {label}  {reason}")
                continue
            passed, ran = passed and found.passed, ran + 1
            typer.echo("\n".join([found.line, *(f"      {fault}" for fault in found.faults)]))
    if not ran:
        raise PerflabError("no version could be run at any of these shapes: nothing was checked")
    return passed


@app.command()
def count(
    study: str,
    version: Versions = None,
    shape: Shapes = None,
    gpu: Annotated[str | None, typer.Option(help="The GPU or architecture whose code is counted.")] = None,
    sample: Annotated[int | None, typer.Option(help="Run this many blocks of a launch, and scale.")] = None,
    lines: Annotated[bool, typer.Option("--lines", help="The source with counts beside each line, too.")] = False,
) -> None:
    """What each version does, counted on the CPU: traffic, sectors, FLOPs, instructions, conflicts; by source line."""
    from perflab.emulator.operations import Unsupported
    from perflab.studies import NotApplicable
    from perflab.workbench import study as opened

    bench = opened(study)
    for _, chosen in _shapes(bench, shape or [next(iter(bench.study.bundles), "declared")]):
        for bound in (bench.only(*version) if version else bench).versions:
            try:
                found = bound.count(chosen, gpu, sample)
            except (NotApplicable, Unsupported) as reason:
                typer.echo(f"not counted: {bound.name}: {reason}")
                continue
            typer.echo(f"{found}\n")
            if lines:
                typer.echo(f"{bound.source(counts=found)}\n")


@app.command()
def lint(
    file: Path,
    gpu: Gpus = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="For a pull request.")] = False,
) -> None:
    """Compile a file for every architecture, list spills, run its `// perflab:` trials for faults; exit code 1 on errors."""
    from perflab.linting import lint as linted

    found = linted(file, gpu)
    typer.echo(found.markdown() if markdown else str(found))
    if not found.passed:
        raise typer.Exit(1)


def _plan(study: Study, folder: Path, gpu: Gpu, versions: list[str] | None, stale: bool, quick: bool,
          checks: bool = False) -> Plan:
    from perflab.planning import make_plan
    from perflab.records import RecordStore
    from perflab.workspaces import workspace

    store = RecordStore(workspace().records)
    shapes = study.checks() if checks else None
    if checks and not shapes:
        raise PerflabError(f"{study.name} declares no further shapes: give them as Study(checks=...), or leave out --checks")
    return make_plan(study, folder, gpu, versions, shapes, store, only_stale=stale, quick=quick, timed=not checks)


def _measure_rivals(study: Study, folder: Path, gpu: Gpu, names: list[str] | None, quick: bool) -> None:
    from tqdm import tqdm

    from perflab.planning import make_plan
    from perflab.records import RecordStore
    from perflab.rivals import load_rivals, measure_rivals
    from perflab.worker import Worker
    from perflab.workspaces import workspace

    store = RecordStore(workspace().records)
    plan = make_plan(study, folder, gpu, versions=(), shapes=(), quick=quick)
    known = load_rivals(folder)
    shapes = known.shapes(study)
    bar = tqdm(total=len(shapes) * len(names or known.rivals), unit=" rivals", desc=study.name, disable=None, leave=False)
    with bar, Worker() as worker:
        measure_rivals(plan, shapes, worker, lambda record: store.add([record]), bar.write, names, on_progress=bar.update)


def _measure_by_tools(plan: Plan, folder: Path, parts: Mapping[str, bool], stale: bool) -> None:
    from perflab.packing import measure_by_tool
    from perflab.records import RecordStore
    from perflab.workspaces import workspace

    store, kinds = RecordStore(workspace().records), {"counters": "counts", "sanitize": "faults"}
    for part in (part for part, wanted in parts.items() if wanted):
        here = store.newest(plan.study, plan.gpu) if stale else []
        if status := measure_by_tool(plan.without(here, plan.gpu, kinds[part]), folder, part, store):
            raise typer.Exit(status)


def _measure_plan(plan: Plan, folder: Path, on: str | None, item_limit_seconds: float | None) -> None:
    """Run the plan here, or at the address `on`, beside a progress bar; each record is kept as it comes."""
    from tqdm import tqdm

    from perflab.measuring import measure as measured
    from perflab.packing import measure_over_ssh
    from perflab.records import RecordStore
    from perflab.worker import Worker
    from perflab.workspaces import workspace

    store = RecordStore(workspace().records)
    bar = tqdm(total=round(plan.estimate_seconds), unit="s", desc=plan.study, disable=None, leave=False,
               bar_format="{desc}: {percentage:3.0f} % of about {total:.0f} s |{bar}| {elapsed} gone")
    watch: dict[str, Any] = {"on_record": lambda record: store.add([record]), "on_note": bar.write, "on_progress": bar.update,
                             "item_limit_seconds": item_limit_seconds}
    with bar:
        if on:
            measure_over_ssh(plan, folder, on, **watch)
        else:
            with Worker() as worker:
                measured(plan, worker, **watch)


@app.command()
def measure(
    study: str,
    on: Annotated[str | None, typer.Option(help="ssh://user@box: compile here, measure there.")] = None,
    gpu: Annotated[str | None, typer.Option(help="What GPU is at the other end of --on.")] = None,
    version: Versions = None,
    stale: Annotated[bool, typer.Option("--stale", help="Only what has no fresh record.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer samples, to try things out.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")] = False,
    item_limit: Annotated[float | None, typer.Option(help="Seconds after which an item is taken to hang.")] = None,
    rivals: Annotated[bool, typer.Option("--rivals", help="What is installed here, not the study's versions.")] = False,
    counters: Annotated[bool, typer.Option("--counters", help="Hardware counters, by ncu, where the study counts.")] = False,
    sanitize: Annotated[bool, typer.Option("--sanitize", help="Under compute-sanitizer, each at its smallest shape.")] = False,
    checks: Checks = False,
) -> None:
    """Check, then time, every version at every declared shape on a GPU; records are kept as they come."""
    from perflab.device import this_gpu
    from perflab.gpus import gpu as find_gpu

    target = find_gpu(gpu or "H200") if on else this_gpu()
    declared, folder = _study(study)
    if checks and (rivals or counters or sanitize):
        raise PerflabError("--checks compares outputs with float64, nothing else: leave out --rivals, --counters, --sanitize")
    if rivals:
        _measure_rivals(declared, folder, target, version, quick)
    elif counters or sanitize:
        if on:
            raise PerflabError(f"--counters and --sanitize run on this machine. On {on}: perflab pack {study} -o FILE, there "
                               "python FILE counters -o records.jsonl (or sanitize), and here perflab import records.jsonl")
        plan = _plan(declared, folder, target, version, False, quick)
        _measure_by_tools(plan, folder, {"counters": counters, "sanitize": sanitize}, stale)
    else:
        plan = _plan(declared, folder, target, version, stale, quick, checks)
        typer.echo(str(plan))
        if not dry_run:
            _measure_plan(plan, folder, on, item_limit)


@app.command()
def pack(
    study: str,
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to write.")],
    gpu: Annotated[str, typer.Option(help="The GPU it will run on.")] = "H200",
    version: Versions = None,
    stale: Annotated[bool, typer.Option("--stale", help="Only what has no fresh record.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer samples, to try things out.")] = False,
    checks: Checks = False,
) -> None:
    """One file to carry to a GPU machine that has only Python, CuPy and a driver: `python FILE run -o records.jsonl`."""
    from perflab.gpus import gpu as find_gpu
    from perflab.packing import pack as packed

    declared, folder = _study(study)
    plan = _plan(declared, folder, find_gpu(gpu), version, stale, quick, checks)
    packed(plan, folder, output)
    typer.echo(f"{plan}\nwritten: {output}, {output.stat().st_size:,} B")


@app.command("import")
def import_records(files: list[Path]) -> None:
    """Take the records that a packed run brought home into data/records; what is there already is left alone."""
    from perflab.records import RecordStore
    from perflab.workspaces import workspace

    store = RecordStore(workspace().records)
    for file in files:
        added, already = store.import_file(file)
        typer.echo(f"{file.name}: {added} records added, {already} were there already")


@app.command()
def report(force: Annotated[bool, typer.Option("--force", help="Execute every notebook anew.")] = False) -> None:
    """Execute the notebooks that changed and write site/."""
    from perflab.report import build
    from perflab.workspaces import workspace

    typer.echo(f"open {build(workspace().root, force=force)}")


@app.command()
def notebooks(names: Annotated[list[str] | None, typer.Argument(help="Only these; all by default.")] = None) -> None:
    """Execute notebooks and save them in place, byte-stable."""
    from perflab.report import rerun
    from perflab.workspaces import workspace

    rerun(workspace().root, names)


@app.command()
def readme(
    study: str,
    gpu: Annotated[str, typer.Option(help="Whose records to show.")] = "H200",
) -> None:
    """A study's ladder as docs/ladder.png, and in README.md the lines between its marks, anew from the records."""
    from perflab.readme import ladder, write
    from perflab.workbench import study as opened
    from perflab.workspaces import workspace

    for path in write(ladder(opened(study), gpu), workspace().root):
        typer.echo(f"written: {path.relative_to(workspace().root)}, {path.stat().st_size:,} B")


@app.command()
def compare(
    over: Annotated[str, typer.Argument(help="A .jsonl file of records, a folder of them, or a git commit.")],
    this: Annotated[str, typer.Argument(help="The same, to be compared with the first.")],
    hot: Annotated[bool, typer.Option("--hot", help="Compare the hot times; else the cold ones.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="For a pull request.")] = False,
) -> None:
    """What became faster or slower between two sets of records, or cannot be told apart; exit code 1 on a regression."""
    from perflab.comparison import compare_records, record_set
    from perflab.workspaces import workspace

    found = compare_records(record_set(over, workspace()), record_set(this, workspace()), hot)
    typer.echo(found.markdown() if markdown else str(found))
    if not found.rows:
        raise PerflabError(f"{over} and {this} hold no timing of the same version, dtype, shape and GPU: nothing was compared")
    if found.regressions:
        raise typer.Exit(1)


@app.command()
def export(
    study: str,
    format: Annotated[str, typer.Option("--format", help="nvbench (its JSON) or csv.")] = "csv",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The file to write; else it is printed.")] = None,
) -> None:
    """A study's newest timings for other tools; nvbench's raw samples are written only beside a file."""
    from perflab.exports import export_text, write_export
    from perflab.records import RecordFile
    from perflab.workspaces import workspace

    workspace().study_folder(study)  # an unknown one is an error that lists those there are
    files = sorted(workspace().records.glob(f"*/{study}.jsonl"))
    records = [record for file in files for record in RecordFile(file).read()]
    if output is None:
        typer.echo(export_text(records, format), nl=False)
    else:
        write_export(records, format, output)
        typer.echo(f"written: {output}, {output.stat().st_size:,} B")


def main() -> None:
    """The `perflab` command."""
    try:
        app()
    except PerflabError as error:
        typer.echo(f"perflab: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("perflab: stopped; what was recorded is kept", err=True)
        sys.exit(130)


if __name__ == "__main__":
    main()

"""Checks that pages, tables, notebooks and release files agree with the package and with each other.

    python docs/lint.py            # prints a line for each problem; exit code 1 if there is one
    python docs/lint.py --write    # first writes all pages and tables that are made from the package or raw results

It imports the package and the scripts of `benchmarks/`, and trains nothing.
"""

import ast
import contextlib
import dataclasses
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from datetime import date
from functools import cache
from pathlib import Path


ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests" / "compat")]
sys.path.append(str(ROOT))

import algorithm_lists
import algorithm_pages
import forks
import knobs_page
import metrics_page
import trl
import versions
import which
import yaml
from fork_bed import page as forks_page
from fork_bed.store import read
from packaging.requirements import Requirement
from packaging.version import Version
from pages import filled, places

import trl_credit
from trl_credit import ALGORITHMS, CreditConfig
from trl_credit.cli import COMMANDS
from trl_credit.config import defaults
from trl_credit.config.knobs import knobs_of
from trl_credit.hub.describe import EIGHTY_TWENTY, papers_of
from trl_credit.loss.metrics import METRICS
from trl_credit.presets import PRESETS
from trl_credit.settings.arguments import parse_arguments
from trl_credit.trainer.refusals import TESTED_TRL_MINORS


Problems = Iterator[str]
CHECKS: list[Callable[[], Problems]] = []


def check(function: Callable[[], Problems]) -> Callable[[], Problems]:
    CHECKS.append(function)
    return function


@cache
def text(name: str) -> str:
    """A file of the checkout."""
    return (ROOT / name).read_text(encoding="utf-8")


@cache
def sources() -> str:
    """The code of the package."""
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "trl_credit").rglob("*.py")))


@cache
def strings() -> list[str]:
    """The texts in the code of the package."""
    nodes = ast.walk(ast.parse(sources()))
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


# What is made from the package or from raw results


@cache
def tables() -> dict[Path, dict[str, str]]:
    """Every page with tables between markers, and these by name."""
    of_page: dict[Path, dict[str, str]] = {}
    for some in (
        which.page_tables(),
        {forks_page.PAGE: forks_page.tables(read(forks.STORE))},
        {knobs_page.PAGE: knobs_page.tables()},
        {metrics_page.PAGE: metrics_page.tables()},
        {versions.PAGE: {"versions": versions.table(versions.load())}},
        algorithm_pages.tables(),
    ):
        for path, named in some.items():
            of_page[path] = of_page.get(path, {}) | named
    return of_page


def generated() -> dict[Path, str]:
    """Each file that a script makes, with the text that it should have."""
    files = {path: filled(path.read_text(encoding="utf-8"), of_page) for path, of_page in tables().items()}
    return files | algorithm_lists.written()


@check
def generated_files_are_current() -> Problems:
    for path, expected in generated().items():
        if not path.is_file() or path.read_text(encoding="utf-8") != expected:
            yield f"{path.relative_to(ROOT)}: is not what its script makes; run python docs/lint.py --write"
    for path, page in markdown():
        if path.name not in ("true_credit.md", "answers.md"):  # those take long; a test compares the former
            for name in sorted({*places(page)} - {*tables().get(path, {})}):
                yield f"{path.relative_to(ROOT)}: no script makes its table {name}"


@check
def differences_of_the_overview_are_in_a_table() -> Problems:
    known = "".join(path.read_text(encoding="utf-8") for path in [*which.page_tables(), forks_page.PAGE])
    for value in re.findall(r"([+−]?\d\.\d{3} ± \d\.\d{3})", text("docs/which.md")):
        if known.count(value) < 2:
            yield f"docs/which.md: {value} is in no table"


@check
def the_audit_of_the_readme_is_that_of_the_results() -> Problems:
    cells = r"^\| ([^|]+) \| ([^|]+±[^|]+) \| ([^|]+) \| ([^|]+) \|"
    rows, learned = (
        re.findall(cells, text(page), re.MULTILINE) for page in ("README.md", "docs/results/true_credit.md")
    )
    if len(rows) != 4 or not {*rows} <= {*learned}:
        yield "README.md: the rows of its audit are not those of docs/results/true_credit.md"


# Pages, links, navigation


def anchors(page: str) -> set[str]:
    """The anchors of a page's headings, as GitHub and Python-Markdown make them."""
    page = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
    words = (re.sub(r"[^\w\s-]", "", heading.lower()) for heading in re.findall(r"^#+ +(.*)$", page, re.MULTILINE))
    return {re.sub(r"\s", "-", each.strip()) for each in words}


def markdown() -> Iterator[tuple[Path, str]]:
    """Every page and the text of every notebook."""
    for path in [
        *sorted(DOCS.rglob("*.md")),
        *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG", "AGENTS")),
    ]:
        yield path, path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "examples" / "notebooks").glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        yield path, "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


@check
def links_lead_to_files_and_headings() -> Problems:
    for path, page in markdown():
        plain = re.sub(r"^```.*?^```|`[^`\n]*`", "", page, flags=re.MULTILINE | re.DOTALL)
        for link in re.findall(r"\]\(([^)\s]+)\)", plain):
            target, _, anchor = link.partition("#")
            file = (path.parent / target).resolve() if target else path
            if re.match("[a-z]+:", link):
                continue
            is_page = anchor and file.suffix == ".md"
            if not file.exists() or is_page and anchor not in anchors(file.read_text(encoding="utf-8")):
                yield f"{path.relative_to(ROOT)}: links to {link}, which is not there"


@check
def pages_are_in_the_navigation_and_short() -> Problems:
    def names(nav: list) -> Iterator[str]:
        for entry in nav:
            for value in entry.values() if isinstance(entry, dict) else [entry]:
                yield from names(value) if isinstance(value, list) else [value]

    notebooks = [f"notebooks/{path.stem}.md" for path in (ROOT / "examples" / "notebooks").glob("*.ipynb")]
    pages = sorted([*notebooks, *(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))])
    if sorted(names(yaml.safe_load(text("mkdocs.yml"))["nav"])) != pages:
        yield "mkdocs.yml: nav must name every page once"
    for name, limit in (("README.md", 89), ("docs/index.md", 28), ("CONTRIBUTING.md", 88)):
        if (lines := sum(not line.startswith("|") for line in text(name).splitlines())) > limit:
            yield f"{name}: has {lines} lines outside of tables, more than {limit}"
    listed = set(re.findall(r"`([\w.]+)/?`", text("benchmarks/README.md").partition("|---")[2]))
    for name in sorted({path.name for path in (ROOT / "benchmarks").iterdir()} - listed):
        if name not in ("README.md", "results", "__pycache__"):
            yield f"benchmarks/README.md: does not list {name}"


@check
def notebooks_have_the_outputs_of_one_run() -> Problems:
    for path in sorted((ROOT / "examples" / "notebooks").glob("*.ipynb")):
        cells = [c for c in json.loads(path.read_text(encoding="utf-8"))["cells"] if c["cell_type"] == "code"]
        outputs = [output for cell in cells for output in cell["outputs"]]
        if [cell["execution_count"] for cell in cells] != list(range(1, len(cells) + 1)):
            yield f"{path.name}: run examples/notebooks/notebooks.py"
        if any(output["output_type"] == "error" or output.get("name") == "stderr" for output in outputs):
            yield f"{path.name}: an output is an error or a warning"
        shown = json.dumps(
            [{**o, "data": {k: v for k, v in o.get("data", {}).items() if "image" not in k}} for o in outputs]
        )
        if place := re.search(r"/(?:work|home|tmp|root|Users|opt|usr)/|site-packages", shown):
            yield f"{path.name}: an output shows a place of this machine, {place[0]}"


@check
def figures_of_the_notebooks_are_those_of_the_pages() -> Problems:
    texts = {path.stem: page for path, page in markdown() if path.suffix == ".ipynb"}
    (row,) = re.findall(
        r"^\| S-trace \| (\S+) \[(\S+), (\S+)\] \| (\S+)", text("benchmarks/results/demos_tables.md"), re.MULTILINE
    )
    sentence = "was {}, with a 95 % interval from {} to {}".format(*row[:3])
    if sentence not in (words := " ".join(texts["quickstart"].split())) or f"p is {row[3]}" not in words:
        yield "quickstart.ipynb: its figures are not those of benchmarks/results/demos_tables.md"
    for figure in re.findall(r"\S+ \[\S+, \S+\]", texts["agents"]):
        if figure not in text("docs/agents.md"):
            yield f"agents.ipynb: {figure} is not in docs/agents.md"


# Names


@cache
def settings() -> dict[str, set]:
    """Setting → its choices, if it has some."""
    configs = [CreditConfig, *(pair[0] for pair in ALGORITHMS.values())]
    choices = {f.name: set() for config in configs for f in dataclasses.fields(config)}
    for config in configs:
        choices |= {name: set(k.values.names) for name, k in knobs_of(config).items() if k.values and k.values.names}
    command = parse_arguments(["--output_dir", "unused"])
    rest = {f.name: set() for part in (command.data, command.script, command.model) for f in dataclasses.fields(part)}
    return rest | choices


def is_metric(name: str) -> bool:
    """Whether the package or TRL's trainer logs it. The code may have a pattern: `segment_value/level_{depth}`."""
    own = name.removeprefix("credit/").removeprefix("completions/")
    code = sources() + inspect.getsource(trl.GRPOTrainer)
    if f'"{own}"' in code or f'"{name}"' in code or own in "loss grad_norm learning_rate epoch step".split():
        return True
    patterns = [one for one in set(re.findall(r'"([a-z_]+[a-z_/{}\d]*)"', code)) if "{" in one]
    fitting = [one for one in patterns if re.fullmatch(re.sub(r"\{[a-z_]+\}", r"[a-z_\\d]+", one), own)]
    if all(re.search(r"/\{\w+\}$", one) for one in fitting):  # what stands for a whole name must be in the code too
        return bool(fitting) and re.search(rf'["/_]{own.rpartition("/")[2]}"', code) is not None
    return True


def is_known(name: str) -> bool:
    """Whether docs/faq.md may name it: a command, a method, a setting with its value, or a metric."""
    if name.startswith("trl-credit "):
        return name.split()[1] in COMMANDS
    if "(" in name:
        return hasattr(getattr(trl_credit, name.partition(".")[0]), name.partition(".")[2].partition("(")[0])
    key, _, value = name.removeprefix("--").replace(" ", "=", 1).partition("=")
    if key in settings():
        return not value or not settings()[key] or value.strip('"') in settings()[key]
    return re.fullmatch(r"[\w/]+", name) is not None and is_metric(name)


# of transformers, of data flags and of the console; values of settings; names in other places
OTHER = {"None", "True", "cut off 100.0 %", "no signal", "zero2", "zero3", "fsdp2", "EvaluationCallback", "grad_norm"}
OTHER |= {'"sequence_mask"', "--accelerate_config zero2", "--logprobs-mode processed_logprobs"}
OTHER |= {"trl_credit.check_credit"}


@check
def names_and_messages_of_the_faq_exist() -> Problems:
    page = text("docs/faq.md")
    for name in sorted(set(re.findall(r"`([^`\n]+)`", page)) - OTHER):
        if not is_known(name):
            yield f"docs/faq.md: names {name}, which is not there"
    for quoted in sorted(set(re.findall(r'(?<![\w=`])"([^"`]+)"(?!`)', page.replace("\n", " ")))):
        parts = [part.strip(" ….:") for part in quoted.split("…")]
        if f"## {quoted}\n" not in page and not all(any(part in one for one in strings()) for part in parts):
            yield f"docs/faq.md: quotes {quoted!r}, which the package does not say"


def metrics_of_the_page() -> Iterator[str]:
    """The names in the first column of the metrics' tables; `quarter_1…4` stands for four."""
    for line in text("docs/metrics.md").partition("## What is averaged")[2].splitlines():
        for name in re.findall(r"`([^`]+)`", line.split(" | ")[0]) if line.startswith("| `") else []:
            stem, first, last = re.fullmatch(r"(.*?)(?:(\d)…(\d))?", name).groups()
            yield from [f"{stem}{i}" for i in range(int(first), int(last) + 1)] if first else [stem]


@check
def the_page_of_metrics_has_what_is_logged() -> Problems:
    names = set(metrics_of_the_page())
    yield from (f"docs/metrics.md: no run logs {name}" for name in sorted(names) if not is_metric(name))
    registered = {f"credit/{name}" for of_metric, _, _ in METRICS for name in of_metric}
    yield from (f"docs/metrics.md: lacks {name}" for name in sorted(registered - names))


@check
def files_and_methods_that_pages_name_exist() -> Problems:
    """A path may be in the folder that is named before it, and a test anywhere in tests/."""
    tests = {file.name: file for file in (ROOT / "tests").rglob("test_*.py")}
    for page in ("architecture", "your_own_algorithm", "reliability"):
        folder = ROOT
        for name in re.findall(r"`([\w./]+)`", text(f"docs/{page}.md")):
            if name.endswith(("/", ".py")):
                places = [ROOT / name, ROOT / "trl_credit" / name, folder / name, tests.get(name, ROOT / name)]
                place = next((place for place in places if place.exists()), None)
                if place is None:
                    yield f"docs/{page}.md: names {name}, which is not there"
                else:
                    folder = place if place.is_dir() else place.parent
            elif (method := re.fullmatch(r"([A-Z][a-z]\w+)\.(\w+)", name)) is not None:
                body = re.search(rf"^class {method[1]}\b.*?^(?=\S|\Z)", sources(), re.MULTILINE | re.DOTALL)
                if body is None or f" {method[2]}" not in body[0]:
                    yield f"docs/{page}.md: names {name}, which is not there"


# Configurations that pages show


@check
def snippets_of_the_paper_index_build() -> Problems:
    """Every setting has a comment, which says that it is the default exactly where it is."""
    page, configs = text("docs/paper_index.md"), []
    for snippet in re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        scope: dict = {}
        exec(snippet, scope)
        configs.append(args := scope["training_args"])
        plain = defaults(type(args)) | {"steps_per_generation": type(args).updates_per_batch}
        for line in snippet.partition("(\n")[2].splitlines()[:-1]:
            shape = re.fullmatch(r"    (\w+)=.*,  # (default\b)?.*", line)
            is_default = shape and getattr(args, shape[1]) == plain[shape[1]]
            if shape is None or is_default != (shape[2] is not None) and "# a choice" not in line:
                yield f"docs/paper_index.md: the comment of '{line.strip()}' is missing or wrong about the default"
    papers = {preset.paper["id"]: preset.paper for preset in PRESETS.values()} | {EIGHTY_TWENTY["id"]: EIGHTY_TWENTY}
    for number, paper in papers.items():
        if f"📜 Paper: https://arxiv.org/abs/{number}\n" not in page or f"**{paper['title']}**" not in page:
            yield f"docs/paper_index.md: lacks {number}"
    if {paper["id"] for args in configs for paper in papers_of(args)} != papers.keys():
        yield "docs/paper_index.md: a paper has no configuration"
    if {preset.config for preset in PRESETS.values()} != {type(args) for args in configs}:
        yield "docs/paper_index.md: every algorithm must have a configuration"


@check
def combinations_are_allowed_and_refused_as_the_page_says() -> Problems:
    page = text("docs/compose.md")
    scope = {name: getattr(trl_credit, name) for name in trl_credit.__all__}
    scope["unsure_more"] = lambda config, tokens: trl_credit.assign_credit(config, tokens)
    examples = page.partition("## Examples")[2].partition("## What is refused")[0]
    for snippet in re.findall(r"`(\w+Config\([^`]*\))`", examples):
        try:
            eval(snippet, scope)
        except ValueError as error:
            yield f"docs/compose.md: {snippet} is refused: {error}"
    for snippet, message in re.findall(r"```python\n([^`]+)\n```\n\n```\n([^`]+)\n```", page):
        try:
            eval(snippet, scope)
            yield f"docs/compose.md: {snippet} is not refused"
        except ValueError as error:
            if str(error) != " ".join(message.split()):
                yield f"docs/compose.md: {snippet} is refused with other words: {error}"


# The release


@check
def one_version_one_date_one_address() -> Problems:
    project, citation = tomllib.loads(text("pyproject.toml"))["project"], yaml.safe_load(text("CITATION.cff"))
    (first, *_), *releases = re.findall(r"^## \[([^\]]+)\](?: - (.+))?$", text("CHANGELOG.md"), re.MULTILINE)
    stated = {project["version"], trl_credit.__version__, citation["version"], releases[0][0]}
    if first != "Unreleased" or len(stated) > 1:
        yield f"pyproject.toml, trl_credit.__version__, CITATION.cff and CHANGELOG.md state {', '.join(stated)}"
    days = [date.fromisoformat(day) for _, day in releases]
    if days[0] != citation["date-released"] or days != sorted(days, reverse=True):
        yield "CHANGELOG.md: its dates are not in order, or the first is not that of CITATION.cff"
    if address := project.get("urls", {}).get("Repository", "").partition("://")[2]:
        search = subprocess.run(["git", "grep", "-lF", address], cwd=ROOT, capture_output=True, text=True)
        if search.stdout.split() not in (["pyproject.toml"], []):
            yield f"the project's address is in other files than pyproject.toml: {' '.join(search.stdout.split())}"
    tables, _, evidence = text("docs/other_libraries.md").partition("## Evidence")
    listed = {int(number) for number in re.findall(r"^(\d+)\. ", evidence, re.MULTILINE)}
    if {int(number) for number in re.findall(r"\[(\d+)\]", tables)} != listed:
        yield "docs/other_libraries.md: every number must have its evidence"
    if f"| trl_credit | {trl_credit.__version__} |" not in tables:
        yield "docs/other_libraries.md: states another version of trl_credit"


@check
def tested_versions_are_those_that_may_be_installed() -> Problems:
    project, records = tomllib.loads(text("pyproject.toml"))["project"], versions.load()
    allowed = {Requirement(line).name: Requirement(line).specifier for line in project["dependencies"]}
    for record in records:
        if not all(allowed[name].contains(record[name]) for name in versions.PACKAGES):
            yield f"tests/compat/versions.json: pyproject.toml does not allow {record}"
    for name in ("trl", "transformers"):
        (floor,) = [Version(part.version) for part in allowed[name] if part.operator == ">="]
        if floor not in [Version(record[name]) for record in records]:
            yield f"tests/compat/versions.json: the floor of {name}, {floor}, was not tested"
    minors = {f"{v.major}.{v.minor}" for v in (Version(record["trl"]) for record in records)}
    if minors != {*TESTED_TRL_MINORS}:
        yield f"trl_credit/trainer/refusals.py: TESTED_TRL_MINORS must be {', '.join(sorted(minors))}"


def main() -> int:
    if "--write" in sys.argv[1:]:
        for path, expected in generated().items():
            path.write_text(expected, encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):  # configurations name folders
        problems = [problem for one in CHECKS for problem in one()]
    print("\n".join(problems) or f"{len(CHECKS)} checks: pages, tables, notebooks and release files agree")
    return bool(problems)


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    raise SystemExit(main())

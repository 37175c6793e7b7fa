"""What is answered at once: help, version, completion and bad arguments, all without the libraries that measure."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import hessianlens as hl
from hessianlab.experiments.registry import EXPERIMENTS, STUDIES
from hessianlens.cli import app
from hessianlens.cli.laboratory import import_laboratory
from tests.cli.fresh import HEAVY, Answer, Call, answers

COMMANDS = (
    "claims",
    "compare",
    "doctor",
    "explore",
    "export",
    "inspect",
    "layer",
    "report",
    "reproduce",
    "softmax",
    "study",
    "watch",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with a file that is no store, no data and no directory."""
    made = tmp_path_factory.mktemp("start")
    (made / "plain.txt").write_text("text\n")
    (made / "broken.json").write_text("{")
    return made


# --- help and version ------------------------------------------------------------------------------------------------


def test_every_command_explains_itself(folder: Path) -> None:
    assert {command.name or command.callback.__name__ for command in app.registered_commands} == set(COMMANDS)
    calls = [Call(["--help"]), Call(["-h"]), *(Call([name, "--help"]) for name in COMMANDS)]
    for call, answer in zip(calls, answers(calls, folder), strict=True):
        assert answer.code == 0 and answer.err == "", call
        assert "Usage: hessianlens" in answer.out and "Examples" in answer.out, call


def test_the_version(folder: Path) -> None:
    (answer,) = answers([Call(["--version"])], folder, looked_for=("rich", "pydantic"))
    assert answer == Answer(0, f"hessianlens {hl.__version__}\n", "", [])


def test_experiments_are_listed_without_torch(folder: Path) -> None:
    refused = [name for name in HEAVY if name != "numpy"]  # numpy spaces the grids of the cells
    calls = [
        Call(["reproduce", "--list"]),
        Call(["reproduce", "fig1", "--set", "repeats=3", "--dry-run"]),
        Call(["study", "--list"]),
    ]
    listed, planned, studies = answers(calls, folder, refused)
    not_scipy = [name for name in refused if name != "scipy"]  # a study states its power, by Student's law
    (stated,) = answers([Call(["study", "scaling", "--dry-run"])], folder, not_scipy)
    assert {answer.code for answer in (listed, planned, studies, stated)} == {0}, listed.err + stated.err
    assert all(name in listed.out for name in EXPERIMENTS)
    assert all(name in studies.out for name in STUDIES)
    assert "Hypothesis: " in stated.out and "Stopping rule: " in stated.out and "study_scaling" in stated.out
    assert "fig1" in planned.out and "custom" in planned.out


# --- the laboratory's commands ---------------------------------------------------------------------------------------


def test_the_laboratory_is_found_from_within_its_own_checkout() -> None:
    """The current folder is taken off the path of modules, and it is the one that holds both packages."""
    checkout = Path(hl.__file__).parents[1]
    found = subprocess.run(
        [sys.executable, "-m", "hessianlens", "report", "--help"],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0 and "Usage: hessianlens report" in found.stdout, found.stderr


def test_the_laboratory_may_be_imported_first(folder: Path) -> None:
    program = "import hessianlab.cli.claims; from hessianlens.cli import app; print(len(app.registered_commands))"
    found = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True)
    assert found.stdout == f"{len(COMMANDS)}\n", found.stderr


def test_without_the_laboratory_there_are_no_commands_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "hessianlab")
    assert import_laboratory(tmp_path) is None
    assert "hessianlab" not in sys.modules


# --- bad arguments ---------------------------------------------------------------------------------------------------

PARSED = {
    "": "",
    "nosuch": "No such command 'nosuch'",
    "--nosuch": "No such option: --nosuch",
    "layer --nosuch": "No such option: --nosuch",
    "layer --length": "Option '--length' requires an argument",
}
"""What the parser itself refuses."""

REFUSED = {
    "inspect": "Missing argument",
    "layer --length many": "Invalid value for '--length'",
    "inspect toy --probes 2.5": "Invalid value for '--probes'",
    "reproduce figXX": "experiment: got 'figXX', expected one of 'fig1'",
    "reproduce fig1 figXX": "experiment: got 'figXX'",
    "reproduce --preset huge": "preset: got 'huge', expected one of 'quick', 'paper'",
    "reproduce --set repeats": "setting: got 'repeats', expected name=value",
    "reproduce --set nosuch=1": "setting: got 'nosuch', which no chosen experiment has",
    "reproduce fig1 --set repeats=few": "repeats: got 'few', expected a whole number",
    "reproduce fig1 --set repeats=0": "repeats: got 0, expected at least 1",
    "reproduce fig3a --set loss=cubic": "loss: got 'cubic'",
    "reproduce fig4 --set attentions=cubic": "attentions: got 'cubic', expected one of 'softmax'",
    "reproduce --jobs 0": "jobs: got 0, expected at least 1",
    "reproduce --backend abacus": "backend: got 'abacus', expected one of 'local'",
    "reproduce --backend dask": "address: got none, expected that of the dask scheduler",
    "reproduce --address tcp://a:1": "address: got 'tcp://a:1', expected none",
    "reproduce --reference nosuch.csv": "reference: got 'nosuch.csv', which is no file",
    "reproduce --reference plain.txt": "plain.txt: no column model",
    "reproduce --figures plain.txt": "figures: cannot write to plain.txt",
    "reproduce --store .": "store: got the directory ., expected a file",
    "reproduce --store nosuch/a.sqlite": "store: got nosuch/a.sqlite, but there is no directory",
    "reproduce --store plain.txt": "store: plain.txt cannot be used",
    "report figXX": "experiment: got 'figXX'",
    "report --preset huge": "preset: got 'huge'",
    "report --jobs -1": "jobs: got -1",
    "report --out plain.txt": "out: cannot write to plain.txt",
    "report --no-run": "store: got hessianlens.sqlite, which does not exist",
    "export": "store: got hessianlens.sqlite, which does not exist",
    "export --format xls": "format: got 'xls', expected one of 'csv', 'parquet', 'json'",
    "export --out plain.txt": "out: cannot write to plain.txt",
    "claims ZZ99": "claim: got 'ZZ99', expected an id such as",
    "claims --document Z": "document: got 'Z', expected one of 'P'",
    "claims --topic nonsense": "topic: got 'nonsense'",
    "claims --verdict nonsense": "verdict: got 'nonsense'",
    "claims C1 --topic training": "claims: got filters that leave none",
    "claims --jobs 0": "jobs: got 0, expected at least 1",
    "claims --plot plain.txt": "plot: cannot write to plain.txt",
    "layer --activation nonsense": "activation: got 'nonsense', expected one of 'softmax'",
    "layer --length -3": "length: got -3",
    "layer --d-model 0": "d_model: got 0",
    "layer --d-model 1000": "d_model and d_k: got 1000",
    "layer --seed -1": "seed: got -1",
    "layer --temperature 0": "temperature: got 0",
    "layer --out plain.txt": "out: cannot write to plain.txt",
    "explore --no-open --scene nosuch": "scene: got 'nosuch', expected one of 'row'",
    "explore --no-open --html nosuch/page.html": "html: cannot write 'nosuch/page.html'",
    "softmax": "Missing argument",
    "softmax one": "scores: got 'one', expected a finite number",
    "softmax 1 inf": "scores: got 'inf'",
    "softmax -1.5 --nosuch": "scores: got '--nosuch'",
    "softmax 1 2 --mask 2": "mask: got '2', expected positions from 0 to 1",
    "softmax 1 2 --mask x": "mask: got 'x'",
    "softmax 1 --activation hardmax": "activation: got 'hardmax', expected one of 'softmax'",
    "softmax 1 --activation ,": "activation: got no name",
    "softmax 1 --temperature 0": "temperature: got 0",
    "study": "study: got no name, expected one or more of activations",
    "study nosuch": "study: got 'nosuch', expected one of 'activations'",
    "study scaling --preset paper": "preset: got 'paper', expected one of 'quick', 'full'",
    "study scaling --set seeds=2": "seeds: got 2, expected at least 5",
    "study scaling --vary norm=pre": "setting: got 'norm', which no chosen experiment has",
    "study scaling --attention a:B": "setting: got 'attention', which no chosen experiment has",
    "study design --vary qk=triple": "qk: got 'triple', expected one of 'dual', 'single'",
    "study design --jobs 0": "jobs: got 0, expected at least 1",
    "inspect toy --probes 0": "probes: got 0, expected at least 1",
    "inspect toy --dtype float16": "dtype: got 'float16', expected one of 'float32', 'float64'",
    "inspect toy --parts foo": "parts: got 'foo', expected one of 'full'",
    "inspect toy --parts ,": "parts: got",
    "inspect toy --seed -1": "seed: got -1",
    "inspect toy --max-memory nonsense": "max_memory: got 'nonsense'",
    "inspect toy --head nonsense": "head: got 'nonsense', expected one of 'auto'",
    "inspect toy --length 0": "length: got 0",
    "inspect toy --sequences -2": "sequences: got -2",
    "inspect toy --blocks re:(": "blocks: 're:(' is not a regular expression",
    "inspect toy --also spectrum=re:[": "blocks: 're:[' is not a regular expression",
    "inspect toy --data nosuch.npy": "data: there is no file 'nosuch.npy'",
    "inspect toy --data nosuch.csv": "data: got 'nosuch.csv', expected a file that ends in .pt",
    "inspect toy --out nosuch/table.csv": "out: cannot write 'nosuch/table.csv'",
    "inspect toy:layer=2": "model: toy has no option 'layer'; did you mean layers?",
    "inspect toy:layers=0": "layers: got 0",
    "inspect toy:heads=3": "heads: got 3 for d_model = 128",
    "inspect toy:attention=cubic": "attention: got 'cubic'",
    "inspect toy:mlp=no": "mlp: got 'no', expected true or false",
    "inspect config:": "model: got 'config:', expected a type or file",
    "inspect nosuch/config.json": "model: got 'nosuch/config.json', but there is no such file",
    "inspect broken.json": "model: 'broken.json' is not JSON",
    "inspect ./nosuch": "model: got './nosuch', but there is no such folder",
}
"""What can be told from the command line and the files it names."""


@pytest.fixture(scope="module")
def refusals(folder: Path) -> dict[str, Answer]:
    given = [*PARSED, *REFUSED]
    found = answers([Call(text.split()) for text in given], folder, looked_for=("rich", "pydantic"))
    return dict(zip(given, found, strict=True))


@pytest.mark.expensive
@pytest.mark.parametrize("text", [*PARSED, *REFUSED])
def test_bad_arguments_are_refused_before_anything_is_loaded(text: str, refusals: dict[str, Answer]) -> None:
    answer, said = refusals[text], {**PARSED, **REFUSED}[text]
    assert answer.code == 2 and said in answer.err, answer
    assert "Traceback" not in answer.err
    assert answer.out == "" or text == ""


def test_a_message_is_one_line_and_plain(refusals: dict[str, Answer]) -> None:
    assert refusals["reproduce figXX"].err.startswith("hessianlens: experiment:")
    assert refusals["reproduce figXX"].err.count("\n") == 1
    usage, hint, _, error = refusals["layer --nosuch"].err.splitlines()
    assert usage.startswith("Usage: hessianlens layer") and "hessianlens layer" in hint and error.startswith("Error: ")


def test_the_parser_refuses_without_pydantic_and_rich(folder: Path) -> None:
    found = answers([Call(text.split()) for text in PARSED if text], folder, looked_for=("rich", "pydantic"))
    assert [answer.imported for answer in found] == [[]] * len(found)


def test_nothing_is_left_behind(refusals: dict[str, Answer], folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == ["broken.json", "plain.txt"]


# --- completion ------------------------------------------------------------------------------------------------------

COMPLETED = {
    "": set(COMMANDS),
    "co": {"compare"},
    "re": {"report", "reproduce"},
    "reproduce fig3": {"fig3a", "fig3b"},
    "reproduce fig3a fig3": {"fig3b"},
    "reproduce --preset ": {"quick", "paper"},
    "reproduce --backend ": {"local", "dask"},
    "reproduce --set sigma": {"sigma_low=", "sigma_high="},
    "report fig1": {"fig1"},
    "report --no": {"--no-claims", "--no-run"},
    "export ta": {"table1"},
    "export --format ": {"csv", "parquet", "json"},
    "claims P9": {"P9"},
    "claims C46 C4": {"C4", *(f"C{n}" for n in (40, 41, 42, 43, 44, 45, 47, 48, 49))},
    "claims --document ": {"P", "A", "B", "C", "D"},
    "claims --topic softmax_m": {"softmax_masking"},
    "claims --verdict h": {"holds", "holds-if"},
    "inspect t": {"toy"},
    "inspect toy --dtype ": {"float32", "float64"},
    "inspect toy --head m": {"masked-lm"},
    "inspect toy --also p": {"pairs"},
    "inspect toy --parts f": {"full", "functional"},
    "inspect toy --parts full,": {"full,ggn", "full,functional"},
    "inspect plain": set(),
    "study sc": {"scaling"},
    "study --preset ": {"quick", "full"},
    "layer --activation sig": {"sigmoid", "sigmoid_log_length"},
}


def completing(shell: str, text: str) -> Call:
    """What a shell asks after its user has typed `text` and a tab."""
    line = f"hessianlens {text}"
    words = str(len(line.split(" ")) - 1)
    bash = {"COMP_WORDS": line, "COMP_CWORD": words}
    other = {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    return Call(environment={"_HESSIANLENS_COMPLETE": f"complete_{shell}", **(bash if shell == "bash" else other)})


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_names_are_completed(shell: str, folder: Path) -> None:
    found = answers([completing(shell, text) for text in COMPLETED], folder)
    for text, answer in zip(COMPLETED, found, strict=True):
        assert answer.code == 0, answer.err
        assert {line.split("\t")[0] for line in answer.out.split("\n") if line} == COMPLETED[text], text


def test_zsh_is_answered_in_its_own_language(folder: Path) -> None:
    (answer,) = answers([completing("zsh", "reproduce fig3")], folder)
    assert answer.out.startswith("_arguments") and '"fig3a"' in answer.out and '"fig4"' not in answer.out


def test_the_script_for_a_shell_can_be_had(folder: Path) -> None:
    (answer,) = answers([Call(environment={"_HESSIANLENS_COMPLETE": "source_bash"})], folder)
    assert "complete -o default -F" in answer.out and "_HESSIANLENS_COMPLETE=complete_bash" in answer.out
    (shown,) = answers([Call(["--help"])], folder)
    assert "--install-completion" in shown.out and "--show-completion" in shown.out


# --- while it loads --------------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_terminal_is_told_that_something_loads() -> None:
    program = (
        "import time; from hessianlens.cli.status_line import waiting\nwith waiting('Loading it'): time.sleep(0.3)"
    )
    main, side = os.openpty()
    with os.fdopen(main, "rb", buffering=0) as screen:
        subprocess.run([sys.executable, "-c", program], stderr=side, env={**os.environ, "TERM": "xterm"}, check=True)
        os.close(side)
        assert b"Loading it" in screen.read(4096)
    piped = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert piped.stdout == piped.stderr == b""

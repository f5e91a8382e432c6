"""The house: imports run downwards, nothing stands twice, a file runs with those that it imports, and every command
that the README prints is one that the scripts (and torchrun) take."""

import ast
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NO_SCRIPTS = ("records", "sandbox", "server", "engines", "listener_words", "listener_reading", "listener_topics",
              "listener_claims", "own_facts", "listener", "human", "function_words", "function_tasks",
              "page_tasks", "page_words", "llm_tasks", "lm", "trees")    # modules without a command line
MAY_IMPORT = {  # at the top of the file; what is imported inside a function comes second
    "records": (set(), set()),
    "sandbox": ({"records"}, set()),
    "render": ({"records"}, {"page_words"}),
    "page_words": (set(), set()),
    "page_tasks": ({"records", "page_words", "render"}, set()),
    "trees": (set(), set()),
    "lm": ({"records"}, {"trees"}),
    "train_critic": ({"records", "lm"}, {"render"}),
    "train_policy": ({"records", "lm"}, set()),
    "server": ({"records"}, set()),
    "engines": ({"records", "server"}, {"lm"}),
    "listener_words": (set(), set()),
    "own_facts": ({"listener_words"}, set()),
    "listener_reading": ({"listener_words"}, set()),
    "listener_topics": ({"listener_words", "listener_reading"}, set()),
    "listener_claims": ({"listener_words", "listener_reading", "listener_topics"}, set()),
    "listener": ({"listener_words", "listener_reading", "listener_topics", "listener_claims",
                  "own_facts"}, set()),
    "human": ({"records", "engines", "server", "listener"}, {"render", "page_words"}),
    "rollout": ({"records", "human", "engines", "server", "listener"}, {"sandbox", "render", "train_critic"}),
    "evaluate": ({"records", "sandbox"}, {"render", "page_words"}),
    "function_words": ({"records"}, set()),
    "function_tasks": ({"records", "function_words", "listener"}, set()),
    "llm_tasks": ({"records"}, {"function_tasks"}),
    "generate_tasks": ({"records", "engines", "server", "llm_tasks"},
                       {"sandbox", "render", "rollout", "function_tasks", "page_tasks"}),
}


def imports_of(name):
    """The project's own modules that a file imports: at its top, and inside functions."""
    tree = ast.parse((ROOT / f"{name}.py").read_text(encoding="utf-8"))
    at_the_top = [*tree.body, *(node for block in tree.body if isinstance(block, ast.If) for node in block.body)]
    top, inside = set(), set()
    for node in ast.walk(tree):
        found = [alias.name for alias in node.names] if isinstance(node, ast.Import) else \
            [node.module] if isinstance(node, ast.ImportFrom) else []
        (top if node in at_the_top else inside).update(set(found) & MAY_IMPORT.keys())
    return top, inside


def test_the_house_has_the_files_that_it_names():
    assert {path.stem for path in ROOT.glob("*.py")} == MAY_IMPORT.keys()


@pytest.mark.parametrize("name", MAY_IMPORT)
def test_imports_run_downwards_only(name):
    top, inside = imports_of(name)
    may_top, may_inside = MAY_IMPORT[name]
    assert top <= may_top, f"{name}.py imports {top - may_top} at its top"
    assert inside <= may_top | may_inside, f"{name}.py imports {inside - may_top - may_inside}"


def code_lines(path):
    """[(line number, the line without white space at its ends)] of what is code: no blank lines, comments, docstrings,
    imports or lone brackets."""
    text = path.read_text(encoding="utf-8")
    skipped = set()
    for node in ast.walk(ast.parse(text)):
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and \
            isinstance(node.value.value, str)
        if docstring or isinstance(node, (ast.Import, ast.ImportFrom)):
            skipped.update(range(node.lineno, node.end_lineno + 1))
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if number not in skipped]
    return [(number, line) for number, line in lines if re.search(r"\w", line) and not line.startswith("#")]


def shared_stretches(one, other, longest):
    """Where `longest` lines of code in a row of one file stand in the other as well."""
    windows = {}
    for i in range(len(other) - longest + 1):
        windows.setdefault(tuple(line for _, line in other[i:i + longest]), other[i][0])
    found = [(one[i][0], windows.get(tuple(line for _, line in one[i:i + longest])))
             for i in range(len(one) - longest + 1)]
    return [(here, there) for here, there in found if there]


def test_no_stretch_of_more_than_ten_lines_stands_in_two_files():
    files = {path.name: code_lines(path) for path in sorted(ROOT.glob("*.py"))}
    twice = [f"{a}:{here} = {b}:{there}" for a in files for b in files if a < b
             for here, there in shared_stretches(files[a], files[b], 11)]
    assert not twice, twice


def test_the_search_for_shared_stretches_finds_one(tmp_path):
    body = "".join(f"value_{n} = {n}\n" for n in range(11))
    for name, before in (("one", "import os\n"), ("two", "start = 1\n\n# a comment\n")):
        (tmp_path / f"{name}.py").write_text(before + body)
    one, two = (code_lines(tmp_path / f"{name}.py") for name in ("one", "two"))
    assert shared_stretches(one, two, 11) == [(2, 4)]
    assert not shared_stretches(one, two[1:-1], 11)


@pytest.mark.parametrize("name", MAY_IMPORT)
def test_a_file_runs_with_those_that_it_imports_at_its_top(name, tmp_path):
    """What is copied into other research code is the file and what it imports at its top, nothing else."""
    needed, todo = set(), [name]
    while todo:
        needed.add(todo[-1])
        todo += imports_of(todo.pop())[0] - needed
    for file in needed:
        shutil.copy(ROOT / f"{file}.py", tmp_path)
    command = ["-c", f"import {name}"] if name in NO_SCRIPTS else [tmp_path / f"{name}.py", "--help"]
    done = subprocess.run([sys.executable, "-P", *command], cwd=tmp_path, capture_output=True, text=True,
                          env={"PYTHONPATH": str(tmp_path), "PATH": ""})
    assert done.returncode == 0 and (name in NO_SCRIPTS or "usage:" in done.stdout), done.stderr


# ---- The README's commands


def commands(document):
    """Every command line of a document that starts one of our scripts, as words."""
    text = (ROOT / document).read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    lines += re.findall(r"`((?:python|torchrun) [^`]+)`", text)
    for line in lines:
        line = re.sub(r"^(\$ |[A-Z_]+=\S+ |\.venv(-trl)?/bin/)+", "", line)
        if re.match(r"(python|torchrun) ", line) and ".py" in line and "..." not in line:
            yield line


def steps(*words):
    """The commands that make would run, in a folder where nothing has been made."""
    done = subprocess.run(["make", "-n", *words, "NAME=not-there"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = re.sub(r"\s*\\\n\s*", " ", done.stdout).splitlines()
    return [line.replace("OMP_NUM_THREADS=1 .venv/bin/python", "python") for line in lines if ".py " in line]


DEMO = ["-f", "Makefile", "runs/not-there/report.html"]
STUDY = ["-f", "study/study.mk", "SEED=7", "trials", "rows", "equal", "parts", "grpo"]


@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
def test_the_study_makes_each_cell_once_and_all_in_its_folder():
    ran = [shlex.split(step) for step in steps(*STUDY)]
    outputs = [words[words.index("--out") + 1] for words in ran if "--out" in words]
    assert len(outputs) == len(set(outputs)) > 30
    folders = {str(Path(output).parent) for output in outputs}
    assert folders <= {"runs/not-there", "runs/demo"}, folders    # all seeds share the demo's first model


@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
@pytest.mark.parametrize("words", [DEMO, [*DEMO, "DOMAIN=frontend"], [*DEMO, "LLM=yes", "MODEL=x"], STUDY],
                         ids=["demo", "pages", "language model", "study"])
def test_make_runs_commands_that_the_scripts_take(words, monkeypatch, capsys):
    for step in steps(*words):
        with monkeypatch.context() as patch:
            test_every_command_that_is_printed_is_taken_as_it_stands(step, patch, capsys)


@pytest.mark.parametrize("command", sorted({*commands("README.md"), *commands("RESULTS.md")}))
def test_every_command_that_is_printed_is_taken_as_it_stands(command, monkeypatch, capsys):
    words = shlex.split(command, comments=True)
    if words[0] == "torchrun":
        from torch.distributed.run import get_args_parser
        parsed = get_args_parser().parse_args(words[1:])
        script, arguments = parsed.training_script, parsed.training_script_args
    else:
        script, arguments = words[1], words[2:]
    assert (ROOT / script).is_file(), f"{script} does not exist"
    if script.startswith(("tests/", "study/", "examples/")):
        return  # they have few flags and read them late
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    monkeypatch.syspath_prepend(str(ROOT))
    try:
        __import__(Path(script).stem).parse_args()
    except SystemExit:
        said = capsys.readouterr().err  # what the stage before would have written is not there; all else is a mistake
        assert "no such" in said and "error:" not in said, said


def test_readme_prints_commands_of_every_script():
    printed = " ".join(commands("README.md"))
    assert [name for name in MAY_IMPORT if name not in NO_SCRIPTS and f"{name}.py" not in printed] == []
    assert "torchrun" in printed


def test_every_script_has_one_name_for_a_flag_and_one_end():
    """No parser takes abbreviations, which refuse_idle would not see; Ctrl-C ends each script with one sentence."""
    for path in [*ROOT.glob("*.py"), *ROOT.glob("study/*.py"), *ROOT.glob("examples/*.py")]:
        source = path.read_text(encoding="utf-8")
        for call in re.findall(r"ArgumentParser\(.*?\)\n", source, re.DOTALL):
            assert "allow_abbrev=False" in call or "add_help=False" in call, path.name
        if "ArgumentParser(" in source and '__name__ == "__main__"' in source:
            assert "run_script(main)" in source, path.name

"""Tasks that a language model writes from a web excerpt: what it is asked, how its answer is read, what is kept of it.

An answer has four parts: a request, a function, twelve to fourteen calls, and the details that the request leaves open.
It is read leniently (`parse_task`) and checked strictly (`checked`):
- a call counts if its arguments are literal and two runs of it give the same result, which is not None;
- the request shows the true signature and does not speak of the excerpt;
- ten calls are kept that together tell most wrong versions of the function: with one place mutated, or with one detail
  guessed wrong. The model is asked once more for calls that tell the versions that survive;
- a constant answer passes at most half of the ten;
- a detail is kept as a fact, which the scripted human can tell, if guessing it wrong fails a call.
"""
import ast
import builtins
import json
import re
import sys
import textwrap
from collections import Counter
from contextlib import suppress
from itertools import islice

from records import hashed

MOST_MUTANTS = 100    # mutated versions that the calls are tried on
MOST_CHANGES = 8      # survivors that the model is shown
NOT_PYTHON = (SyntaxError, ValueError, RecursionError, MemoryError)    # what ast.parse raises
PROMPT = """Here is an excerpt from the web:

<excerpt>
{excerpt}
</excerpt>

Think of a Python function that someone who works with this subject would want to have. A colleague will ask a
programmer for it. The programmer never sees this excerpt, and has to ask for whatever the request leaves open. Write
four parts in plain text, without markdown, each after its heading:

DESCRIPTION:
The colleague's request, in two to four sentences: what the function is for, its name and its parameters. It stands on
its own and mentions no text or excerpt. It gives away none of the details below.
CODE:
The function, with all details settled, in at most 50 lines. Standard library only. No default arguments, no randomness,
no clock, no input or output. It always returns a value, never None, and raises no error in any of the calls.
CALLS:
Twelve to fourteen different calls of the function, one a line, with literal arguments only, without their results. The
results differ. For each detail below some call has a result that depends on it. Each limit is tried below it, at it and
above it.
DETAILS:
The four to six details that the request leaves open (limits, and whether the limit itself counts; names of keys;
rounding; order; ties; empty or odd input), four lines for each:
QUESTION: what the programmer would ask
REPLY: what the colleague would say, in one plain sentence, with the exact number, name or text
FRAGMENT: the piece of the code that settles it, on one line, exactly as it stands there
WRONG: what would stand there if the programmer guessed wrong
"""
MORE_CALLS = """None of your calls tells the function from these wrong versions of it:

{changes}

For each of them write another call of {name}, with literal arguments, for which the wrong version returns something
else. One call a line, without markdown and without results. Leave out a version that always returns the same."""


# ---- From an answer to a task and back to a question

def task_of(answer, ask, box):
    """(task, None) from a model's answer (without its thoughts), or (None, the reason to reject it).

    ask(question): the model's answer to a further question in the same dialogue, or ""; box: a Sandbox.
    """
    task, reason = parse_task(answer)
    if reason:
        return None, reason
    return checked(task, ask, box)


def parse_task(answer):
    """(task with all its calls, None) from a model's answer, or (None, the reason to reject it).

    The task's `guesses` are {detail: the function with that detail guessed wrong}, `name` is the function's name, and
    `function` is a hash of the function that does not depend on its names and comments.
    """
    parts = parts_of(answer)
    if not parts:
        return None, "not in the requested form"
    try:
        code, tree = program_in(parts["code"])
        called = Counter(re.findall(r"(?<![\w.])(\w+)\(", parts["calls"]))
        function = max(functions_of(tree).values(), key=lambda function: called[function.name])
        task = {"function": f"{hashed(normal_form(code)):016x}", "name": function.name}
        request = with_signature(plain_text(parts["description"]), function)
    except NOT_PYTHON:
        return None, "code does not parse"
    if code.count("\n") > 50:
        return None, "more than 50 lines"
    if not called[function.name]:
        return None, "no call of the function"
    calls = calls_of(function.name, parts["calls"])
    if reason := doubt(code, calls):
        return None, reason
    if len(calls) < 10:
        return None, "fewer than ten different calls with literal arguments"
    if OF_THE_EXCERPT.search(request):
        return None, "the request speaks of the excerpt"
    facts, guesses = details_of(parts.get("details", ""), code)
    return task | {"task_id": None, "domain": "backend", "problem_description": request, "ground_truth": code,
                   "test_cases": numbered(calls), "facts": facts, "guesses": guesses}, None


def checked(task, ask, box):
    """(task with ten calls and the facts that they depend on, None), or (None, the reason to reject it)."""
    from function_tasks import mutants
    name, guesses = task.pop("name"), task.pop("guesses")
    code = task["ground_truth"]
    results, failed = working_calls(box, code, list(task["test_cases"].values()))
    if len(results) < 10:
        return None, f"reference: {failed.most_common(1)[0][0]}"
    layout = without_comments(code)
    change = {wrong: change_between(code, wrong) for wrong in guesses.values()}
    change |= {wrong: change_between(layout, wrong) for wrong in mutants(layout)[:MOST_MUTANTS]}
    told_by = telling_calls(box, results, change)
    survivors = dict.fromkeys(change[wrong] for wrong in change if not told_by[wrong])
    if survivors:
        listed = "\n".join(f"{n}. {words}" for n, words in enumerate(islice(survivors, MOST_CHANGES), 1))
        more_calls = calls_of(name, ask(MORE_CALLS.format(changes=listed, name=name)))
        more, _ = working_calls(box, code, [call for call in more_calls if call not in results][:12])
        for wrong, calls in telling_calls(box, more, change).items():
            told_by[wrong] |= calls
        results |= more
    ten = ten_calls(results, told_by)
    most = max(Counter(results[call] for call in ten).values())
    if most == 10:
        return None, "all results equal"
    if most > 5:
        return None, "a constant answer passes more than half of the calls"
    task["test_cases"] = numbered(ten)
    told = {detail for detail, wrong in guesses.items() if told_by[wrong] & set(ten)}
    task["facts"] = [fact for fact in task["facts"] if fact["detail"] in told]
    return task, None


def numbered(calls):
    return {str(number): call for number, call in enumerate(calls, 1)}


# ---- Reading an answer

PART = {  # what a heading may say: the part that it begins
    "description": "description", "request": "description", "code": "code", "function": "code", "reference": "code",
    "implementation": "code", "calls": "calls", "tests": "calls", "details": "details", "facts": "details"}
HEADING = re.compile(
    r"^ {0,3}(?=\S)(?:[^\w\n`\"']|\d+[.):])*(?:\w+ ){0,2}"    # a number, # or *, at most two words
    rf"({'|'.join(PART)})\b[ *_]*"
    r"(?:\([^)\n]*\))?[ *_]*(?::[ *_]*|$)",    # a remark; a colon, or nothing else on the line
    re.IGNORECASE | re.MULTILINE)
FENCE = re.compile(r"^[ \t>]*(```|~~~)[^\n]*\n(.*?)^[ \t>]*\1[`~]*[ \t]*$", re.DOTALL | re.MULTILINE)
DETAIL = re.compile(r"^\W*(question|reply|fragment|wrong)\b\W*?:(.*)$", re.IGNORECASE | re.MULTILINE)
OF_THE_EXCERPT = re.compile(
    r"\b(the|this|that) (web )?(excerpt|passage|snippet)\b|"
    r"\b(described|mentioned|given|listed|shown|stated) (above|in (the|this) (text|article|page))\b|"
    r"\baccording to (the|this) (text|article|page)\b", re.IGNORECASE)


def parts_of(answer):
    """{"description", "code", "calls", perhaps "details": its text} of an answer: the last that is whole; else None."""
    text = answer.replace("\r\n", "\n")
    with suppress(ValueError, AttributeError):    # an answer in JSON
        parts = json.loads(FENCE.sub(r"\2", text.strip() + "\n"))
        text = "\n".join(f"{heading}:\n{as_lines(part)}" for heading, part in parts.items())
    outside = FENCE.sub(lambda block: re.sub(r"[^\n]", " ", block[0]), text)    # a heading inside code is none
    for searched in (outside, text):
        parts, end = {}, len(text)
        for heading in reversed(list(HEADING.finditer(searched))):
            part = PART[heading[1].lower()]
            parts[part] = text[heading.end():end]
            end = heading.start()
            if part == "description" and "code" in parts and "calls" in parts:
                return parts
    return None


def as_lines(part):
    """A part of an answer in JSON as text."""
    if isinstance(part, dict):
        part = [f"{key}: {value}" for key, value in part.items()]
    if isinstance(part, list):
        return "\n".join(map(as_lines, part))
    return str(part)


def plain_text(description):
    """A description as one line, without fences and bold type."""
    text = " ".join(FENCE.sub(r"\2", description + "\n").split())
    return re.sub(r"\*\*([^*]+)\*\*", r"\1", text)


def program_in(text):
    """(code, its syntax tree) of the first program with a function in a text; raises one of NOT_PYTHON."""
    blocks = [match[2] for match in FENCE.finditer(text)]
    lines = [line for line in text.split("\n") if not re.match(r"\s*(```|~~~)", line)]
    for block in [*blocks, "\n".join(lines)]:
        lines = textwrap.dedent(block).split("\n")
        begins = (i for i, line in enumerate(lines) if re.match(r"(def|import|from|class|async)\b|@|[A-Z_]+ *=", line))
        start = next(begins, 0)
        for end in range(len(lines), max(start, len(lines) - 30), -1):    # what follows the code may be a remark
            code = "\n".join(lines[start:end]).strip() + "\n"
            with suppress(*NOT_PYTHON):
                tree = ast.parse(code)
                if functions_of(tree):
                    return code, tree
    raise SyntaxError("no function")


def functions_of(tree):
    """{name: ast.FunctionDef} of the functions at the top of a program."""
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def calls_of(name, text):
    """The different calls of a function with literal arguments in a text, in order, in Python's own layout.

    Each call grows, from one closing bracket to the next, until Python takes it as an expression.
    """
    calls, start = [], 0
    opening, closing = re.compile(rf"(?<![\w.]){name}\("), re.compile(r"\)")
    while begin := opening.search(text, start):
        start = begin.end()
        for close in islice(closing.finditer(text, start), 60):
            with suppress(*NOT_PYTHON):
                call = ast.unparse(ast.parse(text[begin.start():close.end()], mode="eval"))
                start = close.end()
                if not foreign_names(call, {name}):
                    calls.append(call)
                break
    return list(dict.fromkeys(calls))


def with_signature(request, function):
    """A request that shows the function's true signature: in place of one that it shows, or at its end."""
    signature = f"{function.name}({ast.unparse(function.args)})"

    def true(shown):
        try:
            ast.parse(f"def {shown[0]}: pass")
        except NOT_PYTHON:    # an example call
            return shown[0]
        return signature

    request = re.sub(rf"\b{function.name}\([^()]*\)", true, request)
    return request if signature in request else f"{request} Signature: {signature}."


def details_of(text, code):
    """(facts, {detail: the code with that detail guessed wrong}) of an answer's hidden details.

    A detail whose FRAGMENT is not in the code cannot be checked, and has no guess.
    """
    facts, guesses, said = [], {}, {}
    for label, words in DETAIL.findall(text):
        said[label.lower()] = words.strip().strip("*").strip()
        if label.lower() != "wrong" or len(said) < 4:
            continue
        detail = f"detail-{len(facts) + 1}"
        facts.append({"detail": detail, "questions": [said["question"]], "reply": said["reply"]})
        fragment, wrong = (re.sub(r"^`+(.*?)`+$", r"\1", said[part]) for part in ("fragment", "wrong"))
        if fragment in code:
            guesses[detail] = code.replace(fragment, wrong, 1)
        said = {}
    return facts, guesses


# ---- What can be told about a task without running it

def foreign_names(call, known):
    """The names in a call (an expression) that are neither its own, nor Python's, nor in `known`."""
    own, used = set(known) | vars(builtins).keys(), set()
    for node in ast.walk(ast.parse(call.strip(), mode="eval")):
        if isinstance(node, ast.arg):
            own.add(node.arg)
        elif isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else own).add(node.id)
    return used - own


def modules_of(tree):
    """The names of the modules that a program imports, wherever in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "."


def returns_a_value(function):
    """Whether some return statement of a function has a value, or it yields."""
    for node in ast.walk(function):
        if isinstance(node, ast.Return) and node.value and ast.unparse(node.value) != "None":
            return True
        if isinstance(node, (ast.Yield, ast.YieldFrom)):
            return True
    return False


def doubt(code, calls):
    """Why a right answer may fail a call of this reference, as far as reading tells, or None."""
    try:
        tree = ast.parse(code)
        functions = functions_of(tree)
        strange = [module for module in modules_of(tree) if module.split(".")[0] not in sys.stdlib_module_names]
        foreign = [name for call in calls for name in foreign_names(call, functions)]
    except NOT_PYTHON:
        return "the reference or a call is not Python"
    if strange:
        return f"the reference imports {strange[0]}, which is not in the standard library"
    if foreign:
        return f"a call uses {foreign[0]}, which only the reference defines"
    called = set(re.findall(r"\w+(?=\()", " ".join(calls)))
    if functions.keys() & called and not any(returns_a_value(functions[name]) for name in functions.keys() & called):
        return "the reference never returns a value"
    return None


def without_comments(code):
    """A program without comments and docstrings, in Python's own layout."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Module)) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree) + "\n"


def normal_form(code):
    """A program as text, without comments and with its own names numbered in order: the same for the same function."""
    tree = ast.parse(without_comments(code))
    own, numbers = set(), {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            own.add(node.name)
        elif isinstance(node, ast.arg):
            own.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
    for node in ast.walk(tree):
        for field in ("name", "arg", "id"):
            name = getattr(node, field, None)
            if name in own:
                setattr(node, field, numbers.setdefault(name, f"_{len(numbers)}"))
    return ast.unparse(tree)


# ---- Ten calls that tell the function from wrong versions of it

def working_calls(box, code, calls):
    """({call: its result} of the calls that work, {reason: how many others fail so})."""
    statuses = box.check_reference({"ground_truth": code, "test_cases": {call: call for call in calls}})
    working = [call for call in calls if statuses[call] == "ok"]
    results = dict(zip(working, box.run(code, working)))
    return results, Counter(status for status in statuses.values() if status != "ok")


def telling_calls(box, results, programs):
    """{program: the calls that tell it from the function}. results: {call: what the function returns}."""
    told_by = {}
    for program in programs:
        outcomes = zip(results, box.run(program, list(results)))
        told_by[program] = {call for call, outcome in outcomes if outcome != results[call]}
    return told_by


def ten_calls(results, told_by):
    """A greedy choice: each call tells most of the wrong programs that are left, then has the rarest result."""
    chosen, times = [], Counter()    # times: result -> how many chosen calls have it
    left = [calls for calls in told_by.values() if calls]
    while len(chosen) < 10:
        tells = Counter(call for calls in left for call in calls)
        free = [call for call in results if call not in chosen]
        best = min(free, key=lambda call: (-tells[call], times[results[call]]))
        chosen.append(best)
        times[results[best]] += 1
        left = [calls for calls in left if best not in calls]
    return [call for call in results if call in chosen]


def change_between(code, wrong):
    """In one line, how a wrong version differs from the code."""
    old, new = code.splitlines(), wrong.splitlines()
    pairs = enumerate(zip(old, new))
    n = next((n for n, (one, other) in pairs if one != other), min(len(old), len(new)) - 1)
    if len(old) != len(new):
        return f"without `{old[n].strip()}`"
    return f"`{old[n].strip()}` becomes `{new[n].strip()}`"

"""The grammar of function tasks: a vague request, a hidden reference, ten hidden calls, and the replies of a human."""
import itertools
import random
import re
from collections import Counter
from typing import NamedTuple

from records import ANSWER_MARK, hashed, split_of

POOL = 60       # lists of records from which the ten calls are chosen


# ---------------------------------------------------------------------------------------------------------------------
# Composed tasks. A function is a short pipeline over a list of records. Its *composition* names the steps. Each step
# has *slots*: details that the request states or leaves open. The value of a slot is what the human means.

THEMES = {  # kind of records: (the key of a record's name, the keys of numbers to add up or sort by)
    "orders": ("code", ["amount", "weight", "price"]),
    "shifts": ("badge", ["hours", "pay", "miles"]),
    "books": ("title", ["pages", "copies", "sales"]),
    "games": ("match", ["points", "fouls", "goals"]),
}
KEYS = {  # slot -> the keys that it may name with --plain; otherwise it may name any number or any label (keys_of)
    "field": ["age", "size", "days", "stock"],
    "factor": ["count", "rate", "units"],
    "second": ["rank", "level", "rating"],
    "label": ["city", "region", "branch"],
    "group": ["client", "team", "owner"],
}
PLACES = ["oslo", "lima", "rome", "bern", "cairo", "quito"]
PEOPLE = ["anna", "bruno", "carla", "dino", "emma", "felix", "greta", "hugo", "ines", "jonas", "klara", "leo"]
NAMES = """amber birch cedar delta ember fern grove hazel iris jade kelp lotus maple nova onyx pearl quartz raven sage
    tulip umber violet willow yarrow""".split()
SIDES = {"above": ">", "below": "<", "at least": ">=", "at most": "<="}
FILTERS = ["limit", "label", "both", "none"]
KINDS = {  # kind -> (its weight among the tasks, what a record may be worth, what may be returned)
    "total": (3, ["plain", "plus", "times", "cut"], ["number", "bounded"]),
    "average": (3, ["plain", "plus", "times", "cut"], ["number", "bounded"]),
    "ranked": (4, ["plain", "times"], ["first", "list", "text"]),
    "grouped": (4, ["plain", "times", "ones"], ["first", "list", "text"]),
}
CONDITIONAL = {  # slot -> (the slot that it depends on, the value of that slot for which it exists)
    "cap": ("bound", "a cap"),
    "floor": ("bound", "a floor"),
    "second": ("ties", "second"),
    "many": ("part", "first"),
}


class Slot(NamedTuple):
    """One detail of a function: how the agent may ask for it, and what the human replies."""
    absent: str           # the reply if the function has no such detail
    questions: list       # --plain uses the first
    replies: object       # a list in which {} stands for the value, or {value: list}


SLOTS = {
    "field": Slot("There is no limit.",
        ["Which number is limited?", "What is the limit on?", "Which key does the limit look at?"],
        ['The limit is on "{}".', 'It is "{}" that is limited.', 'Look at "{}" for the limit.']),
    "side": Slot("There is no limit.",
        ["Which side of the limit counts?", "Above or below, and does the limit itself count?",
         "Do the records at the limit count, and which side of it is kept?"],
        ["Keep what is {} the limit.", "It has to be {} the limit.", "What counts is {} the limit."]),
    "limit": Slot("There is no limit.",
        ["What is the limit?", "How high is the limit?", "Which number is the limit?"],
        ["The limit is {}.", "I mean a limit of {}.", "It is limited at {}."]),
    "label": Slot("No label decides what is kept.",
        ["Which label is checked?", "Which label decides?", "Which key holds that word?"],
        ['The label is "{}".', 'I mean the label "{}".', 'Look at the label "{}".']),
    "which": Slot("No label decides what is kept.",
        ["Are those kept or left out?", "Do those stay or go?", "Is it only those, or all but those?"],
        {"only": ["Keep only those.", "Only those stay.", "Use those and no others."],
         "not": ["Leave out those.", "Those go.", "Use all but those."]}),
    "word": Slot("No label decides what is kept.",
        ["Which word is it?", "Which word do you mean?", "What does the label have to say?"],
        ['The word is "{}".', 'I mean the word "{}".', 'It says "{}".']),
    "value": Slot("Nothing is added up but the count.",
        ["Which value do you mean?", "Which value is used?", "Which key holds the value?"],
        ['The value is "{}".', 'I mean the value "{}".', 'Take "{}" as the value.']),
    "factor": Slot("Nothing is multiplied.",
        ["What is it multiplied by?", "Times what?", "Which key is the factor?"],
        ['Take it times "{}".', 'Multiply it by "{}".', 'The factor is "{}".']),
    "fee": Slot("There is no fee.",
        ["How large is the fee?", "What is the fee?", "How much is added to each?"],
        ["The fee is {}.", "I mean a fee of {}.", "Add {} to each."]),
    "cut": Slot("Single records are not cut.",
        ["Where is each one cut?", "At most how much counts of each?", "What is the most that one record counts?"],
        ["Each one is cut at {}.", "Of each at most {} counts.", "Count each as {} at most."]),
    "how": Slot("They are not combined to one number in another way than I said.",
        ["How are they combined?", "Sum, largest or smallest?", "What is taken of them?"],
        {"sum": ["Take the sum.", "I want the sum.", "Add them all up."],
         "max": ["Take the largest.", "I want the largest.", "The largest of them."],
         "min": ["Take the smallest.", "I want the smallest.", "The smallest of them."]}),
    "rounding": Slot("Nothing is rounded.",
        ["Is it rounded up or down?", "How is it rounded?", "Which whole number is it, the next or the last?"],
        ["Round it {}.", "I want it rounded {}.", "It is always rounded {}."]),
    "bound": Slot("It has no bounds.",
        ["Does the result have bounds?", "Is the result bounded?", "Is there a cap or a floor?"],
        {"none": ["It has no bounds.", "No, there are no bounds.", "Neither a cap nor a floor."],
         "a cap": ["It has a cap.", "Yes, there is a cap.", "A cap, but no floor."],
         "a floor": ["It has a floor.", "Yes, there is a floor.", "A floor, but no cap."]}),
    "cap": Slot("There is no cap.",
        ["What is the cap?", "How high is the cap?", "What is the highest result?"],
        ["The cap is {}.", "I mean a cap of {}.", "The result is {} at most."]),
    "floor": Slot("There is no floor.",
        ["What is the floor?", "How low is the floor?", "What is the lowest result?"],
        ["The floor is {}.", "I mean a floor of {}.", "The result is {} at least."]),
    "empty": Slot("Then the list is empty.",
        ["What if nothing is left?", "What if none are left?", "What comes back when there is no record?"],
        ["Then return {} at once.", "With nothing left, return {} at once.", "Return {} at once, then."]),
    "order": Slot("You may choose.",
        ["Which end comes first?", "In which order are they sorted?", "Is it the largest or the smallest first?"],
        ["The {} first.", "I want the {} first.", "Begin with the {}."]),
    "ties": Slot("You may choose.",
        ["What if two are equal?", "How are ties settled?", "Which of two equals comes first?"],
        {"earlier": ["Of equals the earlier leads.", "Then the earlier leads.", "Equals stay in their order."],
         "later": ["Of equals the later leads.", "Then the later leads.", "Equals go in reverse order."],
         "second": ["Of equals another number decides.", "Then another number decides.", "By another number."]}),
    "second": Slot("There is no other number.",
        ["Which number decides then?", "What is the other number?", "By which key are equals sorted?"],
        ['The smaller "{}" leads.', 'Then the smaller "{}" leads.', 'Of equals the smaller "{}" comes first.']),
    "group": Slot("There are no groups.",
        ["What are the groups by?", "Which label makes the groups?", "What do the records of a group share?"],
        ['The groups are by "{}".', 'I mean groups by "{}".', 'Group them by "{}".']),
    "alphabet": Slot("You may choose.",
        ["What if two groups are equal?", "How are equal groups sorted?", "Which of two equal groups comes first?"],
        ["Equal groups go from {}.", "Then they go from {}.", "Sort equal groups from {}."]),
    "part": Slot("There is only one.",
        ["All or only the first?", "Do you want all of them?", "Is the whole list returned?"],
        {"all": ["I want all of them.", "Return all of them.", "All, without end."],
         "first": ["Only the first few.", "I want only the first few.", "No, the first few."]}),
    "many": Slot("There is no such number.",
        ["How many are returned?", "How many do you want?", "How many are the first few?"],
        ["The first {}.", "I want the first {}.", "At most {} of them."]),
    "between": Slot("They are not joined to a text.",
        ["What stands between them?", "What separates them?", "How are they joined?"],
        ["Put {} between them.", "I want {} between them.", "Join them with {}."]),
}


LIMIT = {"field": None, "side": list(SIDES), "limit": [5, 10, 15, 20, 25, 30, 40, 50, 60, 80]}
LABEL = {"label": None, "which": ["only", "not"], "word": PLACES}
FEW = {"part": ["all", "first"], "many": [2, 3, 4]}
WORDS = {"empty": ['"none"', '"empty"', '"nobody"', '"missing"']}
NUMBERS = {"empty": ["0", "-1", "1", "100"]}
STEPS = {  # step -> {slot: its values, or None for keys}. A slot stands after the slot that it depends on.
    "limit": LIMIT,
    "label": LABEL,
    "both": LIMIT | LABEL,
    "plain": {"value": None},
    "plus": {"value": None, "fee": [6, 7, 8, 9]},
    "times": {"value": None, "factor": None},
    "cut": {"value": None, "cut": [35, 45, 55, 65, 75]},
    "total": {"how": ["sum", "max", "min"]},
    "average": {"rounding": ["down", "up"]},
    "ranked": {"order": ["largest", "smallest"], "ties": ["earlier", "later", "second"], "second": None},
    "grouped": {"order": ["largest", "smallest"], "alphabet": ["a to z", "z to a"]},
    "number": NUMBERS,
    "bounded": {"bound": ["none", "a cap", "a floor"], "cap": [90, 110, 120, 140, 150],
                "floor": [12, 18, 24, 32, 48], **NUMBERS},
    "first": WORDS,
    "list": FEW,
    "text": {**FEW, "between": ['", "', '"; "', '" - "', '" / "'], **WORDS},
}
WORTH = {  # what one record r is worth
    "ones": "1",
    "plain": 'r["{value}"]',
    "plus": 'r["{value}"] + {fee}',
    "times": 'r["{value}"] * r["{factor}"]',
    "cut": 'min(r["{value}"], {cut})',
}


def half_of(composition):
    """"new" for the quarter of the compositions that never occur in training, else "seen"."""
    return "new" if hashed("compositions", *composition) % 4 == 0 else "seen"


def number_keys(theme):
    return [*THEMES[theme][1], *KEYS["field"], *KEYS["factor"], *KEYS["second"]]


def keys_of(slot, theme, plain):
    """The keys that a slot may name."""
    if plain:
        return THEMES[theme][1] if slot == "value" else KEYS[slot]
    return KEYS["label"] + KEYS["group"] if slot in ("label", "group") else number_keys(theme)


def choices_of(composition, theme, plain):
    """{slot: its possible values} for every slot that a composition may have, in the order in which they are drawn."""
    filters, kind, worth, out = composition
    slots = dict(STEPS.get(filters, {}))
    if kind == "grouped":
        slots["group"] = None
    for step in (worth, kind, out):
        slots |= STEPS.get(step, {})
    return {slot: values or keys_of(slot, theme, plain) for slot, values in slots.items()}


# Every composition with at least five unconditional slots; fewer would leave too little to ask for.
COMPOSITIONS = [composition for kind, (_, worths, outs) in KINDS.items()
                for composition in itertools.product(FILTERS, [kind], worths, outs)
                if len(choices_of(composition, "orders", True).keys() - CONDITIONAL.keys()) >= 5]


def draw_values(composition, theme, plain, rng, known=()):
    """A value for each slot of a task, keeping those in `known`. No two slots name the same key."""
    values = dict(known)
    for slot, choices in choices_of(composition, theme, plain).items():
        parent, needed = CONDITIONAL.get(slot, (None, None))
        exists = parent is None or values[parent] == needed
        if exists and slot not in values:
            taken = [values[other] for other in ("value", *KEYS) if other in values]
            values[slot] = rng.choice([choice for choice in choices if choice not in taken])
    return values


def write_function(composition, theme, values):
    """The reference: a line or two for each step of the pipeline."""
    _, kind, worth, out = composition
    lines = []

    def add(line):
        lines.append(line.format(**values))

    if "limit" in values:
        add('rows = [r for r in rows if r["{field}"] ' + SIDES[values["side"]] + " {limit}]")
    if "word" in values:
        sign = "==" if values["which"] == "only" else "!="
        add('rows = [r for r in rows if r["{label}"] ' + sign + ' "{word}"]')
    if "empty" in values:
        add("if not rows:")
        add("    return {empty}")
    lines_of = {"total": total_lines, "average": average_lines, "ranked": ranked_lines, "grouped": grouped_lines}[kind]
    lines += lines_of(WORTH[worth].format(**values), THEMES[theme][0], values)
    if "cap" in values:
        add("out = min(out, {cap})")
    if "floor" in values:
        add("out = max(out, {floor})")
    few = "[:{many}]" if "many" in values else ""
    returned = {"first": "names[0]", "list": f"names{few}", "text": "{between}.join(names" + few + ")"}
    add("return " + returned.get(out, "out"))
    return "def report(rows):\n" + "".join(f"    {line}\n" for line in lines)


def total_lines(value, name, values):
    return [f"out = {values['how']}({value} for r in rows)"]


def average_lines(value, name, values):
    total = f"sum({value} for r in rows)"
    if values["rounding"] == "down":
        return [f"out = {total} // len(rows)"]
    return [f"out = -(-{total} // len(rows))"]


def ranked_lines(value, name, values):
    reverse = ", reverse=True" if values["order"] == "largest" else ""
    lines = []
    if values["ties"] == "later":
        lines += ["rows = rows[::-1]"]
    if values["ties"] == "second":
        lines += [f'rows = sorted(rows, key=lambda r: r["{values["second"]}"])']
    return lines + [f"rows = sorted(rows, key=lambda r: {value}{reverse})", f'names = [r["{name}"] for r in rows]']


def grouped_lines(value, name, values):
    reverse = ", reverse=True" if values["order"] == "largest" else ""
    reverse_names = ", reverse=True" if values["alphabet"] == "z to a" else ""
    key = f'r["{values["group"]}"]'
    return ["sums = {}", "for r in rows:", f"    sums[{key}] = sums.get({key}, 0) + {value}",
            f"names = sorted(sums{reverse_names})", f"names = sorted(names, key=sums.get{reverse})"]


def pick(wordings, plain, rng):
    """One of several wordings; the first with --plain."""
    return wordings[0] if plain else rng.choice(wordings)


def write_request(composition, theme, values, stated, plain, rng):
    """Yield the sentences of the request: stated slots with their values, open ones vaguely or not at all.

    In a sentence, [a|b] stands for one of two wordings. [slot:a|b|c] stands for a, with the slot's value in place of %,
    if the slot is stated, and otherwise for b or c. [slot:a] stands for nothing if the slot is open.
    """
    _, kind, worth, out = composition

    def wording(match):
        slot, (known, *vague) = match[1], match[2].split("|")
        if slot in stated:
            return known.replace("%", str(values[slot]))
        if slot and not vague:
            return ""
        return pick(vague if slot else [known, *vague], plain, rng)

    def say(sentence):
        return re.sub(r"\[(?:(\w+):)?(.*?)\]", wording, sentence)

    if plain:
        yield f"Write report(rows) for a list of {theme}."
    else:
        yield say(f"[Write report(rows), where rows is a list of {theme}, each a dictionary.|"
                  f"I have a list of {theme}, which are dictionaries; write report(rows).|"
                  f"I need a function report(rows); rows are {theme}, as dictionaries.]")
    if "limit" in values:
        yield say('[Keep those with|Use only those with|What counts are those with] a limit on '
                  '[field:"%"|one number|some number]: '
                  '[side:% the limit|on one side of the limit|on a certain side of the limit][limit: %|].')
    if "word" in values:
        keep, drop = say("[Keep only those|Use only those]"), say("[Leave out those|Drop those]")
        rule = keep if values["which"] == "only" else drop
        yield say(f'[which:{rule}|Mind those|There is a rule for those]'
                  '[label: where the label "%" is| where a label is| where some label is]'
                  '[word: the word "%".| a certain word.| one word.]')
    if "empty" in stated:
        yield say("[If nothing is left|With nothing left][empty:, return % at once].")

    more = {"plus": "[fee: plus a fee of % each| plus a fee each]",
            "times": '[factor: times "%"| times another number| times a factor]',
            "cut": "[cut:, each one cut at %|, each one cut somewhere|, each one cut]"}
    worth_words = ""
    if worth != "ones":
        worth_words = say('[value:the value "%"|a value|some value]' + more.get(worth, ""))
    if kind == "total":
        how = {"sum": "sum", "max": "largest", "min": "smallest"}[values["how"]]
        verb = f"[Take|I want] the {how} of" if "how" in stated else "[Combine|Put together]"
        yield say(f"{verb} {worth_words}.")
    if kind == "average":
        yield say(f"[Average|Take the average of] {worth_words}, as a whole number[rounding:, rounded %].")
    if kind == "ranked":
        yield say(f"[Sort them by|Order them by] {worth_words}[order:, the % first].")
    if kind == "grouped":
        summed = "count them" if worth == "ones" else f"add up {worth_words}"
        yield say(f'[Make groups|Put them in groups][group: by "%"| by a label], {summed} in each, '
                  'and sort the groups by that[order:, the % first].')

    if "bound" in stated:
        bounds = {"none": "no bounds", "a cap": "[cap:a cap of %|a cap]", "a floor": "[floor:a floor of %|a floor]"}
        bound = say(bounds[values["bound"]])
        yield say(f"[The result has|It has] {bound}.")
    elif "bound" in values:
        yield say("[The result may have bounds.|Mind the bounds of the result.]")
    if "ties" in stated:
        leaders = {"second": '[second:the smaller "%"|the smaller of another number]'}
        yield say(f"Of equals {leaders.get(values['ties'], 'the ' + values['ties'])} leads.")
    if "alphabet" in stated:
        yield say("[alphabet:Equal groups go from %.]")
    thing = "group" if kind == "grouped" else f'"{THEMES[theme][0]}"'
    if out == "first":
        yield say(f"[Return|I want] the first {thing}.")
    if "part" in values:
        which = "all" if values["part"] == "all" else say("the first [many:%|few]")
        if "part" not in stated:
            which = "the"
        things = "groups" if kind == "grouped" else thing
        form = " in a list" if out == "list" else say(" as one text[between:, % between them|]")
        yield say(f"[Return|I want] {which} {things}{form}.")


# ---------------------------------------------------------------------------------------------------------------------
# Ten calls that tell the reference from near misses

def draw_rows(theme, values, rng):
    """Random records, rich in edge cases: at the limit, with the word in question, tied with others, none at all."""
    numbers = number_keys(theme)
    scale = rng.choice([12, 40, 90, 200])
    size = rng.randint(0, 9)
    groups = rng.choice([3, 6])
    places, people = rng.sample(PLACES, groups), rng.sample(PEOPLE, groups)
    names = rng.sample(NAMES, size)
    seconds = rng.sample(range(1, 60), size)
    rows = []
    for i in range(size):
        row = {THEMES[theme][0]: names[i]}
        row |= {key: rng.choice(places) for key in KEYS["label"]}
        row |= {key: rng.choice(people) for key in KEYS["group"]}
        row |= {key: rng.randint(1, scale) for key in numbers}
        if rows and rng.random() < 0.5:    # tied with another record
            for key in numbers:
                row[key] = rng.choice([rows[-1], rng.choice(rows)])[key]
        if "limit" in values and rng.random() < 0.6:
            row[values["field"]] = values["limit"] + rng.choice([-3, -1, 0, 0, 1, 7, 20])
        if "word" in values and rng.random() < (0.5 if values["which"] == "only" else 0.3):
            row[values["label"]] = values["word"]
        if "second" in values:    # all different, because the task does not settle a second tie
            row[values["second"]] = seconds[i]
        rows.append(row)
    return rows


SWAPS = {  # pattern -> what may replace it: a comparison, an operator, a function, a truth value
    r"(?<= )(>=|<=|==|!=|>|<)(?= )": [">", ">=", "<", "<=", "==", "!="],
    r"(?<=[^\"] )(\+|\*|//|-)(?= )": ["+", "-", "*"],    # not in the text " - "
    r"\b(min|max|sum)\b": ["min", "max", "sum"],
    r"True|False": ["True", "False"],
}


def mutants(code):
    """Programs that differ from `code` in one place: a comparison, a number, an operator, a function, a line."""
    programs = []
    for pattern, others in SWAPS.items():
        for match in re.finditer(pattern, code):
            programs += [code[:match.start()] + other + code[match.end():] for other in others]
    for match in re.finditer(r"\d+", code):
        programs += [f"{code[:match.start()]}{int(match[0]) + step}{code[match.end():]}" for step in (-1, 1)]
    for statement in re.findall(r"^    \S.*\n(?:     .*\n)*", code, re.M):
        programs.append(code.replace(statement, "", 1))
    return [mutant for mutant in dict.fromkeys(programs) if mutant != code]


def with_one_wrong(composition, theme, values, plain):
    """{(slot, wrong value): the program that is right except for this slot}.

    A wrong value may bring another slot along, as a cap where there was none. Then there is a program for each value of
    that slot, which is the third part of the key.
    """
    choices = choices_of(composition, theme, plain)
    programs = {}
    for slot in values:
        for wrong in choices[slot]:
            changed = values | {slot: wrong}
            brought = [{}]
            for child, (parent, needed) in CONDITIONAL.items():
                if slot == parent:
                    changed.pop(child, None)
                    if wrong == needed:
                        brought = [{child: value} for value in choices[child]]
            if wrong != values[slot]:
                for more in brought:
                    programs[slot, wrong, *more.values()] = write_function(composition, theme, changed | more)
    return programs


def results_of(code, inputs):
    """What a program from our own templates returns for each list of records, as text, or its exception's name."""
    namespace, results = {}, []
    exec(compile(code, "task", "exec"), namespace)
    for rows in inputs:
        try:
            results.append(repr(namespace["report"](list(rows))))
        except Exception as error:    # a mutant may do anything
            results.append(type(error).__name__)
    return results


def choose_calls(composition, theme, values, plain, rng):
    """(ten calls, None), or (None, why there are none). Together the calls fail every wrong value and every mutant.

    They are a greedy cover of the wrong programs by a pool of random inputs. Programs that no input tells from the
    reference are left out, but each wrong value needs one that fails. The results of the calls differ, so that a
    constant answer passes only one of them. Two results may be equal if the pool has no ten different ones.
    """
    inputs = [[]] + [draw_rows(theme, values, rng) for _ in range(POOL)]
    code = write_function(composition, theme, values)
    right = results_of(code, inputs)
    wrong = with_one_wrong(composition, theme, values, plain)
    wrong |= {("mutant", mutant): mutant for mutant in mutants(code)}
    exposed_by = {}    # wrong program -> the inputs that expose it
    for name, program in wrong.items():
        exposing = {i for i, result in enumerate(results_of(program, inputs)) if result != right[i]}
        if exposing:
            exposed_by[name] = exposing
    exposed = {name[:2] for name in exposed_by}
    for name in wrong:
        if name[0] != "mutant" and name[:2] not in exposed:
            return None, f"no input exposes a wrong value of {name[0]}"

    chosen, times, left = [], Counter(), set(exposed_by)    # times: result -> how many chosen inputs have it
    while len(chosen) < 10:
        exposes = Counter(i for name in left for i in exposed_by[name])    # input -> how many wrong programs it exposes
        free = [i for i in range(len(inputs)) if i not in chosen]
        best = min(free, key=lambda i: (times[right[i]], -exposes[i]))
        chosen.append(best)
        times[right[best]] += 1
        left = {name for name in left if best not in exposed_by[name]}
    if len(times) < 9:
        return None, "too few different results"
    if left:
        return None, "ten calls are too few"
    return [f"report({inputs[i]!r})" for i in sorted(chosen)], None


# ---------------------------------------------------------------------------------------------------------------------
# Tasks, and the dialogues of a scripted, imperfect agent

def reply_of(slot, value, plain, rng):
    """What the human replies when asked for a slot."""
    replies = SLOTS[slot].replies
    if isinstance(replies, dict):
        replies = replies[value]
    return pick(replies, plain, rng).format(value)


def draw_open(values, rng):
    """Four to six slots to leave open. Slots that depend on an open slot are open too; None if that makes over six."""
    count = min(len(values), rng.choice([4, 5, 6]))
    opened = set(rng.sample(list(values), count))
    for child, (parent, _) in CONDITIONAL.items():
        if child in values and parent in opened:
            opened.add(child)
    return opened if len(opened) <= 6 else None


def draw_task(split, half, kinds, plain, rng):
    """A task without its calls, or None if the draw belongs to another split or half, or leaves too much open."""
    kind = rng.choices(kinds, [KINDS[kind][0] for kind in kinds])[0]
    composition = rng.choice([composition for composition in COMPOSITIONS if composition[1] == kind])
    theme = rng.choice(list(THEMES))
    values = draw_values(composition, theme, plain, rng)
    opened = draw_open(values, rng)
    reference = write_function(composition, theme, values)
    if half_of(composition) != half or split_of(reference) != split or not opened:
        return None
    request = " ".join(write_request(composition, theme, values, values.keys() - opened, plain, rng))
    reply_to = {slot: reply_of(slot, value, plain, rng) for slot, value in values.items()}
    facts = []
    for slot in values:
        if slot in opened:
            parent, _ = CONDITIONAL.get(slot, (None, None))
            facts.append({"detail": slot, "question": SLOTS[slot].questions[0], "reply": reply_to[slot],
                          "implies": [parent] if parent in opened else []})
    replies = {slot: reply_to.get(slot, SLOTS[slot].absent) for slot in SLOTS if slot not in opened}
    return {"task_id": None, "domain": "backend", "problem_description": request, "ground_truth": reference,
            "test_cases": None, "source": f"procedural:{kind}", "half": half, "composition": composition,
            "theme": theme, "plain": plain, "details": values, "facts": facts, "replies": replies}


def draw_tasks(split, kinds, plain, seed):
    """Yield tasks of a split without their calls: independent draws, each reference once, until no new one turns up.
    Validation and test alternate between `seen` and `new` compositions."""
    halves = ["seen"] if split == "train" else ["seen", "new"]
    rngs = {half: random.Random(f"{seed} {split} {half}") for half in halves}
    references = set()
    for half in itertools.cycle(halves):
        for _ in range(20_000):    # give up after so many draws without a new task
            task = draw_task(split, half, kinds, plain, rngs[half])
            if task and task["ground_truth"] not in references:
                break
        else:
            return
        references.add(task["ground_truth"])
        yield task


def with_calls(task, seed):
    """(task with its calls, None), or (task, why there are none)."""
    rng = random.Random(f"{seed} {task['ground_truth']}")
    calls, reason = choose_calls(task["composition"], task["theme"], task["details"], task["plain"], rng)
    if not reason:
        task["test_cases"] = {str(number): call for number, call in enumerate(calls, 1)}
    return task, reason


def demonstrate(task, ask, waste, max_turns, rng):
    """One dialogue of the scripted agent, as (dialogue_history, answer).

    It asks for some of the open details, each after the detail that it depends on. Before each turn it may waste some:
    it repeats an exchange, or asks for a detail that is not open.
    """
    facts = {fact["detail"]: fact["reply"] for fact in task["facts"]}
    replies = task["replies"] | facts

    def exchange(slot):
        question = pick(SLOTS[slot].questions, task["plain"], rng)
        told = [slot] if slot in facts else []
        return {"role": "assistant", "content": question}, {"role": "user", "content": replies[slot], "told": told}

    asked = [slot for slot in facts if rng.random() < ask]
    rng.shuffle(asked)
    asked = asked[:max_turns - 1]
    for child, (parent, _) in CONDITIONAL.items():
        if child in asked and parent in asked:
            first, second = sorted([asked.index(child), asked.index(parent)])
            asked[first], asked[second] = parent, child
    exchanges = []
    spare = max_turns - 1 - len(asked)
    for slot in [*asked, None]:    # None: the turn that answers
        while spare and rng.random() < waste:
            spare -= 1
            if exchanges and rng.random() < 0.5:
                exchanges.append(rng.choice(exchanges))
            else:
                exchanges.append(exchange(rng.choice(list(task["replies"]))))
        if slot:
            exchanges.append(exchange(slot))

    known = {slot: value for slot, value in task["details"].items() if slot not in facts or slot in asked}
    for child, (parent, needed) in CONDITIONAL.items():
        if child in known:    # whoever knows the value of the cap knows that there is one
            known[parent] = needed
    guessed = draw_values(task["composition"], task["theme"], task["plain"], rng, known)
    answer = write_function(task["composition"], task["theme"], guessed).strip()
    history = [{"role": "user", "content": task["problem_description"]}, *itertools.chain(*exchanges),
               {"role": "assistant", "content": f"{ANSWER_MARK}\n{answer}"}]
    return history, answer


def check_demonstrable(task):
    """The task, if the scripted agent can play it: its details must still produce its program."""
    if "composition" not in task or not task["facts"] or \
            write_function(task["composition"], task["theme"], task["details"]) != task["ground_truth"]:
        raise ValueError("demonstrations need a procedural task as generate_tasks.py writes it, with details and facts")
    return task

"""Five honest programmers, who know nothing but the English.

``understand`` reads the plain-English request and what a human answered, and gives a dict.  Five writers each turn
that dict into the source code of a function ``report(rows)``, each in a programming style of its own.
``STYLES`` maps the name of a style to ``function(request, replies) -> source``; replies are (question, reply) pairs.
"""
import re

# What the words mean that decide something, and the sentences of the request.
SIDES = {"at least": ">=", "at most": "<=", "above": ">", "below": "<"}
STAY = {"leave out": "!=", "drop": "!=", "all but": "!=", "go": "!=", "keep": "==", "use": "==", "stay": "=="}
COMBINED = {"smallest": "smallest", "largest": "largest", "sum": "sum", "add them": "sum", "average": "average"}
ROUNDED = {"rounded up": "up", "round it up": "up", "rounded down": "down", "round it down": "down"}
ENDS = {"smallest first": False, "with the smallest": False, "largest first": True, "with the largest": True}
TIES = {"earlier leads": "earlier", "stay in their order": "earlier", "later leads": "later", "reverse order": "later",
        "equals the smaller": "key", "another number decides": "key", "by another number": "key"}
GROUP_TIES, AMOUNTS = {"a to z": "az", "z to a": "za"}, {"first few": "few", "all": "all"}
Q, N = r'"([^"]*)"', r"(-?\d+)"
LIMIT = rf"(?:Keep|Use only|What counts are) those with a limit on (?:{Q}|\w+ number): ([a-z ]+) the limit(?: {N})?"
LABEL = rf"([A-Z][a-z ]+) those where (?:a|some|the) label(?: {Q})? is (?:one|a certain|the) word(?: {Q})?"
EMPTY = rf"return (?:{Q}|{N}) at once"
VALUE = (rf"(?:a|some|the) value(?: {Q})?( times (?:{Q}|another number|a factor)| plus a fee(?: of {N})? each"
         rf"|, each one cut(?: at {N}| somewhere)?)?")
GROUPS = rf"(?:Put them in|Make) groups by (?:{Q}|a label), (count them|add up)"
OUTPUT = (rf"(?:Return|I want) (the first few|the first {N}|the first|the|all) (?:{Q}|groups?)"
          rf"(?: (in a list|as one text)(?:, {Q} between them)?)?\.")


def understand(request, replies):
    """Read the request and the replies into a dict; what is said in neither of them raises an error."""
    said = dict(replies)

    def told(given, question, kind=Q):
        """The word in quotes (or number) that the request gives, or else the reply to the question."""
        return given if given is not None else re.search(kind, said[question])[1]

    def meant(words, given, question):
        """What the request gives, or else the reply, in the sense of words; names in quotes tell nothing."""
        for text in (given, said.get(question, "")):
            for words_said, meaning in words.items():
                if re.search(rf"\b{words_said}\b", re.sub(Q, "", text), re.I):
                    return meaning
        raise ValueError(f"neither {given!r} nor a reply to {question!r} tells")

    spec = dict.fromkeys("empty count ties times fee cut round cap floor largest name".split())
    spec.update(goal="combine", tests=[])
    if found := re.search(LIMIT, request):
        limit = int(told(found[3], "What is the limit?", N))
        side = meant(SIDES, found[2], "Which side of the limit counts?")
        spec["tests"].append((told(found[1], "Which number is limited?"), side, limit))
    if found := re.search(LABEL, request):
        sign = meant(STAY, found[1], "Are those kept or left out?")
        spec["tests"].append((told(found[2], "Which label is checked?"), sign, told(found[3], "Which word is it?")))
    if found := re.search(EMPTY, request + " " + said.get("What if nothing is left?", ""), re.I):
        spec["empty"] = repr(found[1]) if found[1] is not None else found[2]
    groups = re.search(GROUPS, request)
    if groups:
        spec.update(goal="groups", count=groups[2] == "count them", by=told(groups[1], "What are the groups by?"),
                    ties=meant(GROUP_TIES, request, "What if two groups are equal?"))
    elif re.search("(?:Sort|Order) them by", request):
        spec.update(goal="order", ties=meant(TIES, request, "What if two are equal?"))
        if spec["ties"] == "key":
            found = re.search(f"equals the smaller {Q} leads", request)
            spec["tie_key"] = told(found and found[1], "Which number decides then?")
    if not spec["count"]:
        found = re.search(VALUE, request)
        how = found[2] or ""
        spec.update(value=told(found[1], "Which value do you mean?"),
                    times=told(found[3], "What is it multiplied by?") if "times" in how else None,
                    fee=int(told(found[4], "How large is the fee?", N)) if "fee" in how else None,
                    cut=int(told(found[5], "Where is each one cut?", N)) if "cut" in how else None)
    if spec["goal"] == "combine":
        spec["how"] = meant(COMBINED, request, "How are they combined?")
        if spec["how"] == "average":
            spec["round"] = meant(ROUNDED, request, "Is it rounded up or down?")
        for bound in ("cap", "floor"):
            found = re.search(rf"\b{bound} of {N}", request)
            if found or f"What is the {bound}?" in said:
                spec[bound] = int(told(found and found[1], f"What is the {bound}?", N))
        return spec
    found = re.search(OUTPUT, request)
    amount = found[1] if found[1] != "the" else meant(AMOUNTS, "", "All or only the first?")
    spec.update(largest=meant(ENDS, request, "Which end comes first?"), name=spec["by"] if groups else found[3],
                single=found[4] is None,
                between=told(found[5], "What stands between them?") if found[4] == "as one text" else None,
                first=int(told(found[2], "How many are returned?", N)) if found[4] and amount != "all" else None)
    return spec


def value_of(spec):
    """The expression of a row's value, as source code; 1 where the rows are counted."""
    if spec["count"]:
        return "1"
    value = f"row[{spec['value']!r}]"
    value += f" * row[{spec['times']!r}]" if spec["times"] is not None else ""
    value += f" + {spec['fee']}" if spec["fee"] is not None else ""
    return f"min({value}, {spec['cut']})" if spec["cut"] is not None else value


def conditions(spec):
    """The conditions under which a row is used, as source code."""
    return " and ".join(f"row[{key!r}] {sign} {than!r}" for key, sign, than in spec["tests"]) or "True"


def empty(spec, rows):
    """The lines that end the function at once if nothing is left in rows."""
    return [f"    if not {rows}:", f"        return {spec['empty']}"] if spec["empty"] is not None else []


def output(spec, names):
    """The line that returns what is asked for, out of the expression of a list of all names in their order."""
    if spec["single"]:
        return f"    return {names}[0]"
    names += f"[:{spec['first']}]" if spec["first"] is not None else ""
    return f"    return {spec['between']!r}.join({names})" if spec["between"] is not None else f"    return {names}"


def bounded(spec, result):
    """The line that returns the expression result within its bounds."""
    result = f"min({result}, {spec['cap']})" if spec["cap"] is not None else result
    return f"    return max({result}, {spec['floor']})" if spec["floor"] is not None else f"    return {result}"


def plain_loops(spec):
    """Nothing but loops, if-statements and variables that add up; sorting is inserting by hand."""
    lines = ["def report(rows):", "    kept = []", "    for row in rows:", f"        if {conditions(spec)}:",
             "            kept.append(row)", *empty(spec, "kept")]
    value = f"        value = {value_of(spec)}"
    if spec["goal"] == "combine":
        if spec["how"] in ("sum", "average"):
            lines += ["    result = 0", "    for row in kept:", value, "        result += value"]
        else:
            lines += ["    result = None", "    for row in kept:", value, "        if result is None or value "
                      f"{'<' if spec['how'] == 'smallest' else '>'} result:", "            result = value"]
        if spec["how"] == "average":
            lines += ["    total = result", "    result = total // len(kept)"]
            lines += ["    if result * len(kept) < total: result += 1"] * (spec["round"] == "up")
        for bound, sign in (("cap", ">"), ("floor", "<")):
            if spec[bound] is not None:
                lines += [f"    if result {sign} {spec[bound]}:", f"        result = {spec[bound]}"]
        return lines + ["    return result"]
    if spec["goal"] == "groups":
        lines += ["    totals = {}", "    for row in kept:", value, f"        name = row[{spec['by']!r}]",
                  "        if name not in totals:", "            totals[name] = 0", "        totals[name] += value",
                  "    ranked = []", "    for name in totals:", "        new = (totals[name], name)"]
    else:
        second = f"row[{spec['tie_key']!r}]" if spec["ties"] == "key" else "0"
        lines += ["    ranked = []", "    for row in kept:", value,
                  f"        new = (value, {second}, row[{spec['name']!r}])"]
    ahead, equal = ">" if spec["largest"] else "<", {"later": "<", "za": ">"}.get(spec["ties"], "<=")
    lines += ["        place = 0", f"        while place < len(ranked) and (ranked[place][0] {ahead} new[0] or (",
              f"                ranked[place][0] == new[0] and ranked[place][1] {equal} new[1])):",
              "            place += 1", "        ranked.insert(place, new)"]
    return lines + ["    names = []", "    for old in ranked:", "        names.append(old[-1])", output(spec, "names")]


def comprehensions(spec):
    """Comprehensions, and sorted, sum, min and max with keys."""
    lines = ["def report(rows):", f"    kept = [row for row in rows if {conditions(spec)}]", *empty(spec, "kept")]
    value, minus, up = value_of(spec), "-" if spec["largest"] else "", "-" if spec["round"] == "up" else ""
    if spec["goal"] == "combine":
        result = {"sum": "sum(values)", "smallest": "min(values)", "largest": "max(values)",
                  "average": f"{up}({up}sum(values) // len(values))"}[spec["how"]]
        return lines + [f"    values = [{value} for row in kept]", bounded(spec, result)]
    if spec["goal"] == "groups":
        key = f"row[{spec['by']!r}]"
        return lines + [f"    names = sorted({{{key} for row in kept}}, reverse={spec['ties'] == 'za'})",
                        f"    totals = {{name: sum({value} for row in kept if {key} == name) for name in names}}",
                        output(spec, f"sorted(names, key=lambda name: {minus}totals[name])")]
    second = f"row[{spec['tie_key']!r}]" if spec["ties"] == "key" else ""
    turned = "[::-1]" if spec["ties"] == "later" else ""
    return lines + [f"    ranked = sorted(kept{turned}, key=lambda row: ({minus}({value}), {second}))",
                    output(spec, f"[row[{spec['name']!r}] for row in ranked]")]


def functional(spec):
    """Filter, map, reduce and a comparing function; no statement but assignments and returns."""
    lines = ["from functools import cmp_to_key, reduce", "def report(rows):",
             f"    kept = list(filter(lambda row: {conditions(spec)}, rows))", *empty(spec, "kept"),
             f"    value = lambda row: {value_of(spec)}"]
    if spec["goal"] == "combine":
        fold = {"smallest": "a if a < b else b", "largest": "a if a > b else b"}.get(spec["how"], "a + b")
        more = " + (len(kept) - 1)" if spec["round"] == "up" else ""
        lines += [f"    result = reduce(lambda a, b: {fold}, map(value, kept))"]
        return lines + [bounded(spec, f"(result{more}) // len(kept)" if spec["how"] == "average" else "result")]
    sign = "-" if spec["largest"] else ""
    if spec["goal"] == "groups":
        (a, b), key = "ab" if spec["ties"] == "az" else "ba", f"row[{spec['by']!r}]"
        return lines + [f"    add = lambda totals, row: {{**totals, {key}: totals.get({key}, 0) + value(row)}}",
                        "    totals = reduce(add, kept, {})",
                        f"    compare = lambda a, b: {sign}(totals[a] - totals[b]) or ({a} > {b}) - ({a} < {b})",
                        output(spec, "sorted(totals, key=cmp_to_key(compare))")]
    second = f"a[{spec['tie_key']!r}] - b[{spec['tie_key']!r}]" if spec["ties"] == "key" else "0"
    rows = "reversed(kept)" if spec["ties"] == "later" else "kept"
    return lines + [f"    compare = lambda a, b: {sign}(value(a) - value(b)) or {second}",
                    f"    ranked = sorted({rows}, key=cmp_to_key(compare))",
                    output(spec, f"list(map(lambda row: row[{spec['name']!r}], ranked))")]


def small_class(spec):
    """A class that takes row after row and then gives its result; sorting is picking who leads, again and again."""
    goal, second = spec["goal"], f"row[{spec['tie_key']!r}]" if spec["ties"] == "key" else "0"
    key, value = f"row[{spec['name']!r}]", value_of(spec)
    take = {"combine": f"self.taken.append({value})", "order": f"self.taken.append(({value}, {second}, {key}))",
            "groups": f"self.taken[{key}] = self.taken.get({key}, 0) + {value}"}[goal]
    lines = ["class Report:", "    def __init__(self):", f"        self.taken = {'{}' if goal == 'groups' else '[]'}",
             "    def take(self, row):", f"        if {conditions(spec)}:", f"            {take}"]
    if goal == "combine":
        more = " + len(self.taken) - 1" if spec["round"] == "up" else ""
        result = {"smallest": "min(self.taken)", "largest": "max(self.taken)", "sum": "sum(self.taken)",
                  "average": f"(sum(self.taken){more}) // len(self.taken)"}[spec["how"]]
        lines += ["    def result(self):", "    " + bounded(spec, result)]
    else:
        tie = {"earlier": "False", "later": "True", "za": "one[1] > other[1]"}.get(spec["ties"], "one[1] < other[1]")
        waiting = "[(total, name) for name, total in self.taken.items()]" if goal == "groups" else "list(self.taken)"
        ahead = f"one[0] {'>' if spec['largest'] else '<'} other[0]"
        lines += ["    def leads(self, one, other):", f"        return {ahead} or one[0] == other[0] and {tie}",
                  "    def result(self):", f"        waiting, names = {waiting}, []", "        while waiting:",
                  "            best = 0", "            for place in range(1, len(waiting)):",
                  "                if self.leads(waiting[place], waiting[best]):", "                    best = place",
                  "            names.append(waiting.pop(best)[-1])", "    " + output(spec, "names")]
    return lines + ["def report(rows):", "    work = Report()", "    for row in rows:", "        work.take(row)",
                    *empty(spec, "work.taken"), "    return work.result()"]


def library(spec):
    """The tools of itertools, collections, operator and heapq: streams of values, groupby, Counter and a heap."""
    lines = ["from collections import Counter", "from heapq import heapify, heappop, nsmallest",
             "from itertools import accumulate, compress, count, groupby, repeat",
             "from operator import add, eq, ge, gt, itemgetter, le, lt, mul, ne, neg", "def report(rows):",
             "    kept = list(rows)"]
    for key, sign, than in spec["tests"]:
        test = {">=": "ge", "<=": "le", ">": "gt", "<": "lt", "==": "eq", "!=": "ne"}[sign]
        lines += [f"    kept = list(compress(kept, map({test}, map(itemgetter({key!r}), kept), repeat({than!r}))))"]
    value = "repeat(1)" if spec["count"] else f"map(itemgetter({spec['value']!r}), kept)"
    value = f"map(mul, {value}, map(itemgetter({spec['times']!r}), kept))" if spec["times"] is not None else value
    value = f"map(add, {value}, repeat({spec['fee']}))" if spec["fee"] is not None else value
    value = f"map(min, {value}, repeat({spec['cut']}))" if spec["cut"] is not None else value
    lines += [*empty(spec, "kept"), f"    values = {value}"]
    if spec["goal"] == "combine":
        tool = {"smallest": ", min", "largest": ", max"}.get(spec["how"], "")
        sign = "neg" if spec["round"] == "up" else ""
        result = f"{sign}({sign}(last) // len(kept))" if spec["how"] == "average" else "last"
        return lines + [f"    *_, last = accumulate(values{tool})", bounded(spec, result)]
    if spec["goal"] == "groups":
        largest = "[name for name, total in totals.most_common()]"
        smallest = "nsmallest(len(totals), totals, key=totals.get)"
        return lines + [f"    pairs = zip(map(itemgetter({spec['by']!r}), kept), values)",
                        f"    pairs = groupby(sorted(pairs, reverse={spec['ties'] == 'za'}), itemgetter(0))",
                        "    totals = Counter({name: sum(map(itemgetter(1), group)) for name, group in pairs})",
                        output(spec, largest if spec["largest"] else smallest)]
    second = f"map(itemgetter({spec['tie_key']!r}), kept)" if spec["ties"] == "key" else "repeat(0)"
    values, step = "map(neg, values)" if spec["largest"] else "values", -1 if spec["ties"] == "later" else 1
    return lines + [f"    names = map(itemgetter({spec['name']!r}), kept)",
                    f"    heap = list(zip({values}, {second}, count(0, {step}), names))", "    heapify(heap)",
                    output(spec, "[heappop(heap)[-1] for _ in range(len(heap))]")]


STYLES = {w.__name__: lambda request, replies, w=w: "\n".join(w(understand(request, replies))) + "\n"
          for w in (plain_loops, comprehensions, functional, small_class, library)}

"""A programmer who never saw how the references are written: evaluates a function task from its plan (what the request
says) and its details (what the human told), without any generated code."""
import re
from collections import defaultdict

import function_tasks


def report(plan, details, rows):
    """What the function returns for a list of things. KeyError if a detail is missing."""
    return Reading(plan, details, rows).result()


class Reading:
    def __init__(self, plan, details, rows):
        self.plan, self.details, self.rows = plan, details, rows
        self.theme = function_tasks.themes()[plan["theme"]]

    def number(self, text, row):
        """A key of the row, or a measure of it with what else counts."""
        if text in self.theme.numbers:
            return row[text]
        left, right = self.details[f"{text}.formula"], ""
        if match := re.fullmatch(r"\((.*)\)\*(\w+)", left):
            left, right = match.groups()
        total = 0
        for sign, product in re.findall(r"([+-]?)([\w*]+)", left):
            value = 1
            for factor in product.split("*"):
                value *= int(factor) if factor.isdigit() else row[factor]
            total += -value if sign == "-" else value
        total *= row[right] if right else 1
        extra = self.details.get(f"{text}.extra")
        if extra is None:
            return total
        if extra[0] == "cap":
            return extra[1] if total > extra[1] else total
        sign, key, *bonus = extra
        if not bonus:
            return total + row[key] if sign == "+" else total - row[key]
        if row[key] != bonus[0]:
            return total
        return total * 2 if sign == "*" else total + bonus[1]

    def is_one(self, kind, row):
        """Whether a thing is of a kind: big, late, from a regular."""
        meaning = self.details[f"{kind}.define"]
        way, key, word, *other = self.details.get(f"{kind}.except") or ["", kind, ""]
        here = way != "" and row[key] == word
        if here and way in ("never", "always"):
            return way == "always"
        verdicts = []
        for part in re.split("[&/]", meaning):
            low, part = part.startswith("<"), part.lstrip("<")
            if part in row and part not in self.theme.numbers:
                verdicts.append(row[part] in self.details[f"{kind}.values"])
                continue
            limit = other[0] if here else self.details[f"{kind}.limit"]
            if part.startswith("#"):
                times = len([1 for each in self.rows if each[part[1:]] == row[part[1:]]])
                verdicts.append(times <= limit if low else times >= limit)
                continue
            value, edge = self.number(part.lstrip("="), row), self.details.get(f"{kind}.edge", False)
            if limit == "average":
                limit = sum(self.number(part.lstrip("="), each) for each in self.rows)
                value, edge = value * len(self.rows), False
            verdicts.append(edge if value == limit else (value < limit) == low)
        return any(verdicts) if "/" in meaning else all(verdicts)

    def result(self):
        plan, details = self.plan, self.details
        first, *others = plan["kinds"]
        found = [row for row in self.rows if self.is_one(first, row)
                 and all(self.is_one(kind, row) == (plan["mode"] == "only") for kind in others)]
        if not found and "empty" in details:
            return details["empty"]
        if plan["shape"] in ("rows", "who", "line"):
            return self.in_order(found)
        values = [self.number(plan["goal"], row) for row in found]
        if plan["shape"] == "table":
            table = defaultdict(int)
            for row, value in zip(found, values):
                table[row[details["group"]]] += value
            return dict(table)
        if plan["shape"] == "total":
            return sum(values)
        part, whole = sum(values), len(found)
        if plan["shape"] == "share":
            part, whole = part * 100, sum(self.number(plan["goal"], row) for row in self.rows)
        least, rest = divmod(part, whole)
        return least + {"down": 0, "up": rest > 0, "nearest": 2 * rest >= whole}[details["round"]]

    def in_order(self, found):
        plan, details, theme = self.plan, self.details, self.theme
        by, ties = details[f"{plan['goal']}.order"], details["ties"]
        sign, by = (1, by[1:]) if by[0] == "<" else (-1, by)
        if plan["people"]:
            mine = defaultdict(list)
            for row in found:
                mine[row[theme.who]].append(1 if by == "#" else self.number(by[1:], row))
            items = [(name, max(values) if by[0] == ">" else sum(values), len(values)) for name, values in mine.items()]
            items.sort(key=lambda item: [ord(letter) * (-1 if ties == "z-a" else 1) for letter in item[0]])
            items.sort(key=lambda item: (sign * item[1], -item[2] if ties == "more" else 0))
        else:
            places = range(len(found))
            if ties in ("earlier", "later"):
                second = {place: place if ties == "earlier" else -place for place in places}
            elif ties == "a-z":
                second = {place: found[place][theme.key] for place in places}
            else:
                second = {place: found[place][ties[1:]] * (1 if ties[0] == "<" else -1) for place in places}
            value = {place: self.number(by.lstrip("="), found[place]) for place in places}
            order = sorted(places, key=lambda place: (sign * value[place], second[place]))
            items = [(found[place][theme.key], value[place]) for place in order]
        form = details.get("format", "{n}")
        shown = []
        for name, value, *_ in items[:details.get("count", len(items))]:
            text = form.replace("{n}", name).replace("{v}", str(value))
            shown.append([name, value] if form == "pairs" else text)
        return details["between"].join(shown) if plan["shape"] == "line" else shown

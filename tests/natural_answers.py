"""Right answers as different models write them: {what is special about it: (reference, calls, answer)}. All score 1.0.

RIGHT is written against the reference's meaning, not copied from it; WRONG answers, below, must not pass."""

TOTAL = """def total(orders, limit):
    paid = [o["amount"] for o in orders if o["amount"] >= limit]
    return sum(paid) if paid else "nothing"
"""
TOTAL_CALLS = ["total([{'amount': 3}, {'amount': 9}], 5)", "total([], 1)", "total([{'amount': 5}, {'amount': 6}], 5)"]
BODY = """def total(orders, limit):
    kept = [order["amount"] for order in orders if order["amount"] >= limit]
    if not kept:
        return "nothing"
    return sum(kept)
"""
CRC = """def checksum(text):
    value = 0
    for letter in text:
        value = (value * 31 + ord(letter)) % 257
    return value
"""
CRC_CALLS = ["checksum('abc')", "checksum('')", "checksum('Zz9')"]
CRC_TABLE = """TABLE = {}
for code in range(256):
    TABLE[chr(code)] = code % 257
"""
CRC_BODY = """def checksum(text):
    value = 0
    for letter in text:
        value = (value * 31 + TABLE[letter]) % 257
    return value
"""
PAGE = '''def banner(name):
    return """Dear NAME,
   
    welcome.
\t
""".replace("NAME", name)
'''    # lines of white space inside a text
PAGE_CALLS = ["banner('Ann')", "banner('')"]
DATES = """from datetime import date
def weekday(day):
    return day.isoweekday()
"""
DATES_CALLS = ["weekday(date(2020, 1, 2))", "weekday(date(2021, 5, 31))"]


def fenced(code, language="python", fence="```"):
    return f"{fence}{language}\n{code}{fence}\n"


def indented(text, by):
    return "".join(by + line if line.strip() else line for line in text.splitlines(keepends=True))


total = {
    "bare": BODY,
    "a sentence before and after": f"Sure! Here is the function:\n\n{fenced(BODY)}\nLet me know if it helps.",
    "prose without fences": f"Here is what I came up with.\n\n{BODY}\nThe limit itself counts.",
    "the mark in bold, prose, fence": f"**I WANT TO ANSWER:** Below is the code.\n{fenced(BODY)}",
    "no language": fenced(BODY, ""),
    "py": fenced(BODY, "py"),
    "Python 3 in capitals": fenced(BODY, "Python3"),
    "a title on the fence": fenced(BODY, 'python title="total.py"'),
    "tildes": fenced(BODY, "python", "~~~"),
    "four backticks": fenced(BODY, "python", "````"),
    "indented in a list": "1. The code:\n" + indented(fenced(BODY), "   ") + "2. That is all.",
    "quoted": "> Here:\n" + indented(fenced(BODY), "> "),
    "cut off before the last fence": f"```python\n{BODY}",
    "an example of use in a second block": fenced(BODY) + "\nUsage:\n" + fenced("print(total(load_orders(), 3))\n"),
    "an example that asks a file": fenced(BODY) + fenced("import json\nrows = json.load(open('a.json'))\nprint(total(rows, 3))\n"),
    "its output as JSON": fenced(BODY) + "\nReturns\n" + fenced('{"ok": true, "total": null}\n', "json"),
    "a command": "First\n" + fenced("pip install pandas\n", "bash") + "then\n" + fenced(BODY),
    "a lone word as command": fenced("python\n", "sh") + fenced(BODY),
    "doctests": BODY.replace("    kept", '    """Add up.\n\n    >>> total([], 1)\n    \'nothing\'\n    """\n    kept', 1)
    + "\nif __name__ == '__main__':\n    import doctest\n    doctest.testmod()\n",
    "an unguarded doctest": BODY + "\nimport doctest\ndoctest.testmod()\n",
    "fences in its docstring": fenced(BODY.replace("    kept", '    """Add up.\n\n    ```\n    total([], 1)\n    ```\n    """\n    kept', 1)),
    "a guarded main": BODY + "\nif __name__ == '__main__':\n    print(total([{'amount': 3}], 9))\n",
    "an unguarded main that reads": BODY + "\ndef main():\n    n = int(input())\n    print(total([{'amount': n}], 3))\n\nmain()\n",
    "reads at the top": BODY + "\nn = int(input('amount: '))\nprint(total([{'amount': n}], 3))\n",
    "a wrong assertion": BODY + "\nassert total([{'amount': 3}], 3) == 4\n",
    "a wrong assertion on a helper": "def big(a, limit):\n    return a >= limit\n\nassert big(3, 3) is False\n\n"
    + BODY.replace('order["amount"] >= limit', 'big(order["amount"], limit)'),
    "a loop of assertions": BODY + "\nfor rows, limit, want in [([], 1, 0)]:\n    got = total(rows, limit)\n"
    "    assert got == want, (got, want)\n",
    "tests that catch": BODY + "\ntry:\n    total(None, 1)\nexcept ValueError as error:\n    print('caught', error)\n",
    "a test function, called": BODY + "\ndef test_total():\n    assert total([], 1) == 0\n\ntest_total()\nprint('done')\n",
    "tests for pytest": fenced(BODY) + "Tests:\n" + fenced(
        "import pytest\nfrom solution import total\n\n@pytest.mark.parametrize('orders', [[]])\ndef test_total(orders):\n"
        "    with pytest.raises(TypeError):\n        total(orders)\n").replace("from solution import total\n", ""),
    "tests for hypothesis": BODY + "\nfrom hypothesis import given, strategies as st\n\n@given(st.lists(st.integers()))\n"
    "def test_any(xs):\n    assert total(xs, 0)\n",
    "an example that reads a file": BODY + "\nimport json\norders = json.load(open('orders.json'))\nprint(total(orders, 3))\n",
    "a file under with": BODY + "\nwith open('orders.txt') as file:\n    for line in file:\n        print(total([], 1))\n",
    "results, then a wrong assertion": BODY + "\nresults = [total([], 1)]\nassert results[0] == 0, results\n",
    "a check that raises": BODY + "\nif total([], 1) != 0:\n    raise AssertionError('bad')\n",
    "a cache": "from functools import lru_cache\n\n@lru_cache(maxsize=None)\ndef big(a, limit):\n    return a >= limit\n\n"
    + BODY.replace('order["amount"] >= limit', 'big(order["amount"], limit)'),
    "a constant and a typed alias": "from typing import TypeAlias\nEMPTY: str = 'nothing'\nOrders: TypeAlias = 'list[dict]'\n"
    + BODY.replace('"nothing"', "EMPTY"),
    "an import that may fail": "try:\n    import pandas as pd\nexcept ImportError:\n    pd = None\n\n" + BODY,
    "HTML around a fence": "<details>\n\n" + fenced(BODY) + "</details>\n",
    "thoughts, then a fence after a colon": "The limit counts (>=).\nSo: " + fenced(BODY),
    "an example with a loader of its own": fenced(BODY) + "Load them:\n" + fenced("orders = load_orders()\nprint(len(orders))\n"),
    "a timer around a call": BODY + "\nimport time\nstart = time.time()\ntotal([], 1)\nprint(time.time() - start)\n",
    "a loop that counts passes": BODY + "\npassed = 0\nfor rows, want in [([], 'nothing'), (None, 0)]:\n    try:\n"
    "        if total(rows, 1) == want:\n            passed += 1\n    except TypeError:\n        pass\nprint(passed, 'passed')\n",
    "pytest": BODY + "\ndef run_tests():\n    for a in ([], ):\n        assert total(a, 1) == 0\n\nrun_tests()\n",
    "unittest, run": BODY + "\nimport unittest\n\nclass TestTotal(unittest.TestCase):\n    def test_empty(self):\n"
    "        self.assertEqual(total([], 1), 0)\n\nunittest.main()\n",
    "sys.exit(main())": "import sys\n" + BODY + "\ndef main():\n    return 0\n\nsys.exit(main())\n",
    "a stub first": "The signature:\n" + fenced("def total(orders, limit):\n    ...\n") + "In full:\n" + fenced(BODY),
    "a stub last": fenced(BODY) + "Fill in yours:\n" + fenced('def total(orders, limit):\n    """Yours."""\n    pass\n'),
    "a first version, then a better one": fenced("def total(orders, limit):\n    return 0\n") + "Better:\n" + fenced(BODY),
    "an inner function": "def total(orders, limit):\n    def kept():\n        for order in orders:\n"
    "            if order['amount'] >= limit:\n                yield order['amount']\n    values = list(kept())\n"
    "    return sum(values) if values else 'nothing'\n",
    "a class behind it": "from dataclasses import dataclass, field\n\n@dataclass\nclass Sum:\n    limit: int\n    seen: list = field(default_factory=list)\n"
    "    def add(self, order):\n        if order['amount'] >= self.limit:\n            self.seen.append(order['amount'])\n\n"
    "def total(orders, limit):\n    one = Sum(limit)\n    for order in orders:\n        one.add(order)\n"
    "    return sum(one.seen) if one.seen else 'nothing'\n",
    "a lambda": "total = lambda orders, limit: (lambda k: sum(k) if k else 'nothing')"
    "([o['amount'] for o in orders if o['amount'] >= limit])\n",
    "partial": "from functools import partial\n\ndef both(empty, orders, limit):\n    kept = [o['amount'] for o in orders if o['amount'] >= limit]\n"
    "    return sum(kept) if kept else empty\n\ntotal = partial(both, 'nothing')\n",
    "helpers in another block": fenced("def keep(orders, limit):\n    return [o['amount'] for o in orders if o['amount'] >= limit]\n")
    + "and\n" + fenced("def total(orders, limit):\n    return sum(keep(orders, limit)) or 'nothing'\n"),
    "imports in a block of their own": fenced("import operator\nfrom functools import reduce\n") + "then\n" + fenced(
        "def total(orders, limit):\n    kept = [o['amount'] for o in orders if o['amount'] >= limit]\n"
        "    return reduce(operator.add, kept) if kept else 'nothing'\n"),
    "from __future__ in the second block": fenced("def keep(amount: int, limit: int) -> bool:\n    return amount >= limit\n")
    + fenced("from __future__ import annotations\n\ndef total(orders: list[Order], limit) -> int | str:\n"
             "    kept = [o['amount'] for o in orders if keep(o['amount'], limit)]\n    return sum(kept) if kept else 'nothing'\n"),
    "a non-breaking space": BODY.replace("    kept", "\xa0\xa0\xa0\xa0kept", 1),
    "a non-breaking space in a fence": fenced(BODY.replace("sum(kept)", "\xa0sum(kept)")),
    "a byte order mark": "\ufeff" + BODY,
    "a byte order mark before the answer's mark": "\ufeffI WANT TO ANSWER:\n" + BODY,
    "zero-width spaces": BODY.replace("total", "to\u200btal").replace("limit:", "limit\u200b:"),
    "typographic quotes": BODY.replace('"amount"', "\u201camount\u201d"),
    "line ends of Windows": fenced(BODY).replace("\n", "\r\n"),
    "tabs": BODY.replace("    ", "\t"),
    "types and a docstring with prose": 'from typing import Dict, List, Union\n\n' + BODY.replace(
        "(orders, limit)", "(orders: List[Dict[str, int]], limit: int) -> Union[int, str]"),
    "headings": f"### Solution\n\n{fenced(BODY)}\n### Explanation\n\n- `kept` holds the amounts\n- for each order: it compares\n",
    "prose that looks like code": f"import nothing from elsewhere, it is plain Python.\n\n{BODY}\nif you like, rename it.\n",
    "a comparison as a test": BODY + "\ntotal([{'amount': 3}], 3) == 3\n",
    "async beside it": "async def fetch():\n    return []\n\n" + BODY,
    "nonsense after a fence": fenced(BODY) + "```\nnot python at all:\n```\n",
}
RIGHT = {name: (TOTAL, TOTAL_CALLS, answer) for name, answer in total.items()} | {
    "a table built by a loop": (CRC, CRC_CALLS, CRC_TABLE + "\n" + CRC_BODY),
    "a table in a block of its own": (CRC, CRC_CALLS, "The table:\n" + fenced(CRC_TABLE) + "The function:\n" + fenced(CRC_BODY)),
    "a table without fences, amid prose": (CRC, CRC_CALLS, f"First a table.\n\n{CRC_TABLE}\nThen the function.\n\n{CRC_BODY}\nDone!"),
    "a table that the function itself fills": (CRC, CRC_CALLS, "TABLE = dict((chr(c), c) for c in range(256))\n" + CRC_BODY
                                               + "\nSEEN = {}\nfor word in ('a', 'b'):\n    SEEN[word] = checksum(word)\n"
                                               "plain = checksum\ndef checksum(text):\n"
                                               "    return SEEN[text] if text in SEEN else plain(text)\n"),
    "a table built under try": (CRC, CRC_CALLS, "try:\n    TABLE = {chr(c): c for c in range(256)}\nexcept MemoryError:\n"
                                "    TABLE = {}\n" + CRC_BODY),
    "a table filled by a call": (CRC, CRC_CALLS, "TABLE = {}\ndef fill():\n    for c in range(256):\n        TABLE[chr(c)] = c\n"
                                 "fill()\n" + CRC_BODY + "\nprint(checksum('abc' + 1))\n"),
    "a loop that builds and prints": (CRC, CRC_CALLS, "def code(c):\n    return c\nTABLE = {}\nfor c in range(256):\n"
                                      "    TABLE[chr(c)] = code(c)\n    print(code(c))\n" + CRC_BODY),
    "white space inside a text": (PAGE, PAGE_CALLS, PAGE),
    "white space inside a text, fenced": (PAGE, PAGE_CALLS, "Here:\n" + fenced(PAGE)),
    "the reference imports what a call uses": (DATES, DATES_CALLS, "def weekday(day):\n    return day.weekday() + 1\n"),
    "a loop that asserts and leaves a name behind": (CRC, CRC_CALLS, "for size in (256,):\n    modulus = size + 1\n"
        "    assert modulus > 1\n" + CRC_BODY.replace("257", "modulus").replace("TABLE[letter]", "ord(letter)")),
    "a pasted space in the code and one that a text needs": (
        "def f(x):\n    return 'a\xa0b'\n", ["f(1)"], "def f(x):\n\xa0\xa0return 'a\xa0b'    # isn\u2019t it\n"),
    "keys of a dict": ("def names(d):\n    return d.keys()\n", ["names({'a': 1})"], "def names(d):\n    return {**d}.keys()\n"),
    "numpy inside a function": ("def mean(x):\n    import numpy as np\n    return float(np.mean(x))\n", ["mean([1, 2])"],
                                "def mean(x):\n    return sum(x) / len(x)\n"),
}
WRONG = {
    "another limit": (TOTAL, TOTAL_CALLS, BODY.replace(">=", ">")),
    "a program that fails when it is loaded": (TOTAL, TOTAL_CALLS, "TABLE = 1 / 0\n" + BODY),
    "an import that is missing": (DATES, DATES_CALLS, "def weekday(day):\n    return date.isoweekday(day)\n"),
    "a stub where the reference gives nothing": ("def order(x):\n    x.sort()\n", ["order([2, 1])"], "def order(x):\n    pass\n"),
    "a stub where the reference prints": ("def show(x):\n    print(x)\n", ["show(1)", "show(2)"], "def show(x):\n    ...\n"),
    "other keys": ("def names(d):\n    return d.keys()\n", ["names({'a': 1})"], "def names(d):\n    return {'b': 1}.keys()\n"),
    "a text with other white space": (PAGE, PAGE_CALLS, PAGE.replace("   \n", "\n")),
    "another space in a text": ("def f(x):\n    return 'a\xa0b'\n", ["f(1)"], "def f(x):\n    return 'a b'\n"),
    "prose alone": (TOTAL, TOTAL_CALLS, "I would add up the amounts from the limit on."),
    "a stub alone": (TOTAL, TOTAL_CALLS, "def total(orders, limit):\n    ...\n"),
}

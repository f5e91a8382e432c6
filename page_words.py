"""Say in words how an agent's page differs from the reference, and answer questions about the reference.

What is seen. A layout (Renderer.layout) lists elements. Each gives an area, a text, or both. An area is seen if its
colour differs from what is behind it, or if it is a picture, a field or has a border. A text is seen if its letters
differ from what is behind them. So <section> around one part and not around another makes no difference.

Twins. Texts are matched first: equal words, then similar words, then the same kind of text in the same place. Areas are
matched by the texts and pictures in them and by their places, whatever their tags. All differences are taken between
twins, and are named after what the agent's page shows.

Order. A person sees missing parts first, then the colours of large areas, the order of the parts, their sizes, their
texts, and last where exactly they are. Within each class the larger area comes first.

    compare_pages(agent, reference)            # [Difference], what a person sees first comes first
    page_reply(dialogue, page, agent, reference)    # the scripted human's next message
"""
import difflib
import functools
import itertools
import math
import re
from collections import Counter, defaultdict
from typing import NamedTuple

WIDTH = 1280    # of the viewport, in pixels
NO_DIFFERENCE = "I see no difference."
NO_PAGE = "I see no page. Please show me one."
NO_ANSWER = "I cannot say. Please show me a page."
LONGEST_REPLY = 1000    # characters
TOLD = 2    # differences in a reply

# ---- The scripted human's reply


def page_reply(dialogue, page, agent, reference):
    """The scripted human's reply to the last message of a dialogue.

    page: the page in that message, as text, or None; agent: its layout (None: it could not be shown); reference: the
    layout in mind. A question is answered. Of the differences, the reply has the first two that the human has not
    named yet.
    """
    text = dialogue[-1]["content"]
    answers = answer_questions(text.replace(page, " ") if page else text, reference)
    if page is None:
        return shorten(answers) or (NO_ANSWER if "?" in text else NO_PAGE)
    said = {line for message in dialogue if message["role"] == "user" for line in message["content"].split("\n")}
    sentences = [difference.sentence() for difference in compare_pages(agent, reference)]
    return shorten(answers + next_sentences(sentences, said))


def next_sentences(sentences, said):
    """The first TOLD sentences that are not in `said`; if all are, the first of all."""
    unsaid = [sentence for sentence in sentences if sentence not in said]
    return (unsaid or sentences)[:TOLD] or [NO_DIFFERENCE]


def shorten(sentences):
    """As many sentences as a reply may hold, one a line."""
    while sentences and len("\n".join(sentences)) > LONGEST_REPLY:
        sentences = sentences[:-1]
    return "\n".join(sentences)


class Difference(NamedTuple):
    """One way in which the agent's page differs from the reference."""

    subject: str    # `button "Buy"`, `header`, `page's background`, as the agent's page has it; "" for the whole page
    aspect: str     # "page", or a key of CLAUSES
    want: str = ""    # in the reference
    have: str = ""    # in the agent's page
    about: tuple = ()    # what the parts in question are called in the reference

    def sentence(self):
        if self.aspect == "page":
            return self.want
        clause = CLAUSES[self.aspect]
        if self.aspect == "colour" and not self.have:
            clause = "should be {want}"
        it = "them" if len(self.about) > 1 else "it"
        return f"The {self.subject} {clause.format(want=self.want, have=self.have, it=it)}.".replace('.".', '."')


CLAUSES = {    # aspect -> what is said about it
    "missing": "{have} missing, {want}",
    "extra": "should not be there",
    "colour": "should be {want}, not {have}",
    "border": "should {want} a border",
    "order": "should {want}",
    "layout": "should stand {want}",
    "shape": "should be {want}",
    "size": "should have {want}",
    "words": "should say {want}",
    "letters": "should be in {want} letters, not {have}",
    "bold": "should {want} in bold letters",
    "lines": "should run over {want} lines",
    "place": "should be {want}, not {have}",
    "shift": "should be {want}",
    "space": "should have {want} space above {it}",
}


def choices_right(choices, agent, reference):
    """{name: whether the agent's page agrees with the reference} for the hidden choices of a page.

    choices: {name: (aspects, a pattern of names)}: the differences that a wrong choice causes.
    """
    differences = compare_pages(agent, reference)
    return {name: not any(is_about(difference, choice) for difference in differences)
            for name, choice in choices.items()}


def is_about(difference, choice):
    """Whether a difference shows that a choice (aspects, a pattern of names in the reference) is wrong."""
    if difference.aspect == "page":    # there is nothing to look at
        return True
    aspects, pattern = choice
    return difference.aspect in (*aspects, "missing") and any(re.fullmatch(pattern, name) for name in difference.about)


# ---- Comparing two pages

MISSING, COLOURS, ORDER, SIZES, TEXTS, PLACES = range(6)    # classes of differences, what is seen first comes first
LARGE = 0.022    # share of the page from which a colour is one of a large area; these are named from top to bottom
SMALL = 0.0004    # a part of this share of the page that is missing comes last: a line, a dot
SHADE = 0.04    # colour_distance from which two shades of the same name differ


def compare_pages(agent, reference):
    """Two layouts (Renderer.layout) -> how the agent's page differs from the reference: Differences, in order.

    The same two layouts always give the same list, and equal layouts give an empty one.
    """
    if agent is None:
        return [Difference("", "page", "Your page could not be shown.")]
    a_page, r_page = Page(agent), Page(reference)
    if not a_page.seen and r_page.seen:
        return [Difference("", "page", "Your page is empty.")]
    find_twins(a_page, r_page)
    both = [r for r in r_page.parts if r.twin and (r.in_both or r.twins_inside())]
    pairs = [(r, r.twin) for r in both if r.in_both]
    moved = set()    # parts in another order or arrangement: their sizes and places follow from it
    arranged = list(arrangement(both, moved))
    still = [(r, r.twin) for r in both if r not in moved]
    stable = [(r, a) for r, a in still if r.in_both and not moved & set(r.ancestors)]
    found = itertools.chain(
        missing_and_extra(a_page, r_page),
        colours(a_page, r_page),
        arranged,
        letter_sizes(pairs),
        box_sizes(stable),
        texts(pairs),
        places(still),
    )
    ranked = []
    for n, (tier, weight, order, difference) in enumerate(found):
        ranked.append((tier, -round(weight, 4), order, n, difference))
    differences = [row[-1] for row in sorted(ranked)] or list(elsewhere(pairs))[:1]
    return list({difference.sentence(): difference for difference in differences}.values())    # no sentence twice


# Each of the next six functions yields (class, weight, order in the page, Difference). r is a part of the reference
# page and a its twin in the agent's page. Names in a sentence are the agent's, because it sees no others.


def missing_and_extra(agent, reference):
    """Parts that only one page has, each with what is in it. Neighbours that are missing share a sentence."""
    for page in (reference, agent):
        groups = defaultdict(list)
        for part in page.seen:
            inside_another = part.parent and part.parent.gone
            if part.gone and not inside_another:
                groups[part.parent, part.role].append(part)
        for parts in groups.values():
            first = parts[0]
            weight = sum(part.share for part in parts)
            tier = MISSING if weight > SMALL else PLACES
            if page is agent:
                difference = Difference(listed(parts), "extra", about=labels(parts))
                yield tier, 0.5 * weight, 10_000 + first.order, difference
                continue
            where, verb = position_of(first, reference), "are"
            if len(parts) == 1:
                where, verb = where + describe(first), "is"
            yield tier, weight, first.order, Difference(listed(parts), "missing", where, verb, labels(parts))


def position_of(part, page):
    """Where a missing part belongs, in terms of what the agent's page has."""
    before = None
    for other in page.seen[:page.seen.index(part)]:
        if other.in_both and other not in part.ancestors:
            before = other
    if before:
        return f"after the {before.twin.name}"
    if part.parent and part.parent.twin:
        return f"in the {part.parent.twin.name}"
    return "at the top"


def describe(part):
    """The colour of a missing area and what is in it."""
    if part.role == "text" or part.leaf:
        return ""
    said = f". It is {colour_name(part.fill)}" if part.fill else ""
    inner = part.contents()
    if inner and not part.own_text:
        said += " and has the " if said else ". It has the "
        said += listed(inner)
    return said


def labels(parts):
    return tuple(part.label for part in parts)


def twins(parts):
    return [part.twin for part in parts]


def listed(parts):
    """`text "A" and the button "B"`; of one kind `headings "A", "B", "C" and 3 more`."""
    first, names, joint = parts[0], [part.name for part in parts], ", the "
    if len(parts) == 1:
        return first.name
    if len({part.kind for part in parts}) == 1:
        if first.role == "text" and 2 < len(parts) == first.alike:
            return f"{first.kind}s"    # all that the page has
        joint = ", "
        if first.words:
            names = [quote(part.words or part.name) for part in parts]
            names[0] = f"{first.kind}s {names[0]}"
        else:
            names = [name.removesuffix(f" {first.kind}") for name in names]
            names[-1] += f" {first.kind}"
    if len(names) > 4:
        return f"{joint.join(names[:3])} and {len(names) - 3} more"
    *names, last = names
    return f"{joint.join(names)} and {joint[2:]}{last}"


def colours(agent, reference):
    """Colours of the background and of areas, gradients and borders. What has no area of its own has what is behind."""
    about = ("page's background",)
    for difference in area_changes(about[0], agent, reference, agent.background, reference.background):
        yield COLOURS, 0, -1, difference._replace(about=about)
    shared = defaultdict(list)    # (container, kind, tier, change) -> areas
    for r in reference.parts:
        a = r.twin
        coloured = r.role == "area" and r.kind not in ("picture", "line")
        if coloured and a and (r.seen or a.seen):
            for difference in area_changes("", a, r, a.fill or a.behind, r.fill or r.behind):
                shared[r.parent, r.kind, r.colour_tier, difference].append(r)
    for (_, _, tier, difference), parts in shared.items():
        for some in [parts] if len(parts) > 2 else [[part] for part in parts]:
            difference = difference._replace(subject=listed(twins(some)), about=labels(some))
            yield tier, 0, some[0].order, difference
    for page in (reference, agent):    # areas that only one page has, around things that both have
        for part in page.seen:
            inner = part.twins_inside()
            if part.role == "text" or part.twin or not inner:
                continue
            twin, own = inner[0].twin, part.fill or part.behind
            order, about = (twin.order, ()) if page is agent else (part.order, (part.label,))
            changes = area_changes(f"area around the {twin.name}", None, part, twin.behind, own)
            if page is agent:
                changes = area_changes(part.name, part, None, own, twin.behind)
            for difference in changes:
                yield part.colour_tier, 0, order, difference._replace(about=about)


def area_changes(name, agent, reference, have, want):
    """Differences of colour, gradient and border of two areas (None: the page has none there), of these colours."""
    ours, theirs = (gradient_name(page.gradient if page else "") for page in (agent, reference))
    if ours != theirs:
        yield Difference(name, "colour", theirs or colour_name(want), ours or colour_name(have))
    elif not ours:
        yield from colour_change(name, have, want)
    have, want = (bool(page and page.border) for page in (agent, reference))
    if have != want:
        yield Difference(name, "border", "have" if want else "not have")


def gradient_name(css):
    """A background-image of CSS in words; "" for none."""
    found = re.findall(r"rgba?\((\d+), (\d+), (\d+)", css)
    names = [colour_name("#" + bytes(map(int, rgb)).hex()) for rgb in found]
    if len(names) > 1:
        return f"a gradient from {names[0]} to {names[-1]}"
    return "a picture" if css else ""


def colour_change(name, have, want):
    """[the Difference of two colours], or none."""
    if colour_name(have) != colour_name(want):
        yield Difference(name, "colour", colour_name(want), colour_name(have))
    elif colour_distance(have, want) > SHADE:
        yield Difference(name, "colour", f"a {shade(have, want)} {colour_name(want)}")


def shade(have, want):
    return "lighter" if sum(channels(want)) > sum(channels(have)) else "darker"


def arrangement(both, moved):
    """The order of neighbours, and whether they are side by side. Adds what is elsewhere to the set `moved`."""
    groups = defaultdict(list)
    for part in both:
        groups[next((e for e in part.ancestors if e.twin), None)].append(part)
    for neighbours in groups.values():
        turned = defaultdict(list)    # "beside" or "above" -> parts
        for r, other in itertools.pairwise(neighbours):
            have, want = relation(r.twin, other.twin), relation(r, other)
            if have == want or "" in (have, want):
                continue
            moved |= {r, other}
            if {have, want} not in ({"above", "below"}, {"left", "right"}):
                turned["beside" if want in ("left", "right") else "above"] += [r, other]
                moved |= {e for e in neighbours if e.kind == r.kind == other.kind}    # a grid turns as a whole
                continue
            first, second = (r, other) if want in ("above", "left") else (other, r)
            how = "come before" if want in ("above", "below") else "be to the left of"
            want = f"{how} the {second.twin.name}"
            difference = Difference(first.twin.name, "order", want, about=labels([r, other]))
            yield ORDER, min(r.share, other.share), r.order, difference
        for how, parts in turned.items():
            parts = list(dict.fromkeys(parts))
            weight = sum(part.share for part in parts)
            name = listed(twins(parts))
            want = "side by side" if how == "beside" else "one above the other"
            if len(parts) == 2:
                name, want = parts[0].twin.name, f"{how} the {parts[1].twin.name}"
            yield ORDER, weight, parts[0].order, Difference(name, "layout", want, about=labels(parts))


def letter_sizes(pairs):
    """Sizes of letters; texts of one container that share a change share a sentence."""
    shared = defaultdict(list)    # (container, change) -> texts
    for r, a in pairs:
        change = letter_change(r.font_size, a.font_size)
        if r.role == "text" and change:
            shared[r.parent, change].append(r)
    for (container, change), parts in shared.items():
        weight = sum(max(part.share, part.twin.share) for part in parts)
        yield SIZES, weight, parts[0].order, of_texts(container, parts, "size", change)


def letter_change(want, have):
    """What letters should be, from their sizes in pixels: "letters about twice as large"; None if they are as large."""
    change = how_much(want, have, "as large", "larger", "smaller")
    if change in ("larger", "smaller"):
        return f"{change} letters"
    return change and f"letters {change}"


def box_sizes(pairs):
    """Sizes of areas, unless they follow from what is in them."""
    shared = defaultdict(list)    # (container, change, kind, whether it has a text of its own) -> areas
    for r, a in pairs:
        if r.role == "text":
            continue
        changes = []
        follows = r.contents_differ()
        if not (r.own_text and follows):
            changes.append(how_much(r.width, a.width, "as wide", "wider", "narrower", slack=6))
        if not follows:
            changes.append(how_much(r.height, a.height, "as tall", "taller", "less tall", slack=6))
        change = " and ".join(filter(None, changes))
        if change:
            shared[r.parent, change, r.kind, r.own_text].append(r)
    for (_, change, _, own_text), parts in shared.items():
        weight = 0.5 * sum(abs(part.share - part.twin.share) for part in parts)
        name = listed(twins(parts))
        if own_text:
            name = f"box of the {name}"
        yield SIZES, weight, parts[0].order, Difference(name, "shape", change, about=labels(parts))


def texts(pairs):
    """Words, colours of letters, bold letters, and the number of lines."""
    shared = defaultdict(list)    # (container, aspect, want, have) -> texts
    for r, a in pairs:
        if r.plain != a.plain:
            difference = Difference(a.name, "words", quote(r.text, 80), about=(r.label,))
            yield TEXTS, 0, r.order, difference
        if r.role != "text":
            continue
        for change in letter_changes(r, a):
            shared[r.parent, *change].append(r)
    for (container, *change), parts in shared.items():
        yield TEXTS, 0, parts[0].order, of_texts(container, parts, *change)


def letter_changes(r, a):
    """Yield (aspect, want, have) for two texts."""
    want, have = colour_name(r.ink), colour_name(a.ink)
    if want != have:
        yield "letters", want, have
    elif colour_distance(a.ink, r.ink) > 2 * SHADE:
        yield "letters", shade(a.ink, r.ink), f"such {have} ones"
    if r.bold != a.bold:
        yield "bold", "be" if r.bold else "not be", ""
    same_letters = how_much(r.font_size, a.font_size) is None
    if same_letters and r.plain == a.plain and r.lines != a.lines:
        yield "lines", "more" if r.lines > a.lines else "fewer", ""


def of_texts(container, parts, aspect, want, have=""):
    """The Difference of parts of a container that share a change."""
    name = listed(twins(parts))
    if len(parts) > 3:
        around = container and container.twin
        name = f"texts in the {around.name}" if around else "texts of the page"
    return Difference(name, aspect, want, have, labels(parts))


def places(pairs):
    """Where parts are within what is around them: left, centre or right, and the space above them."""
    shared = defaultdict(list)    # (container, aspect, want, have) -> [(weight, part)]
    for r, a in pairs:
        home = next((e for e in r.ancestors if e.twin in a.ancestors), None)    # seen or not
        r_left, r_width, a_left, a_width = 0, WIDTH, 0, WIDTH
        if home:
            r_left, r_width, a_left, a_width = home.left, home.width, home.twin.left, home.twin.width
        if how_much(r_width, a_width, slack=6):
            continue
        aside = r_left - a_left    # how far the reference's container is to the right of the other
        edges = (r.left - a.left, r.right - a.right, r.x - a.x)
        shift = min((edge - aside for edge in edges), key=abs)
        want, have = side((r.x - r_left) / max(1, r_width)), side((a.x - a_left) / max(1, a_width))
        size = abs(shift) / WIDTH
        if want != have and abs(shift) > max(12, 0.04 * r_width):
            shared[r.parent, "place", want, have].append((r.share + size, r))
        elif abs(shift) > 18:
            way = "right" if shift > 0 else "left"
            shared[r.parent, "shift", f"{far(shift)}further to the {way}", ""].append((r.share * size, r))
        above, ours = r.above(), a.above()
        if not r.in_both or ours != (above and above.twin) or above and not ours:
            continue
        if not above and a.parent != (r.parent and r.parent.twin):    # the edges above them are of different areas
            continue
        gap = r.gap(above) - a.gap(ours)
        if abs(gap) > 14:
            want = far(gap, a_lot=100, a_bit=40) + ("more" if gap > 0 else "less")
            shared[r.parent, "space", want, ""].append((abs(gap) / 7200, r))
    for (container, *change), entries in shared.items():
        weights, parts = zip(*entries)
        yield PLACES, sum(weights), parts[0].order, of_texts(container, parts, *change)


def far(shift, a_lot=250, a_bit=60):
    """How far so many pixels are, in words."""
    if abs(shift) > a_lot:
        return "much "
    return "a little " if abs(shift) < a_bit else ""


def elsewhere(pairs):
    """Yield Differences of parts that are somewhere else on the page, for pages that differ in nothing else."""
    for r, a in pairs:
        down = max(r.top - a.top, r.bottom - a.bottom, key=abs)
        right = min(r.left - a.left, r.right - a.right, key=abs)
        shift, way = down, "down" if down > 0 else "up"
        if abs(right) > abs(down):
            shift, way = right, "to the right" if right > 0 else "to the left"
        if abs(shift) > 14:
            yield Difference(a.name, "shift", f"{far(shift)}further {way}", about=(r.label,))


def side(across):
    """Where something is whose centre is at this share of the width of what is around it."""
    if abs(across - 0.5) < 0.06:
        return "in the centre"
    return "on the left" if across < 0.5 else "on the right"


def how_much(want, have, as_it="", more="", less="", slack=0):
    """A change of size in words ("about twice as wide", "a little narrower"), or None if it is too small to see."""
    ratio = (max(want, have) + slack) / max(1, min(want, have) + slack)
    if ratio < 1.08 or abs(want - have) < 2:
        return None
    if ratio < 1.3:
        return f"a little {more if want > have else less}"
    if ratio < 1.7:
        return more if want > have else less
    if ratio < 2.5:
        return f"about {'twice' if want > have else 'half'} {as_it}"
    if ratio < 3.5:
        return f"about {'three times' if want > have else 'a third'} {as_it}"
    return f"much {more if want > have else less}"


def relation(first, second):
    """Where the first of two parts is, seen from the second: "above", "below", "left", "right"; "" if they overlap."""
    slack = 0.35 * min(first.height, second.height)    # boxes of letters may overlap a little
    if first.bottom <= second.top + slack:
        return "above"
    if second.bottom <= first.top + slack:
        return "below"
    if first.right <= second.left + 2:
        return "left"
    return "right" if second.right <= first.left + 2 else ""


# ---- What is seen of a page

KINDS = {"header": "header", "nav": "navigation bar", "footer": "footer", "aside": "sidebar", "form": "form",
         "section": "section", "article": "section", "main": "main part", "h1": "main heading", "h2": "heading",
         "h3": "heading", "h4": "heading", "h5": "heading", "h6": "heading", "a": "link", "button": "button",
         "img": "picture", "svg": "picture", "video": "picture", "canvas": "picture", "iframe": "picture",
         "input": "field", "textarea": "field", "select": "field", "li": "list item", "hr": "line", "label": "label"}
AREAS = KINDS.keys() - {"h1", "h2", "h3", "h4", "h5", "h6", "a", "li", "label"}    # they have a box, seen or not
LANDMARKS = ("header", "nav", "footer", "main", "aside", "form")
ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth".split()


class Part:
    """An area or a text of a page."""

    def __init__(self, measured, role, parent, order):
        text = measured["text"]
        self.tag, self.role, self.parent, self.order = measured["tag"], role, parent, order
        self.ancestors = (parent, *parent.ancestors) if parent else ()    # the areas that it is in, seen or not
        self.kind = KINDS.get(self.tag, "text" if role == "text" else "block")
        self.leaf = self.kind in ("picture", "field", "line")    # an area that is seen for what it is
        self.text = text if role == "text" or self.kind == "field" else ""
        self.plain = " ".join(re.findall(r"[\w$%\u20ac\u00a3.]+", self.text.lower())) or self.text
        self.own_text = bool(text) and role == "area" and not self.leaf
        box = measured["text_box"] if role == "text" else None
        self.left, self.top, self.width, self.height = box or measured["box"]
        self.right, self.bottom = self.left + self.width, self.top + self.height
        self.x, self.y = self.left + self.width / 2, self.top + self.height / 2    # its centre
        self.outer = measured["box"][2:]    # the size of its element, which may hide a text by being too small
        self.fill = measured["background"] if role == "area" else None
        self.gradient, self.border = measured["gradient"], measured.get("border", False)
        self.ink, self.bold = measured["colour"] or "#000000", measured["bold"]
        self.font_size = measured["font_size"]
        self.lines = max(1, round(self.height / max(1, 1.35 * self.font_size)))
        # What Page finds out. words, label, name: `Buy`, `button "Buy"`, `second button "Buy"`; alike: how many seen
        # parts of its role and kind the page has; rank: its number among those of its kind.
        self.twin, self.inside, self.neighbours, self.seen = None, set(), [], True
        self.words = self.label = self.name = ""
        self.alike = self.rank = 0

    @property
    def in_both(self):
        """Whether it is seen, in this page and in the other."""
        return bool(self.seen and self.twin and self.twin.seen)

    @property
    def gone(self):
        """Whether the other page has neither it nor anything in it."""
        return not self.twin and not self.twins_inside()

    @property
    def colour_tier(self):
        """When a wrong colour of it is named."""
        return COLOURS if self.share > LARGE else TEXTS

    def contents(self):
        """The texts, pictures and fields that are seen in it, in order."""
        inner = [e for e in self.inside if e.seen and (e.role == "text" or e.leaf)]
        return sorted(inner, key=lambda e: e.order)

    def twins_inside(self):
        """What is in it and in the other page too, in order."""
        return sorted((e for e in self.inside if e.in_both), key=lambda e: e.order)

    def contents_differ(self):
        """Whether anything in it is only in one page, or has other letters, sizes or places."""
        inner = sorted((e for e in self.inside if e.seen), key=lambda e: e.order)
        if set(twins(inner)) != {e for e in self.twin.inside if e.seen}:
            return True
        for e in inner:
            other = e.twin
            if e.role == "text" and (e.lines, e.font_size) != (other.lines, other.font_size):
                return True
            if e.role == "area" and abs(e.height - other.height) > 6:
                return True
            if self.own_text and e.plain != other.plain:
                return True
        return any(relation(e, other) != relation(e.twin, other.twin) for e, other in itertools.pairwise(inner))

    def above(self):
        """The neighbour right above it, or None if it is the first."""
        higher = [e for e in self.neighbours if e is not self and e.bottom <= self.top + 2]
        higher = [e for e in higher if e.left < self.right and self.left < e.right]
        return max(higher, key=lambda e: e.bottom, default=None)

    def gap(self, above):
        """Pixels between it and what is above it, or the upper edge of what is around it."""
        if above:
            return self.top - above.bottom
        return self.top - self.parent.top if self.parent else self.top


class Page:
    """The parts of a layout. `parts` has the unseen areas too, which may be twins of seen ones; `seen` has not."""

    def __init__(self, layout):
        self.background = layout["background"]
        self.gradient, self.border = layout.get("gradient", ""), False
        self.height = max(1, layout["height"])
        self.parts, areas = [], {}
        for n, measured in enumerate(layout["elements"]):
            around = area = areas.get(measured["parent"])
            painted = measured["background"] or measured["gradient"] or measured.get("border")
            if painted or measured["tag"] in AREAS:
                area = Part(measured, "area", around, len(self.parts))
                self.parts.append(area)
            areas[n] = area
            of_a_leaf = area is not around and area.leaf    # a field's text is part of it
            if measured["text"] and not of_a_leaf:
                self.parts.append(Part(measured, "text", area, len(self.parts)))
        self.look()
        self.seen = [part for part in self.parts if part.seen]
        groups = defaultdict(list)
        for part in self.parts:
            for around in part.ancestors:
                around.inside.add(part)
            part.parent = next((e for e in part.ancestors if e.seen), None)
            if part.seen:
                groups[part.parent].append(part)
                part.neighbours = groups[part.parent]
        self.give_names()

    def look(self):
        """Find out what is behind each part, and which parts are seen."""
        for part in self.parts:
            part.share = min(1.0, part.width * part.height / (WIDTH * self.height))
            painted = next((e for e in part.ancestors if e.fill or e.gradient), None)
            part.behind = painted and painted.fill or self.background
            if part.role == "text":
                readable = colour_distance(part.ink, part.behind) > 0.03 or painted and painted.gradient
                part.seen = bool(readable) and min(part.outer) > 1
            else:
                paints = part.fill and colour_distance(part.fill, part.behind) > 0.01
                part.seen = bool(paints or part.gradient or part.border or part.leaf)
            if part.left >= WIDTH or part.right <= 0 or part.bottom <= 0:
                part.seen = False
            if not part.fill:
                continue
            if part.share > 0.97 and not painted and not part.gradient:
                self.background, part.seen = part.fill, False    # a wrapper is the page's background
            cover = part.parent
            if cover and 0.97 * cover.share < part.share and not cover.border:
                cover.seen = False    # nothing is left of it to see

    def give_names(self):
        """Name the parts: `button "Buy"`, `header`, `section "Prices"` (the first words in it), `second picture`."""
        first_words = {}
        for part in self.parts:
            if part.role == "text" and part.seen:
                for around in part.ancestors:
                    first_words.setdefault(around, part.text)
        single = Counter(part.kind for part in self.parts if part.role == "area")
        for part in self.parts:
            kind, words = part.kind, part.text
            if part.role == "text" and [e.kind for e in part.ancestors[:1]] == ["button"]:
                kind = part.kind = "button"
            if part.role == "area" and not part.leaf:
                own = part.own_text or part.tag not in LANDMARKS or single[part.kind] > 1
                words = first_words.get(part, "") if own else ""
            part.words = words
            part.label = f"{kind} {quote(words)}" if words else kind
        same = defaultdict(list)
        for part in self.seen:
            same[part.role, part.label].append(part)
        for (_, label), parts in same.items():
            for n, part in enumerate(parts):
                ordinal = ORDINALS[n] if n < len(ORDINALS) else f"{n + 1}th"
                part.name = f"{ordinal} {label}" if len(parts) > 1 else label
        alike = Counter((part.role, part.kind) for part in self.seen)
        for part in self.parts:
            part.name = part.name or part.label
            part.alike = alike[part.role, part.kind]


# ---- Twins


def find_twins(agent, reference):
    """Set the twin of each part that has one in the other page: texts first, then areas."""
    matcher = difflib.SequenceMatcher(autojunk=False)

    def apart(r, a):
        """How far apart two parts are, in shares of the page."""
        across, down = r.x - a.x, r.y / reference.height - a.y / agent.height
        return abs(across) / WIDTH + abs(down)

    def equal_words(r, a):
        if a.plain == r.plain:
            return (a.kind != r.kind) + apart(r, a)

    def similar_words(r, a):
        matcher.set_seqs(a.plain[:100], r.plain[:100])    # only their beginnings: ratio() takes quadratic time
        if matcher.real_quick_ratio() > 0.6 and matcher.quick_ratio() > 0.6 and matcher.ratio() > 0.6:
            return apart(r, a) - 2 * matcher.ratio()

    def same_kind(r, a):
        if r.kind == a.kind and apart(r, a) < (0.15 if r.kind == "text" else 0.35):
            return apart(r, a)

    def last_of_its_kind(r, a):
        if r.kind == a.kind != "text" and left[r.kind, True] == left[r.kind, False] == 1:
            return 0

    def same_leaf(r, a):
        if a.leaf and a.kind == r.kind:
            as_many = total[r.kind, True] == total[r.kind, False]
            rank = abs(r.rank - a.rank) if as_many else 0
            return 2 * (r.plain != a.plain) + rank + 0.1 * apart(r, a)

    def same_place(r, a):
        if r.leaf or a.leaf:
            return None
        inner, other = set(twins(r.contents())), set(a.contents())
        common = len(inner & other)
        alike = common / max(1, len(inner | other))
        share = overlap(r, a, reference, agent)
        landmark = r.kind == a.kind and r.tag in LANDMARKS
        empty = not inner and not other and (share > 0.3 or apart(r, a) < 0.2)
        if common or landmark or empty or share > 0.6:
            same = (r.kind == a.kind) + 0.5 * (r.seen == a.seen) + 0.5 * landmark
            return apart(r, a) - 2 * alike - share - same

    def same_home(r, a):
        homes = twins(r.ancestors[:1]) == list(a.ancestors[:1])    # seen or not
        if r.kind == a.kind and (homes or a.parent == (r.parent and r.parent.twin)):
            return apart(r, a)

    def numbers(parts):
        """{(kind, whether in the agent's page): how many of these parts}; each part learns its rank."""
        found = Counter()
        for part in parts:
            part.rank = found[part.kind, part in ours]
            found[part.kind, part in ours] += 1
        return found

    ours = set(agent.parts)
    words = [[part for part in page.seen if part.role == "text"] for page in (reference, agent)]
    areas = [[part for part in page.parts if part.role == "area"] for page in (reference, agent)]
    for score in (equal_words, similar_words, same_kind):
        pair(*words, score)
    left = numbers(part for part in [*words[0], *words[1]] if not part.twin)
    pair(*words, last_of_its_kind)
    total = numbers([*areas[0], *areas[1]])
    pair(*areas, same_leaf)
    pair(*areas, same_place)
    pair(*words, same_home)


def overlap(r, a, reference, agent):
    """The area that two parts share over the area that they cover, on pages of equal height."""
    across = min(r.right, a.right) - max(r.left, a.left)
    lower = min(r.bottom / reference.height, a.bottom / agent.height)
    down = lower - max(r.top / reference.height, a.top / agent.height)
    if min(across, down) <= 0:
        return 0.0
    common = across / WIDTH * down
    return common / max(1e-9, r.share + a.share - common)


def pair(reference_parts, agent_parts, score):
    """Pair up parts without a twin, lowest score(r, a) first, ties in page order. A score of None means no pair."""
    free = [[part for part in page if not part.twin][:400] for page in (reference_parts, agent_parts)]
    scored = []
    for r, a in itertools.product(*free):
        value = score(r, a)
        if value is not None:
            scored.append((value, r.order, a.order, r, a))
    for *_, r, a in sorted(scored, key=lambda row: row[:3]):
        if not r.twin and not a.twin:
            r.twin, a.twin = a, r


# ---- A page as numbers


def features(layout, window=None):
    """Yield (part, name, value) of what is seen of a layout, for render.layout_embedding.

    window: (left, top, right, bottom) of what counts; all by default. Values that go round a half circle make near
    places and sizes similar.
    """
    page = Page(layout)
    ranks = Counter()
    left, top, right, low = window or (0, 0, WIDTH, page.height)
    for part in page.seen:
        ranks[part.kind] += 1
        if part.role == "area" and not part.leaf or not (left <= part.x <= right and top <= part.y <= low):
            continue
        if part.role == "text":
            yield "words", part.plain, 1.0
        for quality, value in qualities(part, page):
            yield "by words", f"{part.plain or part.kind} {quality}", value
            yield "by kind", f"{part.kind} {ranks[part.kind]} {quality}", value


def qualities(part, page):
    """Yield (name, value) of how a text or picture looks: its place, its size and its colours."""
    angles = {"x": part.x / WIDTH, "y": part.y / page.height}
    if part.role == "text":
        angles["size"] = math.log2(min(max(part.font_size, 8), 128) / 8) / 4
        yield "bold", 0.5 * part.bold
        yield f"in {colour_name(part.ink)}", 1.6
        for n, channel in enumerate((*channels(part.behind), *channels(part.ink))):
            yield f"channel {n}", 0.3 * (channel / 255 - 0.5)
    else:
        angles |= {"width": part.width / WIDTH, "height": min(1.0, part.height / WIDTH)}
    for name, angle in angles.items():
        yield f"{name} across", math.cos(math.pi * angle)
        yield f"{name} along", math.sin(math.pi * angle)
    yield side(part.x / WIDTH), 0.8
    yield f"on {colour_name(part.behind)}", 1.6


# ---- Questions

SUBJECTS = {    # kind of part -> how a question may call it
    "main heading": r"main heading|headline|title|h1", "heading": r"(sub)?headings?|subtitles?|h2",
    "button": r"buttons?", "header": r"header|banner|top bar|top of the page",
    "navigation bar": r"nav(igation)?( ?bar)?|menu bar",
    "footer": r"footer|bottom of the page", "sidebar": r"side ?bar|aside", "form": r"form", "link": r"links?",
    "main part": r"main (part|section|area|content)", "picture": r"pictures?|images?|photos?|photographs?",
    "field": r"fields?|inputs?", "list item": r"(list )?items?|lists?", "section": r"sections?",
    "block": r"cards?|blocks?|box(es)?|columns?|panels?", "text": r"texts?|paragraphs?|prices?|sentences?|words?",
}
ASPECTS = {    # what is asked -> words that ask for it; the first that occurs counts
    "count": r"how many|number of", "letters": r"(text|font|letters?|ink)[- ]colou?r|colou?r (of|is|are|for|should) "
    r"(the )?(text|letters|font|words)\b|in (what|which) colou?r", "colour": r"colou?r|shade|background",
    "layout": r"side by side|beside|next to each other|in a (row|column)|stacked|grid|one above|arranged?|layout",
    "size": r"how (large|big|tall|wide|small)|sizes?\b|larger?|bigger|smaller?",
    "place": r"where|align|left|right|cent",
    "words": r"\bsays?\b|label|words?\b|read\b|called|\bnames?\b|written|wording|(which|what) text|contain|"
    r"what (is|are|goes|comes|stands|should be) (in|on)|content|what('s| is| are| should)", "bold": r"\bbold",
    "existence": r"is there|are there|should there|do you (want|need|have)|include|does it have|have an? |need an? ",
}
NUMBERS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def answer_questions(text, layout):
    """Answers to the questions in an agent's text, as far as the reference settles them: at most three sentences."""
    page = Page(layout)
    answers = []
    for question in re.findall(r"[^.!?\n]*\?", text):
        answer = answer_question(question.lower(), page)
        if answer and answer not in answers:
            answers.append(answer)
    return answers[:3]


def answer_question(question, page):
    """The answer to one question in lower case, or None if the page does not settle it."""
    aspect = next((name for name, words in ASPECTS.items() if re.search(words, question)), "")
    asked = [kind for kind, words in SUBJECTS.items() if re.search(rf"\b({words})\b", question)]
    if "background" in question or asked == ["text"] and aspect in ("letters", "colour"):
        asked = [kind for kind in asked if kind != "text"]
    parts = [part for part in page.seen if len(part.plain) > 2 and part.plain in question]    # quoted
    if not asked and not parts:
        parts = spoken_of(aspect, page)
        if aspect == "colour":
            return f"The page's background is {colour_name(page.background)}."
        if not parts:
            return None
    parts = parts or parts_of(asked, page)
    if not parts:
        return f"There is no {asked[0]}."
    if aspect == "count":
        kind = asked[0] if asked else parts[0].kind
        if len(parts) == 1:
            return f"There is one {kind}."
        return f"There are {NUMBERS[len(parts)] if len(parts) < len(NUMBERS) else len(parts)} {kind}s."
    if aspect == "layout" and len(parts) > 1:
        beside = relation(parts[0], parts[1]) in ("left", "right")
        return f"The {listed(parts)} stand {'side by side' if beside else 'one above the other'}."
    return " ".join(tell(part, aspect, page) for part in parts[:3])


def spoken_of(aspect, page):
    """What a question that names nothing is about."""
    if aspect == "letters":
        return [part for part in page.seen if part.role == "text"][:1]
    if aspect == "words":
        return [part for part in page.seen if part.kind in ("main heading", "heading", "button")][:4]
    return []


def parts_of(kinds, page):
    """The parts that a question is about: of the first kind that the page has, areas before texts for their colour."""
    for kind in kinds:
        found = [e for e in page.parts if e.kind == kind and (e.seen or e.inside)]
        if kind == "text":
            found = [e for e in page.seen if e.role == "text" and e.kind in ("text", "list item", "label")]
        found = [e for e in found if e.role == "area" or e.parent not in found]
        if kind == "block":
            found = found or [e for e in page.seen if e.kind == "section"]
        if "heading" in kind:
            found = found or [e for e in page.seen if "heading" in e.kind]
        if found:
            return found
    return []


def tell(part, aspect, page):
    """A sentence about one part of the page."""
    inner = part.contents()
    letters = part
    if part.role == "area":
        letters = next((e for e in inner if e.role == "text"), None)
    fill = colour_name(part.fill or part.behind)
    kind = part.kind if part.text or part.own_text else part.name
    if aspect == "letters" and letters:
        return f"The letters of the {letters.name} are {colour_name(letters.ink)}."
    if aspect == "colour" and part.role == "text":
        return f"The {part.name} is in {colour_name(part.ink)} letters."
    if aspect == "colour":
        return f"The {part.name} is {fill}."
    if aspect == "size" and letters and (part.role == "text" or part.own_text):
        return f"The letters of the {letters.name} are {letters.font_size} pixels high."
    if aspect == "size":
        return f"The {part.name} is {part.width} pixels wide and {part.height} tall."
    if aspect == "place":
        down = part.y / page.height
        third = "at the top" if down < 0.33 else "at the bottom" if down > 0.67 else "half-way down"
        return f"The {part.name} is {side(part.x / WIDTH)}, {third}."
    if aspect == "bold" and letters:
        return f"The {letters.name} is {'' if letters.bold else 'not '}in bold letters."
    if part.text or part.own_text and letters:
        return f"The {kind} says {quote(part.text or letters.text, 200)}."
    if aspect == "existence":
        return f"Yes, there is a {part.name}{describe(part)}."
    if inner:
        return f"The {kind} has the {listed(inner)}."
    return f"The {part.name} is {fill}."


# ---- Colours

GREYS = {"white": "ffffff", "black": "000000", "light gray": "f3f4f6 e5e7eb d1d5db", "gray": "9ca3af 6b7280",
         "dark gray": "4b5563 374151 1f2937 111827"}
SHADES = {  # names of Tailwind's shades 50 to 900 (very light: 50), and of a few colours that it has not
    "very light red": "fef2f2", "very light yellow": "fffbeb", "very light green": "ecfdf5",
    "very light blue": "eff6ff", "very light indigo": "eef2ff", "very light purple": "f5f3ff",
    "very light pink": "fdf2f8",
    "light red": "fee2e2 fecaca fca5a5", "red": "f87171 ef4444 dc2626 ff0000", "dark red": "b91c1c 991b1b 7f1d1d",
    "light yellow": "fef3c7 fde68a fcd34d", "yellow": "fbbf24 f59e0b d97706 ffff00",
    "dark yellow": "b45309 92400e 78350f",
    "light green": "d1fae5 a7f3d0 6ee7b7", "green": "34d399 10b981 059669 00ff00 22c55e",
    "dark green": "047857 065f46 064e3b 008000",
    "light blue": "dbeafe bfdbfe 93c5fd", "blue": "60a5fa 3b82f6 2563eb 0000ff", "dark blue": "1d4ed8 1e40af 1e3a8a",
    "light indigo": "e0e7ff c7d2fe a5b4fc", "indigo": "818cf8 6366f1 4f46e5", "dark indigo": "4338ca 3730a3 312e81",
    "light purple": "ede9fe ddd6fe c4b5fd", "purple": "a78bfa 8b5cf6 7c3aed 800080",
    "dark purple": "6d28d9 5b21b6 4c1d95",
    "light pink": "fce7f3 fbcfe8 f9a8d4 ffc0cb", "pink": "f472b6 ec4899 db2777", "dark pink": "be185d 9d174d 831843",
    "light orange": "ffedd5 fed7aa fdba74", "orange": "fb923c f97316 ea580c ffa500", "brown": "a52a2a 8b4513",
    "teal": "14b8a6 0d9488 008080", "light teal": "ccfbf1 99f6e4 5eead4", "dark teal": "115e59 134e4a",
}


def channels(colour):
    """"#3b82f6" -> its red, green and blue, from 0 to 255."""
    return bytes.fromhex(colour[1:])


def colour_distance(a, b):
    """From 0 (equal) to 1 (black and white). Green weighs most, as it does for the eye."""
    squares = [weight * (x - y) ** 2 for weight, x, y in zip((3, 4, 2), channels(a), channels(b))]
    return (sum(squares) / 9) ** 0.5 / 255


@functools.lru_cache(maxsize=4096)
def colour_name(colour):
    """Such as "#3b82f6" -> "blue": the nearest shade, among the greys (Tailwind's are slightly blue) or the colours."""
    parts = channels(colour)
    high, low = max(parts) / 255, min(parts) / 255
    saturation = 0 if high == low else (high - low) / (1 - abs(high + low - 1))
    grey = saturation < 0.25 or (high + low < 0.4 and saturation < 0.45)
    distances = []
    for name, shades in (GREYS if grey else SHADES).items():
        distances += [(colour_distance(colour, f"#{shade}"), name) for shade in shades.split()]
    return min(distances)[1]


def quote(text, most=40):
    if len(text) <= most:
        return f'"{text}"'
    return f'"{text[:most].rsplit(" ", 1)[0]} ..."'

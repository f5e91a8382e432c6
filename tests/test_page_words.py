"""What the human of pages says: every difference is named as a person would name it, none that is not there, what is
seen first comes first, nothing twice, and questions get answers."""

import random
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
import page_tasks  # noqa: E402
import page_words  # noqa: E402
import render  # noqa: E402
from test_render import SHOP, needs_browser, page, renderer  # noqa: E402, F401


def sentences(agent, reference):
    return [one.sentence() for one in page_words.compare_pages(agent, reference)]


# ---- One change, one sentence


@needs_browser
@pytest.mark.parametrize("old, new, expected", [
    ("bg-blue-500", "bg-green-500", "The header should be blue, not green."),
    ("bg-gray-800", "bg-indigo-200", "The footer should be dark gray, not light indigo."),
    ("bg-blue-500", "bg-blue-600", "The header should be a lighter blue."),
    ("bg-blue-500 p-6", "p-6", "The header should be blue, not light gray."),
    ("Buy", "Sell", 'The button "Sell" should say "Buy".'),
    ("text-3xl", "text-lg", 'The main heading "Lamp shop" should have larger letters.'),
    ("text-3xl", "text-7xl", 'The main heading "Lamp shop" should have letters about half as large.'),
    ("text-3xl", "text-4xl", 'The main heading "Lamp shop" should have letters a little smaller.'),
    ("300/200", "600/200", "The picture should be about half as wide."),
    ("300/200", "300/220", "The picture should be a little less tall."),
    ("text-white p-4\">Buy", "text-white p-16\">Buy",
     'The box of the button "Buy" should be about half as wide and about a third as tall.'),
    ("text-2xl text-center", "text-2xl", 'The heading "Lamps" should be in the centre, not on the left.'),
    ('<img src="https://picsum.photos/id/48/300/200">', "", 'The picture is missing, after the text "Each costs $5".'),
    ('<footer class="bg-gray-800 text-white p-4"><p>Call us</p></footer>', "",
     'The footer is missing, after the picture. It is dark gray and has the text "Call us".'),
    ("Call us</p>", "Call us</p><button>Now</button>", 'The button "Now" should not be there.'),
    ("bg-gray-800 text-white", "bg-gray-800 text-red-500", 'The text "Call us" should be in white letters, not red.'),
    ("bg-gray-800 text-white", "bg-gradient-to-r from-red-500 to-blue-500 text-white",
     "The footer should be dark gray, not a gradient from red to blue."),
    ('<body class="bg-gray-100">', '<body class="bg-gray-100 bg-gradient-to-r from-red-500 to-green-500">',
     "The page's background should be light gray, not a gradient from red to green."),
    ('<h1 class="text-3xl', '<h1 class="font-bold text-3xl',
     'The main heading "Lamp shop" should not be in bold letters.'),
    ('<body class="bg-gray-100">', '<body class="bg-gray-900">',
     "The page's background should be light gray, not dark gray."),
    ('<body class="bg-gray-100">', '<body class="bg-yellow-50">',
     "The page's background should be light gray, not very light yellow."),
])
def test_one_change_is_named(renderer, old, new, expected):
    assert old in SHOP
    reference, agent = renderer.layout(SHOP), renderer.layout(SHOP.replace(old, new, 1))
    said = sentences(agent, reference)
    assert said[:1] == [expected], said
    assert sentences(agent, reference) == said


@needs_browser
@pytest.mark.parametrize("have, want", [
    ('<header class="bg-blue-500 p-8">Shop</header>', '<header class="bg-blue-500 p-8"><p>Shop</p></header>'),
    ('<h1 class="text-4xl">Shop</h1>', '<h1 class="text-4xl"><span>Shop</span></h1>'),
    ("<section><h2>Mains</h2></section><h2>Desserts</h2>", "<h2>Mains</h2><section><h2>Desserts</h2></section>"),
    ("<p>Open <b class='font-normal'>daily</b> from noon</p>", "<p>Open daily from noon</p>"),
    ('<header class="bg-red-500"><p>A</p></header>', '<div class="bg-red-500"><p>A</p></div>'),
    ('<div class="bg-gray-100 p-4"><div class="bg-gray-100"><p>A</p></div></div>',
     '<main class="bg-gray-100 p-4"><p>A</p></main>'),
    ('<div class="min-h-screen bg-green-200"><p>A</p></div>', '<body class="bg-green-200"><p>A</p></body>'),
    ("<p>A</p><p class='text-white'>hidden</p><p class='sr-only'>unseen</p>", "<p>A</p>"),
], ids=["text of its own", "span", "sections", "inline", "another tag", "a box in its like", "wrapper", "unseen text"])
def test_markup_that_cannot_be_seen_makes_no_difference(renderer, have, want):
    have, want = renderer.layout(page(have)), renderer.layout(page(want))
    assert sentences(have, want) == sentences(want, have) == []


@needs_browser
def test_order_and_place_beside_each_other_are_named(renderer):
    cards = ['<div class="bg-red-500 p-4"><h2>One</h2></div>', '<div class="bg-blue-500 p-4"><h2>Two</h2></div>',
             '<div class="bg-green-500 p-4"><h2>Six</h2></div>']
    row, column, swapped = (renderer.layout(page(f'<div class="{c}">{"".join(b)}</div>'))
                            for c, b in (("flex", cards[:2]), ("", cards[:2]), ("", cards[1::-1])))
    assert sentences(column, row) == ['The block "One" should stand beside the block "Two".']
    assert sentences(row, column) == ['The block "One" should stand above the block "Two".']
    assert sentences(swapped, column) == ['The block "One" should come before the block "Two".']
    row, column, back = (renderer.layout(page(f'<div class="{c}">{"".join(cards)}</div>'))
                         for c in ("flex", "", "flex flex-row-reverse"))
    assert sentences(column, row) == ['The blocks "One", "Two" and "Six" should stand side by side.']
    assert 'The block "One" should be to the left of the block "Two".' in sentences(back, row)


@needs_browser
def test_what_a_moved_container_takes_along_is_not_named_as_well(renderer):
    """Neither its texts, nor the containers in it, however deep."""
    block = ('<section class="bg-red-500 w-64 {}"><form class="bg-white"><nav class="bg-gray-800 text-white">'
             '<a>Home</a></nav></form></section>')
    left, right = (renderer.layout(page(block.format(place))) for place in ("", "ml-auto"))
    said = sentences(left, right)
    assert len(said) == 1 and "should be on the right, not on the left" in said[0], said


@needs_browser
def test_a_colour_that_hides_an_area_changes_no_space(renderer):
    """A button in its form's colour and a form in the page's are not seen; what is in them has not moved."""
    form = ('<body class="bg-white p-24"><form class="bg-{} p-16"><h1 class="text-6xl text-{}">Login</h1>'
            '<input class="p-8" placeholder="Name"><button class="bg-{} p-12 text-4xl text-white">Go</button></form>')
    for place in ("left", "center", "right"):
        reference = renderer.layout(page(form.format("green-500", place, "pink-500")))
        hidden = renderer.layout(page(form.format("green-500", place, "green-500")))
        assert sentences(hidden, reference) == ['The button "Go" should be pink, not green.']
        assert sentences(reference, hidden) == ['The button "Go" should be green, not pink.']
        hidden = renderer.layout(page(form.format("white", place, "pink-500")))
        assert sentences(hidden, reference) == ["The form should be green, not white."]
        assert sentences(reference, hidden) == ["The form should be white, not green."]


@needs_browser
def test_space_is_above_it_or_above_them(renderer):
    low, high = (renderer.layout(page(f'<div class="flex"><p class="mt-{n} px-2">A</p><p class="mt-{n}">B</p></div>'))
                 for n in (24, 2))
    assert sentences(high, low) == ['The texts "A" and "B" should have more space above them.']
    low, high = (renderer.layout(page(f'<p class="mt-{n}">A</p>')) for n in (24, 2))
    assert sentences(high, low) == ['The text "A" should have more space above it.']


@needs_browser
def test_names_are_those_of_the_agents_page(renderer):
    """It cannot see the reference's heading, so nothing is placed by it."""
    want = page('<h1 class="text-4xl">This week</h1><p>Sales</p><img src="https://picsum.photos/id/48/300/200">')
    have = page('<h1 class="text-4xl">Numbers</h1><p>Sales</p>')
    said = " ".join(sentences(renderer.layout(have), renderer.layout(want)))
    assert "after the text \"Sales\"" in said and 'The main heading "Numbers" should say "This week".' in said
    assert said.count("This week") == 1


@needs_browser
def test_parts_that_are_missing_are_described_and_share_a_sentence(renderer):
    card = ('<div class="bg-pink-200 p-4"><h2>Plans</h2><p>From $5</p>'
            '<img src="https://picsum.photos/id/48/90/90"></div>')
    said = sentences(renderer.layout(page("<h1>A</h1>")), renderer.layout(page("<h1>A</h1>" + card)))
    assert said == ['The block "Plans" is missing, after the main heading "A". It is light pink and has the heading '
                    '"Plans", the text "From $5" and the picture.']
    links = "".join(f"<p>{n}</p>" for n in ("Home", "About", "Help", "Jobs", "Press"))
    said = sentences(renderer.layout(page("<h1>A</h1>")), renderer.layout(page(f"<h1>A</h1>{links}")))
    assert len(said) == 1 and '"Home", "About", "Help" and 2 more' in said[0] or said[0].startswith("The texts"), said


@needs_browser
def test_equal_pages_have_no_difference_and_order_is_that_of_sight(renderer):
    reference = renderer.layout(SHOP)
    assert sentences(reference, renderer.layout(SHOP)) == []
    assert sentences(None, reference) == ["Your page could not be shown."]
    assert sentences(renderer.layout("<html></html>"), reference) == ["Your page is empty."]
    worse = SHOP.replace("bg-gray-800", "bg-red-500").replace("Buy", "Sell").replace("300/200", "300/300")
    worse = worse.replace("<p>Each costs $5</p>", "").replace("text-center", "")
    said = sentences(renderer.layout(worse), reference)
    starts = ['The text "Each costs $5" is missing', "The footer should be dark gray", "The picture should be",
              'The button "Sell" should say', 'The heading "Lamps" should be in the centre']
    assert len(said) >= 5 and all(a.startswith(b) for a, b in zip(said, starts)), said


@needs_browser
def test_a_text_of_symbols_is_not_taken_for_a_block_without_text(renderer):
    with_arrow = '<div class="bg-red-500 p-4"><img src="https://picsum.photos/id/48/90/90"></div><p>→</p>'
    reference, agent = (renderer.layout(page(f"<h1>Steps</h1>{body}")) for body in (with_arrow, with_arrow[:-8]))
    assert sentences(agent, reference) == ['The text "→" is missing, after the picture.']


# ---- Random pages


CLASSES = """p-2 p-8 p-16 text-sm text-xl text-3xl text-7xl text-left text-center text-right flex grid w-1/2 w-64
    mx-auto ml-auto mt-8 mt-24 bg-red-50 bg-red-500 bg-blue-100 bg-blue-600 bg-yellow-50 bg-gray-100 bg-gray-800
    bg-white text-white text-red-600 font-bold border-4 h-32 h-64 h-screen justify-center items-center flex-row-reverse
    max-w-md
    opacity-50 hidden""".split()
WORDS = """Shop Home About Buy Now our lamps chairs and tables since 1990 are made by hand in Oslo $20 $35 per month
    free delivery open daily from noon News Sports team""".split()


def random_page(rng, depth=0):
    """The body of a page of random parts, without a plan."""
    some = lambda most: " ".join(rng.choice(CLASSES) for _ in range(rng.randint(0, most)))  # noqa: E731
    words = " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 6)))
    if depth and (depth == 3 or rng.random() < 0.55):
        tag = rng.choice(["h1", "h2", "p", "p", "a", "button", "li", "img"])
        if tag == "img":
            return f'<img class="{some(1)}" src="https://picsum.photos/id/48/{rng.choice([100, 300])}/200">'
        return f'<{tag} class="{some(2)}">{words}</{tag}>'
    inner = "".join(random_page(rng, depth + 1) for _ in range(rng.randint(1, 3)))
    tag = rng.choice(["header", "nav", "main", "section", "footer", "div", "div"])
    return f'<{tag} class="{some(3)}">{inner}</{tag}>'


def changed(rng, text):
    """A page with one to three random changes: a class, a text, a part, or markup that cannot be seen."""
    part = r"<(h1|h2|p|a|button|li)\b[^>]*>[^<]*</\1>|<img[^>]*>"
    for _ in range(rng.choice([1, 1, 2, 3])):
        kind = rng.choice(["class", "class", "class", "text", "part", "wrap", "tag"])
        pattern = {"class": r'class="([^"]*)"', "text": r">([^<>]+)<"}.get(kind, part)
        found = list(re.finditer(pattern, text))
        if kind == "tag":
            text = re.sub(r"(</?)(header|section|main)\b", r"\1div", text)
        elif found:
            match = rng.choice(found)
            begin, end = match.span(1) if kind in ("class", "text") else match.span()
            new = {"class": f"{match[1]} {rng.choice(CLASSES)}", "text": " ".join(rng.sample(WORDS, 3)), "part": "",
                   "wrap": f"<section>{match[0]}</section>"}[kind]
            text = text[:begin] + new + text[end:]
    return text


def random_pairs(seed, count):
    """Yield (agent's page, reference): of the grammar or without a plan; a change, or another page."""
    kinds = page_tasks.page_kinds("plain")
    for n in range(count):
        rng = random.Random(f"{seed} {n}")
        reference = page(random_page(rng))
        if n % 2:
            kind = rng.choice(list(kinds))
            values = [rng.choice(list(choice["values"])) for choice in kinds[kind]["details"]]
            reference = page_tasks.page_source(kind, values)
        yield (page(random_page(rng)) if n % 6 == 0 else changed(rng, reference)), reference


def exists(difference, agent, reference):
    """Whether a difference can be found in the layouts, without the code that named it."""
    layouts = agent, reference
    texts = [Counter(e["text"] for e in layout["elements"]) for layout in layouts]
    areas = [{e["background"] for e in layout["elements"]} | {layout["background"]} for layout in layouts]
    names = [{page_words.colour_name(colour) for colour in page if colour} for page in areas]
    inks = [{page_words.colour_name(e["colour"]) for e in layout["elements"] if e["text"]} for layout in layouts]
    said = re.findall(r'"([^"]*)"', difference.subject)
    if difference.aspect in ("missing", "extra") and len(said) == 1 and re.match("text|link|m?.*h", difference.subject):
        mine, other = texts if difference.aspect == "extra" else texts[::-1]
        start = said[0].removesuffix(" ...")
        count = [sum(n for text, n in page.items() if start in text) for page in (mine, other)]
        return count[0] > 0 and (count[0] > count[1] or difference.aspect == "extra" or count[0] == count[1])
    if difference.aspect == "colour" and difference.have and "gradient" not in str(difference):
        return difference.want in names[1] and difference.have in names[0]
    if difference.aspect == "letters" and "such" not in difference.have:
        return difference.want in inks[1] and difference.have in inks[0]
    if difference.aspect == "words":
        want = difference.want.strip('"').removesuffix(" ...")
        return any(text.startswith(want) for text in texts[1])
    return True


def check_pairs(renderer, seed, count):
    embed, silent = render.load_encoder("layout"), 0
    pairs = list(random_pairs(seed, count))
    pictures = {text: renderer.submit(text, layout=True) for pair in pairs for text in pair}
    for agent, reference in pairs:
        ours, theirs = pictures[agent].result(), pictures[reference].result()
        found = page_words.compare_pages(ours.layout, theirs.layout)
        silent += not found
        assert found or render.cosine(embed(ours), embed(theirs)) >= 0.95, (agent, reference)
        made_up = [one for one in found if one.aspect != "page" and not exists(one, ours.layout, theirs.layout)]
        assert not made_up, (made_up, agent, reference)
        assert agent != reference or not found
        assert len({one.sentence() for one in found}) == len(found)
    return silent


@needs_browser
def test_no_difference_is_silence_on_random_pages_and_none_is_made_up(renderer):
    assert check_pairs(renderer, "few", 40) < 20


@needs_browser
@pytest.mark.slow
def test_no_difference_is_silence_on_300_random_pairs_of_pages(renderer):
    assert 30 < check_pairs(renderer, "many", 300) < 150


# ---- A dialogue


def say(renderer, reference, *texts):
    """What the human says to these messages of the agent, in one dialogue."""
    dialogue, reference = [{"role": "user", "content": "Make a page."}], renderer.layout(reference)
    for text in texts:
        dialogue.append({"role": "assistant", "content": text})
        shown = render.extract_page(text)
        reply = page_words.page_reply(dialogue, shown, shown and renderer.layout(shown), reference)
        dialogue.append({"role": "user", "content": reply})
    return [message["content"] for message in dialogue[2::2]]


@needs_browser
def test_no_sentence_is_said_twice_while_another_is_unsaid(renderer):
    bad = SHOP.replace("bg-blue-500", "bg-red-500").replace("bg-gray-800", "bg-pink-500").replace("Buy", "Sell")
    bad = bad.replace("text-3xl", "text-7xl").replace("Call us", "Write us")
    every = set(sentences(renderer.layout(bad), renderer.layout(SHOP)))
    replies = [reply.split("\n") for reply in say(renderer, SHOP, *[bad] * 5)]
    assert [len(reply) for reply in replies[:2]] == [2, 2]
    so_far = []
    for reply in replies:
        assert set(reply) <= every
        repeated = set(reply) & set(so_far)
        assert not repeated or set(so_far) == every, reply
        so_far += reply
    assert set(so_far) == every


@needs_browser
@pytest.mark.parametrize("question, answer", [
    ("What does the button say?", 'The button says "Buy".'),
    ("What colour should the header be?", "The header is blue."),
    ("Which background colour do you want?", "The page's background is light gray."),
    ("What is the title?", 'The main heading says "Lamp shop".'),
    ("What colour is the text in the button?", 'The letters of the button "Buy" are white.'),
    ("How many pictures are there?", "There is one picture."),
    ("How many sections do you want?", "There are two sections."),
    ("Where is the heading \"Lamps\"?", 'The heading "Lamps" is in the centre, at the top.'),
    ("Is there a sidebar?", "There is no sidebar."),
    ("Should there be a footer?", 'Yes, there is a footer. It is dark gray and has the text "Call us".'),
    ("What is in the footer?", 'The footer has the text "Call us".'),
    ("Should the sections be side by side?",
     'The sections "Lamps" and "Prices" stand one above the other.'),
])
def test_a_question_is_answered_beside_a_page_and_without_one(renderer, question, answer):
    bad = SHOP.replace("bg-blue-500", "bg-red-500")
    alone, beside, right = say(renderer, SHOP, question, f"{bad}\n{question}", f"{SHOP}\n{question}")
    assert alone == answer
    assert beside == f"{answer}\nThe header should be blue, not red."
    assert right == f"{answer}\n{page_words.NO_DIFFERENCE}"


@needs_browser
def test_what_the_reference_does_not_settle_is_said_so(renderer):
    assert say(renderer, SHOP, "Who will visit it?", "I am ready.", SHOP) == [
        page_words.NO_ANSWER, page_words.NO_PAGE, page_words.NO_DIFFERENCE]


def test_a_reply_is_cut_between_sentences():
    many = [f"Sentence {n} {'x' * 90}." for n in range(30)]
    text = page_words.shorten(many)
    assert 900 < len(text) <= 1000 and text.endswith("x.")


# ---- Colours


def test_colours_have_the_names_people_use():
    names = {"#3b82f6": "blue", "#1e3a8a": "dark blue", "#ef4444": "red", "#10b981": "green", "#ffffff": "white",
             "#f9fafb": "white", "#111827": "dark gray", "#d1d5db": "light gray", "#c7d2fe": "light indigo",
             "#6b7280": "gray", "#374151": "dark gray", "#fde68a": "light yellow",
             "#8b5cf6": "purple", "#ec4899": "pink", "#000000": "black", "#fffbeb": "very light yellow",
             "#ecfdf5": "very light green", "#0000ff": "blue", "#ffa500": "orange", "#008080": "teal"}
    assert {colour: page_words.colour_name(colour) for colour in names} == names


def test_every_shade_of_tailwind_has_the_name_of_its_hue():
    """The stylesheet's own rules say which hue a shade belongs to."""
    if not render.TAILWIND_FILE.exists():
        pytest.skip("Tailwind's stylesheet is not here: python render.py --setup")
    css = render.TAILWIND_FILE.read_text()
    shades = re.findall(r"\.bg-([a-z]+)-(\d+)\{--tw-bg-opacity:1;background-color:rgba\((\d+),(\d+),(\d+)", css)
    assert len({hue for hue, *_ in shades}) == 8 and len(shades) >= 80
    for hue, shade, *rgb in shades:
        name = page_words.colour_name("#" + bytes(map(int, rgb)).hex())
        assert hue in name or (hue, shade) == ("gray", "50"), (hue, shade, name)
        assert ("light" in name) == (int(shade) < 400) or hue == "gray", (hue, shade, name)

"""Who plays the human: scripted, a model, or a person at the terminal.

`await reply(task, dialogue, key, counts)` returns the human's next message and the names of the details that it reveals
(None if unknown). The scripted human of functions stands in listener.py; of pages it names differences in layout.
A model has the reference in its prompt; on a server it sees pages as pictures. A person types.
"""
import asyncio
import base64
import re
from functools import partial
from pathlib import Path

from engines import derive_seed, is_url, sample_with_room
from listener import scripted_reply
from records import ANSWER_MARK, die, first_line, mended
from server import Refused, Response, Stop

NO_REPLY = "Sorry, I cannot say. Please go on."    # replaces a human's reply that was cut inside its thought
PAGE = re.compile(r"(<!doctype[^>]*>\s*)?<html\b.*?(</html>|\Z)", re.I | re.S)


# Simulators: `await reply(task, dialogue, key, counts)` returns the human's next message and the names of the details
# that it reveals (None if unknown). key: (task_id, sample). counts: the episode's Counter of COUNTERS and
# EPISODE_COSTS; the caller has already counted one simulator call.


class Scripted:
    """The environment's scripted human."""

    def __init__(self, args, resources):
        self.human = resources.environment.scripted_human
        if getattr(args, "human", "plain") != "plain":
            self.human = partial(self.human, manner=args.human)
        self.screen = resources.screen()

    async def reply(self, task, dialogue, key, counts):
        return await self.human(task, dialogue, self.screen)


class ModelHuman:
    """A model that plays the human, with the reference in its prompt. On a server it sees both pages as pictures."""

    def __init__(self, args, resources):
        self.args = args
        self.screen = resources.screen() if is_url(args.simulator) else None
        self.prompt = prompt_of_human(args, resources.environment)
        self.engine = resources.engine("simulator", args.simulator, args.simulator_name)

    async def reply(self, task, dialogue, key, counts):
        content = fill(self.prompt, reference=task["ground_truth"], dialogue=as_text(dialogue))
        if self.screen:
            from page_words import NO_PAGE
            page, reference = await seen(lambda page: self.screen.render(page).png, task, dialogue[-1]["content"])
            if page is None:
                return NO_PAGE, None
            if not page:
                return "Your page could not be shown.", None
            shown = [message | {"content": PAGE.sub("(a page)", message["content"])} for message in dialogue]
            content = [text_part(fill(self.prompt, dialogue=as_text(shown))),
                       text_part("The assistant's last page:"), picture_part(page),
                       text_part("The page that you have in mind:"), picture_part(reference)]
        seed = derive_seed(self.args.seed, *key, "simulator", len(dialogue))
        text = await ask(self.engine, content, seed, self.args.simulator_max_tokens, counts, "simulator")
        text = without_names(text or "")
        counts["unfinished_replies"] += not text
        return text or NO_REPLY, None


def prompt_of_human(args, environment):
    """The prompt of a model that plays the human: the environment's, or the user's (--simulator-prompt)."""
    pictures = environment.pages and is_url(args.simulator)
    if not args.simulator_prompt:
        return VISION_PROMPT if pictures else environment.model_human
    try:
        prompt = Path(args.simulator_prompt).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        die(f"{args.simulator_prompt}: cannot be read ({first_line(error)})")
    for place in ("{dialogue}",) if pictures else ("{reference}", "{dialogue}"):
        if place not in prompt:
            die(f"{args.simulator_prompt}: the prompt has no {place}, where the {place[1:-1]} would stand")
    return prompt


def fill(template, **values):
    """A template with its places such as {dialogue} filled in. All other braces stay as they are."""
    return re.sub(r"\{(%s)\}" % "|".join(values), lambda place: str(values[place[1]]), template)


def without_names(reply):
    """A reply without "Human:" in front of it, and without what a model invents of the assistant's next message."""
    reply = re.split(r"\n\W*assistant\W*:", reply, flags=re.I)[0]
    return re.sub(r"^\W*(the )?(human|user|reply)\W*:\W*", "", reply, flags=re.I).strip()


def shortened(reply, limit):
    """A reply of at most `limit` characters that ends with a sentence, or else with a word."""
    if len(reply) <= limit:
        return reply
    ends = [end.end() for end in re.finditer(r"[.?!](?=\s)|\s(?=\S)", reply[:limit + 1])]
    sentences = [end for end in ends if not reply[end - 1].isspace()]
    return reply[:max(sentences or ends or [limit])].strip()


def text_part(text):
    return {"type": "text", "text": text}


def picture_part(png):
    return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(png).decode()}}


async def ask(engine, content, seed, max_tokens, counts, role):
    """Ask a model, at most twice, and return its reply without its thoughts, or None. Counts tokens and a second call.

    A model that thinks first may be cut inside its thought, which must not be shown because it may quote the reference.
    """
    [response], paid = await sample_with_room(engine, [{"role": "user", "content": content}], 1, seed, 0.0, max_tokens)
    counts[f"{role}_tokens"] += sum(each.prompt_tokens + each.tokens for each in paid)
    counts[f"{role}_calls"] += len(paid) - 1
    return None if response.unfinished else response.said or None


def as_text(dialogue):
    """A dialogue as plain text, for a person, or a model that plays the human or judges. Leaves out instructions."""
    names = {"user": "Human", "assistant": "Assistant"}
    return "\n\n".join(f"{names[message['role']]}: {message['content']}" for message in dialogue
                       if message["role"] in names)


class Person:
    """You, at the terminal."""

    def __init__(self, args, resources):
        print("You are the human. /show prints the hidden reference, which the assistant cannot see; Ctrl-D stops.")

    async def reply(self, task, dialogue, key, counts):
        print("\n" + as_text(dialogue[-2:]))
        while (line := typed("you> ")) == "/show":
            print(task["ground_truth"])
        return line, None


class PersonAsAgent:
    """You, at the terminal, in the place of the agent's engine (--model human)."""

    def __init__(self):
        print(f"You are the assistant. A question is one line. An answer begins with {ANSWER_MARK} and ends with a "
              "line that is a dot; Ctrl-D stops.")

    async def generate(self, messages, n, seed, temperature, max_tokens):
        print("\n" + as_text(messages[-2:]))
        lines = [typed("assistant> ")]
        while lines[0].upper().startswith(ANSWER_MARK.rstrip(":")) and lines[-1] != ".":
            lines.append(typed("", blank=True))
        return [Response("\n".join(line for line in lines if line != "."))] * n

    def close(self):
        pass


def typed(prompt, blank=False):
    """The next line that a person types; blank: whether it may be empty. The end of the input ends the run."""
    while True:
        try:
            line = mended(input(prompt).rstrip())
        except EOFError:
            raise Stop("you stopped", 0) from None
        if line.strip() or blank:
            return line


SIMULATORS = {"scripted": Scripted, "human": Person}    # --simulator; any other value names a model, for ModelHuman


# ---- The scripted human of each environment: await reply(task, dialogue, screen) -> (reply, details revealed)


async def functions_human(task, dialogue, screen, manner="plain"):
    return scripted_reply(task, dialogue, manner)


async def pages_human(task, dialogue, screen):
    """Replies with what differs between the layouts of the agent's page and the reference, and answers questions."""
    from page_words import page_reply
    from render import extract_page
    layouts = await seen(screen.layout, task, dialogue[-1]["content"])
    # In a thread, because large pages take seconds and other episodes should not wait.
    return await asyncio.to_thread(page_reply, dialogue, extract_page(dialogue[-1]["content"]), *layouts), None


async def seen(look, task, text):
    """What `look` sees of the page in the agent's text (None if the text has none) and of the reference."""
    from render import extract_page
    page = extract_page(text)
    reference = asyncio.to_thread(look, task["ground_truth"])
    page, reference = await asyncio.gather(asyncio.to_thread(look, page) if page else asyncio.sleep(0), reference)
    if not reference:
        raise Refused("the reference page could not be rendered")
    return page, reference


# ---- Prompts

HUMAN_OF_FUNCTIONS = """You play a human who wants help with a Python function. You cannot read or write \
code, but you know exactly how the function must behave: just like this reference, which the assistant cannot see.

{reference}

The dialogue so far:

{dialogue}

Write the human's reply to the assistant's last message.
- At most two short sentences, in plain words. Never write code, and never quote the reference.
- Answer what was asked, and only what the reference settles. If it does not settle it, say "I do not know."
- When you are asked for a name, a text or a number, give it exactly as it stands in the reference: every test depends \
on it.
- If the assistant proposes a value, confirm it if it is right, and correct it if it is wrong.
- Do not contradict the reference, and do not volunteer what was not asked.

Reply:"""

HUMAN_OF_PAGES = """You play a human who has a web page in mind and cannot read code. This is the page:

{reference}

The assistant cannot see it. The dialogue so far:

{dialogue}

Imagine the assistant's last page and yours as pictures, side by side. Write the human's reply: the one or two most \
outstanding visual differences (layout, colours, texts, sizes, pictures), in plain words, in at most four sentences. \
If the assistant asks something, answer it from your page, with names, texts and numbers exactly as they stand there. \
Never write or quote code. If the assistant showed no page, ask for one.

Reply:"""

VISION_PROMPT = """You play a human who has a web page in mind and cannot read code. The dialogue with an assistant, \
without the code of its pages:

{dialogue}

Here are two pictures: the assistant's last page, and the page that you have in mind, which the assistant cannot see. \
If the assistant asked something, answer it from your page, with texts and numbers exactly as you see them. Then tell \
the one or two most outstanding visual differences (layout, colours, texts, sizes, pictures) and what you want \
instead, in plain words, in at most four sentences. Never write code. If there is no difference worth naming, say so."""

"""Workflows of an office agent, generated: the same steps again and again, each time with other values.

A workflow is a request of its user and a few tool calls. What a call needs stands in the request or in the result of
the call before it, so the model copies values as real agents do. Each call is one question; the history before it is
the workflow's own, not the model's, so that whoever is measured reads the same prompts. Equal seeds give equal words.
"""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hotloop.bench.questions import ToolQuestion
from hotloop.wire.field import Json

CATEGORY = "workflows"

_SYSTEM = (
    "You are the agent of a small office. You work through a request step by step and call one tool at a time, with "
    "values from the request or from the last result."
)
_NAMES = ("Ada", "Blaise", "Carl", "Dorothy", "Edsger", "Frances", "Grace", "Hedy", "Ivan", "Joan", "Kurt", "Lise")
_LAST_NAMES = ("Holm", "Roux", "Lind", "Vance", "Bakker", "Marsh", "Okafor", "Silva", "Novak", "Ito", "Weber", "Quinn")
_TOWN = ("Lisbon", "Turin", "Aarhus", "Ghent", "Kyoto", "Tampere", "Leipzig", "Cork", "Bergen", "Graz", "Porto", "Brno")
_QUARTERS = ("North", "South", "East", "West", "Central", "Harbour")
_COLOURS = ("black", "white", "grey", "oak", "walnut", "red", "green", "blue", "brass", "steel", "yellow", "silver")
_THINGS = ("lamp", "chair", "printer", "shredder", "whiteboard", "grinder", "bookcase", "desk", "shelf", "clock", "rug")
_PARTS = ("lid", "handle", "cable", "left wheel", "drawer", "screen", "box", "manual", "battery", "hinge", "switch")
_FAULTS = ("is missing", "is broken", "is scratched", "does not fit", "came late", "is the wrong size", "is stuck")
_EVENTS = ("budget", "contract", "website", "move", "hiring plan", "audit", "survey", "party", "training", "newsletter")
_LEVELS = ("low", "normal", "high")


def _words(form: str, *pools: Sequence[str]) -> Callable[[random.Random], str]:
    """Words of several pools, so many combinations that another seed seldom has the same."""
    return lambda rng: form.format(*(rng.choice(pool) for pool in pools))


def _number(prefix: str) -> Callable[[random.Random], str]:
    return lambda rng: f"{prefix}-{rng.randint(10_000, 99_999)}"


_VALUES: dict[str, Callable[[random.Random], Any]] = {
    "customer_name": _words("{} {}", _NAMES, _LAST_NAMES),
    "colleague": _words("{} {}", _NAMES, _LAST_NAMES),
    "city": _words("{} {}", _TOWN, _QUARTERS),
    "product": _words("{} {}", _COLOURS, _THINGS),
    "reason": _words("the {} {}", _PARTS, _FAULTS),
    "topic": _words("the {} of {}", _EVENTS, _TOWN),
    "urgency": _words("{}", _LEVELS),
    "date": lambda rng: f"2027-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}",
    "time": lambda rng: f"{rng.randint(8, 17):02}:{rng.choice((0, 15, 30, 45)):02}",
    "quantity": lambda rng: rng.randint(2, 40),
    "amount_cents": lambda rng: rng.randint(500, 90_000),
    "customer_id": _number("C"),
    "order_id": _number("A"),
    "invoice_id": _number("INV"),
    "ticket_id": _number("T"),
    "hotel_id": _number("H"),
    "room_id": _number("R"),
    "train_id": _number("IC"),
}
_SCHEMAS: dict[str, Json] = {
    "quantity": {"type": "integer"},
    "amount_cents": {"type": "integer"},
    "urgency": {"type": "string", "enum": list(_LEVELS)},
}
_TOOLS: dict[str, tuple[str, tuple[str, ...]]] = {
    "find_customer": ("Find a customer.", ("customer_name", "city")),
    "get_order": ("Read an order of a customer.", ("customer_id", "order_id")),
    "place_order": ("Order something for a customer.", ("customer_id", "product", "quantity")),
    "refund_order": ("Pay the money for an order back.", ("order_id", "amount_cents", "reason")),
    "send_invoice": ("Send an invoice to a customer.", ("customer_id", "invoice_id", "amount_cents")),
    "open_ticket": ("Open a ticket for somebody else to work on.", ("customer_id", "reason", "urgency")),
    "assign_ticket": ("Give a ticket to a colleague.", ("ticket_id", "colleague", "date")),
    "check_stock": ("See how many of a product are left.", ("product", "city")),
    "find_train": ("Find a train on a day.", ("city", "date", "time")),
    "book_train": ("Book a seat in a train.", ("train_id", "colleague", "date")),
    "find_hotel": ("Find a hotel in a city.", ("city", "date")),
    "book_hotel": ("Book a room in a hotel.", ("hotel_id", "colleague", "date")),
    "find_room": ("Find a free meeting room.", ("date", "time", "quantity")),
    "book_meeting": ("Put a meeting into the calendar.", ("room_id", "topic", "date", "time")),
}
_WORKFLOWS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Give {customer_name} of {city} the money back", ("find_customer", "get_order", "refund_order", "send_invoice")),
    ("Order again for {customer_name} of {city}", ("find_customer", "check_stock", "place_order", "send_invoice")),
    ("{customer_name} of {city} complains", ("find_customer", "get_order", "open_ticket", "assign_ticket")),
    ("Send somebody to {city} on {date} at {time}", ("find_train", "book_train", "find_hotel", "book_hotel")),
    ("Find a hotel in {city} for {date}, and a train", ("find_hotel", "book_hotel", "find_train", "book_train")),
    ("A meeting of {quantity} on {date} at {time}", ("find_room", "book_meeting", "find_train", "book_train")),
    ("Is there a {product} in {city}? If so, sell it", ("check_stock", "find_customer", "place_order", "send_invoice")),
    ("Look up {customer_name} of {city} and meet", ("find_customer", "find_room", "book_meeting", "open_ticket")),
    (
        "Settle the case of {customer_name} of {city}",
        ("find_customer", "open_ticket", "assign_ticket", "refund_order"),
    ),
    ("Visit us in {city} on {date} at {time}", ("find_train", "book_train", "find_room", "book_meeting")),
    ("Stock of {product} in {city}, then a ticket", ("check_stock", "get_order", "open_ticket", "assign_ticket")),
    ("Bill {customer_name} of {city}", ("find_customer", "get_order", "send_invoice", "open_ticket")),
)


def generate_workflows(seed: int, num_workflows: int | None = None) -> list[ToolQuestion]:
    """The calls of the first workflows, workflow by workflow, with the values of that seed."""
    tools = tuple(_tool(name, *spec) for name, spec in _TOOLS.items())
    questions: list[ToolQuestion] = []
    for number, (goal, steps) in enumerate(_WORKFLOWS[:num_workflows]):
        rng = random.Random(f"{seed}/{number}")
        values = {name: draw(rng) for name, draw in _VALUES.items()}
        for step, (messages, expected) in enumerate(_turns(goal, steps, values)):
            key = {expected["name"]: {name: [value] for name, value in expected["arguments"].items()}}
            id_ = f"workflow-{number}-{seed}-{step}"
            questions.append(ToolQuestion(id_, CATEGORY, messages, tools, (key,)))
    return questions


def _turns(goal: str, steps: tuple[str, ...], values: Json) -> Iterator[tuple[tuple[Json, ...], Json]]:
    """The history before each call, and the call."""
    history: list[Json] = [
        {"role": "system", "content": _SYSTEM},
        {"role": "user", "content": goal.format(**values) + "."},
    ]
    for number, name in enumerate(steps):
        call = {"name": name, "arguments": _pick(name, values)}
        yield tuple(history), call
        following = _pick(steps[number + 1], values) if number + 1 < len(steps) else {}
        history += _exchange(f"call_{number}", call, {"status": "done", **following})


def _exchange(id_: str, call: Json, result: Json) -> list[Json]:
    function = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
    return [
        {"role": "assistant", "content": None, "tool_calls": [{"id": id_, "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": id_, "content": json.dumps(result)},
    ]


def _pick(name: str, values: Json) -> Json:
    return {field: values[field] for field in _TOOLS[name][1]}


def _tool(name: str, description: str, fields: tuple[str, ...]) -> Json:
    properties = {field: _SCHEMAS.get(field, {"type": "string"}) for field in fields}
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(fields),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}

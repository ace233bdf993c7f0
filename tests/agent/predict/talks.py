"""Conversations to learn from: a clerk who looks up a customer and then each of the customer's orders."""

import json
from collections.abc import Iterable
from typing import Any

from hotloop.core.message import Message, ToolCall


def user(text: str) -> Message:
    return Message("user", text)


def asks(*calls: tuple[str, dict[str, Any]], salt: object = "") -> Message:
    made = tuple(ToolCall(f"{salt}{i}", name, json.dumps(arguments)) for i, (name, arguments) in enumerate(calls))
    return Message("assistant", tool_calls=made)


def gets(value: Any, salt: object = "", index: int = 0) -> Message:
    text = value if isinstance(value, str) else json.dumps(value)
    return Message("tool", text, tool_call_id=f"{salt}{index}")


def step(name: str, arguments: dict[str, Any], result: Any, salt: object) -> list[Message]:
    return [asks((name, arguments), salt=salt), gets(result, salt)]


def clerk(number: int, orders: Iterable[str] = ()) -> list[Message]:
    """One run; everything in it but its course differs from number to number."""
    customer = f"ann_lee_{1000 + number}"
    orders = list(orders) or [f"W{number:03}A{i}" for i in range(3)]
    talk = [user(f"Hello, I am {customer}. Where are my orders {' and '.join(orders)}?")]
    talk += step("find_customer", {"customer_id": customer}, {"name": "Ann", "orders": orders}, "c")
    for order in orders:
        talk += step("find_order", {"order_id": order}, {"status": "sent", "order_id": order}, order)
    return [*talk, Message("assistant", "All are on their way.")]

"""A data assistant over a SQLite file, which it makes itself.

    hotloop run examples/shop.py "Show me the sales by product."
    hotloop run examples/shop.py "Does Ada have open orders, and how many are there in all?" --url http://localhost:8000/v1

All tools only read, and say so: then they may be tried again, and be started before they are asked for.
The model hotloop brings along is tiny. It writes proper calls, since calls are strict, but does not always think of
making one, so the first turn has to; and its words about the results are not to be trusted.
"""

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

from hotloop import Agent, Context, Limits, ToolError, tool

MAX_ROWS = 50


class Shop:
    """A database nobody can write to."""

    def __init__(self, path: Path) -> None:
        self._address = f"file:{path}?mode=ro"

    def select(self, sql: str, *values: object) -> list[dict[str, Any]]:
        # A connection a query: tools run in threads of their own, and SQLite's connections do not like to move.
        with closing(sqlite3.connect(self._address, uri=True)) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(sql, values).fetchmany(MAX_ROWS)]


@tool(read_only=True)
def sales(by: Literal["country", "product", "month"], shop: Context[Shop]) -> list[dict[str, Any]]:
    """Number of orders and money earned, for each country, product or month; most money first.

    Args:
        by: what to add up by
    """
    column = {"country": "country", "product": "product", "month": "substr(day, 1, 7)"}[by]
    return shop.select(
        f"SELECT {column} AS {by}, count(*) AS orders, sum(price) AS money FROM orders JOIN customers USING (customer) "
        f"GROUP BY 1 ORDER BY money DESC"
    )


@tool(read_only=True)
def count_orders(status: Literal["open", "shipped", "returned"], shop: Context[Shop]) -> int:
    """How many orders have a status."""
    [row] = shop.select("SELECT count(*) AS number FROM orders WHERE status = ?", status)
    return int(row["number"])


@tool(read_only=True)
def orders_of(customer: str, shop: Context[Shop]) -> list[dict[str, Any]]:
    """The orders of one customer, newest first.

    Args:
        customer: the name, such as "Ada"
    """
    found = shop.select("SELECT * FROM orders WHERE customer = ? ORDER BY day DESC", customer)
    if not found:
        # An error a model can do something about says what would have worked.
        names = ", ".join(row["customer"] for row in shop.select("SELECT customer FROM customers ORDER BY 1"))
        raise ToolError(f"{customer} has no orders; the customers are {names}")
    return found


@tool(read_only=True, timeout_s=10)
def query(sql: str, shop: Context[Shop]) -> list[dict[str, Any]]:
    """Run a SELECT in SQLite's dialect, for what the other tools cannot answer.

    Tables: customers(customer, country), orders(number, customer, product, price, day, status).
    """
    return shop.select(sql)


def make_shop(folder: Path) -> Shop:
    path = folder / "shop.db"
    countries = {"Ada": "UK", "Emmy": "Germany", "Sofja": "Sweden", "Maryam": "Iran"}
    products = {"lamp": 30, "chair": 80, "desk": 240}
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE customers (customer TEXT PRIMARY KEY, country TEXT)")
        connection.execute(
            "CREATE TABLE orders (number INTEGER PRIMARY KEY, customer TEXT, product TEXT, price REAL, day TEXT, "
            "status TEXT)"
        )
        connection.executemany("INSERT INTO customers VALUES (?, ?)", countries.items())
        names, things, states = list(countries), list(products), ("open", "shipped", "shipped", "returned")
        for i in range(40):
            product = things[(i * i + i // 3) % 3]
            day = f"2026-{i % 6 + 1:02}-{i % 28 + 1:02}"
            order = (names[i * 7 % 11 % 4], product, products[product], day, states[i % 4])
            connection.execute(
                "INSERT INTO orders (customer, product, price, day, status) VALUES (?, ?, ?, ?, ?)", order
            )
    return Shop(path)


_folder = tempfile.TemporaryDirectory(prefix="hotloop-shop-")  # gone when the program is
context = [make_shop(Path(_folder.name))]

agent = Agent(
    "http://localhost:8700/v1",
    tools=[sales, count_orders, orders_of, query],
    instructions="You answer questions about a shop. Look things up with the tools, then answer in one sentence.",
    limits=Limits(turns=8),
    tool_choice="required",
    max_tokens=1000,
    temperature=0.0,
)

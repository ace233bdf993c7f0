"""`hotloop batch`: a file of requests, asked of a server in its background class; gone on with after a kill."""

import asyncio
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import httpx
from cyclopts import Parameter
from cyclopts.types import PositiveInt

from hotloop.cli.output import count, make_table, progress, show
from hotloop.cli.settings import ApiKey, JsonOutput
from hotloop.core.errors import ConfigError, RemoteError
from hotloop.http.batch import AnswerFile, BatchAnswer, BatchLine, count_lines, run_batch
from hotloop.http.client import bearer, open_client
from hotloop.http.url import check_url
from hotloop.wire.hints import PRIORITY_HEADER, TASK_HEADER

_RETRIED = frozenset({408, 429, 500, 502, 503, 504, 529})
_MAX_TRIES = 8
_MAX_PAUSE_S = 30.0


def batch(
    file: Annotated[Path, Parameter(name="FILE", help="JSON lines of requests, in OpenAI's batch format.")],
    /,
    *,
    url: Annotated[str, Parameter(help="Address of an OpenAI-compatible server.")] = "http://127.0.0.1:8700",
    output: Annotated[
        Path | None, Parameter(help="File for the answers; FILE's name with `.answers.jsonl` if not given.")
    ] = None,
    concurrency: Annotated[PositiveInt, Parameter(help="Maximum concurrent requests.")] = 32,
    api_key: ApiKey = None,
    json: JsonOutput = False,
) -> None:
    """Send every request in a file with background priority, and write each answer as it arrives.

    Run it again to continue: requests that have an answer are skipped, refused ones too. Those that
    fail temporarily (overload, a server that restarts) are retried.
    """
    address = check_url(url).removesuffix("/v1")
    answers_path = output or file.with_name(f"{file.stem}.answers.jsonl")
    num_lines = count_lines(file)
    with AnswerFile(answers_path) as answers, progress() as bar:
        num_known = len(answers)
        if num_known > num_lines:
            raise ConfigError(
                f"{answers_path} has {num_known} answers, more than {file} has requests: name another file"
            )
        task = bar.add_task(file.name, total=num_lines, completed=num_known)
        asyncio.run(_run(file, answers, address, api_key, concurrency, lambda: bar.advance(task)))
        figures = {"lines": num_lines, "answered_before": num_known, "answered": len(answers) - num_known}
        figures["refused"] = answers.num_failed
    table = make_table("what", "requests", words=("what",))
    for name, number in figures.items():
        table.add_row(name.replace("_", " "), f"{number:,}")
    refused = [f"{count(answers.num_failed, 'request')} refused: see status_code in {answers_path}"]
    show({**figures, "output": str(answers_path)}, table, json, refused if answers.num_failed else [])


async def _run(
    file: Path, answers: AnswerFile, url: str, api_key: str | None, concurrency: int, on_answer: Callable[[], None]
) -> None:
    headers = {PRIORITY_HEADER: "background", TASK_HEADER: "batch", "content-type": "application/json"}
    async with open_client({**bearer(api_key), **headers}) as client:

        async def ask(line: BatchLine) -> BatchAnswer:
            return await _ask(client, url, line)

        await run_batch(file, answers, ask, concurrency=concurrency, on_answer=on_answer)


async def _ask(client: httpx.AsyncClient, url: str, line: BatchLine) -> BatchAnswer:
    """The answer, or the last refusal of a server that is there. Raises RemoteError for one that is not."""
    for num_tries in range(1, _MAX_TRIES + 1):
        try:
            response = await client.post(url + line.url, content=line.body)
        except httpx.HTTPError as error:
            if num_tries == _MAX_TRIES:
                reason = str(error) or type(error).__name__
                raise RemoteError(f"{url} cannot be reached: {reason}; run the command again to go on") from None
            await asyncio.sleep(_pause_s(num_tries, {}))
            continue
        if response.status_code not in _RETRIED or num_tries == _MAX_TRIES:
            break
        await asyncio.sleep(_pause_s(num_tries, response.headers))
    return BatchAnswer(response.status_code, response.content, response.headers.get("x-request-id", ""))


def _pause_s(num_tries: int, headers: Mapping[str, str]) -> float:
    """As long as the server says, or twice as long as before; those that were refused together do not come together."""
    try:
        asked_s = float(headers.get("retry-after", ""))
    except ValueError:
        asked_s = 0.25 * 2.0**num_tries
    return max(0.0, min(asked_s, _MAX_PAUSE_S)) * random.uniform(0.75, 1.25)

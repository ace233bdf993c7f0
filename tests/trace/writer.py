"""A process that writes to a store as fast as it is told to, and says after each commit how many rows are safe."""

import sys
import time

from tests.trace.spans import span

from hotloop.trace import names
from hotloop.trace.span import new_trace_id
from hotloop.trace.store import StoreTracer

BATCH = 20
PER_SECOND = 1000


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(path: str, count: int) -> None:
    tracer, trace_id, begin = StoreTracer(path), new_trace_id(), time.monotonic()
    say(trace_id)
    for number in range(1, count + 1):
        tracer.record(span(names.TOOL, number, number + 1, trace_id=trace_id, tool="tool", call_id=str(number)))
        if number % BATCH == 0 and tracer.flush():
            say(str(number))
            time.sleep(max(0.0, begin + number / PER_SECOND - time.monotonic()))
    tracer.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

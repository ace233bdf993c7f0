"""How long it pays to hold a prefix through a tool gap: recomputing it against its share of the cache until then.

Both grow with its length, so all that counts is how long prefilling a whole cache takes (`cache_refill_s`):

    gain of waiting t  =  cache_refill_s x (those back by t)  -  the time waited for each, t at most
"""

from collections.abc import Iterable

USUAL_S = (1.0, 2.0, 4.0)  # tool gaps assumed while few have been measured
MAX_S = 60.0


def best_wait_s(times: Iterable[float], cache_refill_s: float) -> float:
    """The one of these times at which to stop waiting; 0 if waiting does not pay."""
    best_s, most = 0.0, 0.0
    waited_s = 0.0
    ordered = sorted(times)
    for num_back, time_s in enumerate(ordered, 1):
        waited_s += time_s
        gain = num_back * cache_refill_s - waited_s - (len(ordered) - num_back) * time_s
        if gain > most:
            best_s, most = time_s, gain
    return best_s

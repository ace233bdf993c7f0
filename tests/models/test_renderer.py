"""A template that never ends, or wants all memory there is, is stopped, and the next one is rendered all the same."""

import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from tests.server.serving import until

from hotloop.core.errors import Overloaded, Unavailable
from hotloop.models.renderer import Renderer, RenderLimits, TemplateFailed

DOUBLING = (
    "{%% set n = namespace(v=%s, w=%s) %%}"
    "{%% for i in range(60) %%}{%% set n.v = %s %%}{%% set n.w = %s %%}{%% endfor %%}"
)
LISTS = DOUBLING % ("[1]", "[1]", "[n.v, n.v]", "[n.w, n.w]")
TUPLES = DOUBLING % ("(1,)", "(1,)", "(n.v, n.v)", "(n.w, n.w)")
LARGE = "x" * 5_000_000
HALF_MB = "{% set x = 'x' * 500000 %}"


@pytest.fixture(scope="module")
def renderer() -> Iterator[Renderer]:
    made = Renderer(RenderLimits(max_cpu_s=0.2, max_bytes=256 << 20))
    yield made
    made.close()


@pytest.fixture(scope="module")
def patient_renderer() -> Iterator[Renderer]:
    """One whose memory, however busy the machine, ends before its time does."""
    made = Renderer(RenderLimits(max_cpu_s=60, max_bytes=256 << 20))
    yield made
    made.close()


def render(renderer: Renderer, source: str) -> str:
    return renderer.render(source, {"messages": []})


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "source",
    [
        LISTS + "{{ n.v == n.w }}",
        LISTS + "{{ n.v < n.w }}",
        LISTS + "{{ n.v in [n.w] }}",
        LISTS + "{{ [n.v, n.w] | sort }}",
        LISTS + "{{ [n.v] | select('equalto', n.w) | list }}",
        LISTS + "{{ [n.w].index(n.v) }}",
        TUPLES + "{{ {n.v: 1} }}",
        TUPLES + "{{ [n.v] | unique | list }}",
        LISTS + "{{ n.v | tojson | length }}",
        HALF_MB + "{% for i in range(99999) %}{{ (x ~ 'y') in (x ~ x) }}{% endfor %}",
        "{{ ('<!---->' * 999999) | striptags }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(40) }}",
        "{{ 9 ** 999999999 }}",
    ],
)
def test_a_template_that_does_not_end_is_stopped(renderer: Renderer, source: str) -> None:
    with pytest.raises(TemplateFailed, match=r"it takes (more than 0\.2 s|too much memory)"):
        render(renderer, source)
    assert render(renderer, "as {{ 'ever' }}") == "as ever"


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x' * 999999999 }}",
        "{{ 999999999 * [1] }}",
        DOUBLING % ("'x'", "''", "n.v ~ n.v", "''"),
        "{{ '%1000000000d' % 1 }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ 'x' | center(1000000000) }}",
        HALF_MB + "{{ x | replace('x', x) }}",
    ],
)
def test_a_template_gets_no_more_than_its_memory(patient_renderer: Renderer, source: str) -> None:
    with pytest.raises(TemplateFailed, match="too much memory"):
        render(patient_renderer, source)
    assert render(patient_renderer, "as {{ 'ever' }}") == "as ever"


def test_a_text_of_more_than_the_limit_is_refused() -> None:
    renderer = Renderer()
    with pytest.raises(TemplateFailed, match="it makes more than 134217728 characters"):
        renderer.render("{{ x * 134217729 }}", {"messages": [], "x": "x"})
    renderer.close()


def test_what_hangs_while_it_is_compiled_is_stopped(renderer: Renderer) -> None:
    """jinja2 works out beforehand what does not depend on variables."""
    nested = "[1]"
    for _ in range(18):
        nested = f"[{nested}, {nested}]"
    with pytest.raises(TemplateFailed, match="it takes"):
        renderer.compile(f"{{{{ {nested} == {nested} }}}}")


def test_each_thread_gets_its_own_text(renderer: Renderer) -> None:
    with ThreadPoolExecutor(8) as pool:
        texts = pool.map(lambda i: renderer.render("{{ i }}", {"messages": [], "i": i}), range(200))
        assert list(texts) == [str(i) for i in range(200)]


def test_a_process_that_was_ended_from_outside_is_started_again(renderer: Renderer) -> None:
    assert render(renderer, "1") == "1"
    pid = renderer.idle_pids[-1]
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert render(renderer, "2") == "2"


@pytest.fixture
def stopped() -> Iterator[tuple[Renderer, int]]:
    """One whose only process so far has been stopped, and that one's id. One of two is for small tasks."""
    renderer = Renderer(RenderLimits(max_wall_s=60, num_processes=2))
    renderer.compile("")
    [pid] = renderer.idle_pids
    os.kill(pid, signal.SIGSTOP)
    yield renderer, pid
    renderer.close()


def is_asking(thread: threading.Thread) -> bool:
    """Whether it has begun to talk to a process."""
    frame = sys._current_frames().get(thread.ident or 0)
    return any(each.f_code.co_name in ("send_bytes", "recv_bytes") for each, _ in traceback.walk_stack(frame))


def begin_rendering(renderer: Renderer, text: str) -> tuple[threading.Thread, list[str]]:
    texts: list[str] = []
    thread = threading.Thread(
        target=lambda: texts.append(renderer.render("{{ x }}", {"messages": [], "x": text})), daemon=True
    )
    thread.start()
    return thread, texts


@pytest.mark.sampled(2)
@pytest.mark.parametrize("text", ["small", "large" * 1_000_000])
def test_a_process_that_is_killed_at_work_costs_nobody_an_answer(stopped: tuple[Renderer, int], text: str) -> None:
    renderer, pid = stopped
    thread, texts = begin_rendering(renderer, text)
    until(lambda: is_asking(thread))
    os.kill(pid, signal.SIGKILL)
    thread.join()
    assert texts == [text]


@pytest.mark.parametrize("text", ["small", "large" * 1_000_000])
def test_a_process_that_does_not_answer_is_killed_and_replaced(text: str) -> None:
    renderer = Renderer(RenderLimits(max_wall_s=1))
    while not renderer.idle_pids:  # on a busy machine even that may take longer
        with suppress(Unavailable):
            renderer.compile("")
    [pid] = renderer.idle_pids
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(Unavailable, match="a chat template was not rendered within 1 s"):
        renderer.render("{{ x }}", {"messages": [], "x": text})
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert renderer.idle_pids == []


def test_a_process_that_does_not_start_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python may take its time to start, a task may not."""
    (tmp_path / "sitecustomize.py").write_text("import signal\nsignal.pause()\n")
    monkeypatch.syspath_prepend(tmp_path)
    renderer = Renderer(RenderLimits(max_wall_s=600, max_start_s=0.1))
    with pytest.raises(Unavailable, match=r"the process for chat templates did not start within 0\.1 s"):
        renderer.compile("")
    assert renderer.idle_pids == []


def test_a_large_task_holds_up_neither_small_nor_large_ones() -> None:
    renderer = Renderer(RenderLimits(max_wall_s=60, num_processes=3))
    renderer.compile("")
    [pid] = renderer.idle_pids
    os.kill(pid, signal.SIGSTOP)
    thread, texts = begin_rendering(renderer, LARGE)
    until(lambda: is_asking(thread))
    assert render(renderer, "small") == "small"
    assert renderer.render("{{ x }}", {"messages": [], "x": LARGE}) == LARGE
    os.kill(pid, signal.SIGCONT)
    thread.join()
    assert texts == [LARGE]
    assert len(renderer.idle_pids) == 2, "no more are started than are needed"
    renderer.close()


def test_large_tasks_leave_a_process_to_small_ones(stopped: tuple[Renderer, int]) -> None:
    renderer, pid = stopped
    first, _ = begin_rendering(renderer, LARGE)
    until(lambda: is_asking(first))
    second, texts = begin_rendering(renderer, LARGE)
    for number in range(20):
        assert render(renderer, str(number)) == str(number)
    assert texts == [], "a second large task waits for the first"
    os.kill(pid, signal.SIGCONT)
    first.join()
    second.join()
    assert texts == [LARGE]


def test_a_task_that_finds_no_process_in_time_is_told_so() -> None:
    renderer = Renderer(RenderLimits(max_wall_s=60, max_queue_s=0.1, num_processes=2))
    renderer.compile("")
    [pid] = renderer.idle_pids
    os.kill(pid, signal.SIGSTOP)
    thread, texts = begin_rendering(renderer, LARGE)
    until(lambda: is_asking(thread))
    with pytest.raises(Overloaded, match="too many chat templates are being rendered"):
        renderer.render("{{ x }}", {"messages": [], "x": LARGE})
    os.kill(pid, signal.SIGCONT)
    thread.join()
    assert texts == [LARGE]
    renderer.close()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_has_nothing_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTLOOP_API_KEY", "secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    renderer = Renderer()
    renderer.compile("")
    [pid] = renderer.idle_pids
    environment = Path(f"/proc/{pid}/environ").read_bytes()
    assert {each.partition(b"=")[0] for each in environment.split(b"\0")} <= {b"", b"PYTHONPATH", b"TZ"}
    renderer.close()


def test_text_that_is_no_unicode_comes_back(renderer: Renderer) -> None:
    assert renderer.render("{{ x }}", {"messages": [], "x": "a\ud800b"}) == "a\ud800b"


def test_variables_that_cannot_be_given_are_refused(renderer: Renderer) -> None:
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]
    for value in (nested, threading.Lock(), lambda: 1):
        with pytest.raises(TemplateFailed, match="cannot be given"):
            renderer.render("{{ x }}", {"messages": [], "x": value})


def test_the_process_ends_with_the_one_that_started_it() -> None:
    program = (
        "import os\nfrom hotloop.models.renderer import shared_renderer as shared\nshared().compile('x')\n"
        "print(*shared().idle_pids, flush=True)\nif not os.fork():\n"
        "    print(shared().idle_pids, shared().render('{{ 1 + 1 }}', {'messages': []}), flush=True)\nelse: os.wait()\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    first, second = ended.stdout.splitlines()
    assert second == "[] 2", "a forked process starts its own"
    with pytest.raises(ProcessLookupError):
        os.kill(int(first), 0)

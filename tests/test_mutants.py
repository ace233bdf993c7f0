"""Each operator is changed once, and nothing else."""

import pytest
from tests.mutants import EQUIVALENT, ROOT, TESTS, choose_mutants, find_mutants

SOURCE = '''def f(a: int | None, é: int) -> bool:
    """a + b"""
    assert a == 1
    if not a and é - 1 < 2 <= 3:
        print(f"{a + 1}")
    return a in (
        é, 2)


class C:
    def check(self) -> None:
        1 + 1
'''


def test_each_operator_is_changed_in_its_place() -> None:
    found = list(find_mutants("m.py", SOURCE))
    assert [mutant.name for mutant in found] == [
        "m.py: not a and é - 1 < 2 <= 3 -> not a or é - 1 < 2 <= 3",
        "m.py: not a -> a",
        "m.py: é - 1 < 2 <= 3 -> é - 1 <= 2 <= 3",
        "m.py: é - 1 < 2 <= 3 -> é - 1 < 2 < 3",
        "m.py: é - 1 -> é + 1",
        "m.py: a in (é, 2) -> a not in (é, 2)",
    ]
    assert "    if (a) and é - 1 < 2 <= 3:\n" in found[1].source
    assert found[-1].source == SOURCE.replace("a in (\n        é, 2)", "(a not in (é, 2))")
    assert len({mutant.digest for mutant in found}) == len(found)


def test_the_same_change_twice_has_two_names() -> None:
    assert [mutant.name for mutant in find_mutants("m.py", "x = a + b\ny = a + b\n")] == [
        "m.py: a + b -> a - b",
        "m.py: a + b -> a - b (2)",
    ]


@pytest.mark.long
def test_a_seed_chooses_the_same_mutants_and_all_can_be_compiled() -> None:
    chosen = choose_mutants(30, seed=3)
    assert chosen == choose_mutants(30, seed=3) != choose_mutants(30, seed=4)
    for mutant in chosen:
        compile(mutant.source, mutant.path, "exec")


@pytest.mark.parametrize("path", sorted({path for tests in TESTS.values() for path in tests}))
def test_the_tests_are_there(path: str) -> None:
    assert (ROOT / path).is_file()


def test_the_equivalent_ones_are_there() -> None:
    sources = {path: (ROOT / "src" / "hotloop" / path).read_text("utf-8") for path in TESTS}
    names = {mutant.name for path, source in sources.items() for mutant in find_mutants(path, source)}
    assert EQUIVALENT.keys() <= names

"""How one tool is called: the recipes that made its calls so far, and how often each of them was right."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hotloop.agent.predict.constants import Constants, may_be_constant
from hotloop.agent.predict.history import History, PastCall
from hotloop.agent.predict.sources import Candidate, Recipe, Source, explain
from hotloop.agent.predict.tally import Tallies
from hotloop.agent.predict.values import canonical

MAX_RECIPES = 12
_MAX_ARGUMENTS = 16
_MAX_SOURCES = 24
_MAX_CHOICES = 3  # sources of an argument that are tried in a new recipe, the usual ones first
_MAX_MIXES = 27
_MAX_NEW = 2


@dataclass(slots=True)
class Argument:
    """Where the values of an argument came from, with counts, and those it always has."""

    sources: dict[Source, int] = field(default_factory=dict)
    constants: Constants = field(default_factory=Constants)

    def trace(self, value: Any, history: History, run: int) -> list[Source]:
        """Where this value may have come from, the usual sources first."""
        found = explain(value, history)
        if not found and may_be_constant(value) and (text := canonical(value)) and self.constants.see(text, run):
            found.append(Source("constant", what=text))
        for source in found:
            self.sources[source] = self.sources.get(source, 0) + 1
        usual = sorted(found, key=lambda source: -self.sources[source])
        while len(self.sources) > _MAX_SOURCES:
            self.sources.pop(min(self.sources, key=lambda source: self.sources[source]))
        return usual


@dataclass(slots=True)
class Habits:
    tool: str
    recipes: dict[Recipe, Tallies] = field(default_factory=dict)
    arguments: dict[str, Argument] = field(default_factory=dict)

    def candidates(self, history: History) -> Iterator[tuple[Recipe, Candidate]]:
        for recipe in self.recipes:
            for candidate in recipe.candidates(history):
                yield recipe, candidate

    def learn(self, call: PastCall, history: History, run: int) -> list[tuple[Recipe, Candidate]]:
        """Find how this call could have been made from what was said before; the recipes that are new."""
        if call.arguments is None or len(call.arguments) > _MAX_ARGUMENTS:
            return []
        choices = []
        for name, value in call.arguments.items():
            if name not in self.arguments and len(self.arguments) >= _MAX_ARGUMENTS:
                return []
            sources = self.arguments.setdefault(name, Argument()).trace(value, history, run)
            choices.append([(name, source) for source in sources[:_MAX_CHOICES]])
        found = list(itertools.islice(self._fitting(call, choices, history), _MAX_NEW))
        new = [(recipe, candidate) for recipe, candidate in found if recipe not in self.recipes]
        for recipe, _ in new:
            self._make_room()
            self.recipes[recipe] = Tallies()
        return [(recipe, candidate) for recipe, candidate in new if recipe in self.recipes]

    def _fitting(
        self, call: PastCall, choices: list[list[tuple[str, Source]]], history: History
    ) -> Iterator[tuple[Recipe, Candidate]]:
        for mix in itertools.islice(itertools.product(*choices), _MAX_MIXES):
            recipe = Recipe(self.tool, mix)
            for candidate in recipe.candidates(history):
                if candidate.key == call.key:
                    yield recipe, candidate

    def _make_room(self) -> None:
        while len(self.recipes) >= MAX_RECIPES:
            self.recipes.pop(min(self.recipes, key=lambda recipe: self.recipes[recipe].num_hits))

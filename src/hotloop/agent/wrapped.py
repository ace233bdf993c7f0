"""A model around another: the same but for what a subclass does with its answers."""

from collections.abc import AsyncGenerator

from hotloop.agent.model import Ask, Model, ModelEvent


class WrappedModel:
    def __init__(self, model: Model) -> None:
        self._model = model

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def can_read_ahead(self) -> bool:
        return self._model.can_read_ahead

    def stream(self, ask: Ask) -> AsyncGenerator[ModelEvent, None]:
        return self._model.stream(ask)

    async def read(self, ask: Ask) -> None:
        await self._model.read(ask)

    async def close(self) -> None:
        await self._model.close()

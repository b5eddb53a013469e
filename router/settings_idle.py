"""Valid settings that do not do what they are there for; `check` warns of them."""

from collections.abc import Iterator

from router.settings import Settings
from strategies import registry


def idle(settings: Settings) -> Iterator[str]:
    """Say of each such setting what is missing. Every strategy must have been found."""
    for pool in settings.all_pools():
        keeps = getattr(registry.find(pool.strategy.name), "keeps_sessions", False)
        if not keeps and any(worker.stateful for worker in pool.workers):
            yield (
                f"pool {pool.name}: `stateful` opens no sessions with the strategy"
                f" {pool.strategy.name}: whoever asks for one is refused; write strategy: session"
            )

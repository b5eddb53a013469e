"""`warmroute check FILE --live`: asks every worker in a settings file once."""

from collections.abc import AsyncIterator, Iterator
from time import monotonic

from router.app import create_app
from router.asking import ask_all
from router.block_names import block_names
from router.check_tiers import tier_mistakes
from router.fleet import Fleet
from router.identity.agreement import State
from router.identity.case import Case
from router.identity.telling import BLIND
from router.inquiry import Inquiries
from router.memories import Memories
from router.memory_status import kv_statuses
from router.pool import Pool
from router.remote_memory import RemoteMemory
from router.settings import Settings
from router.stores.lookup import StoreDown
from router.stores.shared import SharedStore
from router.units import format_duration
from strategies.api import Prompt

#: Seconds that a controller may take here: what takes longer is not there.
PATIENCE_S = 5.0
#: How often a controller is asked, over a connection that is there, until it keeps its deadline.
TRIES = 5


async def check_live(settings: Settings, *, ask: bool = True) -> tuple[list[str], bool]:
    """Ask all workers, controllers and stores; return lines for people, and whether all is well.

    With `ask`, workers compute short prompts, too. Raises CannotBuild.
    """
    door = create_app(_patient(settings))
    try:
        await door.look()
        cases = door.keeper.cases
        named = {pool.name for pool in door.fleet.pools if pool.kv is not None}
        blind = [case for case in cases if case.pool in named and not case.trusted]
        lines = [*_workers(door.fleet)]
        lines += [line for case in cases for line in _tokenizer(case, case in blind)]
        # Stores are checked before our own prompts can put blocks into them.
        stores = [await _store(name, one) for name, one in door.memories.stores.items()]
        asked = [line async for line in _asked(door.fleet, door.memories)] if ask else []
        lines += [f"pool {one.pool}: {one.sentence()}" for one in kv_statuses(door.memories)]
        blocks = [(pool, *block_names(memory)) for pool, memory in door.memories.pools()]
        lines += [f"pool {pool.name}: {line}" for pool, said, _ in blocks for line in said]
        lines += asked
        for pool, remote in door.memories.remotes():
            lines += await _controller(pool, remote, _deadline(settings))
        well = all(worker.ready for worker in door.fleet.workers)
        well = well and all(alike for _, _, alike in blocks)
        well = well and not any(one.doubt for one in kv_statuses(door.memories))
        well = well and not any(remote.failing for _, remote in door.memories.remotes())
        lines += [line for line, _ in stores]
        mistakes = await tier_mistakes(door, settings.tiers) if ask else []
        lines += mistakes
        well = well and not mistakes
        well = well and all(good for _, good in stores)
        return lines, well and not blind and not any(map(_is_wrong, cases))
    finally:
        await door.stop()


async def _asked(fleet: Fleet, memories: Memories) -> AsyncIterator[str]:
    for pool in fleet.pools:
        for name, one in (await ask_all(pool, memories.of(pool), Inquiries())).items():
            yield f"pool {pool.name}: worker {name}: {one.said}"


async def _store(pool: str, store: SharedStore) -> tuple[str, bool]:
    """Check a store that is asked what it holds (L2); return a line, and whether it is fine."""
    try:
        await store.look()
    except StoreDown as error:
        return f"pool {pool}: L2: {error}", False
    return f"pool {pool}: L2: {store.wrong or 'it answers'}", not store.wrong


def _workers(fleet: Fleet) -> Iterator[str]:
    for pool in fleet.pools:
        for worker in pool.workers:
            said = ", ".join(sorted(worker.models)) if worker.ready else worker.reason
            yield f"pool {pool.name}: worker {worker.name}: {worker.state.value}: {said}"


def _patient(settings: Settings) -> Settings:
    """Return settings with which a controller that is slow is not taken for one that is gone."""
    told = settings.controller
    if told is None:
        return settings
    patient = told.model_copy(update={"deadline": max(told.deadline, PATIENCE_S)})
    return settings.model_copy(update={"controller": patient})


def _deadline(settings: Settings) -> float:
    return settings.controller.deadline if settings.controller else PATIENCE_S


async def _controller(pool: Pool, remote: RemoteMemory, deadline: float) -> list[str]:
    """Return what the controller says about the pool's workers, or why it does not answer."""
    asked, names = Prompt("", 0), [worker.name for worker in pool.workers]
    await remote.ask(asked, names)
    doubts = {name: remote.doubt(name, asked) for name in names}
    said = remote.sentence() if remote.failing else await _answers(remote, names, deadline)
    lines = [f"pool {pool.name}: controller {remote.url}: {said}"]
    if remote.failing:
        return lines
    return lines + [
        f"pool {pool.name}: worker {name}: KV events: {doubt or 'trusted'}, says the controller"
        for name, doubt in doubts.items()
    ]


async def _answers(remote: RemoteMemory, names: list[str], deadline: float) -> str:
    """Ask a controller that has answered once more, or a few times; say how it answers."""
    least = PATIENCE_S
    for _ in range(TRIES):
        begun = monotonic()
        await remote.ask(Prompt("", 0), names)
        if remote.failing:
            return remote.sentence()
        least = min(least, monotonic() - begun)
        if least <= deadline:
            return "answers"
    told = format_duration(deadline)
    return f"answers, but in {1000 * least:.0f} ms at best; controller.deadline is {told}"


def _tokenizer(case: Case, blind: bool) -> Iterator[str]:
    more = f"; {BLIND}" if blind else ""
    yield f"pool {case.pool}: {', '.join(sorted(case.models))}: {case.sentence()}{more}"
    for name, asked in sorted(case.asked.items()):
        yield f"  worker {name}: {asked.verdict.state}: {asked.verdict.why}"


def _is_wrong(case: Case) -> bool:
    """Whether a worker makes other tokens, or a tokenizer from the settings cannot be trusted."""
    if any(one.verdict.state is State.DIFFERS for one in case.asked.values()):
        return True
    return case.origin.told and not case.trusted

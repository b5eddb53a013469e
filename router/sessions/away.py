"""What this router did with sessions while their store was away, to be told to it afterwards. Pure
but for the telling."""

import asyncio
from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from router.sessions.table import Binding, Session

if TYPE_CHECKING:
    from router.sessions.store import Store

T = TypeVar("T")

#: Told at once: one at a time they might be told for minutes, and more than half of the connections
#: would be wanting for requests.
TOLD = 16
#: Seconds for which an id that the store does not know is believed after it was away: so long
#: other routers may need to find it again, and to tell it what they have begun.
DOUBT_S = 3.0


class Away:
    """Sessions begun and closed meanwhile, and some from before; so many of each at most."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.begun: OrderedDict[str, Session] = OrderedDict()
        """Bound meanwhile, the last one at the end."""
        self.seen: OrderedDict[str, Session] = OrderedDict()
        """Where sessions were that cannot be anywhere else."""
        self.closed: OrderedDict[str, None] = OrderedDict()
        """Ended by this router, at any time."""
        self._untold: OrderedDict[str, float | None] = OrderedDict()
        """Those of them that the store has not been told of; when it began, if only that one
        ended."""

    def begin(self, key: str, session: Session) -> None:
        """It is bound, and nobody could note it."""
        self.closed.pop(key, None)
        self._untold.pop(key, None)
        self._keep(self.begun, key, session)

    def see(self, key: str, session: Session | None) -> None:
        """The store has said where it is; None: it is not open."""
        if session is None:
            self.seen.pop(key, None)
        else:
            self._keep(self.seen, key, session)

    def close(self, key: str, *, told: bool = False, begun: float | None = None) -> bool:
        """End it, or only the one `begun` then; tell whether it may have been open. `told`: the
        store knows."""
        there = self.begun.get(key)
        if there is not None and begun is not None and there.created != begun:
            return False
        self.begun.pop(key, None)
        self.seen.pop(key, None)
        if key in self.closed:
            return False
        self._keep(self.closed, key, None)
        if not told:
            self._keep(self._untold, key, begun)
        return True

    def find(self, key: str) -> Session | None:
        """Return a session that this router knows of."""
        return self.begun.get(key) or self.seen.get(key)

    async def tell_ends(self, store: "Store") -> None:
        """Note what was closed. Raises StoreDown; then the rest stays."""
        while self._untold:
            some = list(islice(self._untold.items(), TOLD))
            await asyncio.gather(*(self._tell_end(store, key, since) for key, since in some))

    async def _tell_end(self, store: "Store", key: str, since: float | None) -> None:
        await store.close(key, begun=since)
        self._untold.pop(key, None)

    async def tell_begun(self, store: "Store") -> None:
        """Note what was begun by now, while others are asked to believe in it. Raises StoreDown;
        then the rest stays."""
        for _ in range(0, len(self.begun), TOLD):
            some = list(islice(self.begun.items(), TOLD))
            begun = (self._tell_begun(store, key, session) for key, session in some)
            await asyncio.gather(store.doubt(DOUBT_S), *begun)

    async def _tell_begun(self, store: "Store", key: str, session: Session) -> None:
        told, done = await store.bind(key, Binding.of(session), None)
        if self.begun.get(key) is session:
            del self.begun[key]
        elif done and told is not None and key in self.closed:  # the store heard of that first
            await store.close(key, begun=told.created)

    def _keep(self, among: OrderedDict[str, T], key: str, value: T) -> None:
        among[key] = value
        among.move_to_end(key)
        if len(among) > self.most:
            among.popitem(last=False)

"""What this router did to sessions while the store was down, to be reported to it afterwards.

Pure, except for the methods that report to the store.
"""

import asyncio
from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from router.sessions.table import Binding, OpenSession

if TYPE_CHECKING:
    from router.sessions.store import Store

T = TypeVar("T")

#: Reports sent to the store in parallel. One at a time could take minutes; many more would take
#: over half of the connections away from requests.
MAX_REPORTS = 16
#: Seconds after an outage during which an id unknown to the store is accepted as possibly open.
#: Other routers may need that long to notice that the store is back and to report what they
#: started.
DOUBT_S = 3.0


class Outage:
    """Sessions started or closed during an outage, and some seen before it; `most` of each kind."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.begun: OrderedDict[str, OpenSession] = OrderedDict()
        """Sessions bound during the outage, the latest last."""
        self.seen: OrderedDict[str, OpenSession] = OrderedDict()
        """The last known binding of sessions that only their own worker can serve (stateful
        pools)."""
        self.closed: OrderedDict[str, None] = OrderedDict()
        """Ids of sessions that this router closed, during an outage or not."""
        self._untold: OrderedDict[str, float | None] = OrderedDict()
        """The closed ids not yet reported to the store. The value is the creation time if only the
        session created then was closed."""

    def begin(self, key: str, session: OpenSession) -> None:
        """Record a session that was bound while the store could not be told."""
        self.closed.pop(key, None)
        self._untold.pop(key, None)
        self._keep(self.begun, key, session)

    def see(self, key: str, session: OpenSession | None) -> None:
        """Record what the store said about a session; None: it is not open."""
        if session is None:
            self.seen.pop(key, None)
        else:
            self._keep(self.seen, key, session)

    def close(self, key: str, *, told: bool = False, begun: float | None = None) -> bool:
        """Close a session; return whether it may have been open.

        With `begun`, close it only if it was created at that time. `told`: the store already knows.
        """
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

    def find(self, key: str) -> OpenSession | None:
        """Return a session that this router started or has seen."""
        return self.begun.get(key) or self.seen.get(key)

    async def tell_ends(self, store: "Store") -> None:
        """Report closed sessions to the store.

        Raises StoreDown; what was not reported yet is kept.
        """
        while self._untold:
            some = list(islice(self._untold.items(), MAX_REPORTS))
            await asyncio.gather(*(self._tell_end(store, key, since) for key, since in some))

    async def _tell_end(self, store: "Store", key: str, since: float | None) -> None:
        await store.close(key, begun=since)
        self._untold.pop(key, None)

    async def tell_begun(self, store: "Store") -> None:
        """Report the sessions started so far, and have other routers accept unknown ids meanwhile.

        Raises StoreDown; what was not reported yet is kept.
        """
        for _ in range(0, len(self.begun), MAX_REPORTS):
            some = list(islice(self.begun.items(), MAX_REPORTS))
            begun = (self._tell_begun(store, key, session) for key, session in some)
            await asyncio.gather(store.doubt(DOUBT_S), *begun)

    async def _tell_begun(self, store: "Store", key: str, session: OpenSession) -> None:
        told, done = await store.bind(key, Binding.of(session), None)
        if self.begun.get(key) is session:
            del self.begun[key]
        elif done and told is not None and key in self.closed:  # closed meanwhile
            await store.close(key, begun=told.created)

    def _keep(self, among: OrderedDict[str, T], key: str, value: T) -> None:
        among[key] = value
        among.move_to_end(key)
        if len(among) > self.most:
            among.popitem(last=False)

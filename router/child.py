"""One of several processes that serve on one port: started by `processes.py`, never by hand.

All it does it is told by whoever started it, over the socket whose descriptor it is given: first
its order, then other settings, and when to end. If that process is gone, it ends in order.
"""

import asyncio
import logging
import socket

import msgspec
import uvloop
from pydantic import ValidationError

from router import logs
from router.channel import Channel, Lost, Refusal, first
from router.passing import Passing, Posts
from router.process import raise_descriptors, settle
from router.rebuild import CannotBuild
from router.sealed import opened
from router.server import PortTaken, bind
from router.serving import Serving
from router.settings import Settings
from router.sharing import Sharing
from router.signals import obeying
from router.units import Address
from router.wires import Wires

log = logging.getLogger("warmroute.processes")


class Order(msgspec.Struct, frozen=True):
    """What a process is started for."""

    place: int
    """From 1."""
    sealed: bytes
    """The settings."""
    listen: Address
    """With the port that all of them share."""
    admin: Address | None
    posts: Posts | None = None
    """By which connections are passed on."""
    wires: Wires | None = None
    """By which they tell each other what they send."""


class Child:
    """Serves by an order."""

    def __init__(self, order: Order, settings: Settings) -> None:
        """Raises CannotBuild and PortTaken."""
        self._passing = Passing(order.posts, order.place - 1) if order.posts else None
        self._serving = Serving(settings, order.place, self._passing)
        self._server = self._serving.server
        door, wires = self._serving.door, order.wires
        self._sharing: Sharing | None = None
        if wires is not None:
            self._sharing = Sharing(wires, order.place - 1, door.fleet, door.freed_elsewhere)
            self._serving.at_rest = self._sharing.close
        door.fleet.share(self._sharing)
        self._ending = False
        self._changing = asyncio.Lock()
        self._view = self._serving.door.view
        # Nobody is to wait for what this process has not begun: it listens when it is ready.
        self._listeners = [bind(order.listen, shared=True, listen=False)]
        self._admin = [bind(order.admin, shared=True, listen=False)] if order.admin else []

    async def run(self, end: socket.socket) -> None:
        """Serve until told to end, or until nobody is there to tell it."""
        with obeying(self._end, _nothing):
            channel = await Channel.open(end, self._hear)
            self._view.ask = channel.ask
            if self._sharing is not None:
                self._sharing.begin()
            tasks = [asyncio.create_task(one) for one in (self._obey(channel), self._tell(channel))]
            await self._serving.run(self._listeners, self._admin)
            channel.tell("counted", self._view.own_metrics())  # or the sum over all would fall
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _end(self) -> None:
        """Begin the orderly end, once: the same may come as a signal and over the channel."""
        if not self._ending:  # the server itself hears of it a turn of the loop later
            self._ending = True
            self._server.stop()

    async def _obey(self, channel: Channel) -> None:
        await channel.run()
        self._end()

    async def _tell(self, channel: Channel) -> None:
        await self._server.started.wait()
        settle()
        channel.tell("ready")

    async def _hear(self, what: str, body: bytes) -> bytes:
        """Do what is asked. Raises Refusal."""
        match what:
            case "settings":
                await self._change(body)
            case "stop":
                self._end()
            case "now":
                self._server.stop(now=True)
            case "again" if self._passing is not None:
                self._passing.again()
            case "alive":
                pass  # that there is an answer says all
            case "gone" if self._sharing is not None:
                self._sharing.gone(*msgspec.msgpack.decode(body, type=tuple[int, int]))
            case "metrics":
                return self._view.own_metrics()
            case "workers":
                return self._view.own_workers()
            case "tokenizers":
                return self._view.own_tokenizers()
        return b""

    async def _change(self, sealed: bytes) -> None:
        async with self._changing:  # one that hung may hear of several changes at once
            await self._server.started.wait()
            if self._server.told:
                return
            try:
                await self._serving.change(opened(sealed))
                if self._sharing is not None:
                    self._sharing.anew()
            except (CannotBuild, ValidationError) as error:
                raise Refusal(str(error)) from None


def main(descriptor: int) -> None:
    """Serve at the other end of this socket."""
    with socket.socket(fileno=descriptor) as end:
        try:
            order = msgspec.msgpack.decode(first(end), type=Order)
        except Lost:
            return
        try:
            settings = opened(order.sealed)
            logs.set_up(settings.logs, order.place)
            raise_descriptors(settings.clients.connections)
            child = Child(order, settings)
        except (CannotBuild, PortTaken, ValidationError) as error:
            log.error("%s", error)
            raise SystemExit(1) from None
        uvloop.run(child.run(end))


def _nothing() -> None:
    """Settings come over the channel."""

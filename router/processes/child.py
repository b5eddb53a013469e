"""One of several processes that serve on one port: started by `supervisor.py`, never by hand.

It gets its instructions from the parent, over the socket whose descriptor it is given: first its
order, later new settings, and when to stop. Settings travel as JSON, secrets included. If the
parent is gone, the process shuts down in an orderly way.
"""

import asyncio
import logging
import socket

import msgspec
import uvloop
from pydantic import SecretStr, ValidationError

from router.app import RouterServer
from router.fleet.build import CannotBuild
from router.http.server import PortTaken, bind
from router.replicas.channel import Channel, Lost, Refusal, first
from router.replicas.replication import Sharing
from router.replicas.sockets import Wires
from router.runtime import logs
from router.runtime.process import raise_descriptors, settle, signal_handlers
from router.settings.errors import dotted
from router.settings.model import LogSettings, Settings
from router.settings.types import SEALED, SEALED_MARK, Address
from strategies.api import nothing


def seal(settings: Settings) -> bytes:
    """Write settings for `opened`. The result contains secrets: send it to nobody else."""
    return settings.model_dump_json(exclude_unset=True, context=SEALED).encode()


class Unusable(Exception):
    """A file that settings name has become unusable; the message is a sentence saying why."""


def opened(sealed: bytes) -> Settings:
    """Read what `seal` wrote. Raises Unusable."""
    try:
        return Settings.model_validate(_with_secrets(msgspec.json.decode(sealed)))
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)
    why = (
        f"{dotted(problem['loc'])}: {problem['msg'].removeprefix('Value error, ')}"
        for problem in errors
    )
    raise Unusable("; ".join(why))


def logs_of(sealed: bytes) -> LogSettings:
    """Read the part that says how to log, which is usable even if the rest is not."""
    return LogSettings.model_validate(msgspec.json.decode(sealed).get("logs", {}))


def _with_secrets(value: object) -> object:
    if isinstance(value, dict):
        return {key: _with_secrets(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_secrets(inner) for inner in value]
    if isinstance(value, str) and value.startswith(SEALED_MARK):
        return SecretStr(value.removeprefix(SEALED_MARK))
    return value


log = logging.getLogger("warmroute.processes")


class Order(msgspec.Struct, frozen=True):
    """The first message to a process: all that it needs to serve."""

    place: int
    """Its number among the processes, from 1."""
    sealed: bytes
    """The settings, as `seal` writes them."""
    listen: Address
    """The address with the port that all processes share."""
    admin: Address | None
    wires: Wires | None = None
    """Descriptors for telling each other what is sent to workers."""


class Child:
    """Serves as an order says."""

    def __init__(self, order: Order, settings: Settings) -> None:
        """Raises CannotBuild and PortTaken."""
        self._serving = RouterServer(settings, order.place)
        self._server = self._serving.server
        door, wires = self._serving.door, order.wires
        self._sharing: Sharing | None = None
        if wires is not None:
            calls, responses = (door.freed_elsewhere, door.gives_way), door.responses
            place = order.place - 1
            self._sharing = Sharing(wires, place, door.fleet, *calls, responses=responses)
            responses.others = self._sharing
            self._serving.at_rest = self._sharing.close
        door.fleet.share(self._sharing)
        self._ending = False
        self._changing = asyncio.Lock()
        self._view = self._serving.door.view
        # Bound, but listening only once ready: no client should wait for a process that starts.
        self._listeners = [bind(order.listen, shared=True, listen=False)]
        self._admin = [bind(order.admin, shared=True, listen=False)] if order.admin else []

    async def run(self, end: socket.socket) -> None:
        """Serve until told to stop, or until the parent is gone."""
        # New settings come over the channel, not by a signal.
        with signal_handlers(self._end, nothing):
            channel = await Channel.open(end, self._hear)
            self._view.ask = channel.ask
            if self._sharing is not None:
                self._sharing.begin()
            tasks = [
                asyncio.create_task(coroutine)
                for coroutine in (self._obey(channel), self._tell(channel))
            ]
            await self._serving.run(self._listeners, self._admin)
            # Send the last counts, or the sums over all processes would fall.
            channel.tell("counted", self._view.own_metrics())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _end(self) -> None:
        """Begin the orderly shutdown, once: a signal and the channel may both ask for it."""
        if not self._ending:  # the server itself notes the stop one loop iteration later
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
        """Handle a message of the parent. Raises Refusal."""
        match what:
            case "settings":
                await self._change(body)
            case "stop":
                self._end()
            case "now":
                self._server.stop(now=True)
            case "alive":
                pass  # any answer is enough
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
            except (CannotBuild, Unusable) as error:
                raise Refusal(str(error)) from None


def main(descriptor: int) -> None:
    """Serve on behalf of the process at the other end of this socket."""
    with socket.socket(fileno=descriptor) as end:
        try:
            order = msgspec.msgpack.decode(first(end), type=Order)
        except Lost:
            return
        form = logs_of(order.sealed)
        logs.set_up(form.level, form.format, order.place)
        try:
            settings = opened(order.sealed)
            raise_descriptors(settings.clients.connections)
            child = Child(order, settings)
        except (CannotBuild, PortTaken, Unusable) as error:
            log.error("%s", error)
            raise SystemExit(1) from None
        uvloop.run(child.run(end))

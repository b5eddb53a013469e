import asyncio, time, threading, socket, uuid
from typing import Any
import httpx
from tests.support import until
from tests.sessions.redis_server import RedisServer

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}

class Delay:
    """TCP proxy with a delay each way."""
    def __init__(self, target, delay):
        self.target, self.delay = target, delay
        self.ready = threading.Event()
        threading.Thread(target=lambda: asyncio.run(self.run()), daemon=True).start()
        self.ready.wait()
    async def run(self):
        s = await asyncio.start_server(self.accept, "127.0.0.1", 0)
        self.port = s.sockets[0].getsockname()[1]
        self.ready.set()
        await s.serve_forever()
    async def accept(self, r, w):
        try:
            r2, w2 = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            w.close(); return
        async def pump(r, w):
            loop = asyncio.get_running_loop()
            try:
                while d := await r.read(65536):
                    loop.call_later(self.delay, w.write, d)
            finally:
                loop.call_later(self.delay, w.close)
        await asyncio.gather(pump(r, w2), pump(r2, w), return_exceptions=True)

def test_recovery(stub, route, request):
    redis = RedisServer(); redis.start(); request.addfinalizer(redis.kill)
    d = Delay(redis.port, 0.005)
    r = route(workers=[stub().url for _ in range(3)], strategy="session",
              session={"redis": {"url": f"redis://127.0.0.1:{d.port}", "timeout": "500ms"}})
    up = lambda: r.metric("warmroute_session_store_up", pool="default")
    until(up)
    stop = threading.Event(); n = [0]
    def client(i):
        with httpx.Client(base_url=r.url, timeout=30) as c:
            k = 0
            while not stop.is_set():
                k += 1
                x = c.post("/v1/chat/completions", json=CHAT, headers={"x-session-id": f"s{i}-{k%100}"})
                assert x.status_code == 200
                n[0] += 1
    ts = [threading.Thread(target=client, args=(i,), daemon=True) for i in range(6)]
    for t in ts: t.start()
    time.sleep(2); print("rate up", n[0]/2)
    redis.kill(); n[0] = 0
    time.sleep(3); print("rate down", n[0]/3)
    redis.start(); t0 = time.time()
    sess = r.door.fleet.pools[0].sessions
    for _ in range(8):
        time.sleep(1); print(round(time.time()-t0,1), "up", up(), "begun", len(sess.away.begun))
    stop.set()
    for t in ts: t.join()
    t0 = time.time(); until(up, 60); print("after idle", time.time()-t0)

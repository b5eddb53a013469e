"""Chat requests as routers see them: a long shared beginning and a new end.

A request continues one of a few conversations, which begin with one of a few system prompts. Half
of it has been sent before and half is new, so prefix caches find something and have something to
add. The text has line breaks, quotes and, in a quarter of the requests, accented letters. Sizes are
exact, and the same arguments give the same bytes.
"""

import json
import random
from functools import lru_cache

from benchmarks.harness.stub import MODEL

#: Conversations that requests continue, and system prompts that conversations share.
CONVERSATIONS, SYSTEM_PROMPTS = 16, 4
_LINE_COUNT = 2000
_WORDS = (
    "the of and to in a is that for it as was with be by on not he his but at are this have from or"
    " had an they which one you were all her she there would their we him been has when who will no"
    " more if out so up said what its about than into them can only other time new some could these"
    " two may first then do any like my now over such our man even most made after also did many"
    " before must through years where much your way well down should because long each just state"
    " system network function return value request answer question model token cache prefix worker"
    " document section table report customer order delivery invoice temperature experiment result"
)
_ACCENTED = ("façade", "naïve", "Zürich", "señor", "déjà", "—", "“quoted”", "œuvre", "Größe")
_FILLER = "and so on, as it was said above, "


def chat_bodies(
    size: int, count: int, seed: int, *, stream: bool = False, bursts: bool = False
) -> list[bytes]:
    """Return `count` bodies of `size` bytes each. Other seeds continue the same conversations.

    With `bursts`, the stub worker writes several events of the stream at once.
    """
    chance = random.Random(f"{size} {seed}")
    tail = b'"}],"temperature":0.7,"max_tokens":256%s%s}' % (
        b',"stream":true,"stream_options":{"include_usage":true}' if stream else b"",
        b',"user":"bursts"' if bursts else b"",
    )
    bodies = []
    for number in range(count):
        head = _beginning(size, chance.randrange(CONVERSATIONS))
        new = b"(%x.%x) " % (seed, number)
        room = size - len(head) - len(new) - len(tail)
        text = _text(_lines(accented=number % 4 == 3), room, chance.randrange(_LINE_COUNT))
        bodies.append(b"".join((head, new, text, tail)))
    return bodies


@lru_cache(maxsize=256)
def _beginning(size: int, conversation: int) -> bytes:
    """Return the shared first half of a request, up to the start of the last question's text."""
    system = b"You are a helpful assistant. " + _text(
        _lines(), size // 8 - 60, conversation % SYSTEM_PROMPTS * 100
    )
    parts = [_message("system", system)]
    length = len(parts[0])
    while length + 200 < size // 2:
        share = min(max(size // 16, 60), size // 2 - length - 100)
        role = "user" if len(parts) % 2 else "assistant"
        text = b"[%d] " % conversation + _text(_lines(), share, conversation * 100 + len(parts) * 7)
        parts.append(_message(role, text))
        length += len(parts[-1])
    return b'{"model":"%s","messages":[%s,{"role":"user","content":"' % (
        MODEL.encode(),
        b",".join(parts),
    )


def _message(role: str, text: bytes) -> bytes:
    return b'{"role":"%s","content":"%s"}' % (role.encode(), text)


def _text(lines: list[bytes], length: int, start: int) -> bytes:
    """Return `length` bytes of JSON string, from line `start` on."""
    parts, at = [], start
    while length >= len(line := lines[at % len(lines)]):
        parts.append(line)
        length -= len(line)
        at += 1
    filler = (_FILLER * (max(length, 0) // len(_FILLER) + 1)).encode()
    return b"".join(parts) + filler[: max(length, 0)]


@lru_cache(maxsize=2)
def _lines(*, accented: bool = False) -> list[bytes]:
    """Return lines escaped as the content of a JSON string."""
    chance = random.Random(f"lines {accented}")
    known = _WORDS.split()
    lines = []
    for number in range(_LINE_COUNT):
        words = chance.choices(known, k=chance.randint(8, 22))
        if accented:
            words[0] = chance.choice(_ACCENTED)
        text = " ".join(words).capitalize()
        if number % 9 == 0:
            text = f'    {words[0]}["{words[1]}"] = {number}  # {words[2]}'
        lines.append(json.dumps(text + "\n", ensure_ascii=False)[1:-1].encode())
    return lines

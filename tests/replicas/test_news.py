"""How many bytes a piece of news takes at most."""

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import msgpack

from router.replicas.messages import Anew, Began, Booked, Ended, News, size

_MOST = (1 << 63) - 1
_count = st.integers(0, _MOST)
_when = st.floats(0.0, 1e12)
_tokens = st.none() | _count
_name = st.text(max_size=60)
_keys = st.lists(st.integers(0, (1 << 64) - 1), max_size=20)


@given(
    st.builds(
        Ended, *(_count, _when, st.booleans(), st.booleans()), *(_tokens, _tokens, _tokens, _tokens)
    )
    | st.builds(Began, _count, _when)
    | st.builds(Anew, st.booleans())
    | st.builds(
        Booked,
        *(_count, _when, _name, _name, _count, _count, st.booleans()),
        *(_when, _count, _count, _count, _when, _keys, st.booleans()),
        st.none() | _when,
    )
)
@example(Ended(_MOST, 1e12, True, True, _MOST, _MOST, _MOST, _MOST))
@example(
    Booked(
        *(_MOST, 1e12, "", "", _MOST, _MOST, True, 1e12, _MOST, _MOST, _MOST, 0.1, ()),
        *(True, 1e12),
    )
)
def test_no_news_is_larger_than_it_says(news: News) -> None:
    """Letters are closed by these sizes, so that none is larger than a datagram may be."""
    assert len(msgpack.encode(news)) <= size(news)

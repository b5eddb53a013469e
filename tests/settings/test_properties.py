"""Any text either loads or is refused with messages; nothing else ever happens."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.settings.errors import SettingsError
from router.settings.loader import loads
from router.settings.schema import describe

WORDS = [
    "workers", "pools", "strategy", "name", "url", "models", "api_key", "timeouts", "connect",
    "limits", "attempts", "logs", "level", "listen", "health", "kv_tokens", "http://a:1",
    "http://b:2/x", "prefixaware", "roundrobin", "memory", "16MiB", "2s", "${HOME}", "${NO}",
    "auth", "keys", "key", "admin", "tls", "ca", "certificate", "cors", "clients", "health",
    "ejection", "first", "longest", "retries", "total", "off", "none", "20%", "0.0.0.0:80",
    "https://a", "file:/dev/null", "info", "true", "~", "5", "1e9", "0x", ".nan", "2001-01-01",
    "*", "a*",
]  # fmt: skip
MARKS = [
    ": ", ":\n", ":\n  ", "\n", "\n  ", "\n- ", "\n  - ", ", ", "{", "}", "[", "]", "&a ", "*a ",
    "<<: *a", "!x ", "!!int ", "!!bool ", "!!float ", "!!null ", "! ", "'", '"', "|\n", ">-\n ",
    "# ", "\t", "---\n", "...\n", "%YAML 1.1\n", "%TAG ! x\n", "? ", "\\", "\\ud800", "\0", "é",
    "\ufeff", "`",
]  # fmt: skip
KEYS = [*WORDS[:16], "auth", "keys", "admin", "tls", "cors", "ejection", "first", "retries"]
YAMLISH = st.lists(st.sampled_from([*WORDS, *MARKS, *MARKS]), max_size=30).map("".join)


def check(text: str) -> None:
    """Check that the text loads, or that every message is one line with a valid line number."""
    try:
        assert describe(loads(text, "f"))
    except SettingsError as error:
        assert error.problems  # noqa: PT017
        for problem in error.problems:
            assert len(str(problem).splitlines()) == 1
            assert problem.line is None or 1 <= problem.line <= len(text.splitlines()) + 1


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(YAMLISH)
def test_anything_like_yaml_loads_or_is_refused(text: str) -> None:
    """Fragments of YAML and of settings, in any order."""
    check(text)


@settings(max_examples=80, deadline=None)
@given(st.text(max_size=60))
def test_any_text_loads_or_is_refused(text: str) -> None:
    """Any characters at all."""
    check(text)
    check(f"workers: [http://a:1]\n{text}")


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(WORDS).map(lambda word: f"'{word}'")
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(map(str, items))}]")
        | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4).map(
            lambda pairs: "{" + ", ".join(f"{key}: {value}" for key, value in pairs.items()) + "}"
        )
    ),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=5))
def test_any_structure_loads_or_is_refused(sections: dict[str, object]) -> None:
    """Valid keys with wrong values, at every level."""
    check("".join(f"{key}: {value}\n" for key, value in sections.items()))

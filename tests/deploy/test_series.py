"""The dashboard and the rules use series that exist, with labels that they have."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.deploy.files import DEPLOY, ROUTES, composed, documents

DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "warmroute.json").read_text())
RULES: list[dict[str, Any]] = documents(DEPLOY / "prometheus" / "rules.yaml")[0]["groups"]
METRICS = (DEPLOY.parent / "docs" / "metrics.md").read_text("utf-8")
#: What engines export (vLLM 0.32, v1/metrics/loggers.py and v1/kv_offload/cpu/common.py).
ENGINES = {
    "vllm:kv_cache_usage_perc",
    "vllm:kv_offload_cpu_cache_usage_perc",
    "vllm:prompt_tokens_by_source_total",
    "vllm:prefix_cache_hits_total",
    "vllm:prefix_cache_queries_total",
    "vllm:external_prefix_cache_hits_total",
    "vllm:external_prefix_cache_queries_total",
}
NAME = re.compile(r"(?<![\w:])((?:warmroute_|process_|vllm:|pool:)[\w:]+)")
#: A selector of one series: its name, and its label matchers.
SELECTED = re.compile(r"((?:warmroute_|process_|vllm:|pool:)[\w:]+)\{([^}]*)\}")
BY = re.compile(r"by \(([^)]*)\)\s*\((?:rate\()?((?:warmroute_|process_|pool:)[\w:]+)")


def asked() -> Iterator[str]:
    """Yield every expression of the dashboard and of the rules."""
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (variable["query"]["query"] for variable in DASHBOARD["templating"]["list"][1:])
    yield from (rule["expr"] for group in RULES for rule in group["rules"])


RECORDED = {rule["record"] for group in RULES for rule in group["rules"] if "record" in rule}


#: What `promtool check metrics` rejects in names: units other than Prometheus' base units, and
#: types or the suffixes of a histogram's series.
UNITS = re.compile(
    r"_(ms|milliseconds|us|microseconds|ns|minutes?|hours?|[kmg]i?b|kilobytes|megabytes|percent)(_|$)"
)
TYPED = re.compile(r"_(gauge|counter|histogram|summary|bucket|count|sum)(_|$)")
SNAKE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


def test_every_series_exists(exported: dict[str, set[str]]) -> None:
    """Every name used is exported, an engine's, or recorded by a rule."""
    names = {name for expression in asked() for name in NAME.findall(expression)}
    assert len(names) > 35
    assert names <= exported.keys() | ENGINES | RECORDED


def test_every_label_exists(exported: dict[str, set[str]]) -> None:
    """A selector with a label that a series lacks finds nothing, without an error."""
    count = 0
    for expression in asked():
        for name, selectors in SELECTED.findall(expression):
            for label in re.findall(r"(\w+)\s*[=!]", selectors):
                assert label in exported[name], (name, label)
                count += 1
        for labels, name in BY.findall(expression):
            for label in labels.split(","):
                own = {"instance"}  # every scraped series has it
                assert label.strip() in exported.get(name, {"pool"}) | own, (name, label)
                count += 1
    assert count > 55


def test_metrics_are_as_promtool_wants_them(scraped: list[str]) -> None:
    """Each family appears once, with help and type; names contain the unit, not the type."""
    for text in scraped:
        told = [line.split(" ", 3)[1:3] for line in text.splitlines() if line.startswith("# ")]
        names = [name for kind, name in told if kind == "TYPE"]
        assert len(set(names)) == len(names) > 20
        assert told == [[kind, name] for name in names for kind in ("HELP", "TYPE")]
        families = list(text_string_to_metric_families(text))
        assert len(families) == len(names), "samples stand with their family"
        for family in families:
            name, kind = family.name, family.type
            assert kind in {"counter", "gauge", "histogram"}, name
            assert family.documentation.endswith("."), name
            assert SNAKE.fullmatch(name), name
            assert not UNITS.search(name), name
            assert not TYPED.search(name), name
            series = {sample.name.removeprefix(name) for sample in family.samples}
            ends = {"counter": {"_total"}, "gauge": {""}}
            assert series <= ends.get(kind, {"_bucket", "_count", "_sum"}), name
            assert kind == "counter" or not name.endswith("_total"), name
            labels = {label for sample in family.samples for label in sample.labels}
            assert all(map(SNAKE.fullmatch, labels)), name
            assert kind == "histogram" or labels.isdisjoint({"le", "quantile"}), name


def test_every_series_is_in_the_documentation(scraped: list[str]) -> None:
    """The page names what is exported, and nothing else."""
    families = [family for text in scraped for family in text_string_to_metric_families(text)]
    names = {f"{one.name}_total" if one.type == "counter" else one.name for one in families}
    assert len(names) > 70
    rows = [line.split("|")[1] for line in METRICS.splitlines() if line.startswith("| `")]
    documented = re.findall(r"`((?:warmroute|process)_\w+)", " ".join(rows))
    assert sorted(documented) == sorted(names)


ALERTS = " ".join(rule["expr"] for group in RULES for rule in group["rules"] if "alert" in rule)


def test_what_clients_see_as_failures_alerts() -> None:
    """Both a worker's 5xx and those of the router itself, by the labels that each has."""
    for series, statuses in (("requests", ["5xx"]), ("refused_requests", ["502", "503", "504"])):
        watched = re.findall(rf'warmroute_{series}_total\{{status=~?"([^"]*)"\}}', ALERTS)
        assert [one for one in watched if all(re.fullmatch(one, status) for status in statuses)]


def test_what_is_up_or_down_alerts(exported: dict[str, set[str]]) -> None:
    """Each series that is 1 while something is up is watched, and so is the router itself."""
    watched = [name for name in (*exported, "up") if name.endswith("up")]
    assert len(watched) > 3
    assert [name for name in watched if not re.search(rf"\b{name}\b[^()]* == 0", ALERTS)] == []


@pytest.mark.parametrize("route", ROUTES)
def test_prometheus_scrapes_the_services_of_compose(route: str) -> None:
    """The router by its key, the workers without; the rules are mounted beside."""
    (settings,) = documents(DEPLOY / "prometheus" / "prometheus.yaml")
    jobs = {job["job_name"]: job for job in settings["scrape_configs"]}
    (compose,) = documents(DEPLOY / "compose" / f"{route}.yaml")
    services = compose["services"]
    targets = {name: job["static_configs"][0]["targets"] for name, job in jobs.items()}
    workers = composed(route)
    assert targets == {"warmroute": ["warmroute:8080"], "vllm": [f"{one}:8000" for one in workers]}
    assert "warmroute" in services
    assert jobs["vllm"].keys().isdisjoint({"authorization", "basic_auth", "oauth2"})
    for worker in workers.values():
        assert "VLLM_API_KEY" not in worker.environment
        assert not [arg for arg in worker.args if arg.startswith("--api-key")]
    file = jobs["warmroute"]["authorization"]["credentials_file"]
    (secret,) = services["prometheus"]["secrets"]
    assert file == f"/run/secrets/{secret}"
    assert compose["secrets"][secret] == {"environment": "WARMROUTE_KEY"}
    assert settings["rule_files"] == ["rules.yaml"]
    mounted = dict(volume.split(":")[:2] for volume in services["prometheus"]["volumes"])
    assert mounted == {
        "../prometheus/prometheus.yaml": "/etc/prometheus/prometheus.yml",
        "../prometheus/rules.yaml": "/etc/prometheus/rules.yaml",
    }

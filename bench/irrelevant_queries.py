"""Queries about subjects that none of the memories is about."""

from __future__ import annotations

from typing import Any

from bench.measure import BenchmarkReport
from bench.server import BenchClient, serving

STORE = "team"
_SUBJECTS = """
quantum chromodynamics
the Byzantine tax system
plate tectonics under Iceland
the Krebs cycle
Etruscan pottery
the Doppler effect of pulsars
medieval siege engines
enzyme kinetics
the Treaty of Westphalia
rock strata
the migration of arctic terns
Fourier transforms
the Ottoman succession
supersonic nozzles
Old Norse grammar
glacial moraines
superconducting magnets
the Hanseatic League
carbon dating of parchment
tidal locking of moons
the anatomy of cephalopods
Gothic rib vaults
the monetary policy of Weimar
aluminium smelting
lattice theory
volcanic ash clouds
the Punic wars
catalytic converters
the orbit of Mercury
mangrove roots
Sumerian cuneiform
the refractive index of sapphire
the Meiji restoration
nuclear fission
coral bleaching
shuttlecock aerodynamics
papal conclaves
polymer crystallinity
the spawning of sturgeon
the Mayan calendar
eddy currents
Hittite law
desalination membranes
the moons of Neptune
ribosomal proteins
Victorian canal locks
the viscosity of lava
Laplace operators on manifolds
the fall of Constantinople
photosynthesis in cyanobacteria
""".strip().splitlines()
_FORMS = ("{}", "what is {}?", "who discovered {} and when", "tell me more about {}, please")
_MEMORIES = """
The cafeteria closes at 3 pm
We use Postgres 17 for the billing service
Bob prefers dark mode in all editors
Deploys are frozen on Fridays
Alice is allergic to peanuts
The staging cluster runs in Frankfurt
New repositories use ruff instead of black
The API key of the payment provider rotates each quarter
The standup is at 9:30 in room Orion
Carol moved from design to the mobile team
Acme wants invoices as PDF
We decided against microservices in March
Bob's phone number is 555-0187
The captcha makes the login page slow
Dana writes the release notes
Never push to main without a review
The user likes short answers without emoji
The office dog is called Pixel
Failed webhooks are retried five times
The retrospective moved to Thursdays
Carol speaks French and Portuguese
Feature flags live in config/flags.toml
Alice's birthday is on May 4
The checkout endpoint takes 40 ms
Erin owns the data pipeline
The build cache lives on NFS
The team migrates from Jenkins to GitHub Actions
Dave takes the train from Lyon each Monday
The onboarding guide is outdated
The mobile app crashes on Android 9
Logs are kept for thirty days
The printer on the second floor is broken
Marketing asked for a blue logo
The intern starts in September
Our SLA promises 99.9 percent
Rate limits are per key and minute
The user's favourite lunch is ramen
""".strip().splitlines()


def irrelevant(chosen: dict[str, object], _conversations: object, *, quick: bool) -> BenchmarkReport:
    """Check that recalls about other subjects return no memory, and change no confidence."""
    queries = [form.format(subject) for subject in _SUBJECTS[: 10 if quick else None] for form in _FORMS]
    report = BenchmarkReport(f"{len(queries)} irrelevant recalls of {len(_MEMORIES)} memories")
    with serving(chosen) as (_, client):
        for text in _MEMORIES:
            client.call("POST", f"/api/memories?store={STORE}", {"content": text, "confidence": 0.25})
        client.settle(STORE)
        before = _states(client)
        found = [(query, hit) for query in queries for hit in _recall(client, query)]
        after = _states(client)
    report.check("hits", f"{len(found)} of {len(queries)} recalls", not found)
    changed = sum(before[key] != after[key] for key in before)
    report.check("memories changed", f"{changed} of {len(before)}", changed == 0 and len(before) == len(_MEMORIES))
    report.notes += [f"{query!r} found {hit['content']!r}: {hit['why']}" for query, hit in found[:5]]
    return report


def _recall(client: BenchClient, query: str, **options: Any) -> list[dict[str, Any]]:
    asked = {"query": query, "explain": True, **options}
    return client.call("POST", f"/api/memories/search?store={STORE}", asked)["hits"]


def _states(client: BenchClient) -> dict[str, tuple[Any, Any]]:
    """Return the confidence and number of accesses of each memory by its id."""
    hits = _recall(client, "memory", touch=False, min_similarity=-1, limit=100)
    return {hit["id"]: (hit["confidence"], hit["access_count"]) for hit in hits}

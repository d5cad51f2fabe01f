"""Writes the sample graph that the explorer loads: `python -m scripts.sample_graph`.

The sample is a list of steps, each of which becomes one commit or more, so that the store has a past. Times of validity
are days from the moment of loading, so that "last week" always holds something.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

TOP = Path(__file__).parent.parent
TARGET = TOP / "kgserve" / "server" / "http" / "static" / "explorer" / "entry" / "sample.json"
Row = dict[str, Any]

PEOPLE = {
    "mira": ("Mira Chen", "Product manager", -700),
    "jonas": ("Jonas Weber", "Backend engineer", -640),
    "amara": ("Amara Okafor", "Frontend engineer", -500),
    "luis": ("Luis Ortega", "Site reliability engineer", -420),
    "priya": ("Priya Nair", "Data engineer", -300),
    "tom": ("Tom Lindqvist", "Designer", -250),
    "sofia": ("Sofia Rossi", "Support lead", -180),
}
TEAMS = {
    "team-booking": ("Booking team", ("mira", "jonas", "amara", "tom")),
    "team-platform": ("Platform team", ("luis", "priya")),
}
SERVICES = {
    "web-app": (
        "Web app",
        "The pages on which travellers book a ferry",
        "amara",
        ("booking-api", "timetable", "login"),
    ),
    "booking-api": ("Booking API", "Creates and changes bookings", "jonas", ("payments", "seat-map", "database")),
    "payments": ("Payments", "Charges cards and pays money back", "jonas", ("ledger",)),
    "ledger": ("Ledger", "Keeps every payment for the accounts", "priya", ("database",)),
    "seat-map": ("Seat map", "Knows which seats of a crossing are free", "amara", ("database",)),
    "timetable": ("Timetable", "Crossings, harbours and delays", "priya", ("tide-feed",)),
    "tide-feed": ("Tide feed", "Reads tides and weather of the harbour authority", "priya", ()),
    "login": ("Login", "Accounts and sessions", "luis", ("database",)),
    "notifier": ("Notifier", "Sends messages about delays", "luis", ("timetable", "login")),
    "database": ("Database", "PostgreSQL 16, two replicas", "luis", ()),
}
REQUIREMENTS = {
    "req-book": (
        "Book in a minute",
        "A traveller books a crossing in less than a minute.",
        ("web-app", "booking-api"),
        "high",
    ),
    "req-refund": (
        "Refund by card",
        "A cancelled crossing is paid back within two days.",
        ("payments", "ledger"),
        "high",
    ),
    "req-delay": (
        "Tell about delays",
        "Travellers hear of a delay within five minutes.",
        ("notifier", "timetable"),
        "high",
    ),
    "req-seats": ("Choose a seat", "Travellers see free seats and choose one.", ("seat-map", "web-app"), "medium"),
    "req-offline": (
        "Ticket without network",
        "The ticket can be shown without a network on board.",
        ("web-app",),
        "medium",
    ),
    "req-audit": ("Audit trail", "Every change of a booking can be explained for seven years.", ("ledger",), "high"),
    "req-bikes": ("Bring a bike", "A bike is booked together with a seat.", ("booking-api",), "low"),
    "req-access": (
        "Usable by everyone",
        "All pages can be used with a keyboard and a screen reader.",
        ("web-app",),
        "high",
    ),
}
DECISIONS = {
    "dec-postgres": (
        "Stay with PostgreSQL",
        "One database for all services until it hurts.",
        "luis",
        ("database",),
        -400,
    ),
    "dec-queue": (
        "No message queue yet",
        "Services call each other; a queue comes with the third consumer.",
        "jonas",
        ("notifier",),
        -260,
    ),
    "dec-seats": (
        "Hold seats for ten minutes",
        "A seat is held for ten minutes while the traveller pays.",
        "mira",
        ("seat-map",),
        -120,
    ),
    "dec-tides": (
        "Tides decide the timetable",
        "A crossing is closed when the water is too low.",
        "priya",
        ("timetable", "tide-feed"),
        -90,
    ),
}
HARBOURS = {
    "north-pier": ("North Pier", "The main harbour, open at all tides"),
    "old-quay": ("Old Quay", "Falls dry at low tide"),
    "seal-island": ("Seal Island", "Ferries in summer only"),
}
INCIDENTS = {
    "inc-double": ("Seats sold twice", "Two travellers had the same seat on three crossings.", "seat-map", -110, -108),
    "inc-slow": ("Slow bookings", "Bookings took nine seconds on a holiday morning.", "database", -45, -44),
    "inc-tide": ("Missing tide data", "The harbour authority sent no tides for two hours.", "tide-feed", -6, -6),
}


def node(node_id: str, kind: str, name: str, content: str, **fields: Any) -> Row:
    """Return a named node as `inject` takes it: memories find it by name, and the graph shows its summary."""
    return {"id": node_id, "type": kind, "name": name, "summary": name, "content": content, **fields}


def edge(source: str, relation: str, target: str, **fields: Any) -> Row:
    """Return an edge as `inject` takes it."""
    return {"from": source, "to": target, "relation_type": relation, **fields}


def memory(key: str, kind: str, content: str, about: tuple[str, ...], age: int, **fields: Any) -> Row:
    """Return a memory as `retain` takes it, remembered `age` days ago."""
    entities = [{"name": name} for name in about]
    return {
        "entity_id": key,
        "memory_type": kind,
        "content": content,
        "entities": entities,
        "created_at": -age,
        "valid_from": -age,
        **fields,
    }


def build_steps() -> list[Row]:
    """Return the steps in the order in which they are sent."""
    return [*_teams(), *_services(), *_plans(), *_changes(), *_memories()]


def _teams() -> list[Row]:
    people = [
        node(key, "person", name, f"{name}, {role.lower()}", valid_from=since, attributes={"role": role})
        for key, (name, role, since) in PEOPLE.items()
    ]
    teams = [node(key, "team", name, f"The {name.lower()} of Tideline") for key, (name, _members) in TEAMS.items()]
    members = [edge(person, "MEMBER_OF", key) for key, (_name, who) in TEAMS.items() for person in who]
    return [{"nodes": people}, {"nodes": teams, "edges": members}]


def _services() -> list[Row]:
    services = [
        node(
            key,
            "application",
            name,
            text,
            tags=[f"owner:{owner}"],
            attributes={"language": "Python" if at % 2 else "TypeScript"},
        )
        for at, (key, (name, text, owner, _uses)) in enumerate(SERVICES.items())
    ]
    owners = [edge(owner, "OWNS", key) for key, (_name, _text, owner, _uses) in SERVICES.items()]
    uses = [edge(key, "DEPENDS_ON", other) for key, (*_rest, others) in SERVICES.items() for other in others]
    harbours = [node(key, "harbour", name, text) for key, (name, text) in HARBOURS.items()]
    serves = [edge("timetable", "SERVES", key) for key in HARBOURS]
    return [{"nodes": services, "edges": owners}, {"edges": uses}, {"nodes": harbours, "edges": serves}]


def _plans() -> list[Row]:
    requirements = [
        node(key, "requirement", name, text, tags=[f"priority:{priority}"], attributes={"priority": priority})
        for key, (name, text, _by, priority) in REQUIREMENTS.items()
    ]
    implemented = [
        edge(key, "IMPLEMENTED_BY", by) for key, (_n, _t, services, _p) in REQUIREMENTS.items() for by in services
    ]
    decisions = [
        node(key, "decision", name, text, valid_from=since)
        for key, (name, text, _by, _about, since) in DECISIONS.items()
    ]
    decided = [edge(by, "DECIDED", key, valid_from=since) for key, (_n, _t, by, _about, since) in DECISIONS.items()]
    about = [edge(key, "CONCERNS", to) for key, (_n, _t, _by, services, _s) in DECISIONS.items() for to in services]
    return [{"nodes": requirements, "edges": implemented}, {"nodes": decisions, "edges": decided + about}]


def _changes() -> list[Row]:
    """Return what happened later: corrections, ends and a deletion."""
    incidents = [
        node(key, "incident", name, text, valid_from=begun, valid_to=ended)
        for key, (name, text, _service, begun, ended) in INCIDENTS.items()
    ]
    hit = [edge(key, "HIT", service) for key, (_n, _t, service, _b, _e) in INCIDENTS.items()]
    return [
        {"nodes": [node("req-fax", "requirement", "Tickets by fax", "Travellers can order tickets by fax.")]},
        {"nodes": incidents, "edges": [*hit, edge("inc-double", "LED_TO", "dec-seats")]},
        {"nodes": [node("database", "application", "Database", "PostgreSQL 17, two replicas")]},
        {"delete": "req-fax"},
        {
            "nodes": [node("queue", "application", "Message queue", "Carries delays to the notifier", valid_from=-5)],
            "edges": [
                edge("dec-queue", "CONCERNS", "notifier", valid_to=-5),
                edge("notifier", "DEPENDS_ON", "queue", valid_from=-5),
                edge("luis", "OWNS", "queue", valid_from=-5),
                edge("inc-tide", "LED_TO", "queue"),
            ],
        },
    ]


def _memories() -> list[Row]:
    """Return what agents have remembered while they worked; two memories replace earlier ones."""
    first = [
        memory("mem-postgres", "fact", "The database runs PostgreSQL 16.", ("database",), 400, confidence=0.95),
        memory(
            "mem-review",
            "preference",
            "Mira Chen wants pull requests under 300 lines.",
            ("mira",),
            150,
            tags=["process"],
        ),
        memory(
            "mem-dark", "preference", "Tom Lindqvist designs for the dark theme first.", ("tom",), 90, tags=["design"]
        ),
        memory("mem-friday", "rule", "Nobody deploys Payments on a Friday.", ("payments",), 220, tags=["process"]),
        memory(
            "mem-card", "fact", "The card processor allows 20 refunds per second.", ("payments",), 60, confidence=0.7
        ),
        memory("mem-tide", "fact", "Old Quay closes when the tide is below 0.8 m.", ("old-quay", "tide-feed"), 80),
        memory("mem-oncall", "fact", "Luis Ortega is on call in even weeks.", ("luis",), 40, confidence=0.9),
        memory("mem-summer", "fact", "Ferries to Seal Island run from May to September.", ("seal-island",), 200),
        memory(
            "mem-slow",
            "insight",
            "Bookings are slow when the seat map reads without its index.",
            ("seat-map",),
            44,
        ),
        memory(
            "mem-support",
            "event",
            "Sofia Rossi reported forty calls about missing tide data.",
            ("sofia", "tide-feed"),
            6,
        ),
        memory(
            "mem-bikes",
            "decision",
            "Bikes are postponed until the seat map knows the car deck.",
            ("req-bikes", "seat-map"),
            30,
        ),
        memory(
            "mem-guess",
            "fact",
            "The harbour authority may change its data format in spring.",
            ("tide-feed",),
            20,
            confidence=0.4,
        ),
    ]
    later = [
        memory("mem-postgres", "fact", "The database runs PostgreSQL 17.", ("database",), 12, confidence=0.95),
        memory("mem-oncall", "fact", "Luis Ortega is on call in odd weeks.", ("luis",), 4, confidence=0.9),
    ]
    return [{"memories": first}, {"memories": later}]


def main() -> None:
    """Write the sample."""
    TARGET.write_bytes(render_sample())


def render_sample() -> bytes:
    """Return the file, a step on each line."""
    encode = msgspec.json.Encoder().encode
    lines = b",\n".join(encode(step) for step in build_steps())
    return b'{"steps": [\n' + lines + b"\n]}\n"


if __name__ == "__main__":
    main()

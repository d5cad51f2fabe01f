"""Adapters of agent frameworks to the client. Each module needs the extra of its framework; nothing imports them."""

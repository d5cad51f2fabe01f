"""What a disk may hold after a power loss, and what a store makes of it: `python -m bench.power_loss`."""

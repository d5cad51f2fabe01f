"""Power loss test of a store: possible disk states, and recovery from them: `python -m bench.power_loss`."""

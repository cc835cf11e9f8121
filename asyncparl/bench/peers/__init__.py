"""What others do of the same. Run by interpreters that have the peer's packages, and not ours: see `workloads.py`.

cd asyncparl/bench && PYTHON -m peers.ray_actors calls --output rows.json
"""

"""A coverage-guided fuzzer of everything that reads bytes from a peer: `python -m tests.fuzz frames --seconds 600`."""

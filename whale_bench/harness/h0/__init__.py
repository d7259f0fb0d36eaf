"""The base harness h0 of each domain, a file of its own named after the domain."""

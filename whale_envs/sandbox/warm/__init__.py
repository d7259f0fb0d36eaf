"""What runs in the sandbox's own processes: `keeper` → `supervisor` → `template` → one child per call.

These modules import nothing but the standard library and each other, so that the warm parent, which
runs without the package's folder, can load them.
"""

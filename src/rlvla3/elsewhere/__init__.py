"""Simulators in another Python environment (``simulator.python``).

Some simulators need packages that cannot be installed beside others. Their processes are then started
with the interpreter of an environment of their own (`interpreter`). This process never imports them: what
an adapter offers is asked of that interpreter (`asking`, `answering`), and a stand-in takes the adapter's
place wherever a configuration is read or checked.
"""

from rlvla3.elsewhere.asking import adapter_class

__all__ = ["adapter_class"]

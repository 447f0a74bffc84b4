"""A kernel's PTX run on the CPU: outputs, exact counts by source line, and faults, with no GPU.

One way, left to right, as in the rest of the package:

    ptx -> program -> operations, instructions -> memory, faults, races, tallies -> machine | vector.machine -> emulation
"""

// Ceilings, launches: what a launch costs, and what the second of two costs.
//
// Computes nothing.
// Limits: the GPU's own time from the end of what was before to the end of this.

extern "C" __global__ void empty() {}

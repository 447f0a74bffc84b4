"""The fast machine: kernels as LLVM code for the 32 lanes of a warp. `machine.run` is its entrance."""

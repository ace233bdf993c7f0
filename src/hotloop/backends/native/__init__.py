"""A decoder step on a CPU with AMX, in C++ of our own: no OpenVINO, and no Python from one end of a step to the other.

    tiles.h      AMX tiles, or loops that do the same, for tests on any machine
    vectors.h    sixteen floats at once
    workers.h    threads
    layout.h     the order of numbers in memory
    quants.h     weights as they are held, and as tiles
    matmul.h     rows in the order of tiles, and their products with weights
    decoder.h    a step: from token ids to logits
    decoder.cpp  the C interface
    tbb/         what the attention kernels use of TBB, on our threads

Without AMX all of it but the tiles is the same, slowly: that is for tests, and never chosen to serve with.
"""

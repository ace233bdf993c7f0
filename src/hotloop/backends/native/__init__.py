"""A decoder step on a CPU, in C++ of our own: no OpenVINO, and no Python from one end of a step to the other.

    tiles.h      AMX tiles, or loops that do the same, for tests on any machine
    vectors.h    sixteen floats at once
    workers.h    threads
    layout.h     the order of numbers in memory
    lanes.h      a register of the CPU's own width
    ggml_types.h    quantised rows as GGUF files hold them
    packed_ggml.h   the same in the order of products, in strips of columns
    grouped.h    rows in bytes, and their products with strips
    outliers.h   channels too large for one byte
    quants.h     weights as they are held, and as tiles
    rows.h       rows as tiles or grouped
    matmul.h     their products with weights
    decoder.h    a step: from token ids to logits
    decoder.cpp  the C interface
    attention.cpp, in tiles: bf16 keys and values, stored as AMX wants them
    tbb/         what the attention kernels use of TBB, on our threads

Without AMX strips are multiplied as they are. All other weights need tiles, which are emulated then, for tests.
"""

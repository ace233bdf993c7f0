"""Batches on a CPU, in C++ of our own: no Python from one end of a step to the other.

    opening.py     how a model is held and computed, and what that takes
    base.py        blocks of KV, and how they are told apart on disk
    decoder.py     weights as they are held, and steps with them
    attention.py   kernels of attention, and their KV
    library.py     the decoder's library behind ctypes
    build.py       libraries: a wheel's, or compiled here
    cores.py       how many threads
    csrc/          the C++

In csrc/:

    tiles.h          AMX tiles, or loops that do the same, for tests on any machine
    vectors.h        sixteen floats at once
    lanes.h          a register of the CPU's own width
    workers.h        threads
    background.h     work beside what the caller does
    layout.h         the order of numbers in memory
    ggml_types.h     quantised rows as GGUF files hold them
    packed_ggml.h    the same in the order of products, in strips of columns
    floats.h         products in float32 with weights of any form
    grouped.h        rows in bytes, and their products with strips
    outliers.h       channels too large for one byte
    quants.h         weights as they are held, and as tiles
    rows.h           rows as tiles, grouped or floats
    matmul.h         their products with weights
    experts.h        mixtures of experts
    delta.h          linear attention by the gated delta rule
    decoder.h        a step: from token ids to logits
    decoder.cpp      the C interface
    attention_tiles.cpp   attention for AMX: keys and values stored as tiles
    attention.cpp    attention on any CPU: windows, sinks and latents too
"""
